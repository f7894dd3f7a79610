package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// floor is how long a waiter goes without a look at the most.
const floor = 5 * time.Second

// lease is mode lease.
type lease struct {
	st       *store
	hub      *hub
	acquires batcher[attempt]
	releases batcher[ending]

	mu    sync.Mutex
	doubt map[string]struct{} // nonces of which an acquire went unanswered
	swept time.Time
}

func newLease(st *store, process string, listen *pgx.ConnConfig, own bool) *lease {
	l := &lease{st: st, hub: newHub(st, process, listen, own), doubt: map[string]struct{}{}, swept: time.Now()}
	l.acquires = batcher[attempt]{st: st, alone: l.acquireOne, all: l.acquireAll}
	l.releases = batcher[ending]{st: st, alone: l.releaseOne, all: l.releaseAll}
	return l
}

// attempt is one acquisition.
type attempt struct {
	l      *lease
	r      *backend.Request
	nonce  []byte
	ticket *int64 // the place in the queue, kept if the server forgets it
	grant  backend.Grant

	queue  bool // join the queue
	asked  backend.Instant
	seen   sight
	answer string // what fencelock_acquire returned
}

// Acquire implements backend.Driver: one statement in one round trip if the lock is free, or held and not
// waited for.
func (l *lease) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	nonce, err := hex.DecodeString(r.Nonce)
	if err != nil {
		return backend.Grant{}, backend.Invalid("the nonce %q is not hexadecimal", r.Nonce)
	}
	if err := checkPhase(r); err != nil {
		return backend.Grant{}, err
	}
	a := &attempt{l: l, r: r, nonce: nonce}
	var outage error
	if !r.Wait || !l.hub.ready() {
		granted, err := a.first(ctx)
		switch {
		case err == nil && granted:
			return a.grant, nil
		case err == nil && !r.Wait:
			return backend.Grant{}, backend.ErrLocked
		case err != nil && (!r.Wait || backend.Final(err)):
			return backend.Grant{}, err
		}
		outage = err
	}
	w := l.hub.join(nonce)
	defer l.hub.leave(w)
	l.hub.awaitReady(ctx)
	err = backend.Wait(ctx, w.wake, func(ctx context.Context) (bool, time.Duration, error) {
		granted, look, err := a.ask(ctx, true)
		if err != nil && ctx.Err() != nil && outage != nil {
			err = outage // says more than that there was no answer
		}
		outage = err
		return granted, min(look, floor), err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return a.grant, nil
}

// first is the ask of a lock that is probably free, cut short before a wait, which has its own patience.
func (a *attempt) first(ctx context.Context) (bool, error) {
	if a.r.Wait {
		limited, cancel := context.WithTimeout(ctx, lookMost)
		defer cancel()
		ctx = limited
	}
	granted, _, err := a.ask(ctx, false)
	return granted, err
}

// ask sends the acquire once; queue: join the queue if the lock is held. look: when to look again.
func (a *attempt) ask(ctx context.Context, queue bool) (granted bool, look time.Duration, err error) {
	one := *a // a batch that is late must not write into what its caller has left
	one.queue, one.answer = queue, ""
	if queue {
		err = a.l.acquireOne(ctx, &one)
	} else {
		err = a.l.acquires.do(ctx, &one)
	}
	if err != nil {
		if !backend.Final(err) {
			a.l.setDoubt(a.r.Nonce)
		}
		return false, 0, err
	}
	answer, ungated, err := a.l.st.told(one.answer, one.seen)
	if err != nil {
		return false, 0, err
	}
	state, x, y := answer.word(0), answer.number(1), answer.number(2)
	switch {
	case state == "granted" && x > 0 && y >= 0:
		a.grant = backend.Grant{Token: x, Reserved: int(y), Asked: one.asked, Ungated: ungated}
		return true, 0, nil
	case state == "shut" && x >= 0:
		return false, 0, answer.refusal(1, 2, a.r)
	case state == "locked":
		return false, 0, nil
	case state == "queued" && x >= 0 && y >= 0:
		a.ticket = &x
		return false, time.Duration(y)*time.Millisecond + 5*time.Millisecond, nil
	case state == "gone":
		return false, 0, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	default:
		return false, 0, errOr(nil, one.answer)
	}
}

// acquireOne sends one acquire.
func (l *lease) acquireOne(ctx context.Context, a *attempt) error {
	a.asked, a.seen = backend.Now(), l.st.look(a.r)
	return l.st.query(ctx, "SELECT fencelock_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
		[]any{
			l.st.key(a.r.Name), a.nonce, []byte(a.r.Owner), millis(a.r.TTL + a.r.Grace), a.r.Floor, int64(a.r.Reserve), a.queue, a.ticket,
			l.hub.process, millis(slack), millis(claim), len(l.st.prefix), []byte(a.r.Move), string(a.r.Phase), a.seen.version,
		},
		func(row pgx.CollectableRow) error { return row.Scan(&a.answer) })
}

// acquireAll sends many that do not queue.
func (l *lease) acquireAll(ctx context.Context, as []*attempt) error {
	n := len(as)
	names, nonces, owners := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	ms, floors, reserves := make([]int64, n), make([]int64, n), make([]int64, n)
	moves, phases, seen := make([][]byte, n), make([]string, n), make([]*int64, n)
	first := make(map[string]struct{}, n)
	asked := backend.Now()
	for i, a := range as {
		a.asked = asked
		names[i], nonces[i], owners[i] = l.st.key(a.r.Name), a.nonce, []byte(a.r.Owner)
		ms[i], floors[i], reserves[i] = millis(a.r.TTL+a.r.Grace), a.r.Floor, int64(a.r.Reserve)
		moves[i], phases[i] = []byte(a.r.Move), string(a.r.Phase)
		if _, again := first[a.r.Name]; !again { // those that are there again go one by one
			a.seen = l.st.look(a.r)
			first[a.r.Name], seen[i] = struct{}{}, a.seen.version
		}
	}
	return l.st.query(ctx, "SELECT * FROM fencelock_acquire_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
		[]any{names, nonces, owners, ms, floors, reserves, moves, phases, seen, millis(claim), len(l.st.prefix)}, func(row pgx.CollectableRow) error {
			var i int
			var answer string
			if err := row.Scan(&i, &answer); err != nil || i < 1 || i > n {
				return errors.Join(err, fmt.Errorf("unexpected answer of the server: %d", i))
			}
			as[i-1].answer = answer
			return nil
		})
}

// Renew implements backend.Driver: one statement for all.
func (l *lease) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return l.each(ctx, hs, "SELECT fencelock_renew($1, $2, $3)", true)
}

// Check implements backend.Checker.
func (l *lease) Check(ctx context.Context, hs []*backend.Hold) []error {
	return l.each(ctx, hs, `SELECT x.i FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY x(name, nonce, i)
		JOIN fencelock_lease l USING (name, nonce) WHERE l.expires_at > clock_timestamp()`, false)
}

// each runs a statement that returns the indexes of those holds that are ours.
func (l *lease) each(ctx context.Context, hs []*backend.Hold, sql string, times bool) []error {
	errs := unknownHolds(hs)
	names, nonces, ms := make([][]byte, len(hs)), make([][]byte, len(hs)), make([]int64, len(hs))
	for i, h := range hs {
		nonce, err := hex.DecodeString(h.Nonce)
		if err != nil {
			nonce = []byte{} // nobody's
		}
		names[i], nonces[i], ms[i] = l.st.key(h.Name), nonce, millis(h.TTL+h.Grace)
	}
	args := []any{names, nonces}
	if times {
		args = append(args, ms)
	}
	ours := make([]error, len(hs))
	copy(ours, errs)
	err := l.st.query(ctx, sql, args, func(row pgx.CollectableRow) error {
		var i int
		if err := row.Scan(&i); err != nil || i < 1 || i > len(hs) {
			return errors.Join(err, fmt.Errorf("unexpected answer of the server: %d", i))
		}
		ours[i-1] = nil
		return nil
	})
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	return ours
}

// Release implements backend.Driver.
func (l *lease) Release(ctx context.Context, h *backend.Hold) error {
	done, err := l.end(ctx, h.Request, true)
	if err == nil && !done {
		err = backend.ErrLost
	}
	l.sweep()
	return err
}

// Abandon implements backend.Driver.
func (l *lease) Abandon(ctx context.Context, r *backend.Request) error {
	_, err := l.end(ctx, r, false)
	return err
}

// end sends the release. A tombstone is left only where an acquire went unanswered, which may still be under way.
func (l *lease) end(ctx context.Context, r *backend.Request, remember bool) (done bool, err error) {
	nonce, err := hex.DecodeString(r.Nonce)
	if err != nil {
		return false, backend.ErrLost
	}
	e := &ending{key: l.st.key(r.Name), nonce: nonce, remember: remember}
	if l.inDoubt(r.Nonce) {
		e.keep = millis(r.TTL + r.Grace + tombstone)
	}
	if err := l.releases.do(ctx, e); err != nil {
		return false, err
	}
	if e.keep > 0 {
		l.clearDoubt(r.Nonce)
	}
	return e.done, nil
}

// ending is one release or abandonment.
type ending struct {
	key, nonce []byte
	keep       int64 // ms for which a late acquire is refused
	remember   bool  // it is a release
	done       bool  // the answer
}

// releaseOne sends one.
func (l *lease) releaseOne(ctx context.Context, e *ending) error {
	return l.st.query(ctx, "SELECT fencelock_release($1, $2, $3, $4, $5, $5)",
		[]any{e.key, e.nonce, millis(claim), e.keep, e.remember},
		func(row pgx.CollectableRow) error { return row.Scan(&e.done) })
}

// releaseAll sends many.
func (l *lease) releaseAll(ctx context.Context, es []*ending) error {
	n := len(es)
	names, nonces := make([][]byte, n), make([][]byte, n)
	keeps, remember := make([]int64, n), make([]bool, n)
	for i, e := range es {
		names[i], nonces[i], keeps[i], remember[i] = e.key, e.nonce, e.keep, e.remember
	}
	return l.st.query(ctx, "SELECT * FROM fencelock_release_all($1, $2, $3, $4, $5)",
		[]any{names, nonces, keeps, remember, millis(claim)}, func(row pgx.CollectableRow) error {
			var i int
			var done bool
			if err := row.Scan(&i, &done); err != nil || i < 1 || i > n {
				return errors.Join(err, fmt.Errorf("unexpected answer of the server: %d", i))
			}
			es[i-1].done = done
			return nil
		})
}

// sweep deletes now and then what dead processes have left.
func (l *lease) sweep() {
	l.mu.Lock()
	due := time.Since(l.swept) > tidyEvery
	if due {
		l.swept = time.Now()
	}
	l.mu.Unlock()
	if !due {
		return
	}
	l.st.flying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookMost)
		defer cancel()
		_ = l.st.query(ctx, "SELECT fencelock_sweep()", nil, nil) // another time then
	})
}

// leases describes what is held or waited for.
const leases = `SELECT n.name, l.name IS NOT NULL, coalesce(l.owner, ''), coalesce(l.token, 0),
	coalesce(extract(epoch FROM l.expires_at - clock_timestamp())::float8, 0),
	(SELECT count(*) FROM fencelock_queue q JOIN fencelock_process p USING (process) WHERE q.name = n.name AND p.alive_until > clock_timestamp())::int
FROM (SELECT name FROM fencelock_lease UNION SELECT name FROM fencelock_queue) n
LEFT JOIN fencelock_lease l ON l.name = n.name AND l.expires_at > clock_timestamp()
WHERE n.name >= $1 AND substr(n.name, 1, length($1)) = $1 AND ($2 OR n.name = $1)`

// Inspect implements backend.Driver.
func (l *lease) Inspect(ctx context.Context, name string) (backend.Info, error) {
	info := backend.Info{Name: name}
	err := l.describe(ctx, name, false, func(i backend.Info) { info = i })
	return info, err
}

// List implements backend.Driver.
func (l *lease) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return listed(func(found func(backend.Info)) error { return l.describe(ctx, prefix, true, found) })
}

// describe calls found for the names with this prefix, or for this name alone.
func (l *lease) describe(ctx context.Context, name string, prefix bool, found func(backend.Info)) error {
	return l.st.query(ctx, leases, []any{l.st.key(name), prefix}, func(row pgx.CollectableRow) error {
		i, err := l.info(row)
		if err == nil {
			found(i)
		}
		return err
	})
}

// info reads what the server says of one name: its key, whether it is held, by whom, the token, how many seconds are left, and the waiters.
func (l *lease) info(row pgx.CollectableRow) (backend.Info, error) {
	var key, owner []byte
	var i backend.Info
	var left float64
	if err := row.Scan(&key, &i.Held, &owner, &i.Token, &left, &i.Waiters); err != nil {
		return i, err
	}
	i.Name, i.Owner = strings.TrimPrefix(string(key), l.st.prefix), string(owner)
	if i.Held {
		i.ExpiresIn = max(time.Duration(left*float64(time.Second)), time.Millisecond)
	}
	return i, nil
}

// Break implements backend.Driver.
func (l *lease) Break(ctx context.Context, name string) error {
	return l.st.query(ctx, "SELECT fencelock_break($1, $2)", []any{l.st.key(name), millis(claim)}, nil)
}

func (l *lease) close() { l.hub.close() }

func (l *lease) setDoubt(nonce string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubt[nonce] = struct{}{}
}

func (l *lease) clearDoubt(nonce string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.doubt, nonce)
}

func (l *lease) inDoubt(nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.doubt[nonce]
	return ok
}
