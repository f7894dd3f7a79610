package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// A client that knows the gates does not make the server look at each: it can no more be read there, and nobody notices but those who do not
// know them. So what it costs is the comparison of a number.
func TestKnownGatesAreNotLookedAt(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	for _, mode := range both {
		knows := driver(t, at(s.Addr(), mode, "prefix", "known:"))
		must(t, knows.SetGate(t.Context(), gateOf("m", backend.GateBoth, backend.Pattern{Match: "in/*"}), 0))
		release(t, knows, request("out", ""))
		release(t, knows, request("in/x", backend.PhaseBoth))
		run(t, p, "ALTER FUNCTION fencelock_admit RENAME TO fencelock_elsewhere")
		for range 2 {
			release(t, knows, request("out", ""))
			release(t, knows, request("in/x", backend.PhaseBoth))
		}
		r := request("out", "")
		if _, err := p.Exec(t.Context(), strings.Replace(map[postgres.Mode]string{
			postgres.Row:   "BEGIN; INSERT INTO fencelock_row VALUES ('known:out') ON CONFLICT DO NOTHING; SELECT fencelock_take('known:out', 0, false, 6, NULL, '', NULL, NULL, NULL, NULL); ROLLBACK",
			postgres.Lease: "SELECT fencelock_acquire('known:out', 'NONCE', 'me', 60000, 0, 0, false, NULL, '', 0, 2000, 6, NULL, '', NULL)",
		}[mode], "NONCE", r.Nonce[:16], 1)); err == nil || !strings.Contains(err.Error(), "fencelock_admit") {
			t.Errorf("%s: who does not know the gates: got %v, want an error of fencelock_admit", mode, err)
		}
		run(t, p, "ALTER FUNCTION fencelock_elsewhere RENAME TO fencelock_admit")
		run(t, p, "DELETE FROM fencelock_gate")
	}
}

// Whatever changes the gates, by whatever hand, is seen by the next acquisition of a client that knew others.
func TestChangedGatesAreSeen(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	for _, mode := range both {
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
				must(t, d.Release(t.Context(), &backend.Hold{Request: r, Grant: g}))
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
		run(t, p, "UPDATE fencelock_gate SET scope = ARRAY['+out']::bytea[]") // the epoch stays
		refused("out", "", g)
		ungated("in/x", "", false)
		run(t, p, "UPDATE fencelock_gate SET scope = ARRAY['+in/*']::bytea[]")
		refused("in/x", "", g)
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
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"track_functions=pl"}})
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Lease, "prefix", "batch:"))
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "in/*"})
	must(t, d.SetGate(t.Context(), g, 0))
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
					if err := d.Release(t.Context(), &backend.Hold{Request: r, Grant: got}); err != nil {
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
	await(t, 20*time.Second, "there were batches", func() bool {
		return one[int64](t, p, "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname = 'fencelock_acquire_all'") > 0
	})
}
