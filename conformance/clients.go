package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// hostileClients are rules K4: the caller's own pool or client is used up, read-only, closed or shared.
var hostileClients = []Rule{
	{
		Name: "K4", What: "the program uses up its client for a moment: calls obey their ctx, and nothing is lost",
		Why:   "A burst of a program's own work must not hang its locks, nor end a hold or a wait.",
		Needs: Needs{Shared: true}, Check: clientUsedUp,
	},
	{
		Name: "K45", What: "the program uses up its client for longer than a lease: no lock is lost, no wait ends",
		Why:   "A program whose handlers all wait for its database must not lose its locks as if that were down.",
		Needs: Needs{Shared: true, Own: true}, Check: clientUsedUpForLong,
	},
	{
		Name: "K46", What: "the program closes its client first: every call returns, and the lock comes free",
		Why:   "Programs end in the wrong order; a Close that hangs keeps them from ending at all.",
		Needs: Needs{Shared: true}, Check: clientClosed,
	},
	{
		Name: "K47", What: "two Lockers over one client exclude each other, and closing one leaves the other",
		Why:   "Two parts of a program use the client that it has, and know nothing of each other.",
		Needs: Needs{Shared: true}, Check: clientShared,
	},
}

// shared returns the harness's client, and a Locker over it.
func (e *Env) shared(ctx context.Context, opts ...fencelock.Option) (*Shared, *fencelock.Locker) {
	c := must(e.h.Shared(ctx))
	return c, e.over(c, opts...)
}

// over returns a Locker over a client.
func (e *Env) over(c *Shared, opts ...fencelock.Option) *fencelock.Locker {
	l := must(locker(must(c.Driver(e.prefix)), opts...))
	e.onClose(func() error { _ = l.Close(); return nil }) // a rule may have closed the client
	return l
}

// contended is a lock that a holds, one that b holds, and a's wait for that.
type contended struct {
	a, b         *fencelock.Locker
	ours, theirs *fencelock.Lease
	wait         <-chan result
}

func (e *Env) contended(ctx context.Context, a *fencelock.Locker) *contended {
	c := &contended{a: a, b: must(e.Open(ctx))}
	c.ours = must(try(ctx, a, e.Name(), "a free lock"))
	c.theirs = must(try(ctx, c.b, e.Name(), "a free lock"))
	c.wait = locking(ctx, a, c.theirs.Name())
	check(waiting(ctx, c.b, c.theirs.Name(), 1))
	return c
}

// whole checks that nothing was lost, and ends both holds.
func (c *contended) whole(ctx context.Context, e *Env, when string) error {
	check(live(c.ours, when+": the lease"))
	check(held(ctx, c.b, c.ours.Name(), when))
	select {
	case r := <-c.wait:
		return fmt.Errorf("%s: a Lock that waited has returned %w, and the lock is held", when, r.err)
	default:
	}
	check(unlock(ctx, c.theirs, "the holder that it waited for"))
	check(turn(ctx, c.wait, 5*time.Second+e.Slack(), "the waiter, "+when))
	return unlock(ctx, c.ours, "the holder, "+when)
}

// inTime runs f and returns an error if that takes longer than most, or else what f returns.
func inTime(ctx context.Context, what string, most time.Duration, f func() error) error {
	err, in, over := comes(ctx, running(f), most)
	if !in && over == nil {
		return fmt.Errorf("%s has not returned within %v", what, most)
	}
	return errors.Join(err, over)
}

func clientUsedUp(ctx context.Context, e *Env) error {
	client, a := e.shared(ctx)
	if client.UseUp == nil {
		e.Notef("the client has no bound that a program could use up")
		return nil
	}
	c := e.contended(ctx, a)
	giveBack := sync.OnceFunc(must(client.UseUp(ctx)))
	defer giveBack()
	const patience = 500 * time.Millisecond
	var extra []*fencelock.Lease
	for what, call := range map[string]func(ctx context.Context) error{
		"TryLock": func(ctx context.Context) error { return keep(&extra)(a.Mutex(e.Name()).TryLock(ctx)) },
		"Lock":    func(ctx context.Context) error { return keep(&extra)(a.Mutex(e.Name()).Lock(ctx)) },
		"Inspect": func(ctx context.Context) error { _, err := a.Inspect(ctx, c.ours.Name()); return err },
		"Renew":   c.ours.Renew,
	} {
		short, cancel := context.WithTimeout(ctx, patience)
		err := inTime(ctx, what+" with a ctx of 500 ms, while the client is used up",
			patience+time.Second+e.Slack(), func() error { return call(short) })
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fencelock.ErrUnavailable) {
			return fmt.Errorf("%s while the client is used up: got %w, want nil, "+
				"the ctx's error or ErrUnavailable", what, err)
		}
	}
	giveBack()
	for _, le := range extra {
		check(unlock(ctx, le, "a lock taken while the client was used up"))
	}
	return c.whole(ctx, e, "after the client was used up")
}

// keep collects a lease that a call returned.
func keep(all *[]*fencelock.Lease) func(*fencelock.Lease, error) error {
	return func(le *fencelock.Lease, err error) error {
		if err == nil {
			*all = append(*all, le)
		}
		return err
	}
}

func clientUsedUpForLong(ctx context.Context, e *Env) error {
	client, a := e.shared(ctx, e.kept())
	c := e.contended(ctx, a)
	other := must(try(ctx, a, e.Name(), "a free lock"))
	giveBack := must(client.UseUp(ctx))
	defer giveBack()
	check(sleep(ctx, 3*e.Kept()))
	check(unlock(ctx, other, "while the client is used up"))
	check(unlock(ctx, must(try(ctx, c.b, other.Name(), "after Unlock")), "the next holder"))
	return c.whole(ctx, e, "while the client is used up")
}

func clientClosed(ctx context.Context, e *Env) error {
	client, a := e.shared(ctx, e.kept())
	c := e.contended(ctx, a)
	check(want(client.Close(), nil, "Close of the client"))
	most := 5*time.Second + e.Slack()
	for what, call := range map[string]func() error{
		"TryLock": func() error { _, err := a.Mutex(e.Name()).TryLock(ctx); return err },
		"Inspect": func() error { _, err := a.Inspect(ctx, c.ours.Name()); return err },
		"Unlock":  func() error { return c.ours.Unlock(ctx) },
	} {
		check(inTime(ctx, what+" after the program has closed its client", most, func() error {
			e.Notef("%s after the client was closed: %v", what, call())
			return nil
		}))
	}
	check(inTime(ctx, "Close after the program has closed its client", most, func() error {
		_ = a.Close()
		return nil
	}))
	select {
	case r := <-c.wait:
		if r.err == nil {
			return errors.New("a Lock was granted a lock that another holds")
		}
	case <-time.After(most):
		return errors.New("a Lock still waits after Close")
	}
	r := must(granted(ctx, locking(ctx, c.b, c.ours.Name()),
		e.Kept()+e.traits.Resolution+time.Second+e.Slack(),
		"the next, of what the closed client held"))
	return errors.Join(unlock(ctx, r.lease, "the next"), unlock(ctx, c.theirs, "the other holder"))
}

func clientShared(ctx context.Context, e *Env) error {
	client, a := e.shared(ctx)
	b := e.over(client)
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	check(held(ctx, b, name, "by another Locker over the same client"))
	wait := locking(ctx, b, name)
	check(waiting(ctx, a, name, 1))
	check(unlock(ctx, le, "the holder"))
	r := must(granted(ctx, wait, 2*time.Second+e.Slack(), "the other Locker"))
	check(want(a.Close(), nil, "Close of the first"))
	check(want(r.lease.Renew(ctx), nil, "Renew after the other Locker was closed"))
	check(unlock(ctx, r.lease, "after the other Locker was closed"))
	_, err := cycle(ctx, b, name, "after the other Locker was closed")
	return err
}
