package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// hostileObservers are rules K12: an observer that blocks or panics.
var hostileObservers = []Rule{
	{
		Name: "K12", What: "an observer that blocks or panics, at every event, costs nobody a lease",
		Why: "A fault in a program's metrics must not make its locks stop being renewed, stay " +
			"held, or go unannounced.", Check: observerMisbehaves,
	},
}

// badly is an Observer that misbehaves at one kind of event of the name that is called after that kind.
type badly struct {
	blocks chan struct{} // nil: it panics
}

// badName is the name at whose events of this kind an observer misbehaves.
func badName(k fencelock.EventKind) string { return "bad " + k.String() }

func (o badly) at(e fencelock.Event) {
	switch {
	case e.Name != badName(e.Kind):
	case o.blocks == nil:
		panic("the observer, at " + e.Kind.String())
	default:
		<-o.blocks
	}
}

func (o badly) Begin(ctx context.Context, e fencelock.Event) context.Context {
	o.at(e)
	return ctx
}

func (o badly) Observe(_ context.Context, e fencelock.Event) { o.at(e) }

// The kinds at which the caller of Lock, TryLock and Unlock meets the observer, and those at which nobody does.
var (
	kindsOfCalls = []fencelock.EventKind{
		fencelock.Acquired, fencelock.NotAcquired, fencelock.Released, fencelock.Joined,
		fencelock.Left, fencelock.NotReleased,
		fencelock.Locking, fencelock.TryLocking, fencelock.Unlocking,
	}
	kindsOfNobody = []fencelock.EventKind{fencelock.Renewed, fencelock.Lost, fencelock.CleanedUp}
)

func observerMisbehaves(ctx context.Context, e *Env) error {
	type run struct {
		blocks bool
		kinds  []fencelock.EventKind
	}
	runs := []run{{false, slices.Concat(kindsOfCalls, kindsOfNobody)}, {true, kindsOfCalls}}
	for _, k := range kindsOfNobody { // which come one after the other, so that the first that blocks is the last
		runs = append(runs, run{true, []fencelock.EventKind{k}})
	}
	return together(len(runs), func(i int) error {
		r := runs[i]
		o, prefix := badly{}, fmt.Sprintf("run-%d-%s", i, e.prefix)
		if r.blocks {
			o.blocks = make(chan struct{})
		}
		b := must(e.open(ctx, Client{Prefix: prefix}, e.kept()))
		l := must(e.open(
			ctx, Client{Prefix: prefix}, e.kept(), fencelock.WithObserver(o),
			fencelock.WithReentrancy(),
		))
		c := &observed{e: e, l: l, other: b}
		part(fmt.Sprintf("blocks %v", r.blocks), func() error { return c.misbehaves(ctx, r.kinds, o.blocks) })
		return nil
	})
}

// observed is a Locker whose observer misbehaves, and another client of the store.
type observed struct {
	e        *Env
	l, other *fencelock.Locker
	calls    sync.WaitGroup
}

// call runs a call that the observer may block, and swallows its panic.
func (c *observed) call(do func()) {
	c.calls.Go(func() {
		defer func() { _ = recover() }()
		do()
	})
}

func (c *observed) misbehaves(ctx context.Context, kinds []fencelock.EventKind, blocks chan struct{}) error {
	defer func() {
		if blocks != nil {
			close(blocks)
		}
		c.calls.Wait()
	}()
	good := must(try(ctx, c.l, "good", "a free lock"))
	broken := must(try(ctx, c.l, "broken", "a free lock"))
	free := make([]string, 0, len(kinds)) // those that another client must get at once
	for _, k := range kinds {
		part(k.String(), func() error {
			if c.provoke(ctx, k, blocks != nil) {
				free = append(free, badName(k))
			}
			return nil
		})
	}
	for _, name := range free {
		check(turn(ctx, locking(ctx, c.other, name), time.Second+c.e.Slack(), "another client, of "+name))
	}
	check(sleep(ctx, 2*c.e.Kept()))
	check(live(good, "another lease of the same Locker, after two TTLs"))
	check(c.other.Break(ctx, "broken"))
	check(c.e.learns(ctx, broken))
	check(inTime(ctx, "a cycle of another name", time.Second+c.e.Slack(), func() error {
		_, err := cycle(ctx, c.l, "another", "another name")
		return err
	}))
	return unlock(ctx, good, "another lease")
}

// provoke brings an event of this kind about, and reports whether the lock is given up after it, or at once.
func (c *observed) provoke(ctx context.Context, k fencelock.EventKind, blocks bool) (gone bool) {
	name := badName(k)
	m := c.l.Mutex(name)
	switch k {
	case fencelock.Acquired, fencelock.Locking, fencelock.TryLocking:
		lock := m.Lock
		if k == fencelock.TryLocking {
			lock = m.TryLock
		}
		c.call(func() {
			if le, err := lock(ctx); err == nil {
				_ = le.Unlock(ctx)
			}
		})
		return !blocks
	case fencelock.NotAcquired:
		over, cancel := context.WithCancel(ctx)
		cancel()
		c.call(func() { _, _ = m.TryLock(over) })
		return true
	case fencelock.Released:
		c.passes(ctx, m)
		return true
	case fencelock.CleanedUp:
		le := must(try(ctx, c.other, name, "a free lock"))
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := m.Lock(short)
		check(want(err, context.DeadlineExceeded, "Lock until its ctx ends"))
		check(unlock(ctx, le, "the other client"))
		return true
	}
	le := must(try(ctx, c.l, name, "a free lock"))
	switch k {
	case fencelock.Lost:
		check(c.other.Break(ctx, name))
		return true
	case fencelock.Joined, fencelock.Left:
		c.call(func() {
			held, cancel := le.Context(ctx)
			defer cancel()
			defer func() { _ = le.Unlock(ctx) }()
			if inner, err := m.Lock(held); err == nil {
				_ = inner.Unlock(ctx)
			}
		})
		return !blocks
	case fencelock.NotReleased:
		check(unlock(ctx, le, "the holder"))
		c.call(func() { _ = le.Unlock(ctx) })
		return true
	case fencelock.Unlocking:
		c.call(func() { _ = le.Unlock(ctx) })
	}
	return false // it goes on being held
}

// passes has a lock unlocked for which another Lock of the same process waits.
func (c *observed) passes(ctx context.Context, m fencelock.Mutex) {
	le := must(try(ctx, c.l, m.Name(), "a free lock"))
	next := make(chan result, 1)
	c.call(func() {
		le, err := m.Lock(ctx)
		next <- result{le, err, time.Now()}
		if err == nil {
			_ = le.Unlock(ctx)
		}
	})
	check(waiting(ctx, c.other, m.Name(), 1))
	c.call(func() { _ = le.Unlock(ctx) })
	must(granted(ctx, next, time.Second+c.e.Slack(), "the next in line here"))
}
