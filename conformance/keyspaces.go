package conformance

import (
	"context"
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
		part(fmt.Sprintf("the prefixes %q and %q", p[0], p[1]), func() error {
			return e.apart(ctx, func(ctx context.Context, side int) (backend.Driver, error) {
				return e.h.Driver(ctx, Client{Prefix: at + p[side]})
			})
		})
	}
	for _, a := range e.h.Apart {
		part(a.What, func() error {
			return e.apart(ctx, func(ctx context.Context, side int) (backend.Driver, error) {
				return a.Driver(ctx, side, e.prefix)
			})
		})
	}
	return nil
}

// keyspace is two clients with a Locker and one without, of one keyspace.
type keyspace struct {
	a, b   *fencelock.Locker
	caller core.Caller
}

// apart checks two keyspaces: a call in one changes nothing in the other, and is not seen there.
func (e *Env) apart(ctx context.Context, open func(ctx context.Context, side int) (backend.Driver, error)) error {
	var spaces [2]keyspace
	for side := range spaces {
		var ls [2]*fencelock.Locker
		for i := range ls {
			ls[i] = must(locker(must(open(ctx, side))))
			e.onClose(ls[i].Close)
		}
		spaces[side] = keyspace{ls[0], ls[1], e.called(must(open(ctx, side)))}
	}
	one, two := spaces[0], spaces[1]
	name := e.Name()
	check(e.locksApart(ctx, one, two, name))
	check(e.locksApart(ctx, two, one, name))
	return e.noncesApart(ctx, one, two, name)
}

// locksApart holds a lock in one keyspace, and has one wait for it, while its name is used in the
// other, where List shows that use only.
func (e *Env) locksApart(ctx context.Context, one, two keyspace, name string) error {
	const soon = ample / 2 // a lock that is free is granted within it, and one that is not is not
	le, line := e.lined(ctx, one.a, name, one.b)
	untouched := func(when string) error {
		check(live(le, when+": the holder in this keyspace"))
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
	check(want(two.a.Break(ctx, name), nil, "Break of what is held in the other keyspace only"))
	check(untouched("after a Break of the name in the other keyspace, where it was free"))
	limited, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	other := must(try(limited, two.a, name, "held and waited for in the other keyspace"))
	check(want(other.Renew(ctx), nil, "Renew")) // from then on every store shows the token for good
	for info, err := range two.b.List(ctx, "") {
		if err != nil || info.Name != name || info.Token != other.Token() || info.Waiters > 0 {
			return fmt.Errorf("List: got %+v, %v; want %q with token %d and no waiter", info, err, name, other.Token())
		}
	}
	next := locking(limited, two.b, name)
	check(waiting(ctx, two.a, name, 1))
	check(want(two.a.Break(ctx, name), nil, "Break"))
	r := must(granted(ctx, next, soon, "the waiter after a Break in its keyspace"))
	check(e.learns(ctx, other))
	check(unlock(ctx, r.lease, "the waiter after a Break in its keyspace"))
	check(e.above(r.lease.Token(), other.Token(), "after a Break"))
	check(untouched("after a Break and an Unlock of the name in the other keyspace"))
	check(unlock(ctx, le, "the holder"))
	r = must(granted(ctx, line[0], soon, "the waiter"))
	check(e.above(r.lease.Token(), le.Token(), "of the waiter"))
	return unlock(ctx, r.lease, "the waiter")
}

// noncesApart sends one request to both keyspaces, as a migration from one to the other does.
func (e *Env) noncesApart(ctx context.Context, one, two keyspace, name string) error {
	r := e.Request(name, false)
	r.TTL = ample
	part("one request to both keyspaces", func() error {
		first := must(acquire(ctx, one.caller, r, "the first"))
		second := must(acquire(ctx, two.caller, r, "the second"))
		check(release(ctx, one.caller, first, "the first"))
		renewed := two.caller.Renew(ctx, []*core.Hold{second})[0]
		check(want(renewed, nil, "Renew in the second after the Release in the first"))
		return release(ctx, two.caller, second, "the second after that in the first")
	})
	for i, k := range []keyspace{one, two} {
		if info, err := k.caller.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("one request to both keyspaces, released in both: Inspect in "+
				"number %d: got %+v, %v; want it free", i+1, info, err)
		}
	}
	return nil
}
