package postgres_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/postgres"
)

const (
	// waitByHand asks alone, and waits: name, nonce.
	waitByHand = `SELECT fencelock_acquire(ARRAY[$1::bytea], ARRAY[$2::bytea], '{me}', '{60000}',
		'{0}', '{0}', '{NULL}', ARRAY[fencelock_gates_now()], '{0}', '{0}', 'old', 60000, 2000, 10)`
	releaseByHand = "SELECT fencelock_release(ARRAY[$1::bytea], ARRAY[$2::bytea], '{0}', '{true}', 2000)"
	// shareByHand asks beside others: name, nonce, gates, ticket, mode, most.
	shareByHand = `SELECT fencelock_acquire_any(ARRAY[$1::bytea], ARRAY[$2::bytea], '{me}', '{60000}',
		'{0}', '{0}', '{NULL}', ARRAY[$3::bigint], ARRAY[$4::bigint], '{0}', 'by hand', 60000, 2000, 10,
		ARRAY[$5::text], ARRAY[$6::int])`
)

// digits is a nonce as the tables have it.
func digits(of string) []byte { return fmt.Appendf(nil, "%-16s", of) }

func word(answer string) string {
	first, _, _ := strings.Cut(answer, " ")
	return first
}

// rlock begins to wait for a read lock, and returns when the server has n waiters.
func rlock(t *testing.T, l *fencelock.Locker, name string, n int) *pending {
	t.Helper()
	p := testkit.Begin(t, l.RWMutex(name).RLock)
	waiters(t, l, name, n)
	return p
}

func tryRLock(t *testing.T, l *fencelock.Locker, name string) *fencelock.Lease {
	t.Helper()
	le, err := l.RWMutex(name).TryRLock(t.Context())
	must(t, err)
	return le
}

// A writer whose process dies while it waits keeps readers out for Traits.DeadWaiter at the most, though nobody
// releases anything, and those that come later not at all.
func deadWriterWaits(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	url := at(s.Addr(), postgres.Lease, "prefix", "dead writer:")
	a, b := open(t, url), open(t, url)
	first := tryRLock(t, a, "x")
	run(t, p, "INSERT INTO fencelock_process VALUES ('dying', clock_timestamp() + interval '4 s')")
	run(t, p, "INSERT INTO fencelock_queue VALUES ('dead writer:x', nextval('fencelock_ticket'), 'n', 'o', 'dying')")
	began := time.Now()
	second := rlock(t, b, "x", 2)
	le := second.Granted(t, 8*time.Second)
	if took := second.At.Sub(began); took > backend.TraitsOf("postgres-lease").DeadWaiter {
		t.Errorf("a reader behind a dead writer had the lock after %v", took)
	} else if took < 3*time.Second {
		t.Errorf("a reader passed a writer that was alive, after %v", took)
	}
	run(t, p, "INSERT INTO fencelock_queue VALUES ('dead writer:x', nextval('fencelock_ticket'), 'n', 'o', 'dying')")
	unlock(t, tryRLock(t, b, "x"))
	unlock(t, le)
	unlock(t, first)
}

// A writer that gives up lets the readers behind it in by push, beside those who hold.
func writerLeaves(t *testing.T, s *servers.PostgresServer) {
	url := at(s.Addr(), postgres.Lease, "prefix", "leaves:")
	a, w := open(t, url), open(t, url)
	b, heard := listening(t, s, s.Addr(), "leaves:")
	theirs := lock(t, a.Mutex("warm"))
	warm := queue(t, b, "warm", 1) // its process listens
	heard()
	first := tryRLock(t, a, "x")
	soonest := time.Minute
	for range 5 { // a busy machine
		writer := queue(t, w, "x", 1)
		reader := rlock(t, b, "x", 2)
		began := time.Now()
		writer.Cancel()
		unlock(t, reader.Granted(t, 8*time.Second))
		soonest = min(soonest, reader.At.Sub(began))
	}
	if soonest > 250*time.Millisecond {
		t.Errorf("let in after %v", soonest)
	}
	unlock(t, first)
	unlock(t, theirs)
	unlock(t, warm.Granted(t, 3*time.Second))
}

// A reader with a floor at or above the others' token begins a new number, and nobody who comes later has a lower
// one, also once that reader has left.
func eraOfAFloor(t *testing.T, s *servers.PostgresServer) {
	url := at(s.Addr(), postgres.Lease, "prefix", "era:")
	a, b := open(t, url), open(t, url)
	first := tryRLock(t, a, "x")
	le, err := b.RWMutex("x", fencelock.WithFloor(first.Token())).TryRLock(t.Context())
	must(t, err)
	if le.Token() <= first.Token() {
		t.Errorf("above the floor %d: got %d", first.Token(), le.Token())
	}
	floor := le.Token()
	unlock(t, le)
	le = tryRLock(t, open(t, url), "x")
	if le.Token() != floor {
		t.Errorf("after a reader with token %d: got %d", floor, le.Token())
	}
	unlock(t, le)
	unlock(t, first)
}

// Whoever looks first after the holder's death lets all readers at the head in, not itself alone.
func deathLetsAllIn(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	url := at(s.Addr(), postgres.Lease, "prefix", "death:")
	for _, mode := range []backend.Mode{backend.Exclusive, backend.Permit} {
		dead := driver(t, url)
		r := request("x", "")
		r.Mode, r.Limit, r.TTL = mode, 2, 3*time.Second // nobody renews it
		var readers [4]*fencelock.Locker
		for i := range readers {
			readers[i] = open(t, url)
		}
		_, err := dead.Acquire(t.Context(), r)
		must(t, err)
		var all []*pending
		for i, reader := range readers { // while it is held
			all = append(all, rlock(t, reader, "x", i+1))
		}
		all[0].Granted(t, 10*time.Second)
		if n := one[int](t, p, "SELECT count(*) FROM fencelock_hold WHERE name = 'death:x' AND mode = 'r'"); n != 4 {
			t.Errorf("after a dead %v %d readers were let in with the first one, want all 4", mode, n)
		}
		for _, wait := range all {
			unlock(t, wait.Granted(t, 10*time.Second))
		}
	}
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_hold WHERE encode(name, 'escape') LIKE 'death:%'"); n != 0 {
		t.Errorf("%d holds are left", n)
	}
}

// An exclusive request that finds the holder dead serves the readers before it, and is not beside them.
func deathSeenByAWriter(t *testing.T, s *servers.PostgresServer) {
	open(t, at(s.Addr(), postgres.Lease)) // makes the tables
	p := pool(t, s, "")
	k := []byte("seen death:x")
	none := one[int](t, p, "SELECT fencelock_gates_now()")
	for i, behind := range []string{acquireByHand, waitByHand} {
		last := []any{k, digits(fmt.Sprint("writer", i))}
		if behind == acquireByHand {
			last = append(last, 11)
		}
		one[string](t, p, acquireByHand, k, digits(fmt.Sprint("dead", i)), 11)
		for j := range 2 {
			one[string](t, p, shareByHand, k, digits(fmt.Sprint("reader", i, j)), none, 0, "r", 1<<30)
		}
		run(t, p, "UPDATE fencelock_lease SET expires_at = clock_timestamp() WHERE name = $1", k)
		if got := word(one[string](t, p, behind, last...)); got != []string{"locked", "queued"}[i] {
			t.Errorf("a writer behind readers, on a dead holder: got %q", got)
		}
		if n := one[int](t, p, "SELECT count(*) FROM fencelock_hold WHERE name = $1 AND claimed", k); n != 2 {
			t.Errorf("%d readers were woken, want 2", n)
		}
		run(t, p, "UPDATE fencelock_hold SET expires_at = clock_timestamp() WHERE name = $1", k)
		if got := word(one[string](t, p, behind, last...)); got != "granted" {
			t.Errorf("a writer behind readers that did not answer: got %q", got)
		}
		one[string](t, p, releaseByHand, last[:2]...)
	}
	const left = `SELECT (SELECT count(*) FROM fencelock_hold WHERE name = $1) +
		(SELECT count(*) FROM fencelock_lease WHERE name = $1) + (SELECT count(*) FROM fencelock_queue WHERE name = $1)`
	if n := one[int](t, p, left, k); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	run(t, p, "DELETE FROM fencelock_process WHERE process IN ('old', 'by hand')")
}

// What dead holders leave of a name that nobody wants any more is swept away, and a mark that another's hand has
// deleted ends the holds of its name.
func holdsAreSwept(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease, "prefix", "swept:"), fencelock.WithManualRenew())
	live, beside, dead := tryRLock(t, l, "live"), tryRLock(t, l, "live"), tryRLock(t, l, "dead")
	run(t, p, "UPDATE fencelock_hold SET expires_at = clock_timestamp() - interval '11 s' WHERE name = 'swept:dead'")
	run(t, p, "SELECT fencelock_sweep()")
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_lease WHERE encode(name, 'escape') LIKE 'swept:%'"); n != 1 {
		t.Errorf("%d names are held, want one", n)
	}
	want(t, "Renew of the dead one", dead.Renew(t.Context()), fencelock.ErrLost)
	must(t, live.Renew(t.Context()))
	run(t, p, "DELETE FROM fencelock_lease WHERE name = 'swept:live'")
	unlock(t, lock(t, l.Mutex("live")))
	want(t, "Renew after the mark is gone", live.Renew(t.Context()), fencelock.ErrLost)
	want(t, "Unlock then", beside.Unlock(t.Context()), fencelock.ErrLost)
	want(t, "Unlock of the other", live.Unlock(t.Context()), fencelock.ErrLost)
	unlock(t, tryRLock(t, l, "live"))
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_hold WHERE encode(name, 'escape') LIKE 'swept:%'"); n != 0 {
		t.Errorf("%d holds are left", n)
	}
}

// Of very much that is left a sweep takes a part, so that the locks of its names fit into the server's table.
func holdsAreSweptInParts(t *testing.T, s *servers.PostgresServer) {
	open(t, at(s.Addr(), postgres.Lease)) // makes the tables
	p := pool(t, s, "")
	run(t, p, `INSERT INTO fencelock_lease SELECT ('parts:' || i)::bytea, '\x00', '', 0, 'infinity', NULL, false, true
		FROM generate_series(1, 300) i`)
	for _, left := range []int{100, 0} {
		run(t, p, "SELECT fencelock_sweep()")
		const names = "SELECT count(*) FROM fencelock_lease WHERE encode(name, 'escape') LIKE 'parts:%'"
		if n := one[int](t, p, names); n != left {
			t.Errorf("%d names are left, want %d", n, left)
		}
	}
}

// A waiter behind a claim of readers that nobody has confirmed is told to look by its process's sign of life.
func beatFindsDeadClaims(t *testing.T, s *servers.PostgresServer) {
	open(t, at(s.Addr(), postgres.Lease)) // makes the tables
	p := pool(t, s, "")
	run(t, p, `INSERT INTO fencelock_lease VALUES ('beat', '\x00', '', 0, 'infinity', NULL, false, true);
		INSERT INTO fencelock_hold VALUES
			('beat', '\x01', 'r', 5, NULL, 0, '', clock_timestamp() + interval '1 h', true);
		INSERT INTO fencelock_queue VALUES ('beat', 1, '\x02', '', 'one who waits', 'x', 1)`)
	looks := func() int {
		t.Helper()
		return one[int](t, p, `SELECT count(*) FROM fencelock_beat('one who waits', 5000, ARRAY['\x02'::bytea])`)
	}
	if n := looks(); n != 0 {
		t.Errorf("%d waiters look while the claim lives", n)
	}
	run(t, p, "UPDATE fencelock_hold SET expires_at = clock_timestamp() WHERE name = 'beat'")
	if n := looks(); n != 1 {
		t.Errorf("%d waiters look after the claim's time, want one", n)
	}
	run(t, p, `DELETE FROM fencelock_lease WHERE name = 'beat'; DELETE FROM fencelock_hold WHERE name = 'beat';
		DELETE FROM fencelock_queue WHERE name = 'beat'; DELETE FROM fencelock_process WHERE process = 'one who waits'`)
}

// The gates are compared by whoever is granted a hold: also of a waiter that was woken, and not again of one that
// holds.
func gatesOfHolds(t *testing.T, s *servers.PostgresServer) {
	open(t, at(s.Addr(), postgres.Lease)) // makes the tables
	p := pool(t, s, "")
	for mode, most := range map[string]int{"r": 1 << 30, "p": 2} {
		k := []byte("gates:" + mode)
		ask := func(nonce string, gates, ticket int) string {
			t.Helper()
			return word(one[string](t, p, shareByHand, k, digits(nonce), gates, ticket, mode, most))
		}
		now := one[int](t, p, "SELECT fencelock_gates_now()")
		for _, tt := range []struct {
			nonce, want string
			gates       int
		}{{"a", "gates", now + 1}, {"a", "granted", now}, {"a", "granted", now + 1}, {"b", "gates", now + 1}} {
			if got := ask(mode+tt.nonce, tt.gates, -1); got != tt.want {
				t.Errorf("mode %s, request %s: got %q, want %q", mode, tt.nonce, got, tt.want)
			}
		}
		// A writer waits, then one behind it, who is woken when that gives up.
		one[string](t, p, shareByHand, k, digits(mode+"w"), now, 0, "x", 1)
		if got := ask(mode+"c", now, 0); got != "queued" {
			t.Errorf("mode %s behind a writer: got %q", mode, got)
		}
		run(t, p, strings.Replace(releaseByHand, "{true}", "{false}", 1), k, digits(mode+"w"))
		if got := ask(mode+"c", now+1, 0); got != "gates" {
			t.Errorf("mode %s, woken: got %q, want gates", mode, got)
		}
		if got := ask(mode+"c", now, 0); got != "granted" {
			t.Errorf("mode %s, woken: got %q, want granted", mode, got)
		}
		run(t, p, "SELECT fencelock_break($1, 2000)", k)
	}
	run(t, p, "DELETE FROM fencelock_process WHERE process = 'by hand'")
}

// Hostile holds are an error, and never a lock that is free.
func hostileHolds(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	d := driver(t, at(s.Addr(), postgres.Lease, "prefix", "hostile:"))
	for _, end := range []string{"infinity", "-infinity"} {
		r := request("x", "")
		r.Mode = backend.Reader
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		run(t, p, "UPDATE fencelock_hold SET expires_at = '"+end+"' WHERE name = 'hostile:x'")
		for _, mode := range []backend.Mode{backend.Exclusive, backend.Reader, backend.Permit} {
			other := request("x", "")
			other.Mode, other.Limit = mode, 2
			_, err := d.Acquire(t.Context(), other)
			want(t, fmt.Sprintf("%v beside a hold until %s", mode, end), err, fencelock.ErrInvalid)
		}
		_ = d.Release(t.Context(), &core.Hold{Request: r, Grant: g})
		run(t, p, "SELECT fencelock_break('hostile:x', 2000)")
	}
}

// What readers cost: a round trip each to lock and to unlock, and a try that fails writes nothing.
func sharedTryWritesNothing(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease, "prefix", "try:"), fencelock.WithManualRenew())
	le := tryRLock(t, l, "x")
	state := func() string {
		return one[string](t, p, "SELECT l.xmin || ' ' || l.xmax || ' ' || l.ctid || ' ' || h.xmin || ' ' || "+
			"h.xmax || ' ' || h.ctid FROM fencelock_lease l JOIN fencelock_hold h USING (name) WHERE name = 'try:x'")
	}
	was := state()
	for range 10 {
		_, err := l.Mutex("x").TryLock(t.Context())
		want(t, "a writer beside a reader", err, fencelock.ErrLocked)
		_, err = l.Semaphore("x", 2).TryAcquire(t.Context())
		want(t, "a permit beside a reader", err, fencelock.ErrLocked)
	}
	if now := state(); now != was {
		t.Errorf("failed tries: the rows were %s, are %s", was, now)
	}
	unlock(t, le)
}

// Goroutines of three clients read, write and take permits of a few names, by trying, by waiting and by waiting for
// too short a while, with renewals beside. Nobody is beside a writer, no permit is one too many, and nothing is left.
func TestSharedCrowd(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"deadlock_timeout=10ms"}})
	p := pool(t, s, "")
	var clients []*fencelock.Locker
	for range 3 {
		clients = append(clients, open(t, at(s.Addr(), postgres.Lease), fencelock.WithTTL(10*time.Second)))
	}
	const names, permits = 4, 3
	var state [names]struct{ readers, writers, permits atomic.Int64 }
	rounds := 40
	if testing.Short() {
		rounds = 12
	}
	var granted [3]atomic.Int64
	var wg sync.WaitGroup
	for worker := range 36 {
		wg.Go(func() {
			l := clients[worker%len(clients)]
			for round := range rounds {
				n := (worker + round*5) % names
				name := fmt.Sprint("x", n)
				rw, sem := l.RWMutex(name), l.Semaphore(name, permits)
				wait := [][2]func(context.Context) (*fencelock.Lease, error){
					{rw.Lock, rw.TryLock}, {rw.RLock, rw.TryRLock}, {sem.Acquire, sem.TryAcquire},
				}[(worker/3+round)%3]
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				lock := wait[0]
				switch (worker + round) % 4 {
				case 0:
					lock = wait[1]
				case 1:
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
				}
				le, err := lock(ctx)
				cancel()
				if err != nil {
					if !errors.Is(err, fencelock.ErrLocked) && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					continue
				}
				granted[le.Mode()].Add(1)
				now := &state[n]
				mine := []*atomic.Int64{&now.writers, &now.readers, &now.permits}[le.Mode()]
				count := mine.Add(1)
				r, w, x := now.readers.Load(), now.writers.Load(), now.permits.Load()
				alone := w == 0 && x == 0 || r == 0 && (w == 0 || x == 0) // of their mode
				if !alone || w > 1 || x > permits || le.Mode() == fencelock.Exclusive && count > 1 {
					t.Errorf("%s: %d readers, %d writers and %d permits at once", name, r, w, x)
				}
				if round%8 == 0 {
					must2(t, le.Renew(t.Context()))
				}
				time.Sleep(time.Millisecond)
				mine.Add(-1)
				must2(t, le.Unlock(t.Context()))
			}
		})
	}
	wg.Wait()
	t.Logf("granted: %d writers, %d readers, %d permits", granted[0].Load(), granted[1].Load(), granted[2].Load())
	await(t, 10*time.Second, "nothing is left", func() bool { return leftovers(t, p) == 0 })
	if n := deadlocks(t, p); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// Whatever is sent in whatever order, by holders that die, are late or send twice, the tables never say that one is
// beside others, that there is a permit too many, that two have one slot, or that a token has gone back.
func TestSharedRows(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"fsync=off", "deadlock_timeout=10ms"}})
	p := pool(t, s, "&pool_max_conns=16")
	open(t, at(s.Addr(), postgres.Lease))
	const ask = `SELECT fencelock_acquire_any(ARRAY[$1::bytea], ARRAY[$2::bytea], '{me}', ARRAY[$3::bigint],
		ARRAY[$4::bigint], '{0}', '{NULL}', '{0}', ARRAY[$5::bigint], '{0}', $6::text, 100, 30, 0,
		ARRAY[$7::text], ARRAY[$8::int])`
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var granted atomic.Int64
	for i := range 10 {
		wg.Go(func() {
			var nonces [4][]byte
			var modes [4]int
			var held [4]bool
			for n := 0; ctx.Err() == nil; n++ {
				at := rand.IntN(len(nonces))
				if nonces[at] == nil {
					nonces[at], modes[at], held[at] = digits(fmt.Sprint(i, " ", n)), rand.IntN(5), false
				}
				k, nonce, mode := []byte{'x', byte(at & 1)}, nonces[at], modes[at]
				var err error
				answer := ""
				switch do := rand.IntN(200); {
				case do < 120:
					err = p.QueryRow(t.Context(), ask, k, nonce, 5+rand.IntN(60), rand.IntN(2)*rand.IntN(1<<40),
						rand.IntN(2)-1, string(nonce), []string{"x", "r", "r", "p", "p"}[mode],
						[]int{1, 1 << 30, 1 << 30, 3, 2}[mode]).Scan(&answer)
					if word(answer) == "granted" {
						held[at] = true
						granted.Add(1)
					}
				case do < 150:
					f := []string{"fencelock_renew", "fencelock_renew_shared"}[min(mode, 1)]
					_, err = p.Exec(t.Context(), "SELECT "+f+"(ARRAY[$1::bytea], ARRAY[$2::bytea], '{40}')", k, nonce)
				case do < 199:
					_, err = p.Exec(t.Context(), "SELECT fencelock_release(ARRAY[$1::bytea], ARRAY[$2::bytea], '{0}', "+
						"ARRAY[$3::boolean], 30)", k, nonce, held[at])
					nonces[at] = nil
				default: // it dies, and with it what it has
					nonces[at] = nil
					_, err = p.Exec(t.Context(), "SELECT fencelock_sweep()")
				}
				must2(t, err)
			}
		})
	}
	const rows = `SELECT l.name, l.token, l.shared, count(h.nonce), count(DISTINCT h.mode),
		coalesce(min(h.lim), 1), count(h.slot) - count(DISTINCT h.slot),
		coalesce(bool_and(h.mode <> 'r' OR h.claimed OR h.token <= l.token), true)
		FROM fencelock_lease l FULL JOIN fencelock_hold h USING (name) GROUP BY 1, 2, 3`
	last := map[string]int64{}
	for looks := 0; ; looks++ {
		all, err := p.Query(t.Context(), rows)
		must(t, err)
		for all.Next() {
			var name []byte
			var token *int64
			var shared *bool
			var holds, kinds, least, alike int64
			var below bool
			must(t, all.Scan(&name, &token, &shared, &holds, &kinds, &least, &alike, &below))
			switch {
			case token == nil || *shared != (holds > 0) || kinds > 1 || holds > least || alike > 0 || !below:
				t.Errorf("%q: shared %v, %d holds of %d modes, the least limit %d, %d slots twice, no token above: %v",
					name, shared, holds, kinds, least, alike, below)
			case *token > 0 && *token < last[string(name)]:
				t.Errorf("%q: token %d after %d", name, *token, last[string(name)])
			case *token > 0:
				last[string(name)] = *token
			}
		}
		must(t, all.Err())
		if ctx.Err() != nil {
			t.Logf("%d grants, %d looks", granted.Load(), looks)
			break
		}
	}
	wg.Wait()
	if n := deadlocks(t, p); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// must2 is must for other goroutines than the test's.
func must2(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func deadlocks(t *testing.T, p *pgxpool.Pool) int {
	t.Helper()
	return one[int](t, p, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

// Holds of many names and of one are renewed and released many at a time, in whatever order, without a deadlock.
func TestSharedBatches(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"deadlock_timeout=10ms"}})
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease), fencelock.WithTTL(300*time.Millisecond))
	end := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for time.Now().Before(end) {
				le, err := l.Semaphore(fmt.Sprint("x", i%4), 12).Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(100+i) * time.Millisecond)
				if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, fencelock.ErrLost) { // a busy machine
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	await(t, 10*time.Second, "nothing is left", func() bool { return leftovers(t, p) == 0 })
	if n := deadlocks(t, p); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// Where the role's transactions are of another level, readers are granted and renewed in ones of READ COMMITTED.
func TestSharedAtAnotherLevel(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE ROLE strict LOGIN SUPERUSER; "+
		"ALTER ROLE strict SET default_transaction_isolation = 'serializable'")
	url := strings.Replace(at(s.Addr(), postgres.Lease), "postgres@", "strict@", 1)
	a, b := open(t, url), open(t, url)
	le := tryRLock(t, a, "x")
	wait := queue(t, b, "x", 1)
	late := rlock(t, a, "x", 2)
	must(t, le.Renew(t.Context()))
	unlock(t, le)
	unlock(t, wait.Granted(t, 3*time.Second))
	unlock(t, late.Granted(t, 3*time.Second))
	tryRLock(t, a, "y")
	must(t, b.Break(t.Context(), "y"))
	unlock(t, lock(t, b.Mutex("y")))
	for range 2 {
		d := driver(t, url)
		_, err := d.Inspect(t.Context(), "x")
		must(t, err)
	}
	if n := leftovers(t, p); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
