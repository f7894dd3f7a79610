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

// errLostLeg: what was held in the one store was lost before the other one granted. Nobody has been
// told of a lock, so the acquisition starts over.
var errLostLeg = errors.New("the lock was lost in one of the two stores before the other had granted it")

// repairEvery is how often, at the most, a client looks whether a store has lost its gate.
const repairEvery = time.Second

// Acquire implements core.Caller. In phase both it takes the lock in the old store, then in the new one
// with a floor above the old one's token, and then raises the old store's tokens to the new token on the
// condition that the lock is still held there: three round trips. The token is the new store's.
//
// The old store's part is renewed while the new store is waited for. If it is lost all the same, the
// acquisition starts over, at the end of both queues.
func (d *member) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if d.look {
		return backend.Grant{}, backend.Unsupported("this client of migration %q only looks", d.move)
	}
	if err := d.report.asks(ctx, d, r); err != nil {
		return backend.Grant{}, err
	}
	if d.phase != backend.PhaseBoth {
		return d.acquireOne(ctx, r)
	}
	nonce := d.nonceOf(r)
	for {
		g, err := d.round(ctx, r, nonce)
		switch {
		case !errors.Is(err, errLostLeg):
			return g, err
		case ctx.Err() != nil:
			return backend.Grant{}, ctx.Err()
		case !r.Wait:
			return backend.Grant{}, backend.Unavailable(err)
		}
		m := d.legsOf(r, nonce)
		d.drop(m.to)
		d.drop(m.from)
		nonce = core.Nonce()
	}
}

func (d *member) acquireOne(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	l := d.only(r)
	if err := l.acquire(ctx); err != nil {
		return backend.Grant{}, err
	}
	g := l.hold.Grant
	g.Ungated = false
	g.Handle = d.handle(l)
	return g, nil
}

// made is what a migration has made of a request, kept in its Claim: its stores know an acquisition
// by the request that they were given.
type made struct {
	d        *member
	nonce    string // another one once the acquisition has started over
	from, to *leg   // to is nil in a phase with one store
}

// legsOf returns the legs that were made of a request under a nonce, also those that have ended: an Abandon needs them.
func (d *member) legsOf(r *backend.Request, nonce string) *made {
	m, ok := r.Claim.(*made)
	if !ok || m.d != d || m.nonce != nonce {
		return nil
	}
	return m
}

// nonceOf is the nonce under which a request is now.
func (d *member) nonceOf(r *backend.Request) string {
	if m, ok := r.Claim.(*made); ok && m.d == d {
		return m.nonce
	}
	return r.Nonce
}

// only is the leg of a phase with one store.
func (d *member) only(r *backend.Request) *leg {
	if m := d.legsOf(r, r.Nonce); m != nil {
		return m.from
	}
	l := newLeg(d.sides()[0], r, d.move, d.phase, r.Nonce)
	l.tell = r.Lost
	r.Claim = &made{d: d, nonce: r.Nonce, from: l}
	return l
}

func (d *member) handle(l *leg) *legs {
	if d.phase == backend.PhaseFrom {
		return &legs{from: l}
	}
	return &legs{to: l}
}

// round is one attempt to get the lock in both stores.
func (d *member) round(ctx context.Context, r *backend.Request, nonce string) (backend.Grant, error) {
	from, to := d.pairOf(r, nonce)
	if err := from.acquire(ctx); err != nil {
		return backend.Grant{}, err
	}
	to.req.Floor = max(r.Floor, from.hold.Token)
	err := d.lead(ctx, from.hold.Token)
	if err == nil {
		err = acquireSecond(ctx, from, to)
	}
	if err == nil {
		err = patiently(ctx, func(ctx context.Context) error { return d.tie(ctx, from, to) })
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
	return d.granted(from, to), nil
}

// lead raises the new store's tokens where the old one's are so far ahead of the clock that a store refuses them as a
// floor: a clock was wrong once, and the tokens that were granted then are as good as any. It costs such a fleet one
// more round trip, and no other.
func (d *member) lead(ctx context.Context, token backend.Token) error {
	if token <= time.Now().UnixMicro()+backend.FloorAhead/2 {
		return nil
	}
	return patiently(ctx, func(ctx context.Context) error { return d.to.opened().Raise(ctx, token) })
}

// patiently gives what has no patience of its own that of a wait: a store may fall silent after it has granted.
func patiently(ctx context.Context, do func(context.Context) error) error {
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

// pairOf makes the legs of an acquisition in phase both.
func (d *member) pairOf(r *backend.Request, nonce string) (from, to *leg) {
	if m := d.legsOf(r, nonce); m != nil {
		return m.from, m.to
	}
	sides := d.sides()
	from = newLeg(sides[0], r, d.move, d.phase, nonce)
	to = newLeg(sides[1], r, d.move, d.phase, nonce)
	r.Claim = &made{d, nonce, from, to}
	return from, to
}

// acquireSecond acquires the second leg while the first is kept.
func acquireSecond(ctx context.Context, first, second *leg) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var kept sync.WaitGroup
	kept.Go(func() { first.keep(waiting) })
	kept.Go(func() {
		select {
		case <-first.gone:
			cancel()
		case <-waiting.Done():
		}
	})
	err := second.acquire(waiting)
	cancel() // after a panic the deferred one does it
	kept.Wait()
	if first.isGone() && ctx.Err() == nil {
		return errLostLeg
	}
	return err
}

// isGone reports whether the leg was lost before it was handed out.
func (l *leg) isGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost != nil
}

// tie makes one lock of two grants: every later grant of the old store has a greater token than the new store's.
func (d *member) tie(ctx context.Context, from, to *leg) error {
	if from.asked.Elapsed() > from.req.TTL/20 { // it has waited: both count from now
		if err := from.renew(ctx); errors.Is(err, backend.ErrLost) {
			return errLostLeg
		}
	}
	switch err := d.from.opened().RaiseHeld(ctx, &from.hold, to.hold.Token); {
	case errors.Is(err, backend.ErrLost):
		return errLostLeg
	case err != nil:
		return err
	}
	if from.hold.Ungated || to.hold.Ungated {
		return d.repair(ctx)
	}
	return nil
}

// granted makes the grant of both: it is trusted for as long as either store keeps it for sure. The engine looks at
// the clock after this, and gives a grant back whose time is over.
func (d *member) granted(from, to *leg) backend.Grant {
	first, last := from, to
	if to.asked.Sub(from.asked) < 0 {
		first, last = to, from
	}
	most := min(first.span(), last.asked.Sub(first.asked)+last.span())
	g := backend.Grant{Token: to.hold.Token, Asked: first.asked, Handle: &legs{from: from, to: to}}
	if most < from.req.TTL {
		g.Max = max(most, time.Nanosecond)
	}
	return g
}

// repair closes a store that has no gate, or none in some of its places, while the other one is open: it has lost
// data, and would let clients of the wrong phase in.
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
		err = p.repair(ctx)
	}
	if err == nil {
		d.repaired = time.Now()
	}
	return err
}

func (p Pair) repair(ctx context.Context) error {
	from, to, err := p.both(ctx)
	if err != nil {
		return err
	}
	switch {
	case from.lacks() && to.lets(false): // an old store without a gate counts as open, which is right otherwise
		g := p.fresh(backend.GateBoth, max(from.Epoch, to.Epoch))
		g.sealed = to.sealed
		err = p.set(ctx, p.from, g, from.expected())
	case from.sealed: // the migration is over, and the new store everybody's
	case to.Epoch == 0 || to.Torn && from.lets(true):
		err = p.set(ctx, p.to, p.fresh(backend.GateBoth, max(from.Epoch, to.Epoch)), to.expected())
	}
	if errors.Is(err, backend.ErrGateMoved) {
		return nil // somebody else has done it
	}
	return err
}
