package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// lookMost bounds what must be answered at once.
	lookMost = 2 * time.Second
	// slotMost is how long a Lock waits for a connection that all others have.
	slotMost = 500 * time.Millisecond
	// tombstone is how much longer than the TTL an abandoned nonce is refused.
	tombstone = 10 * time.Second
	// tidyEvery is how often a process looks for rows that dead ones have left, while it releases locks.
	tidyEvery = time.Minute
	// tagHead begins the application_name of our sessions: "fl token nonce timeout owner".
	tagHead = "fl "
	// tagMost is how long the server lets an application_name be.
	tagMost = 63
)

// row is mode row.
type row struct {
	st    *store
	most  int           // the pool's size
	slots chan struct{} // one for each session

	mu       sync.Mutex
	sessions map[string]*session  // by nonce, until nothing is left of them in the server
	gone     map[string]time.Time // abandoned nonces, and until when they are refused
	swept    time.Time            // when gone was last
	tidied   time.Time

	watch watch // of the waiters
}

func newRow(st *store, most int) *row {
	r := &row{
		st: st, most: most, slots: make(chan struct{}, most-1),
		sessions: map[string]*session{}, gone: map[string]time.Time{}, tidied: time.Now(),
	}
	r.watch.r = r
	return r
}

// Acquire implements backend.Driver.
func (r *row) Acquire(ctx context.Context, req *backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	if err := checkPhase(req); err != nil {
		return backend.Grant{}, err
	}
	if s, err := r.known(req.Nonce); err != nil {
		return backend.Grant{}, err
	} else if s != nil {
		asked := backend.Now() // sent again: being connected is having it
		if err := s.renew(ctx); err == nil {
			return backend.Grant{Token: s.token, Asked: asked, Ungated: s.ungated, Handle: s}, nil
		} else if ctx.Err() != nil {
			return backend.Grant{}, ctx.Err()
		}
		if err := r.clean(ctx, s); err != nil {
			return backend.Grant{}, err
		}
	}
	if req.Wait {
		return r.wait(ctx, req)
	}
	g, err := r.try(ctx, req)
	for again := 1; ; again-- {
		if err == nil || ctx.Err() != nil || backend.Final(err) || errors.Is(err, backend.ErrUnavailable) || !broken(err) || again == 0 {
			return g, err
		}
		// The connection broke: its grant, if there was one, must not be in the way of the next try.
		if s, _ := r.known(req.Nonce); s != nil {
			if err := r.clean(ctx, s); err != nil {
				return g, err
			}
		}
		g, err = r.try(ctx, req)
	}
}

// try asks once, on a connection of its own.
func (r *row) try(ctx context.Context, req *backend.Request) (backend.Grant, error) {
	s, err := r.open(ctx, req)
	if err != nil {
		return backend.Grant{}, err
	}
	g, err := s.try(ctx)
	if errors.Is(err, backend.ErrLocked) {
		s.leave(ctx, "ROLLBACK")
	}
	return g, err
}

// wait queues until granted. An outage is ridden out for backend.Patience.
func (r *row) wait(ctx context.Context, req *backend.Request) (backend.Grant, error) {
	var failed time.Time // since when there was no answer
	var pause time.Duration
	locked := false
	for {
		began := time.Now()
		g, answered, err := r.queue(ctx, req)
		switch {
		case err == nil:
			return g, nil
		case ctx.Err() != nil:
			return g, backend.Ended(ctx, locked || answered, err)
		case backend.Final(err):
			return g, err
		case errors.Is(err, errUsedUp):
			return g, err
		}
		locked = locked || answered
		switch {
		case answered:
			failed, pause = time.Now(), 0
		case failed.IsZero():
			failed = began
		}
		if time.Since(failed) >= backend.Patience || errors.Is(err, errSilent) {
			return g, backend.Outlast(err)
		}
		pause = min(max(2*pause, 20*time.Millisecond), 500*time.Millisecond)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if s, _ := r.known(req.Nonce); s != nil { // what the broken connection may have got
			limited, cancel := context.WithTimeout(ctx, lookMost)
			_ = r.clean(limited, s) // a ghost is in the way for as long as a claim lasts
			cancel()
		}
	}
}

// queue asks once, and joins the server's queue if the lock is held. answered: the server said that it is.
func (r *row) queue(ctx context.Context, req *backend.Request) (g backend.Grant, answered bool, err error) {
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	s, err := r.open(limited, req)
	if err == nil {
		g, err = s.try(limited)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v", lookMost) // the look's own limit, not the caller's
	}
	if !errors.Is(err, backend.ErrLocked) {
		return g, false, err
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.watch.add(s, stop)
	g, err = s.wait(waiting)
	r.watch.remove(s)
	if cause := context.Cause(waiting); err != nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	return g, true, err
}

// errReplica: the server only reads.
var errReplica = errors.New("the server is a replica, which cannot be written to")

// errUsedUp: every connection that leases may have is taken.
var errUsedUp = errors.New("every connection is in use")

// open returns a session that has asked for nothing yet.
func (r *row) open(ctx context.Context, req *backend.Request) (*session, error) {
	if err := r.slot(ctx, req.Wait); err != nil {
		return nil, err
	}
	conn, err := r.st.pool.Acquire(ctx)
	if err != nil {
		<-r.slots
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, meaning(err)
	}
	s := newSession(r, req, conn)
	r.mu.Lock()
	r.sessions[req.Nonce] = s
	r.mu.Unlock()
	return s, nil
}

// slot takes a place in the pool.
func (r *row) slot(ctx context.Context, wait bool) error {
	select {
	case r.slots <- struct{}{}:
		return nil
	default:
	}
	var late <-chan time.Time
	if wait {
		timer := time.NewTimer(slotMost)
		defer timer.Stop()
		late = timer.C
	} else {
		closed := make(chan time.Time)
		close(closed)
		late = closed
	}
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-late:
		return backend.Unavailable(fmt.Errorf("%w: mode row needs one for each held lease and each name that is waited for, and pool_max_conns=%d (one is kept back) is used up: raise it", errUsedUp, r.most))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// known returns the session of a nonce, or ErrLost if it was abandoned.
func (r *row) known(nonce string) (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, gone := r.gone[nonce]; gone {
		return nil, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	return r.sessions[nonce], nil
}

// forget drops what is known of a session that has left nothing in the server.
func (r *row) forget(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.req.Nonce] == s {
		delete(r.sessions, s.req.Nonce)
	}
}

// bury makes a late Acquire of the nonce fail.
func (r *row) bury(req *backend.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.gone) >= 256 && now.Sub(r.swept) > time.Second {
		r.swept = now
		for n, until := range r.gone {
			if until.Before(now) {
				delete(r.gone, n)
			}
		}
	}
	r.gone[req.Nonce] = now.Add(req.TTL + req.Grace + tombstone)
}

// Renew implements backend.Driver: a statement on each connection, all at once.
func (r *row) Renew(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	type answer struct {
		i   int
		err error
	}
	answers := make(chan answer, len(hs))
	for i, h := range hs {
		errs[i] = context.DeadlineExceeded // until there is an answer
		s, ok := h.Handle.(*session)
		if !ok {
			answers <- answer{i, backend.ErrLost}
			continue
		}
		r.st.flying.Go(func() { answers <- answer{i, s.renew(ctx)} })
	}
	for range hs {
		select {
		case a := <-answers:
			errs[a.i] = a.err
		case <-ctx.Done():
			return errs
		}
	}
	return errs
}

// Check implements backend.Checker, from what the parked reads have seen.
func (r *row) Check(_ context.Context, hs []*backend.Hold) []error {
	errs := unknownHolds(hs)
	for i, h := range hs {
		if s, ok := h.Handle.(*session); ok {
			errs[i] = s.held()
		}
	}
	return errs
}

func (r *row) close() {
	r.mu.Lock()
	all := r.sessions
	r.sessions = map[string]*session{}
	r.mu.Unlock()
	for _, s := range all {
		s.end(nil)
		s.drop()
	}
}
