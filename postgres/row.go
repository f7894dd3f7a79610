package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

const (
	// lookMost bounds what must be answered at once.
	lookMost = 2 * time.Second
	// lookEvery is how often a process that waits looks whether the server is there and its waiting
	// sessions are.
	lookEvery = 2 * time.Second
	// slotMost is how long a claim waits for a connection that the program has.
	slotMost = 500 * time.Millisecond
	// askSoon is how long a call may have waited for a connection, to ask for the lock by it: what is left of its time
	// may not do for the answer, and a connection on which none comes in time is closed.
	askSoon = 100 * time.Millisecond
	// tombstone is how much longer than the TTL an abandoned nonce of mode lease is refused.
	tombstone = 10 * time.Second
	// tidyEvery is how often a process looks for rows that dead ones have left, while it releases
	// locks.
	tidyEvery = time.Minute
	// keepFor is how soon a name must be released again for its row to stay, and for how long it does: to make and
	// delete it is a third of the time of a lock that nobody else wants. keepMost is how many names a process remembers
	// for that, and tidyMost how many rows it deletes in one message.
	keepFor            = 300 * time.Millisecond
	keepMost, tidyMost = 4096, 50
)

// row is modes row and advisory: a backend.Mover, with the methods of store. The place of a claim is
// its session.
type row struct {
	*store
	advisory bool          // the door alone is locked
	most     int           // the pool's size
	slots    chan struct{} // one for each session

	mu       sync.Mutex
	sessions map[*session]struct{} // that have a connection
	heard    time.Time             // when one that asks for a lock was last answered
	recent   map[string]use        // the names that were released last
	tidier   *time.Timer           // nil: there are none
	proof    proof                 // the last one
	closed   bool

	looking chan struct{} // of size 1: its owner looks for all that wait
	looked  time.Time     // when that was last; guarded by looking
	proving chan struct{} // of size 1: its owner proves, for all
}

func newRow(st *store, most int, advisory bool) *row {
	return &row{
		store: st, advisory: advisory, most: most, slots: make(chan struct{}, most-1),
		sessions: map[*session]struct{}{}, recent: map[string]use{},
		looking: make(chan struct{}, 1), proving: make(chan struct{}, 1),
	}
}

// use is the last release of a name.
type use struct {
	at   time.Time
	kept bool // it left the row
}

// Traits implements backend.Driver.
func (r *row) Traits() backend.Traits {
	if r.advisory {
		return backend.TraitsOf("postgres-advisory")
	}
	return backend.TraitsOf("postgres-row")
}

// Calls implements backend.Driver. The read that is parked on a connection tells of its end.
func (r *row) Calls() backend.Calls { return backend.Calls{Most: 1, Tells: true} }

// Enter implements backend.Driver. A waiter is blocked in the server's queue.
func (r *row) Enter(context.Context, *backend.Claim) error { return nil }

// gone is the place of a claim that was given up.
type gone struct{}

// of returns the session of a claim, or nil.
func (r *row) of(c *backend.Claim) *session {
	s, ok := c.Place.(*session)
	if !ok {
		s, _ = c.Handle.(*session)
	}
	return s
}

// Ask implements backend.Driver: one try on a connection of its own. A claim that waits then has a
// statement blocked there, whose answer wakes it.
func (r *row) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		if c.Err = r.ask(ctx, c); c.Err != nil && !errors.Is(c.Err, backend.ErrGates) {
			c.Err = limited(meaning(r.unheard(c.Err, c)))
		}
	}
}

func (r *row) ask(ctx context.Context, c *backend.Claim) error {
	if _, ok := c.Place.(gone); ok {
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	if most := math.MaxInt32 * time.Millisecond; c.TTL+c.Grace > most {
		return backend.Invalid("TTL + grace are %v: in this mode the server keeps a "+
			"lock for at most %v (idle_in_transaction_session_timeout)", c.TTL+c.Grace, most)
	}
	switch c.Phase {
	case "", backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo:
	default:
		return backend.Invalid("phase %q: want %s, %s or %s",
			c.Phase, backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo)
	}
	s := r.of(c)
	if s != nil {
		switch s.standing() {
		case waiting:
			return s.asleep(ctx, c)
		case holding: // sent again: being connected is having it
			asked := backend.Now()
			if err := s.renew(ctx); err == nil {
				c.Grant = backend.Grant{Token: s.token, Asked: asked, Handle: s}
				return nil
			} else if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if s.standing() != trying { // what a connection that broke may have got must not be in the way
			if err := r.clean(ctx, s); err != nil {
				return err
			}
			s = nil
		}
	}
	for range r.most {
		if s == nil {
			var err error
			began := time.Now()
			if s, err = r.open(ctx, c); err != nil {
				return err
			}
			c.Place = s
			if _, ends := ctx.Deadline(); ends && time.Since(began) > askSoon {
				return errLate
			}
		}
		err := s.try(ctx, c)
		behind := errors.Is(err, errBehind) && r.pool.Stat().IdleConns() > 0
		if ctx.Err() != nil || !behind && (s.id != "" || !endedBefore(err)) { // with an id it may have the door
			return err
		}
		s.stand(past) // its connection had died before, or leads to a server of before: perhaps one of many
		s = nil
	}
	return errors.New("the server has ended every connection")
}

// errReplica: the server only reads.
var errReplica = errors.New("the server is a replica, which cannot be written to")

// open returns a session that has asked for nothing yet.
func (r *row) open(ctx context.Context, c *backend.Claim) (*session, error) {
	select {
	case r.slots <- struct{}{}:
	default:
		return nil, r.usedUp()
	}
	err := r.ready(ctx)
	var conn *pgxpool.Conn
	if err == nil {
		conn, err = r.connect(ctx)
	}
	if err != nil {
		<-r.slots
		return nil, err
	}
	return newSession(r, c, conn), nil
}

// connect takes a connection of the pool. One that the program has used up says so in time: the
// server is there. Of one that is late the pool goes on making it, for the next Ask.
func (r *row) connect(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(slotMost, func() {
		if now := r.pool.Stat(); now.AcquiredConns() >= now.MaxConns() {
			cancel(r.usedUp())
		}
	})
	defer timer.Stop()
	conn, err := r.pool.Acquire(limited)
	switch {
	case err == nil || ctx.Err() == nil && limited.Err() == nil:
		return conn, err
	case ctx.Err() == nil:
		return nil, context.Cause(limited)
	}
	return nil, backend.Refusal(fmt.Errorf("no connection in time: %w", err))
}

// answered notes that the server answers requests for locks.
func (r *row) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = time.Now()
}

// errLate: there is a connection now, which has been asked for nothing.
var errLate = backend.Refusal(errors.New("the connection came only just now"))

// unheard is the error of a claim that had no answer in time, with err. While others are answered the server is slow
// and does not fail, which a waiter is told.
func (r *row) unheard(err error, c *backend.Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	quiet := time.Since(r.heard)
	switch {
	case !c.Wait || quiet > lookMost:
		return err
	case err == errLate || backend.Refused(err) && errors.Is(err, context.DeadlineExceeded):
		return backend.Refusal(backend.Silence(quiet))
	case errors.Is(err, context.DeadlineExceeded):
		return backend.Silence(quiet)
	}
	return err
}

// usedUp says that every connection is taken, by leases, by waiters or by the program.
func (r *row) usedUp() error {
	return backend.Refusal(backend.Unavailable(fmt.Errorf("every connection is in use: this mode needs one for "+
		"each held lease and each name that is waited for, and pool_max_conns=%d (one is kept back) is used up: "+
		"raise it", r.most)))
}

// look asks, for all that wait and no more often than they need it, whether the server is there and
// their sessions are: one blocked in the server's queue hears nothing of a server that is gone.
func (r *row) look(ctx context.Context) error {
	select {
	case r.looking <- struct{}{}:
		defer func() { <-r.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	if began.Sub(r.looked) < lookEvery {
		return nil
	}
	waiters := map[int32]*session{}
	var pids []int32
	r.mu.Lock()
	for s := range r.sessions {
		if s.standing() == waiting {
			pids = append(pids, int32(s.at.pid))
			waiters[int32(s.at.pid)] = s
		}
	}
	r.mu.Unlock()
	err := r.upkeep(ctx, "SELECT pid FROM pg_stat_activity WHERE pid=ANY($1)", []any{pids},
		func(row scanner) error {
			var pid int32
			err := row.Scan(&pid)
			delete(waiters, pid)
			return err
		})
	if err != nil {
		return err
	}
	r.looked = began
	for _, s := range waiters {
		s.forsake() // what blocks on it returns
	}
	return nil
}

// Keep implements backend.Driver: a statement on each connection, all at once. It looks at what the
// parked reads have seen.
func (r *row) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	type answer struct {
		i   int
		err error
	}
	answers := make(chan answer, len(cs))
	for i, c := range cs {
		errs[i] = context.DeadlineExceeded // until there is an answer
		s, _ := c.Handle.(*session)        // a Leave may be writing the place
		switch {
		case s == nil:
			answers <- answer{i, backend.ErrLost}
		case !extend:
			answers <- answer{i, s.held()}
		default:
			r.flying.Go(func() { answers <- answer{i, s.renew(ctx)} })
		}
	}
	for range cs {
		select {
		case a := <-answers:
			errs[a.i] = a.err
		case <-ctx.Done():
			return errs
		}
	}
	return errs
}

// Raise implements backend.Mover. The writes of the holder's own transaction last only once it has
// committed, so the raise goes by another connection, if the holder's transaction is open, and lasts
// when that commits. Being connected is holding: if the transaction is open afterwards too, no other
// session has held the row since the grant, and every later holder draws its token after the raise.
func (r *row) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if held == nil {
		return r.raise(ctx, nil, floor)
	}
	s := r.of(held)
	if s == nil {
		return backend.ErrLost
	}
	if err := s.held(); err != nil {
		return err
	}
	raised := false
	err := r.upkeep(ctx, "SELECT fencelock_raise($2, $3) FROM (SELECT "+r.progress()+
		" AS status) x WHERE status = 'in progress'",
		[]any{s.id, r.key(held.Name), floor},
		func(scanner) error { raised = true; return nil })
	switch {
	case codeOf(err) == "22023": // in the server's future: its data is another
	case err != nil:
		return err
	}
	if !raised {
		return s.heldOr(backend.ErrLost)
	}
	return s.renew(ctx)
}

// Close implements backend.Driver.
func (r *row) Close() error {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	for _, s := range all {
		s.end(nil)
	}
	r.tidyLast()
	r.close()
	return nil
}
