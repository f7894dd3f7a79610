package redis_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// These count, and so do not run beside others.

// In a store with gates a lock costs no request and no command more than in one without, whether
// its name moves or not.
func TestGateCostsNothing(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	const cycles = 20
	count := func(d caller, name string, phase backend.Phase) (requests, commands int64) {
		t.Helper()
		cycle := func() {
			r := request(name, nonceA, phase)
			_, err := d.Acquire(t.Context(), r)
			must(t, err)
			must(t, d.Abandon(t.Context(), r))
		}
		cycle() // the first learns the gates
		before := calls(t, c)
		p.ResetCounts()
		for range cycles {
			cycle()
		}
		for cmd, n := range calls(t, c) {
			if cmd != "info" {
				commands += n - before[cmd]
			}
		}
		return p.Counts().Requests, commands
	}
	plain, gated := closing(t, url+"?prefix=plain:"), closing(t, url+"?prefix=gated:")
	for i := range 20 {
		g := closedGate("move/*")
		g.Move = fmt.Sprint("n", i)
		g.Scope[0].Match = fmt.Sprint("elsewhere-", i, "/*")
		must(t, gated.SetGate(t.Context(), g, 0))
	}
	must(t, gated.SetGate(t.Context(), closedGate("move/*"), 0))
	requests, commands := count(plain, "stays", "")
	for _, tt := range []struct {
		name  string
		phase backend.Phase
	}{{"stays", ""}, {"stays", backend.PhaseFrom}, {"move/x", backend.PhaseBoth}} {
		r, n := count(gated, tt.name, tt.phase)
		if r != requests || n != commands {
			t.Errorf(
				"%q in phase %q: %d requests and %d commands, want %d and %d as without gates",
				tt.name,
				tt.phase,
				r,
				n,
				requests,
				commands,
			)
		}
	}
	// A change is learnt with one request more: the first answer shows the gates.
	g := closedGate("other/*")
	g.Move = "n"
	must(t, closing(t, s.URL()+"?prefix=gated:").SetGate(t.Context(), g, 0))
	p.ResetCounts()
	r := request("stays", nonceA, "")
	_, err := gated.Acquire(t.Context(), r)
	must(t, err)
	if got := p.Counts().Requests; got > 2 {
		t.Errorf("requests after a change: got %d, want 2 at most", got)
	}
	must(t, gated.Abandon(t.Context(), r))
}

// Gates that the server has lost are missed by who knew them, and what is left of them lets nobody
// in but those who know them.
func TestLostGates(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	both := func() backend.Grant {
		t.Helper()
		r := request("x", nonceA, backend.PhaseBoth)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		must(t, d.Abandon(t.Context(), r))
		return g
	}
	g := closedGate("*")
	must(t, d.SetGate(t.Context(), g, 0))
	if both().Ungated {
		t.Error("ungated with a gate")
	}
	must(t, c.Del(t.Context(), single).Err())
	if !both().Ungated {
		t.Error("not ungated although the version of the gates is lost")
	}
	g.Epoch++
	must(t, d.SetGate(t.Context(), g, 0))
	if both().Ungated {
		t.Error("ungated with a new gate")
	}
	gates, err := d.Gates(t.Context())
	if err != nil || len(gates) != 1 || gates[0].Epoch != g.Epoch {
		t.Errorf("got %v, %v, want the new gate", gates, err)
	}
	must(t, c.Del(t.Context(), single+"\x00").Err())
	if both().Ungated {
		t.Error("ungated for who knows the gates")
	}
	stranger := closing(t, s.URL())
	_, err = stranger.Acquire(t.Context(), request("x", nonceB, ""))
	want(t, "a version without its list", err, backend.ErrInvalid)
	must(t, c.FlushAll(t.Context()).Err())
	if !both().Ungated {
		t.Error("not ungated although all is lost")
	}
	var gate *backend.GateError
	if _, err = d.Acquire(t.Context(), request("x", nonceB, backend.PhaseTo)); !errors.As(err, &gate) ||
		gate.Epoch != 0 {
		t.Errorf("phase to without a gate: got %v, want a refusal", err)
	}
}
