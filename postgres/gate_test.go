package postgres_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// client is one more client of the store, without an engine.
func client(t *testing.T, url string) caller {
	t.Helper()
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	return call(d.(*postgres.Driver))
}

// driver is such a client that is closed with the test.
func driver(t *testing.T, url string) caller {
	t.Helper()
	d := client(t, url)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// The contract of migrations, also without a prefix, and where the role's default is another
// isolation level.
func TestGates(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"max_connections=500"}})
	p := pool(t, s, "")
	run(t, p, "CREATE ROLE strict LOGIN SUPERUSER; "+
		"ALTER ROLE strict SET default_transaction_isolation = 'serializable'")
	for _, mode := range modes {
		for _, tt := range []struct{ name, url string }{
			{"plain", at(s.Addr(), mode, "pool_max_conns", "12")},
			{"no prefix", at(s.Addr(), mode, "pool_max_conns", "12", "prefix", "")},
			{"serializable", strings.Replace(at(s.Addr(), mode, "pool_max_conns", "12", "prefix",
				"strict:"), "postgres@", "strict@", 1)},
		} {
			t.Run(string(mode)+"/"+tt.name, func(t *testing.T) {
				if tt.name != "plain" && testing.Short() {
					t.Skip("other settings")
				}
				gatetest.Run(t, func(t *testing.T) backend.Driver {
					t.Helper()
					return client(t, tt.url)
				})
			})
		}
	}
	// The holders whose sessions Break has ended leave their rows to others' releases.
	var left string
	t.Cleanup(func() { t.Logf("rows left at last: %q", left) })
	await(t, 3*time.Second, "no row of mode row is left", func() bool {
		left = one[string](t, p, "SELECT coalesce(string_agg(encode(name, 'escape'), ' '), '') FROM "+
			"fencelock_row WHERE encode(name, 'escape') !~ '/(plain|from|alien)$'")
		return left == ""
	})
	if n := one[int](t, p, "SELECT (SELECT count(*) FROM fencelock_lease) + (SELECT count(*) FROM "+
		"fencelock_queue) + (SELECT count(*) FROM fencelock_client WHERE expires_at > clock_timestamp())"); n != 0 {
		t.Errorf("%d rows of mode lease and of clients are left", n)
	}
}

func gateOf(move string, state backend.GateState, scope ...backend.Pattern) backend.Gate {
	return backend.Gate{Move: move, Scope: scope, State: state, Epoch: time.Now().UnixMicro()}
}

// Gates are those of their keyspace. Names out of scope, and programs of another prefix, do not
// meet them.
func gateKeyspaces(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	for _, mode := range modes {
		// A prefix of the other, so that the same key is a name of each.
		short, long := driver(t, at(s.Addr(), mode, "prefix", "ks")), driver(t, at(s.Addr(), mode, "prefix", "ks:"))
		g := gateOf("keys-"+string(mode), backend.GateBoth, backend.Pattern{Match: "*"})
		must(t, long.SetGate(t.Context(), g, 0))
		_, err := long.Acquire(t.Context(), request("x", ""))
		refusedBy(t, err, g)
		release(t, short, request(":x", ""))
		if gates, err := short.Gates(t.Context()); err != nil || len(gates) != 0 {
			t.Errorf("of another keyspace: %v, %v", gates, err)
		}
		for info, err := range short.List(t.Context(), "") {
			t.Errorf("List shows %+v, %v", info, err)
		}
		await(t, 3*time.Second, "no row is left", func() bool {
			return one[int](t, p, "SELECT (SELECT count(*) FROM fencelock_row WHERE name = 'ks:x') + "+
				"(SELECT count(*) FROM fencelock_lease WHERE name = 'ks:x')") == 0
		})
		run(t, p, "DELETE FROM fencelock_gate WHERE keyspace = 'ks:'")
	}
}

// What no driver has written is never an open gate.
func gateUnreadable(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	for _, mode := range modes {
		for _, broken := range []string{
			"''", "'{}'", "'null'", "decode('ff', 'hex')", "substr(gate, 2)", "gate || gate",
			`convert_to(replace(convert_from(gate, 'UTF8'), '"open"', '"ajar"'), 'UTF8')`,
			`convert_to(replace(convert_from(gate, 'UTF8'), '"torn"', '"other"'), 'UTF8')`,
		} {
			d := driver(t, at(s.Addr(), mode, "prefix", "broken:"))
			must(t, d.SetGate(t.Context(), gateOf("torn", backend.GateOpen, backend.Pattern{Match: "*"}), 0))
			release(t, d, request("x", ""))
			run(t, p, "UPDATE fencelock_gate SET gate = "+broken+" WHERE keyspace = 'broken:'")
			_, acquired := d.Acquire(t.Context(), request("x", ""))
			_, listed := d.Gates(t.Context())
			for what, err := range map[string]error{"Acquire": acquired, "Gates": listed} {
				want(t, what+" with "+broken, err, backend.ErrInvalid)
				for _, part := range []string{"fencelock_gate", "torn", "broken:"} {
					if !strings.Contains(fmt.Sprint(err), part) {
						t.Errorf("%s: got %v, want one that names %s", what, err, part)
					}
				}
			}
			release(t, driver(t, at(s.Addr(), mode, "prefix", "whole:")), request("x", ""))
			run(t, p, "DELETE FROM fencelock_gate WHERE keyspace = 'broken:'")
			must(t, d.Close())
		}
	}
	d := driver(t, at(s.Addr(), postgres.Row, "prefix", "broken:"))
	bad := request("x", "neither")
	_, err := d.Acquire(t.Context(), bad)
	want(t, "a phase that there is not", err, backend.ErrInvalid)
}

// With gates in the store, open or of other names, a lock costs the same requests; a refusal costs
// one.
func gateRoundTrips(t *testing.T, s *servers.PostgresServer) {
	for _, mode := range modes {
		proxy := proxied(t, s)
		d := driver(t, at(proxy.Addr(), mode, "prefix", "trips-"+string(mode)))
		must(t, d.SetGate(t.Context(), gateOf("trips", backend.GateBoth, backend.Pattern{Match: "in/*"}), 0))
		release(t, d, request("warm", ""))
		for _, tt := range []struct {
			name  string
			phase backend.Phase
			most  int64
		}{{"out", "", 1}, {"in/a", backend.PhaseBoth, 1}, {"in/b", "", 2}} {
			r := request(tt.name, tt.phase)
			r.Move = "trips"
			before := proxy.Counts().Requests
			g, err := d.Acquire(t.Context(), r)
			most := tt.most
			if err == nil && mode == postgres.Advisory {
				most += 2 // for the token
			}
			if n := proxy.Counts().Requests - before; n > most {
				t.Errorf("%s: %d requests to ask for %s, want %d at most", mode, n, tt.name, most)
			}
			if refused := errors.As(err, new(*backend.GateError)); refused != (tt.most == 2) {
				t.Errorf("%s: %s: got %v", mode, tt.name, err)
			} else if !refused {
				must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
			}
		}
	}
}

// Who waits behind one whom the gate refuses is served at once, and nothing is left.
func gateQueue(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	for _, mode := range modes {
		url := at(s.Addr(), mode, "prefix", "queue-"+string(mode))
		a := driver(t, url)
		holder := request("x", "")
		g, err := a.Acquire(t.Context(), holder)
		must(t, err)
		gate := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
		var line []chan answered
		for i, phase := range []backend.Phase{"", backend.PhaseFrom, backend.PhaseBoth, ""} {
			r := request("x", phase)
			r.Wait = true
			line = append(line, acquiring(t, driver(t, url), r))
			await(t, 10*time.Second, "in the queue", func() bool {
				info, err := a.Inspect(t.Context(), "x")
				return err == nil && info.Waiters == i+1
			})
		}
		must(t, a.SetGate(t.Context(), gate, 0))
		began := time.Now()
		must(t, a.Release(t.Context(), &core.Hold{Request: holder, Grant: g}))
		for _, i := range []int{0, 1} {
			refusedBy(t, (<-line[i]).err, gate)
		}
		both := <-line[2]
		must(t, both.err)
		if took := time.Since(began); took > 2*claimed { // as long as the two before it would keep the lock
			t.Errorf("%s: the third in line was served after %v", mode, took)
		}
		must(t, both.d.Release(t.Context(), both.hold))
		refusedBy(t, (<-line[3]).err, gate)
		for info, err := range a.List(t.Context(), "") {
			t.Errorf("%s: left: %+v, %v", mode, info, err)
		}
		await(t, 3*time.Second, "no row is left", func() bool {
			return one[int](t, p, "SELECT (SELECT count(*) FROM fencelock_row WHERE name = $1) + (SELECT "+
				"count(*) FROM fencelock_queue)", []byte("queue-"+string(mode)+"x")) == 0
		})
	}
}

// Inspect shows who holds in phase both as it shows others.
func gateOwners(t *testing.T, s *servers.PostgresServer) {
	for _, mode := range modes {
		d := driver(t, at(s.Addr(), mode, "prefix", "owners-"+string(mode)))
		r := request("x", backend.PhaseBoth)
		r.Owner = "host-17.example:12345"
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		info, err := d.Inspect(t.Context(), "x")
		must(t, err)
		if info.Owner != r.Owner || info.Token != g.Token || info.ExpiresIn <= 0 {
			t.Errorf("%s: got %+v, want owner %q and token %d", mode, info, r.Owner, g.Token)
		}
		left, err := d.Undrained(t.Context(), gateOf("another", backend.GateBoth, backend.Pattern{Match: "*"}))
		must(t, err)
		if len(left) != 1 || left[0].Owner != r.Owner || left[0].Token != g.Token ||
			left[0].ExpiresIn <= 0 || left[0].Name != "x" {
			t.Errorf("%s: undrained: got %+v, want it as Inspect shows it", mode, left)
		}
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
	}
}

// Reports are forgotten by the server's clock, and deleted by the next report.
func gateClients(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Row, "prefix", "clients:"))
	for i := range 3 {
		must(t, d.Report(t.Context(), backend.Client{ID: fmt.Sprint("c", i), Move: "m"}, time.Duration(i)*time.Hour))
	}
	run(t, p, "UPDATE fencelock_client SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = 'c1'")
	cs, err := d.Clients(t.Context(), "m")
	must(t, err)
	if len(cs) != 1 || cs[0].ID != "c2" {
		t.Errorf("got %v, want c2 alone", cs)
	}
	must(t, d.Report(t.Context(), backend.Client{ID: "c3", Move: "m"}, time.Hour))
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_client WHERE keyspace = 'clients:'"); n != 2 {
		t.Errorf("%d reports are kept, want 2", n)
	}
	run(t, p, "UPDATE fencelock_client SET report = '{' WHERE id = 'c3'")
	_, err = d.Clients(t.Context(), "m")
	want(t, "a report that cannot be read", err, backend.ErrInvalid)
	for _, id := range []string{"c2", "c3"} {
		must(t, d.Withdraw(t.Context(), backend.Client{ID: id, Move: "m"}))
	}
}

// A raise also takes the sequence along, for a clock may step back; and no token exceeds the
// source.
func gateSource(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Row, "prefix", "source:"))
	floor := one[int64](t, p, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	must(t, d.Raise(t.Context(), floor))
	if low := one[int64](t, p, "SELECT last_value FROM fencelock_token"); low < floor {
		t.Errorf("the sequence is at %d after a raise to %d", low, floor)
	}
	l := open(t, at(s.Addr(), postgres.Row, "prefix", "source:"))
	for i := range 20 {
		le := lock(t, l.Mutex(fmt.Sprint("x", i), fencelock.WithFloor(floor+int64(i)*1e8)))
		source, err := d.Source(t.Context())
		must(t, err)
		if source < le.Token() {
			t.Errorf("source %d after token %d", source, le.Token())
		}
		unlock(t, le)
	}
}

// nonce is one that no other acquisition has.
func nonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// request is a try by a client of migration m in this phase; by a plain one if phase is empty.
func request(name string, phase backend.Phase) *backend.Request {
	r := &backend.Request{
		Name: name, Nonce: nonce(), Owner: "test", TTL: time.Minute, Phase: phase,
		Lost: func(error) {},
	}
	if phase != "" {
		r.Move = "m"
	}
	return r
}

// answered is what came of an acquisition by a driver of its own.
type answered struct {
	d    caller
	hold *core.Hold
	err  error
}

func acquiring(t *testing.T, d caller, r *backend.Request) chan answered {
	t.Helper()
	ctx := within(t, 20*time.Second)
	done := make(chan answered, 1)
	go func() {
		g, err := d.Acquire(ctx, r)
		if err != nil {
			_ = d.Abandon(ctx, r) // as the engine does
		}
		done <- answered{d, &core.Hold{Request: r, Grant: g}, err}
	}()
	return done
}

// release acquires and releases.
func release(t *testing.T, d caller, r *backend.Request) {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
}

func refusedBy(t *testing.T, err error, g backend.Gate) {
	t.Helper()
	var refusal *backend.GateError
	if !errors.As(err, &refusal) || refusal.Move != g.Move || refusal.Epoch != g.Epoch {
		t.Errorf("got %v, want the refusal of migration %q, epoch %d", err, g.Move, g.Epoch)
	}
}
