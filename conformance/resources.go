package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/fencelock/fencelock"
)

// resources is group J.
var resources = []Rule{
	{
		Name: "J1", What: "nothing is left after many cycles",
		Why:   "What leaks by one a lock is a dead store in a month.",
		Needs: Needs{Store: true}, Alone: true, Solo: Always, Check: nothingLeft,
	},
	{
		Name: "J2", What: "a thousand leases at once",
		Why:   "A program that guards many things holds many locks.",
		Alone: true, Solo: ForMeasure, Check: thousandLeases,
	},
	{
		Name: "J3", What: "a broken connection does not poison the pool",
		Why:   "A pool of dead connections fails long after the network is back.",
		Needs: Needs{Link: true}, Check: brokenConnections,
	},
	{
		Name: "J4", What: "the caller's client stays as it was",
		Why:   "A library that closes or changes what it was given breaks its host.",
		Needs: Needs{Given: true}, Check: givenClient,
	},
}

// isLocked reports whether err is ErrLocked.
func isLocked(err error) bool { return errors.Is(err, fencelock.ErrLocked) }

func nothingLeft(ctx context.Context, e *Env) error {
	rounds := e.count(50, 1000, 1000)
	// Leave out of the count what a first use starts.
	if err := e.busy(ctx, 10); err != nil {
		return err
	}
	before, err := e.settled(ctx)
	if err != nil {
		return err
	}
	if err := e.busy(ctx, rounds); err != nil {
		return err
	}
	after, err := e.settled(ctx)
	if err != nil {
		return err
	}
	if after > before+5 {
		return fmt.Errorf("goroutines after %d cycles: got %d, had %d before", rounds, after, before)
	}
	return e.emptyWithin(ctx, e.TTL()+2*time.Second)
}

// busy opens two clients, cycles locks with waiting, cancelling and failing tries, and closes them.
func (e *Env) busy(ctx context.Context, rounds int) error {
	a, b, err := e.Two(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close(); _ = b.Close() }()
	for i := range rounds {
		name := e.Name()
		le, err := try(ctx, a, name, "a free lock")
		if err != nil {
			return err
		}
		if i%10 == 0 {
			if err := held(ctx, b, name, "held"); err != nil {
				return err
			}
			impatient, cancel := context.WithCancel(ctx)
			given := locking(impatient, b, name)
			ch := locking(ctx, b, name)
			cancel()
			<-given
			if err := unlock(ctx, le, "the holder"); err != nil {
				return err
			}
			r, err := granted(ctx, ch, 5*time.Second, "the waiter")
			if err != nil {
				return err
			}
			le = r.lease
		}
		if err := unlock(ctx, le, "a cycle"); err != nil {
			return err
		}
	}
	return nil
}

// settled returns the number of goroutines once it does not fall any more.
func (e *Env) settled(ctx context.Context) (int, error) {
	least := runtime.NumGoroutine()
	for same := 0; same < 10; same++ {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return 0, err
		}
		if n := runtime.NumGoroutine(); n < least {
			least, same = n, 0
		}
	}
	return least, nil
}

func thousandLeases(ctx context.Context, e *Env) error {
	n := e.count(200, 1000, 1000)
	if e.traits.LeasePerConn {
		n = 20
	}
	// A TTL that is long enough to take them all on a busy machine.
	ttl := max(e.TTL(), 3*time.Second)
	a, b, err := e.Two(ctx, fencelock.WithTTL(ttl))
	if err != nil {
		return err
	}
	all := make([]*fencelock.Lease, n)
	for i := range all {
		if all[i], err = try(ctx, a, e.Name(), fmt.Sprintf("lease %d", i+1)); err != nil {
			return err
		}
	}
	if err := sleep(ctx, ttl*3/2); err != nil {
		return err
	}
	for i, le := range all {
		if err := le.Err(); err != nil {
			return fmt.Errorf("lease %d of %d, renewed: got %w, want it held", i+1, n, err)
		}
	}
	for _, i := range []int{0, n / 2, n - 1} {
		if err := held(ctx, b, all[i].Name(), "one of many"); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := a.Close(); err != nil {
		return fmt.Errorf("Close with %d leases: got %w, want nil", n, err)
	}
	e.Notef("Close released %d leases in %v", n, time.Since(began).Round(time.Millisecond))
	for _, i := range []int{0, n / 2, n - 1} {
		if _, err := try(ctx, b, all[i].Name(), "after Close"); err != nil {
			return err
		}
	}
	return nil
}

func brokenConnections(ctx context.Context, e *Env) error {
	a, link, err := e.OpenThrough(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		// Several connections are in the pool when they break.
		done := make(chan error, 8)
		for range cap(done) {
			name := e.Name()
			go func() { _, err := cycle(ctx, a, name, "before the break"); done <- err }()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				return err
			}
		}
		link.Cut()
		for i := range 20 {
			if _, err := cycle(ctx, a, e.Name(), fmt.Sprintf("lock %d after the break", i+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func givenClient(ctx context.Context, e *Env) error {
	d, intact, err := e.h.Given(ctx)
	if err != nil {
		return err
	}
	l, err := fencelock.New(d, fencelock.WithTTL(ample))
	if err != nil {
		return err
	}
	name := e.Name()
	le, err := try(ctx, l, name, "a free lock")
	if err != nil {
		return err
	}
	ch := locking(ctx, l, name)
	if err := waiting(ctx, l, name, 1); err != nil {
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	if _, err := granted(ctx, ch, time.Second+e.Slack(), "the waiter"); err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("Close: got %w, want nil", err)
	}
	if err := intact(ctx); err != nil {
		return fmt.Errorf("the caller's client after Close: %w", err)
	}
	return nil
}
