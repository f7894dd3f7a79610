package fencelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Leases are leases that LockAll took together, and that end together: when the first of them ends,
// whatever ended it, the others are given back, and what was written through their own transactions
// is rolled back. Where the first was lost, the store keeps the others for their WithGrace. Their
// methods may be called from many goroutines.
type Leases struct {
	all []*Lease // in LockAll's order

	turn chan struct{} // of size 1: its owner unlocks, so that no other Unlock finds half of the leases released

	mu      sync.Mutex
	done    chan struct{}
	err     error
	cause   error // of the first that ended
	leaving bool  // Unlock was called
	freed   map[*Lease]bool
	ctxs    map[context.Context]context.CancelCauseFunc // that end with the first of all
}

// LockAll is the function of that name for locks of this Locker, with its options.
func (l *Locker) LockAll(ctx context.Context, names ...string) (*Leases, error) {
	ms := make([]Mutex, len(names))
	for i, name := range names {
		ms[i] = l.Mutex(name)
	}
	return LockAll(ctx, ms...)
}

// LockAll locks all of ms or none. It takes them in the order of their names, as bytes, so that
// callers of LockAll never wait for each other in a circle; while it waits for one it holds those
// before it. A lock that a caller took by itself and still holds is outside of that order.
//
// If a lease is lost before all are held, all are released and it begins again, until ctx ends.
// Errors are *OpError with the name that failed: as Mutex.Lock; ErrInvalid without a name, for one
// that is given twice, or of two Lockers over one kind of backend, for which there is no order;
// ErrUnsupported for a Mutex that is not of this package. ErrDeadlock: ctx carries a live lease of
// one of the names.
func LockAll(ctx context.Context, ms ...Mutex) (*Leases, error) {
	order, err := inOrder(ms)
	if err != nil {
		return nil, err
	}
	for _, m := range order { // before it waits for others: they may wait for this one
		if h := m.l.carried(ctx, m.name); h != nil && !m.set.shares(h) {
			return nil, m.l.wrap("lock", m.name, ErrDeadlock)
		}
	}
	for {
		all, err := lockInOrder(ctx, order)
		if err == nil && firstEnded(all) == nil {
			return together(all), nil
		}
		lost := firstEnded(all) != nil
		discard(all, nil)
		if err != nil && !lost {
			return nil, err
		}
	}
}

// inOrder returns the mutexes in the order in which everybody locks them.
func inOrder(ms []Mutex) ([]*mutex, error) {
	var order []*mutex
	for _, m := range ms {
		mine, ok := m.(*mutex)
		if rw, both := m.(*rwMutex); both {
			mine, ok = rw.mutex, true
		}
		switch {
		case !ok:
			return nil, &OpError{Op: "lock", Err: fmt.Errorf("LockAll takes what a Locker returns, got a %T: %w",
				m, ErrUnsupported)}
		case mine.err != nil:
			return nil, mine.l.wrap("lock", mine.name, mine.err)
		}
		order = append(order, mine)
	}
	if len(order) == 0 {
		return nil, &OpError{Op: "lock", Err: backend.Invalid("LockAll was given no name: want one at least")}
	}
	slices.SortStableFunc(order, func(a, b *mutex) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.route.traits.Name, b.route.traits.Name))
	})
	for i, m := range order[1:] {
		if before := order[i]; m.name != before.name || m.route.traits.Name != before.route.traits.Name {
			continue
		} else if m.l == before.l {
			return nil, m.l.wrap("lock", m.name, backend.Invalid("LockAll was given the name twice"))
		}
		return nil, m.l.wrap("lock", m.name,
			backend.Invalid("LockAll was given the name for two Lockers over one kind of backend, "+
				"for which there is no order"))
	}
	return order, nil
}

// lockInOrder locks all, and returns those that it has locked, with the error that ended it. Free locks
// are taken at once; the wait for the first one that is not free begins with all before it held, and
// none behind it.
func lockInOrder(ctx context.Context, order []*mutex) (all []*Lease, err error) {
	held, end := context.WithCancelCause(ctx) // ends when one of all does
	panics := true
	var cs []*leaseCtx
	var got []taken // and not in all yet
	defer func() {
		for _, c := range cs {
			c.drop()
		}
		if end(nil); panics {
			discard(all, nil)
			giveBack(got)
		}
	}()
	hold := func(le *Lease) {
		c := &leaseCtx{lease: le}
		all, cs = append(all, le), append(cs, c)
		c.endWith(end)
	}
	for len(all) < len(order) && err == nil {
		rest := order[len(all):]
		if len(rest) > 1 {
			began := time.Now()
			got = takeEach(held, rest)
			free := slices.IndexFunc(append(got, taken{}), func(g taken) bool { return g.le == nil })
			giveBack(got[free:])
			for got = got[:free]; len(got) > 0; rest = rest[1:] {
				m, g := rest[0], got[0]
				ctx := m.begin(held, Locking, began)
				got = got[1:] // granted gives it back where the observer panics
				hold(m.granted(ctx, g.le, g.joined, began))
			}
		}
		if len(rest) > 0 {
			var le *Lease
			if le, err = rest[0].Lock(held); err == nil {
				hold(le)
			}
		}
	}
	panics = false
	return all, err
}

// taken is what mutex.take has returned. The observer has not heard of it.
type taken struct {
	le     *Lease // or nil
	joined bool
}

// takeEach tries all at once. Why one was not had its Lock tells.
func takeEach(ctx context.Context, ms []*mutex) []taken {
	got := make([]taken, len(ms))
	panics := true
	defer func() {
		if panics {
			giveBack(got)
		}
	}()
	atOnce(len(ms), func(i int) { got[i].le, got[i].joined, _ = ms[i].take(ctx, false) })
	panics = false
	return got
}

// giveBack undoes take.
func giveBack(got []taken) {
	for _, g := range got {
		if g.le != nil {
			g.le.discard(nil)
			g.le.h.l.exit()
		}
	}
}

// discard gives all of les back; why as in Lease.discard.
func discard(les []*Lease, why error) {
	for _, le := range les {
		le.discard(why)
	}
}

// atOnce calls do for 0 to n-1, in a pool. It panics if one of them does, which may be an observer's
// doing, once all have returned.
func atOnce(n int, do func(i int)) {
	var (
		mu    sync.Mutex
		under pool
		ended = sync.NewCond(&mu)
		wg    sync.WaitGroup
		first any // panic
	)
	mu.Lock()
	for i := range n {
		for under.full() {
			ended.Wait()
		}
		end := under.begin(&mu, ended.Signal)
		wg.Go(func() {
			defer func() {
				r := recover()
				mu.Lock()
				defer mu.Unlock()
				end()
				ended.Signal()
				if first == nil {
					first = r
				}
			}()
			do(i)
		})
	}
	mu.Unlock()
	if wg.Wait(); first != nil {
		panic(first)
	}
}

// firstEnded returns the first lease that has ended, or nil.
func firstEnded(all []*Lease) *Lease {
	if i := slices.IndexFunc(all, func(le *Lease) bool { return le.Err() != nil }); i >= 0 {
		return all[i]
	}
	return nil
}

// together makes Leases of leases.
func together(all []*Lease) *Leases {
	ls := &Leases{
		all: all, turn: make(chan struct{}, 1), done: make(chan struct{}), freed: map[*Lease]bool{},
		ctxs: map[context.Context]context.CancelCauseFunc{},
	}
	for _, le := range all {
		(&leaseCtx{lease: le}).endWith(func(error) { go ls.end(le) })
	}
	return ls
}

// end ends all, for le has ended.
func (ls *Leases) end(le *Lease) {
	ls.mu.Lock()
	if ls.err != nil {
		ls.mu.Unlock()
		return
	}
	ls.cause = le.Err()
	for _, cancel := range ls.ctxs {
		cancel(ls.cause) // before the others end
	}
	ls.err = ls.cause
	unlocked := ls.leaving && ls.err == ErrReleased
	if !unlocked {
		ls.err = le.h.l.wrap("lock", le.Name(), ls.err)
	}
	close(ls.done)
	ls.mu.Unlock()
	if unlocked {
		return
	}
	discard(ls.all, ls.cause)
}

// Lease returns the lease of this name, or nil: its Token guards what the name stands for, and there
// is no token of the whole. Where a name was locked over two kinds of backend, it is the first.
func (ls *Leases) Lease(name string) *Lease {
	if i := slices.IndexFunc(ls.all, func(le *Lease) bool { return le.Name() == name }); i >= 0 {
		return ls.all[i]
	}
	return nil
}

// Done returns a channel that is closed when the first lease ends.
func (ls *Leases) Done() <-chan struct{} {
	_ = ls.Err()
	return ls.done
}

// Err returns nil while all are held; after that ErrReleased if Unlock ended them, else an *OpError
// with the name of the first that ended and its error.
func (ls *Leases) Err() error {
	if le := firstEnded(ls.all); le != nil {
		ls.end(le)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.err
}

// Deadline returns the earliest Deadline of the leases.
func (ls *Leases) Deadline() time.Time {
	return slices.MinFunc(ls.all, func(a, b *Lease) int { return a.Deadline().Compare(b.Deadline()) }).Deadline()
}

// Context is Lease.Context for all: it ends with the first lease, and carries each.
func (ls *Leases) Context(parent context.Context) (context.Context, context.CancelFunc) {
	outer, end := context.WithCancelCause(parent)
	ls.mu.Lock()
	if ls.cause != nil {
		end(ls.cause)
	} else {
		ls.ctxs[outer] = end
	}
	ls.mu.Unlock()
	first, _ := parent.Value(leaseKey{}).(*leaseCtx)
	c := first
	for _, le := range ls.all {
		c = &leaseCtx{outer, le, c}
		c.endWith(end)
	}
	context.AfterFunc(outer, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		delete(ls.ctxs, outer)
		for o := c; o != first; o = o.outer {
			o.drop()
		}
	})
	return c, func() { end(nil) }
}

// take waits for the turn of an Unlock, as long as an Unlock of a Lease may take.
func (ls *Leases) take(ctx context.Context) bool {
	limited := ls.all[0].h.l.outlive(ctx)
	defer limited.End()
	select {
	case ls.turn <- struct{}{}:
		return true
	case <-limited.Done(): // as each Lease says it
		return false
	}
}

// Unlock unlocks all, as Lease.Unlock does one, and joins the errors. It returns nil only if each
// was surely held until now. Where one was lost and others ended with it, it returns the loss, also
// if what was written under the lost one is committed. After ErrUnavailable it may be called again,
// for those that are left.
func (ls *Leases) Unlock(ctx context.Context) error {
	if ls.take(ctx) {
		defer func() { <-ls.turn }()
	}
	ls.mu.Lock()
	ls.leaving = true
	lost := ls.err != nil && ls.err != ErrReleased
	left := slices.DeleteFunc(slices.Clone(ls.all), func(le *Lease) bool { return ls.freed[le] })
	ls.mu.Unlock()
	if lost { // end may be at it yet, and what is written under the others must not be committed
		discard(ls.all, ls.cause)
	}
	errs := make([]error, len(left))
	atOnce(len(left), func(i int) { errs[i] = left[i].Unlock(ctx) })
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var released error = ErrReleased
	if len(left) > 0 {
		released = nil
	}
	for i, err := range errs {
		switch {
		case err == nil:
			ls.freed[left[i]] = true
		case errors.Is(err, ErrReleased): // by its own Unlock, or since another one ended
			released, errs[i] = err, nil
			if errors.Is(ls.err, ErrLost) { // what was written under it is rolled back
				released = ls.err
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return released
}
