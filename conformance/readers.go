package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fence"
)

// told runs rounds in which waiters are let in, until most of five have shown whether it was a push that did it. A
// waiter that was not told of its grant looks by itself a second after it queued at the soonest. So a round that is
// over within that time has told all of its waiters. One whose waiters took half of it to queue shows nothing: the
// machine is busy.
func (e *Env) told(round func() (queued, took time.Duration, err error)) error {
	const rounds, look = 5, time.Second
	told, not := 0, 0
	for range 2 * rounds {
		queued, took, err := round()
		switch {
		case err != nil:
			return err
		case took < look:
			told++
		case queued < look/2:
			not++
		}
		switch {
		case told > rounds/2:
			return nil
		case not > rounds/2:
			return fmt.Errorf("in %d of %d rounds the waiters came in only when they looked by themselves "+
				"(the last one took %v), want them told", not, told+not, took.Round(time.Millisecond))
		}
	}
	e.Notef("the machine is too busy to show whether waiters were told of a grant")
	return nil
}

// allLetIn is rule S4.
func allLetIn(ctx context.Context, e *Env) error {
	const n = 8
	ls := e.several(ctx, n+1)
	return e.told(func() (queued, took time.Duration, err error) {
		name := e.Name()
		writer := must(take(ctx, ls[n].RWMutex(name).TryLock, "a writer"))
		began := time.Now()
		var all []<-chan result
		for i := range n {
			all = append(all, calling(ctx, ls[i].RWMutex(name).RLock))
		}
		check(waiting(ctx, ls[n], name, n))
		queued = time.Since(began)
		check(unlock(ctx, writer, "the writer"))
		var in []*fencelock.Lease
		for i, ch := range all {
			r := must(granted(ctx, ch, e.soon(), fmt.Sprintf("reader %d of %d, beside the others", i+1, n)))
			in = append(in, r.lease)
		}
		took = time.Since(began)
		for _, le := range in {
			check(unlock(ctx, le, "a reader"))
		}
		return queued, took, nil
	})
}

// writerGivesUp is rule S5.
func writerGivesUp(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 4)
	return e.told(func() (queued, took time.Duration, err error) {
		name := e.Name()
		reader := must(take(ctx, ls[0].RWMutex(name).TryRLock, "a reader"))
		waits, cancel := context.WithCancel(ctx)
		defer cancel()
		writer := calling(waits, ls[1].RWMutex(name).Lock)
		check(waiting(ctx, ls[3], name, 1))
		began := time.Now()
		late := calling(ctx, ls[2].RWMutex(name).RLock)
		check(waiting(ctx, ls[3], name, 2))
		queued = time.Since(began)
		cancel()
		if r := <-writer; r.err == nil {
			return 0, 0, errors.New("the writer was granted beside a reader")
		}
		r := must(granted(ctx, late, e.soon(), "a reader behind a writer that has given up"))
		check(unlock(ctx, r.lease, "the late reader"))
		return queued, r.at.Sub(began), unlock(ctx, reader, "the reader")
	})
}

// deadWriter is rule S6. The dead writer never has its turn, for a reader holds the lock all the time.
func deadWriter(ctx context.Context, e *Env) error {
	const long = time.Minute // what is promised does not grow with the TTL of the dead
	ls := e.several(ctx, 2)
	for _, way := range []struct {
		how string
		end func(*Process) error
	}{
		{"killed", func(p *Process) error { p.Kill(); return nil }},
		{"stopped", (*Process).Stop},
	} {
		if way.how == "stopped" && !canStop {
			break
		}
		name := e.Name()
		reader := must(take(ctx, ls[0].RWMutex(name).TryRLock, "a reader"))
		writer := e.startWaiter(ctx, ls[0], name, long, 1)
		behind := calling(ctx, ls[1].RWMutex(name).RLock)
		check(waiting(ctx, ls[0], name, 2))
		check(way.end(writer))
		began := time.Now()
		who := "a reader behind a writer that was " + way.how
		r := must(granted(ctx, behind, e.skipped(), who))
		e.Notef("%s: granted after %v", who, r.at.Sub(began).Round(time.Millisecond))
		check(unlock(ctx, r.lease, who))
		check(reader.Err())
		check(unlock(ctx, reader, "the reader"))
	}
	return nil
}

// localReaders is rule S17.
func localReaders(ctx context.Context, e *Env) error {
	n := e.count(50, 200, 200)
	here, there := must2(e.Two(ctx))
	name := e.Name()
	writer := must(take(ctx, there.RWMutex(name).TryLock, "a writer"))
	all := make([]<-chan result, n)
	for i := range all {
		all[i] = calling(ctx, here.RWMutex(name).RLock)
	}
	check(waiting(ctx, there, name, 1))
	began := time.Now()
	check(unlock(ctx, writer, "the writer"))
	in := make([]*fencelock.Lease, n)
	for i, ch := range all {
		in[i] = must(granted(ctx, ch, e.soon(), fmt.Sprintf("reader %d of %d", i+1, n))).lease
	}
	// A hold takes readers in for 3 ms. A busy machine may not let all of them come within that time.
	most := 1 + int(time.Since(began)/(3*time.Millisecond))
	info, err := there.Inspect(ctx, name)
	if err != nil || info.Holders > most || info.Holders < 1 {
		return fmt.Errorf("%d readers of a process, in %v: got %+v and %v, want %d holders at most",
			n, time.Since(began).Round(time.Millisecond), info, err, most)
	}
	e.Notef("%d readers of a process are %d at the store", n, info.Holders)
	check(refused(ctx, there.RWMutex(name).TryLock, "a writer beside them"))
	for i, le := range in {
		if le.Token() != in[0].Token() {
			return fmt.Errorf("readers of a process have the tokens %d and %d", in[0].Token(), le.Token())
		}
		check(unlock(ctx, le, "a reader"))
		if i == n-2 {
			check(refused(ctx, there.RWMutex(name).TryLock, "a writer beside the last of them"))
		}
	}
	return writerBesideNewcomers(ctx, e, here, there)
}

// writerBesideNewcomers: readers of one process that keep coming do not keep a writer elsewhere out.
func writerBesideNewcomers(ctx context.Context, e *Env, here, there *fencelock.Locker) error {
	const readers = 8
	name := e.Name()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var first sync.WaitGroup
	first.Add(readers)
	done := running(func() error {
		return together(readers, func(i int) error {
			begun := sync.OnceFunc(first.Done)
			defer begun()
			for ; ctx.Err() == nil; begun() {
				le, err := here.RWMutex(name).RLock(ctx)
				if err == nil {
					_ = sleep(ctx, time.Duration(10+3*i)*time.Millisecond) // they overlap: somebody reads at any time
					err = le.Unlock(context.WithoutCancel(ctx))
				}
				if err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	})
	first.Wait()
	writer := calling(ctx, there.RWMutex(name).Lock)
	r, err := granted(ctx, writer, e.soon(), "a writer while readers elsewhere keep coming")
	if err == nil {
		err = unlock(ctx, r.lease, "the writer")
	}
	stop()
	return errors.Join(err, <-done)
}

// sharedReentry is rule S18.
func sharedReentry(ctx context.Context, e *Env) error {
	plain := must(e.Open(ctx))
	again := must(e.Open(ctx, fencelock.WithReentrancy()))
	of := func(l *fencelock.Locker, name string) map[string][2]locks {
		m := l.RWMutex(name)
		all := map[string][2]locks{"Lock": {m.Lock, m.TryLock}, "RLock": {m.RLock, m.TryRLock}}
		if e.traits.Permits >= 3 {
			s := l.Semaphore(name, 3)
			all["Acquire"] = [2]locks{s.Acquire, s.TryAcquire}
		}
		return all
	}
	joins := map[string]bool{
		"RLock in RLock": true, "RLock in Lock": true, "Lock in Lock": true, "Acquire in Acquire": true,
	}
	for outer := range of(plain, "") {
		for inner := range of(plain, "") {
			what := inner + " in " + outer
			for _, l := range []*fencelock.Locker{plain, again} {
				name := e.Name()
				ways := of(l, name)
				le := must(take(ctx, ways[outer][1], outer))
				carried, cancel := le.Context(ctx)
				err := within(carried, e, l, le, ways[inner], what, l == again && joins[what])
				cancel()
				check(errors.Join(err, unlock(ctx, le, outer)))
				check(e.free(ctx, l, name))
			}
		}
	}
	return nil
}

// within calls the two methods with a ctx that carries le: one that waits, and its try. Each joins the hold, or says at
// once that it cannot.
func within(
	ctx context.Context, e *Env, l *fencelock.Locker, le *fencelock.Lease, ways [2]locks, what string, joins bool,
) error {
	for i, lock := range ways {
		r := result{err: errors.New("it waits")}
		select {
		case r = <-calling(ctx, lock):
		case <-time.After(e.soon()):
		}
		if !joins {
			refusal := [...]error{fencelock.ErrDeadlock, fencelock.ErrLocked}[i]
			check(want(r.err, refusal, what))
			continue
		}
		if r.err != nil || r.lease.Token() != le.Token() || r.lease.Slot() != le.Slot() || r.lease.Mode() != le.Mode() {
			return fmt.Errorf("%s, with re-entry: got %+v, want another lease on the hold", what, r)
		}
		info, err := l.Inspect(ctx, le.Name())
		if err != nil || info.Holders > 1 {
			return fmt.Errorf("%s, with re-entry: got %+v and %v, want one hold", what, info, err)
		}
		check(unlock(ctx, r.lease, what))
		check(le.Err())
	}
	return nil
}

// free returns an error unless the lock can be had at once.
func (e *Env) free(ctx context.Context, l *fencelock.Locker, name string) error {
	return until(ctx, e.soon(), fmt.Sprintf("%q is free", name), freeFor(ctx, l, name))
}

// readersAtGuard is rule E12.
func readersAtGuard(ctx context.Context, e *Env) error {
	for what, guard := range e.guards(ctx) {
		part(what, func() error { return readersAt(ctx, e, guard) })
	}
	return nil
}

func readersAt(ctx context.Context, e *Env, guard fence.Guard) error {
	ls := e.several(ctx, 4)
	name := e.Name()
	shows := func(le *fencelock.Lease, wants error, who string) error {
		return want(guard.Check(ctx, name, le.Token()), wants, "the guard, of "+who)
	}
	for range 3 {
		writer := must(take(ctx, ls[3].RWMutex(name).TryLock, "a writer"))
		check(shows(writer, nil, "a writer"))
		check(unlock(ctx, writer, "the writer"))
		var in []*fencelock.Lease
		for i := range 3 {
			in = append(in, must(take(ctx, ls[i].RWMutex(name).TryRLock, "a reader")))
			for _, le := range in { // the older ones after the newest, too
				check(shows(le, nil, "a reader beside others"))
			}
		}
		check(shows(writer, fencelock.ErrStale, "a writer that readers have overtaken"))
		for _, le := range in {
			// A reader may write what it read as long as the token stays: no writer was there.
			check(shows(le, nil, "a reader while others leave"))
			check(unlock(ctx, le, "a reader"))
		}
		next := must(take(ctx, ls[3].RWMutex(name).TryLock, "the next writer"))
		check(shows(next, nil, "the next writer"))
		for _, le := range in {
			check(shows(le, fencelock.ErrStale, "a reader that a writer has overtaken"))
		}
		check(unlock(ctx, next, "the next writer"))
	}
	return nil
}
