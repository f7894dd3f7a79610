package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// errLostLeg: one store lost its leg before the other one granted. Nobody has been told of a lock, so the engine gives
// both legs up and asks anew, as it does where a store has dropped a request.
var errLostLeg = fmt.Errorf("%w in one of the two stores before the other had granted the lock", backend.ErrLost)

// repairEvery is how often, at the most, a client looks whether a store has lost its gate.
const repairEvery = time.Second

// Acquire implements core.Caller. In phase both it takes the lock in the old store, then in the new one
// with no lower token, and then raises the old store's tokens to the new one's on the condition that the lock
// is still held there: three round trips. The token is the new store's.
//
// The old store's part is renewed while the new store is waited for. If it is lost all the same, the answer is ErrLost.
func (d *member) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if d.look {
		return backend.Grant{}, backend.Unsupported("this client of migration %q only looks", d.move)
	}
	if err := d.report.asks(ctx, d, r); err != nil {
		return backend.Grant{}, err
	}
	l := d.legsFor(r)
	from := l.from
	if err := from.acquire(ctx); err != nil {
		return backend.Grant{}, err
	}
	if l.to == nil {
		g := from.hold.Grant
		g.Ungated, g.Handle = false, l
		return g, nil
	}
	// The same number will do: it is this lock's in either store.
	l.to.req.Floor = max(r.Floor, from.hold.Token-1)
	err := acquireSecond(ctx, from, l.to)
	if errors.Is(err, backend.ErrInvalid) && from.hold.Token > time.Now().UnixMicro()+backend.FloorAhead/2 {
		if err = d.lead(ctx, r, l); err == nil {
			err = acquireSecond(ctx, from, l.to)
		}
	}
	to := l.to
	if err == nil {
		err = patiently(ctx, r, func(ctx context.Context) error { return d.tie(ctx, from, to) })
	}
	if err == nil && (from.hold.Ungated || to.hold.Ungated) {
		err = patiently(ctx, r, d.repair)
	}
	if err == nil && (from.hand(r.Lost) != nil || to.hand(r.Lost) != nil) {
		err = errLostLeg
	}
	switch {
	case errors.Is(err, backend.ErrLocked) && !r.Wait:
		// The engine takes this for an answer that leaves nothing behind.
		if back := from.caller.Release(ctx, &from.hold); back != nil && !errors.Is(back, backend.ErrLost) {
			return backend.Grant{}, backend.Unavailable(back)
		}
		return backend.Grant{}, err
	case err != nil:
		return backend.Grant{}, err
	}
	return granted(l), nil
}

// lead raises all the new store's tokens where it refuses the old one's as a floor, for they are far ahead of the
// clock: one was wrong once, and the tokens that were granted then are as good as any. The leg that was refused is
// given up for another.
func (d *member) lead(ctx context.Context, r *backend.Request, l *legs) error {
	err := patiently(ctx, r, func(ctx context.Context) error {
		if err := l.to.abandon(ctx); err != nil {
			return err
		}
		return d.to.opened().Raise(ctx, l.to.req.Floor)
	})
	if err != nil {
		return err
	}
	l.to = newLeg(l.to.caller, r, d.move, d.phase, core.Nonce())
	return nil
}

// patiently repeats a call for as long as a wait rides out an outage: a store may fail, or fall silent, after it has
// granted.
func patiently(ctx context.Context, r *backend.Request, do func(context.Context) error) error {
	if r.Wait {
		return core.Wait(ctx, r.Nonce, nil, func(ctx context.Context) (bool, time.Duration, error) {
			return true, 0, do(ctx)
		})
	}
	err := within(ctx, core.Patience, do)
	if errors.As(err, new(noAnswer)) {
		return core.Outlast(err)
	}
	return err
}

// noAnswer is the error of a store that has not answered for so long, while the caller's ctx goes on.
type noAnswer time.Duration

func (d noAnswer) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(d)) }

// within gives do a ctx that ends after most, if not before. Where most ended it, and not ctx, the error is noAnswer.
func within(ctx context.Context, most time.Duration, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := do(limited)
	end, _ := limited.Deadline()
	theirs, bounded := ctx.Deadline()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !(bounded && theirs.Equal(end)) {
		return noAnswer(most)
	}
	return err
}

// acquireSecond acquires the second leg while the first is kept.
func acquireSecond(ctx context.Context, first, second *leg) error {
	waiting, cancel := context.WithCancel(ctx)
	var kept sync.WaitGroup
	kept.Go(func() {
		first.keep(waiting)
		cancel() // it is lost
	})
	err := func() error {
		defer kept.Wait() // also after a panic
		defer cancel()
		return second.acquire(waiting)
	}()
	if first.hand(nil) != nil && ctx.Err() == nil {
		return errLostLeg
	}
	return err
}

// tie makes one lock of two grants: every later grant of the old store has a greater token than the new store's.
func (d *member) tie(ctx context.Context, from, to *leg) error {
	if from.asked.Elapsed()-from.hold.Sent > from.req.TTL/20 { // it has waited: both count from now
		if err := from.renew(ctx); errors.Is(err, backend.ErrLost) {
			return errLostLeg
		}
	}
	err := d.from.opened().RaiseHeld(ctx, &from.hold, to.hold.Token)
	if errors.Is(err, backend.ErrLost) {
		return errLostLeg
	}
	return err
}

// granted makes the grant of both: it is trusted for as long as either store keeps it for sure. The engine looks at
// the clock after this, and gives a grant back whose time is over.
func granted(l *legs) backend.Grant {
	g := backend.Grant{Token: l.to.hold.Token, Asked: l.from.asked, Handle: l}
	if l.to.asked.Sub(g.Asked) < 0 {
		g.Asked = l.to.asked
	}
	if most := min(l.from.span(), l.to.span()); most < l.from.req.TTL { // which holds for renewals too
		g.Max = most
	}
	return g
}

// repair gives a store its gate again that has none, or none in some of its places: it has lost data, and may let
// clients of the wrong phase in.
func (d *member) repair(ctx context.Context) error {
	select {
	case d.repairing <- struct{}{}:
		defer func() { <-d.repairing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if time.Since(d.repaired) < repairEvery {
		return nil
	}
	p, err := d.pair(ctx)
	if err == nil {
		err = p.prepare(ctx, false)
	}
	if err == nil {
		d.repaired = time.Now()
	}
	return err
}
