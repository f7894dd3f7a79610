package fencelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// tryMost bounds a TryLock whose store does not answer.
const tryMost = 5 * time.Second

// patientPause is the longest pause of a Lock that queues again.
const patientPause = 500 * time.Millisecond

// slowTry is beyond what a store that answers needs.
const slowTry = 100 * time.Millisecond

// mutex is the Mutex of a Locker.
type mutex struct {
	l     *Locker
	name  string
	route *route // nil with a bad name
	set   *settings
	err   error // a bad name or option
}

func (m *mutex) Name() string { return m.name }

func (m *mutex) Lock(ctx context.Context) (*Lease, error) { return m.acquire(ctx, true) }

func (m *mutex) TryLock(ctx context.Context) (*Lease, error) { return m.acquire(ctx, false) }

// ops are what errors call the calls that wait, and those that do not.
var ops = [...][2]string{
	Exclusive: {"lock", "trylock"}, Reader: {"rlock", "tryrlock"}, Permit: {"acquire", "tryacquire"},
}

// acquire is Lock and TryLock, with the event and the wrapping of the error.
func (m *mutex) acquire(ctx context.Context, wait bool) (*Lease, error) {
	began := time.Now()
	kind, op := TryLocking, ops[m.set.mode][1]
	if wait {
		kind, op = Locking, ops[m.set.mode][0]
	}
	ctx = m.begin(ctx, kind, began)
	le, joined, err := m.take(ctx, wait)
	if err != nil {
		err = m.l.wrap(op, m.name, err)
		m.l.emit(ctx, Event{
			Kind: NotAcquired, Name: m.name, Owner: m.set.owner, Mode: m.set.mode, Took: time.Since(began), Err: err,
		})
		return nil, err
	}
	return m.granted(ctx, le, joined, began), nil
}

// begin tells the observer of the start of a call.
func (m *mutex) begin(ctx context.Context, kind EventKind, at time.Time) context.Context {
	return m.l.begin(ctx, Event{Kind: kind, Name: m.name, Owner: m.set.owner, Mode: m.set.mode, At: at})
}

// granted tells the observer of the lease that take has returned: the end of a call that began then.
func (m *mutex) granted(ctx context.Context, le *Lease, joined bool, began time.Time) *Lease {
	defer m.l.exit()
	seen := false
	defer func() {
		if !seen { // the observer panicked, and the caller gets no lease
			le.discard(nil)
		}
	}()
	if joined {
		e := le.h.event(Joined)
		e.Took = time.Since(began)
		m.l.emit(ctx, e)
	} else {
		le.h.show(ctx, time.Since(began))
	}
	seen = true
	return le
}

// take checks what needs no store, and takes the caller's place in line. joined: the lease is
// another one on a hold that ctx carries. With a lease the call is still counted in: exit is the
// caller's.
func (m *mutex) take(ctx context.Context, wait bool) (le *Lease, joined bool, err error) {
	if m.err != nil {
		return nil, false, m.err
	}
	if ctx.Err() != nil {
		return nil, false, ctxError(ctx, false, nil)
	}
	if err := m.l.enter(); err != nil {
		return nil, false, err
	}
	defer func() {
		if le == nil {
			m.l.exit()
		}
	}()
	for h := m.l.carried(ctx, m.name); h != nil; h = m.l.carried(ctx, m.name) {
		again := m.set.shares(h)
		if again {
			if le := h.join(false); le != nil {
				return le, true, nil
			}
		}
		if !wait {
			return nil, false, ErrLocked
		}
		if !again || !h.unlocked(ctx) {
			return nil, false, ErrDeadlock
		}
		if ctx.Err() != nil {
			return nil, false, ctxError(ctx, false, nil)
		}
	}
	// The wait ends with ctx, with the Locker, and for TryLock after a while.
	limited := &core.Deadline{Context: ctx, Owner: m.l.waits}
	defer limited.End()
	var p *place // nil: none, it does not wait
	granted := false
	if !wait {
		if m.l.lined(m) {
			if err := m.route.caller.Outage(m.name); err != nil {
				return nil, false, backend.Unavailable(err) // nobody knows whether another holds it
			}
			return nil, false, ErrLocked
		}
		limited.At, limited.Why = time.Now().Add(tryMost), noAnswer(tryMost)
	} else {
		if p, err = m.l.queue(limited, m); err != nil {
			return nil, false, m.why(ctx, limited, err)
		}
		defer func() {
			if !granted { // else it has left the line as the hold was taken in, and p may be another's
				m.l.leave(m.name)
			}
		}()
		if le := m.l.readAlong(m); le != nil {
			return le, true, nil
		}
		if le := m.l.await(limited, m.name, p); le != nil {
			return le, false, nil
		}
		if limited.Err() != nil {
			return nil, false, m.why(ctx, limited, ctxError(limited, true, nil))
		}
	}
	le, err = m.ask(limited, p)
	if err != nil {
		if wait && core.Outlasted(err) {
			m.l.turnAway(m, err)
		}
		return nil, false, m.why(ctx, limited, err)
	}
	granted = true
	return le, false, nil
}

// ask asks the store until there is a grant that may be handed out.
func (m *mutex) ask(ctx context.Context, p *place) (*Lease, error) {
	wait := p != nil
	var (
		since time.Time // when the first answer came that was neither a lease nor final
		pause time.Duration

		asking *backend.Request // what the driver is asked for just now
	)
	defer func() {
		if asking != nil { // the program's own code has panicked in its client
			m.route.janitor.add(asking)
		}
	}()
	for ctx.Err() == nil {
		h := m.request(p)
		asked := backend.Now()
		asking = h.Request
		g, err := m.route.caller.Acquire(ctx, asking)
		asking = nil
		if err == nil || errors.Is(err, ErrLocked) {
			m.route.janitor.heard()
		}
		if err != nil {
			// A try that took so long may have been sent twice on its way: the other copy may be granted yet.
			if wait || !errors.Is(err, ErrLocked) || asked.Elapsed() > slowTry {
				m.route.janitor.add(h.Request)
			}
			if !errors.Is(err, ErrLost) {
				return nil, err
			}
			// What this call has never held cannot be lost: the store has undone the request, or
			// what kept its place there has ended. The error's text is kept, and ErrLost is not.
			err = fmt.Errorf("the store has dropped the request: %v", err)
			pause = min(max(2*pause, firstPause), patientPause)
		} else {
			le, ok := h.accept(g, asked, p)
			if ok {
				return le, nil
			}
			m.route.janitor.addAfter(h.Request, 0, false)
			if !wait && h.taken() {
				return nil, ErrLocked // no: it was granted, and broken on its way to us
			}
			// The reply came after the deadline that it would have set. The grant is
			// given back; a store so slow is as good as unavailable.
			err = lateGrant(h.TTL)
			pause = 0
		}
		if since.IsZero() || asked.Elapsed() >= core.Patience { // it has waited well in between
			since = time.Now()
		}
		if !wait {
			return nil, backend.Unavailable(err)
		}
		if time.Since(since) >= core.Patience {
			return nil, core.Outlast(err)
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
	return nil, ctx.Err()
}

// lateGrant is the error of a grant of this TTL that came when its time was over.
type lateGrant time.Duration

func (ttl lateGrant) Error() string {
	return fmt.Sprintf("the grant came only after its own deadline (TTL %v)", time.Duration(ttl))
}

// request makes the hold of a new acquisition, with its Request.
func (m *mutex) request(p *place) *hold {
	h := &hold{l: m.l, route: m.route, set: m.set}
	h.own.request = backend.Request{
		Name:  m.name,
		Nonce: core.Nonce(),
		Owner: m.set.owner,
		TTL:   m.set.ttl,
		Grace: m.set.grace,
		Floor: m.set.floor,
		Mode:  m.set.mode,
		Limit: m.set.limit,
		Wait:  p != nil,
		Auto:  !m.set.manual && m.set.maxHold == 0 && m.set.grace == 0 && m.set.minHold == 0,
		Lost:  h.lost,
	}
	if p != nil && m.set.mode == Exclusive {
		h.own.request.Reserve = p.reserve
	}
	h.Request, h.bh = &h.own.request, &h.own.hold
	h.bh.Request = h.Request
	return h
}

// why says why an acquisition failed: ctx is the caller's, limited the one that
// also ends with the Locker and with TryLock's own bound.
func (m *mutex) why(ctx context.Context, limited *core.Deadline, err error) error {
	switch {
	case errors.Is(limited.Cause(), ErrClosed):
		return ErrClosed
	case errors.Is(limited.Cause(), noAnswer(tryMost)):
		return backend.Unavailable(noAnswer(tryMost))
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
	d, ok := ctx.Deadline()
	if !ok || time.Until(d) > time.Millisecond {
		return ctx.Err() != nil
	}
	if ctx.Done() == nil { // a context of an unusual kind: its deadline is all that it has
		return true
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
	return ctx.Err() != nil
}

// ctxError is the error of a call that its ctx ended: it matches ctx.Err(),
// context.Cause(ctx), ErrLocked if locked, and ErrUnavailable if the store's last answer, err,
// was no answer.
func ctxError(ctx context.Context, locked bool, err error) error {
	return ctxErrorOf(ctx, context.Cause(ctx), locked, err)
}

// leaseError is ctxError for a call of a lease. A cause that is the end of another lease is told in words alone:
// ErrLost and ErrReleased would say that this one has ended.
func leaseError(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrLost) || errors.Is(cause, ErrReleased) {
		cause = errors.New(cause.Error())
	}
	return ctxErrorOf(ctx, cause, false, err)
}

func ctxErrorOf(ctx context.Context, cause error, locked bool, err error) error {
	res := ctx.Err()
	if res == nil { // see over
		res = context.DeadlineExceeded
	}
	if errors.Is(err, ErrUnavailable) && errors.Is(err, res) { // the driver has said it all
		res, err, locked = err, nil, false
	}
	if cause != nil && !errors.Is(res, cause) {
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
