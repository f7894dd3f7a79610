// Package measure has the loops that measure locks of any library: cycles and crowds ([Crowd]),
// hand-overs ([HandOver]) and held locks ([Grab]). The result of a loop is a [Sample].
package measure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// A Mutex is for one goroutine and one name. Lock may wait. It starts nothing that Unlock does not end.
type Mutex struct {
	Lock, Unlock func(context.Context) error
	Renew        func(context.Context) error // nil: not by hand
}

// Ours is a Mutex of this library.
func Ours(m fencelock.Mutex) Mutex { return Of(m.Lock) }

// Of is a Mutex of a method of this library, such as Lock, RLock or Acquire.
func Of(lock func(context.Context) (*fencelock.Lease, error)) Mutex {
	var le *fencelock.Lease
	return Mutex{
		Lock:   func(ctx context.Context) (err error) { le, err = lock(ctx); return err },
		Unlock: func(ctx context.Context) error { return le.Unlock(ctx) },
		Renew:  func(ctx context.Context) error { return le.Renew(ctx) },
	}
}

// A Load says how a crowd locks.
type Load struct {
	For     time.Duration
	Section time.Duration // of work by the CPU while the lock is held
	Waits   bool          // the latency is from Lock's call to the grant, not of the cycle
	// Drain is how long a goroutine goes on waiting when the time is over, so that a queue is left in order. Only
	// grants within the time count then. 0: each goroutine has one cycle at least, and all cycles count.
	Drain    time.Duration
	Requests Counter
}

// Crowd locks and unlocks with each mutex in a goroutine of its own. The first error ends all goroutines,
// since each would wait for a dead store.
func Crowd(ctx context.Context, all []Mutex, l Load) (Sample, error) {
	limited, cancel := context.WithCancel(ctx)
	free := limited
	if l.Drain > 0 {
		limited, cancel = context.WithTimeout(ctx, l.For+l.Drain)
		free = context.WithoutCancel(ctx)
	}
	defer cancel()
	clerks, errs := make([]Sample, len(all)), make([]error, len(all))
	for i := range clerks {
		clerks[i] = NewSample(1)
	}
	var wg sync.WaitGroup
	spent := Meter(l.Requests)
	began := time.Now()
	for i, m := range all {
		wg.Go(func() {
			s := &clerks[i]
			for asked := began; ; {
				err := m.Lock(limited)
				granted := time.Now()
				if err == nil {
					for l.Section > 0 && time.Since(granted) < l.Section {
						continue // a sleep would be as long as the timers are coarse
					}
					err = m.Unlock(free)
				}
				switch {
				case err != nil && l.Drain > 0 && limited.Err() != nil && ctx.Err() == nil:
					s.Stuck++
					return
				case err != nil:
					errs[i] = err
					cancel()
					return
				}
				ended := time.Now()
				if l.Waits {
					s.Latency.Note(granted.Sub(asked))
				} else {
					s.Latency.Note(ended.Sub(asked))
				}
				if l.Drain == 0 || granted.Sub(began) < l.For {
					s.Each[0]++
				} else {
					s.Late++
				}
				if asked = ended; ended.Sub(began) >= l.For || limited.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	s := Merge(clerks...)
	s.Elapsed = time.Since(began)
	s.Spent = spent()
	if l.Drain > 0 {
		s.Elapsed = l.For
	}
	if ctx.Err() != nil {
		return s, ctx.Err()
	}
	return s, first(errs)
}

// first returns the first error that is not a cancellation, or else the first.
func first(errs []error) error {
	var some error
	for _, err := range errs {
		if err != nil && (some == nil || errors.Is(some, context.Canceled)) {
			some = err
		}
	}
	return some
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const grabbers = 32 // goroutines of Grab

// Grab calls lock with each number below n, several at a time, until one fails.
func Grab(n int, lock func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, grabbers)
	var wg sync.WaitGroup
	for g := range grabbers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[g] == nil; i = int(next.Add(1)) - 1 {
				errs[g] = lock(i)
			}
		})
	}
	wg.Wait()
	return first(errs)
}
