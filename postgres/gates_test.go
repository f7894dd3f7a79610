package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// Whatever changes the gates, by whatever hand, is seen by the next acquisition of a client that
// knew others.
func TestChangedGatesAreSeen(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	for _, mode := range modes {
		d, other := driver(t, at(s.Addr(), mode, "prefix", "moved:")), driver(t, at(s.Addr(), mode, "prefix", "moved:"))
		ungated := func(name string, phase backend.Phase, want bool) {
			t.Helper()
			for range 2 { // told, and known
				r := request(name, phase)
				g, err := d.Acquire(t.Context(), r)
				must(t, err)
				if g.Ungated != want {
					t.Errorf("%s: %s in phase %q: ungated: got %v, want %v", mode, name, phase, g.Ungated, want)
				}
				must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
			}
		}
		refused := func(name string, phase backend.Phase, g backend.Gate) {
			t.Helper()
			_, err := d.Acquire(t.Context(), request(name, phase))
			refusedBy(t, err, g)
		}
		ungated("in/x", backend.PhaseBoth, true)
		g := gateOf("m", backend.GateOpen, backend.Pattern{Match: "in/*"})
		must(t, other.SetGate(t.Context(), g, 0))
		ungated("in/x", backend.PhaseBoth, false)
		ungated("in/x", "", false)
		ungated("in/x", backend.PhaseTo, false)
		was := g.Epoch
		g.State, g.Epoch = backend.GateBoth, was+1
		must(t, other.SetGate(t.Context(), g, was))
		refused("in/x", "", g)
		refused("in/x", backend.PhaseTo, g)
		ungated("in/x", backend.PhaseBoth, false)
		ungated("out", "", false)
		rewrite := func(from, to string) {
			run(t, p, "UPDATE fencelock_gate SET gate = convert_to(replace(convert_from(gate, 'UTF8'), "+
				"$1, $2), 'UTF8')", from, to)
		}
		rewrite("in/*", "out") // the epoch stays
		refused("out", "", g)
		ungated("in/x", "", false)
		rewrite("out", "in/*")
		refused("in/x", "", g)
		rewrite(`"m"`, `"another"`)
		run(t, p, "UPDATE fencelock_gate SET move = 'another'")
		theirs := g
		theirs.Move = "another"
		refused("in/x", backend.PhaseBoth, theirs)
		run(t, p, "TRUNCATE fencelock_gate")
		ungated("in/x", backend.PhaseBoth, true)
		ungated("in/x", "", false)
		_, err := d.Acquire(t.Context(), request("in/x", backend.PhaseTo))
		if !errors.As(err, new(*backend.GateError)) {
			t.Errorf("%s: phase to without a gate: got %v, want a refusal", mode, err)
		}
	}
}

// Many acquisitions in one statement meet the gates as one does.
func TestGatesMeetBatches(t *testing.T) {
	t.Parallel()
	proxy := proxied(t, servers.Postgres(t, servers.PostgresOptions{}))
	d := driver(t, at(proxy.Addr(), postgres.Lease, "prefix", "batch:"))
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "in/*"})
	must(t, d.SetGate(t.Context(), g, 0))
	before := proxy.Counts().Requests
	for range 5 {
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				for j := range 4 {
					r := request(fmt.Sprint([]string{"in/", "out/"}[i%2], i, j), "")
					got, err := d.Acquire(t.Context(), r)
					if i%2 == 0 {
						refusedBy(t, err, g)
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if err := d.Release(t.Context(), &core.Hold{Request: r, Grant: got}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	for info, err := range d.List(t.Context(), "") {
		t.Errorf("left: %+v, %v", info, err)
	}
	if asked, n := proxy.Counts().Requests-before, int64(5*60*4+5*30*4); asked >= n {
		t.Errorf("%d requests for %d acquisitions and releases: want batches", asked, n)
	}
}
