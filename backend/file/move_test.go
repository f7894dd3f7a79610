package file

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
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
	bubble(t, func(t *testing.T, a, b caller) {
		g := backend.Gate{Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateOpen, Epoch: 7}
		wantErr(t, "open", a.SetGate(t.Context(), g, 0), nil)
		n := 0
		for r, err := range a.store.Load(t.Context(), backend.GateKey) {
			wantErr(t, "Load", err, nil)
			r.Data = bytes.Replace(r.Data, []byte(`"epoch":7`), []byte(`"epoch":8`), 1)
			wantErr(t, "half of it", a.store.Swap(t.Context(), []backend.Record{r}, 0), nil)
			if n++; n == 9 {
				break
			}
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
	bubble(t, func(t *testing.T, a, b caller) {
		g := backend.Gate{Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateBoth, Epoch: 7}
		wantErr(t, "close", a.SetGate(t.Context(), g, 0), nil)
		wantErr(t, "report", a.Report(t.Context(), backend.Client{ID: "1", Move: "m"}, time.Minute), nil)
		b.store.home.boot = "another"
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
	b := d.store.bucket("x")
	for what, line := range map[string]string{
		"no state":   `record fencelock: gate%2Fm {"move":"m","scope":[{"match":"x"}],"state":"ajar","epoch":7} 0`,
		"no pattern": `record fencelock: gate%2Fm {"move":"m","scope":[],"state":"both","epoch":7} 0`,
		"no JSON":    `record fencelock: gate%2Fm {"move" 0`,
		"too short":  `record fencelock: gate%2Fm`,
	} {
		body := firstLine(b.index) + "boot " + b.home.boot + "\ncounter 0\n" + line + "\n"
		if err := os.WriteFile(b.path, []byte(signed(body)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := call(d).Acquire(t.Context(), try("x", time.Minute))
		wantErr(t, what, err, backend.ErrInvalid)
	}
}
