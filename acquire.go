package fencelock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// tryMost bounds a TryLock whose store does not answer.
const tryMost = 5 * time.Second

// slowTry is beyond what a store that answers needs.
const slowTry = 100 * time.Millisecond

// errTryMost is the cause of a TryLock that took too long.
var errTryMost = errors.New("no answer within " + tryMost.String())

// mutex is the Mutex of a Locker.
type mutex struct {
	l     *Locker
	name  string
	route *route // nil with a bad name
	set   *settings
	err   error // a bad name or option
}

func (m *mutex) Name() string { return m.name }

func (m *mutex) Lock(ctx context.Context) (*Lease, error) { return m.acquire(ctx, "lock", true) }

func (m *mutex) TryLock(ctx context.Context) (*Lease, error) { return m.acquire(ctx, "trylock", false) }

// acquire is Lock and TryLock, with the event and the wrapping of the error.
func (m *mutex) acquire(ctx context.Context, op string, wait bool) (*Lease, error) {
	began := time.Now()
	kind := TryLocking
	if wait {
		kind = Locking
	}
	ctx = m.l.begin(ctx, Event{Kind: kind, Name: m.name, Owner: m.set.owner})
	le, joined, err := m.take(ctx, began, wait)
	if err != nil {
		err = m.l.wrap(op, m.name, err)
		m.l.emit(ctx, Event{Kind: NotAcquired, Name: m.name, Owner: m.set.owner, Took: time.Since(began), Err: err})
		return nil, err
	}
	if !joined {
		le.h.show(ctx, time.Since(began))
		return le, nil
	}
	e := le.h.event(Joined)
	e.Took = time.Since(began)
	le.h.emit(ctx, e)
	return le, nil
}

// take checks what needs no store, and takes the caller's place in line.
// joined: the lease is another one on a hold that ctx carries.
func (m *mutex) take(ctx context.Context, began time.Time, wait bool) (le *Lease, joined bool, err error) {
	if m.err != nil {
		return nil, false, m.err
	}
	if ctx.Err() != nil {
		return nil, false, ctxError(ctx, false, nil)
	}
	if err := m.l.enter(); err != nil {
		return nil, false, err
	}
	defer m.l.exit()
	if h := m.l.carried(ctx, m.name); h != nil {
		if m.set.reentrant {
			if le := h.join(); le != nil {
				return le, true, nil
			}
		}
		if !wait {
			return nil, false, ErrLocked
		}
		return nil, false, ErrDeadlock
	}
	// The wait ends with ctx, with the Locker, and for TryLock after a while.
	limited := &limit{Context: ctx, l: m.l}
	defer limited.end()
	if !wait {
		if m.l.lined(m.name) {
			return nil, false, ErrLocked
		}
		limited.most, limited.why = began.Add(tryMost), errTryMost
	} else {
		p, err := m.l.queue(limited, m)
		if err != nil {
			return nil, false, m.why(ctx, limited, err)
		}
		defer m.l.leave(m.name)
		if le := m.l.await(limited, m.name, p); le != nil {
			return le, false, nil
		}
		if limited.Err() != nil {
			return nil, false, m.why(ctx, limited, ctxError(limited, true, nil))
		}
	}
	le, err = m.ask(limited, wait)
	if err != nil {
		if wait && backend.Outlasted(err) {
			m.l.turnAway(m.name, err)
		}
		return nil, false, m.why(ctx, limited, err)
	}
	return le, false, nil
}

// ask asks the store until there is a grant that may be handed out.
func (m *mutex) ask(ctx context.Context, wait bool) (*Lease, error) {
	var late time.Time // when the first late grant was seen
	for {
		h := m.request(wait)
		asked := backend.Now()
		g, err := m.l.driver.Acquire(ctx, h.Request)
		if err == nil || errors.Is(err, ErrLocked) {
			m.l.janitor.heard()
		}
		if err != nil {
			// A try that took so long may have been sent twice on its way: the other copy may be granted yet.
			if wait || !errors.Is(err, ErrLocked) || asked.Elapsed() > slowTry {
				m.l.janitor.add(h.Request)
			}
			return nil, err
		}
		le, ok := h.accept(g, asked)
		if ok {
			return le, nil
		}
		m.l.janitor.add(h.Request)
		if !wait && h.taken() {
			return nil, ErrLocked // no: it was granted, and broken on its way to us
		}
		// The reply came after the deadline that it would have set. The grant is
		// given back; a store so slow is as good as unavailable.
		if late.IsZero() {
			late = time.Now()
		}
		if !wait || time.Since(late) >= backend.Patience {
			return nil, backend.Unavailable(fmt.Errorf("the grant came only after its own deadline (TTL %v)", h.TTL))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// request makes the hold of a new acquisition, with its Request.
func (m *mutex) request(wait bool) *hold {
	h := &hold{l: m.l, route: m.route, set: m.set}
	h.own.request = backend.Request{
		Name:  m.name,
		Nonce: nonce(),
		Owner: m.set.owner,
		TTL:   m.set.ttl,
		Grace: m.set.grace,
		Floor: m.set.floor,
		Wait:  wait,
		Auto:  !m.set.manual && m.set.maxHold == 0 && m.set.grace == 0,
		Lost:  h.lost,
	}
	if wait {
		h.own.request.Reserve = m.l.reserve(m.name)
	}
	h.Request, h.bh = &h.own.request, &h.own.hold
	h.bh.Request = h.Request
	return h
}

// nonce returns 32 hex digits.
func nonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	var digits [32]byte
	hex.Encode(digits[:], raw[:])
	return string(digits[:])
}

// why says why an acquisition failed: ctx is the caller's, limited the one that
// also ends with the Locker and with TryLock's own bound.
func (m *mutex) why(ctx context.Context, limited *limit, err error) error {
	switch {
	case errors.Is(limited.Cause(), ErrClosed):
		return ErrClosed
	case errors.Is(limited.Cause(), errTryMost):
		return backend.Unavailable(errTryMost)
	case errors.Is(err, ErrLocked) && limited.Err() == nil, backend.Final(err) && !errors.Is(err, ErrLocked):
		return err
	case over(ctx):
		return ctxError(ctx, errors.Is(err, ErrLocked), err)
	}
	return answered(err)
}

// over reports whether ctx has ended, or is just about to: a network timeout
// made from its deadline may be seen a moment earlier.
func over(ctx context.Context) bool {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= time.Millisecond {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// ctxError is the error of a call that its ctx ended: it matches ctx.Err(),
// context.Cause(ctx), ErrLocked if locked, and ErrUnavailable if the store's last answer, err,
// was no answer.
func ctxError(ctx context.Context, locked bool, err error) error {
	res := ctx.Err()
	if errors.Is(err, ErrUnavailable) && errors.Is(err, res) { // the driver has said it all
		res, err, locked = err, nil, locked && !errors.Is(err, ErrLocked)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(res, cause) {
		res = fmt.Errorf("%w: %w", res, cause)
	}
	if locked {
		res = fmt.Errorf("%w (%w)", res, ErrLocked)
	}
	if errors.Is(err, ErrUnavailable) {
		res = fmt.Errorf("%w (%w)", res, err)
	}
	return res
}
