package file

import (
	"os"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/gatetest"
)

func TestGates(t *testing.T) {
	dir := t.TempDir()
	gatetest.Run(t, func(t *testing.T) backend.Driver {
		t.Helper()
		d, err := New(dir)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// A switch that was interrupted leaves buckets that do not agree, and who comes next sees it.
func TestTornGate(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *Driver) {
		g := backend.Gate{Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateOpen, Epoch: 7}
		wantErr(t, "open", a.SetGate(t.Context(), g, 0), nil)
		for _, half := range a.buckets[:9] {
			err := half.update(t.Context(), func(st *state, _ backend.Instant, _ int64) bool {
				st.setGates(a.prefix, []backend.Gate{{Move: "m", Scope: g.Scope, State: backend.GateOpen, Epoch: 8}})
				return true
			})
			wantErr(t, "half of it", err, nil)
		}
		gates, err := b.Gates(t.Context())
		wantErr(t, "Gates", err, nil)
		if len(gates) != 1 || !gates[0].Torn || gates[0].State != backend.GateBoth || gates[0].Epoch != 8 {
			t.Fatalf("got %+v, want one that is torn, both, 8", gates)
		}
		g.State, g.Epoch = backend.GateBoth, 9
		wantErr(t, "closing over it", b.SetGate(t.Context(), g, backend.Lower), nil)
		if gates, _ = a.Gates(t.Context()); len(gates) != 1 || gates[0].Torn || gates[0].Epoch != 9 {
			t.Errorf("got %+v, want a whole one of epoch 9", gates)
		}
	})
}

// Gates and counters outlast the machine's restart; what was held or reported does not.
func TestGateOutlastsReboot(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *Driver) {
		g := backend.Gate{Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateBoth, Epoch: 7}
		wantErr(t, "close", a.SetGate(t.Context(), g, 0), nil)
		wantErr(t, "report", a.Report(t.Context(), backend.Client{ID: "1", Move: "m"}, time.Minute), nil)
		for _, half := range b.buckets {
			half.clock.boot = "another"
		}
		gates, err := b.Gates(t.Context())
		wantErr(t, "Gates", err, nil)
		if len(gates) != 1 || gates[0].Epoch != 7 || gates[0].State != backend.GateBoth {
			t.Errorf("got %+v, want the gate of before", gates)
		}
		if cs, err := b.Clients(t.Context(), "m"); err != nil || len(cs) != 0 {
			t.Errorf("clients: got %v, %v, want none", cs, err)
		}
	})
}

// A gate that cannot be read is no open gate.
func TestDamagedGate(t *testing.T) {
	dir := t.TempDir()
	d, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	b := d.bucket("x")
	for what, record := range map[string]string{
		"no state":       `gate fencelock: m ajar 7 "[{\"match\":\"x\"}]"`,
		"no pattern":     `gate fencelock: m both 7 "[]"`,
		"no JSON":        `gate fencelock: m both 7 "[{"`,
		"too short":      `gate fencelock: m both`,
		"no client JSON": `client fencelock: 7 "{"`,
		"out of place":   "released 00 7\ngate fencelock: m both 7 \"[{\\\"match\\\":\\\"x\\\"}]\"",
	} {
		st := &state{boot: d.clock.boot}
		body := string(st.body(b.index)) + record + "\n"
		if err := os.WriteFile(b.path, []byte(signed(body)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := d.Acquire(t.Context(), try("x", time.Minute))
		wantErr(t, what, err, backend.ErrInvalid)
	}
}
