package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// hostileKeyspaces are rules K2: two keyspaces never meet, for every way in which a store offers one.
var hostileKeyspaces = []Rule{
	{
		Name: "K2", What: "two keyspaces never meet, whichever way they are made",
		Why:   "A tenant's lock, waiter, Break or list must not be another's.",
		Check: keyspacesApart,
	},
}

// besidePrefixes are pairs of prefixes that a store could take for one, or the first for a pattern
// that matches the second.
var besidePrefixes = [][2]string{
	{"a:", "b:"},
	{"A:", "a:"},
	{"*:", "a:"},
	{"?:", "a:"},
	{"[ab]:", "a:"},
	{"_:", "a:"},
	{"%:", "a:"},
	{"~a:", "~~a:"},
	{"a/b:", "a:b:"},
}

// keyspacesApart checks each pair of prefixes, and each way of Harness.Apart.
func keyspacesApart(ctx context.Context, e *Env) error {
	for i, p := range besidePrefixes {
		at := fmt.Sprintf("%s%d:", e.prefix, i)
		err := e.apart(ctx, func(ctx context.Context, side int) (backend.Driver, error) {
			return e.h.Driver(ctx, Client{Prefix: at + p[side]})
		})
		if err != nil {
			return fmt.Errorf("the prefixes %q and %q: %w", p[0], p[1], err)
		}
	}
	for _, a := range e.h.Apart {
		err := e.apart(ctx, func(ctx context.Context, side int) (backend.Driver, error) {
			return a.Driver(ctx, side, e.prefix)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", a.What, err)
		}
	}
	return nil
}

// keyspace is two clients with a Locker and one without, of one keyspace.
type keyspace struct {
	a, b   *fencelock.Locker
	caller core.Caller
}

// apart checks two keyspaces: what is done in one changes nothing in the other, and is not seen there.
func (e *Env) apart(ctx context.Context, open func(ctx context.Context, side int) (backend.Driver, error)) error {
	var spaces [2]keyspace
	for side := range spaces {
		var ls [2]*fencelock.Locker
		for i := range ls {
			d, err := open(ctx, side)
			if err != nil {
				return fmt.Errorf("a new client: %w", err)
			}
			if ls[i], err = fencelock.New(d, fencelock.WithTTL(ample)); err != nil {
				return errors.Join(err, d.Close())
			}
			e.onClose(ls[i].Close)
		}
		d, err := open(ctx, side)
		if err != nil {
			return fmt.Errorf("a new client: %w", err)
		}
		of := core.Of(d)
		e.onClose(func() error { defer of.Land(); return of.Close() })
		spaces[side] = keyspace{ls[0], ls[1], of}
	}
	one, two := spaces[0], spaces[1]
	name := e.Name()
	if err := e.locksApart(ctx, one, two, name); err != nil {
		return err
	}
	if err := e.locksApart(ctx, two, one, name); err != nil {
		return err
	}
	return e.noncesApart(ctx, one, two, name)
}

// locksApart holds a lock in one keyspace, and has one wait for it, while its name is used in the
// other, where List shows that use only.
func (e *Env) locksApart(ctx context.Context, one, two keyspace, name string) error {
	const soon = ample / 2 // a lock that is free is granted within it, and one that is not is not
	le, err := try(ctx, one.a, name, "a free lock")
	if err != nil {
		return err
	}
	waiter := locking(ctx, one.b, name)
	if err := waiting(ctx, one.a, name, 1); err != nil {
		return err
	}
	untouched := func(when string) error {
		if err := le.Err(); err != nil {
			return fmt.Errorf("%s: the holder in this keyspace: got %w, want it held", when, err)
		}
		info, err := one.a.Inspect(ctx, name)
		if err != nil || !info.Held || info.Token != le.Token() || info.Waiters != 1 && info.Waiters >= 0 {
			return fmt.Errorf("%s: Inspect in this keyspace: got %+v, %v; "+
				"want it held with token %d and one waiter", when, info, err, le.Token())
		}
		return nil
	}
	if info, err := two.a.Inspect(ctx, name); err != nil || info.Held || info.Waiters > 0 {
		return fmt.Errorf("held and waited for in the other keyspace: Inspect: got %+v, %v; want it free", info, err)
	}
	if err := two.a.Break(ctx, name); err != nil {
		return fmt.Errorf("Break of what is held in the other keyspace only: %w", err)
	}
	if err := untouched("after a Break of the name in the other keyspace, where it was free"); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	other, err := try(limited, two.a, name, "held and waited for in the other keyspace")
	if err != nil {
		return err
	}
	if err := other.Renew(ctx); err != nil { // from then on every store shows the token for good
		return fmt.Errorf("Renew: %w", err)
	}
	for info, err := range two.b.List(ctx, "") {
		if err != nil || info.Name != name || info.Token != other.Token() || info.Waiters > 0 {
			return fmt.Errorf("List: got %+v, %v; want %q with token %d and no waiter", info, err, name, other.Token())
		}
	}
	next := locking(limited, two.b, name)
	if err := waiting(ctx, two.a, name, 1); err != nil {
		return err
	}
	if err := two.a.Break(ctx, name); err != nil {
		return fmt.Errorf("Break: %w", err)
	}
	r, err := granted(ctx, next, soon, "the waiter after a Break in its keyspace")
	if err != nil {
		return err
	}
	if _, err := ended(ctx, other, e.traits.Revoked+e.Slack()); err != nil {
		return err
	}
	if err := unlock(ctx, r.lease, "the waiter after a Break in its keyspace"); err != nil {
		return err
	}
	if r.lease.Token() <= other.Token() {
		return fmt.Errorf("token after a Break: got %d after %d", r.lease.Token(), other.Token())
	}
	if err := untouched("after a Break and an Unlock of the name in the other keyspace"); err != nil {
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	if r, err = granted(ctx, waiter, soon, "the waiter"); err != nil {
		return err
	}
	if r.lease.Token() <= le.Token() {
		return fmt.Errorf("token of the waiter: got %d after %d", r.lease.Token(), le.Token())
	}
	return unlock(ctx, r.lease, "the waiter")
}

// noncesApart sends one request to both keyspaces, as a migration from one to the other does.
func (e *Env) noncesApart(ctx context.Context, one, two keyspace, name string) error {
	r := e.Request(name, false)
	r.TTL = ample
	g, err := one.caller.Acquire(ctx, r)
	if err != nil {
		return fmt.Errorf("one request to both keyspaces: Acquire in the first: %w", err)
	}
	first := &core.Hold{Request: r, Grant: g}
	if g, err = two.caller.Acquire(ctx, r); err != nil {
		return fmt.Errorf("one request to both keyspaces: Acquire in the second: %w", err)
	}
	second := &core.Hold{Request: r, Grant: g}
	if err := one.caller.Release(ctx, first); err != nil {
		return fmt.Errorf("one request to both keyspaces: Release in the first: %w", err)
	}
	if err := two.caller.Renew(ctx, []*core.Hold{second})[0]; err != nil {
		return fmt.Errorf("one request to both keyspaces: Renew in the second after the Release in the first: %w", err)
	}
	if err := two.caller.Release(ctx, second); err != nil {
		return fmt.Errorf("one request to both keyspaces: Release in the second after that in the first: %w", err)
	}
	for i, k := range []keyspace{one, two} {
		if info, err := k.caller.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("one request to both keyspaces, released in both: Inspect in "+
				"number %d: got %+v, %v; want it free", i+1, info, err)
		}
	}
	return nil
}
