package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/postgres"
)

// While a synchronous standby is away nothing is handed out or confirmed that only the primary has, also when it is
// asked for again: the driver's own deadline has ended the wait of the first COMMIT, which is done here all the same.
func TestSynchronousStandbyIsAway(t *testing.T) {
	t.Parallel()
	primary := servers.Postgres(t, servers.PostgresOptions{})
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{Synchronous: true})
	row, advisory := open(t, at(primary.Addr(), postgres.Row)), open(t, at(primary.Addr(), postgres.Advisory))
	for _, l := range []*fencelock.Locker{row, advisory} {
		unlock(t, lock(t, l.Mutex("x")))
	}
	d, err := postgres.New(pool(t, primary, ""), &postgres.Options{Mode: postgres.Lease, Prefix: "gates:"})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
	must(t, replica.Kill())

	floor := time.Now().Add(30 * time.Minute).UnixMicro()
	gate := backend.Record{
		Key: backend.GateKey + "m", Data: []byte(`{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1}`),
	}
	for try := range 2 {
		_, err := row.Mutex("x", fencelock.WithFloor(floor)).TryLock(within(t, 4*time.Second))
		if err == nil {
			t.Errorf("try %d: a token above a floor that a failover takes back", try)
		}
		if err := d.Swap(within(t, 2*time.Second), []backend.Record{gate}, 0); err == nil {
			t.Errorf("try %d: a gate that a failover takes back", try)
		}
	}
	for rec, err := range d.Load(within(t, time.Second), backend.GateKey) {
		if err == nil {
			t.Errorf("%q is read, which a failover takes back", rec.Key)
		}
	}

	// A wait for a token of mode advisory, which such a COMMIT draws, is one for the store and for no holder.
	ctx := within(t, 15*time.Second)
	_, err = advisory.Mutex("y").Lock(ctx)
	if !errors.Is(err, fencelock.ErrUnavailable) || errors.Is(err, fencelock.ErrLocked) || ctx.Err() != nil {
		t.Errorf("Lock of a free name: got %v, want the store's error within its patience", err)
	}

	must(t, replica.Start())
	await(t, 20*time.Second, "the standby is back", func() bool {
		le, err := row.Mutex("x", fencelock.WithFloor(floor)).TryLock(within(t, 5*time.Second))
		if err == nil {
			unlock(t, le)
		}
		return err == nil
	})
	must(t, d.Swap(t.Context(), []backend.Record{gate}, 0))
	unlock(t, testkit.Get(t, advisory.Mutex("y").Lock))
}

// A floor that the store has granted is none that is too far ahead, whatever its clock says now: also for who waits.
func TestFloorOfAnEarlierClock(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	for _, mode := range modes {
		l := open(t, at(s.Addr(), mode, "prefix", string(mode)))
		unlock(t, lock(t, l.Mutex("x")))
		run(t, p, "SELECT setval('fencelock_token', fencelock_clock() + 7200000000)")
		le := lock(t, l.Mutex("x"))
		wait := queue(t, open(t, at(s.Addr(), mode, "prefix", string(mode)), fencelock.WithFloor(le.Token())), "x", 1)
		unlock(t, le)
		next := wait.Granted(t, 5*time.Second)
		if next.Token() <= le.Token() {
			t.Errorf("%s: got token %d after %d", mode, next.Token(), le.Token())
		}
		unlock(t, next)
	}
}

// A wait whose ctx ends while its grant is being confirmed ends with it, on a way that has fallen silent.
func TestContextEndsWhileAGrantIsConfirmed(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	proxy := proxied(t, s)
	for _, mode := range modes[:2] {
		a, b := open(t, at(s.Addr(), mode)), open(t, at(proxy.Addr(), mode))
		le := lock(t, a.Mutex("x"))
		wait := queue(t, b, "x", 1)
		<-time.After(1200 * time.Millisecond) // so long that it is confirmed before it is returned
		proxy.Set(faultproxy.Mode{HoldRequests: true})
		unlock(t, le)
		must(t, proxy.Await(within(t, 5*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
		cancelled := time.Now()
		wait.Cancel()
		<-wait.Done
		want(t, "Lock", wait.Err, context.Canceled)
		if took := wait.At.Sub(cancelled); took > 350*time.Millisecond {
			t.Errorf("%s: Lock returned %v after the end of its ctx", mode, took)
		}
		unlock(t, lock(t, a.Mutex("x")))
		proxy.Set(faultproxy.Mode{})
	}
}
