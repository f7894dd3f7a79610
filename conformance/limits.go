package conformance

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
)

// hostileLimits are rules K6: one more than every bound, and a hundred times more.
var hostileLimits = []Rule{
	{
		Name: "K6", What: "a process waits for many names at once over a slow way, and each wait is its own",
		Why: "A driver that serves so many waits at a time leaves the next one behind holders " +
			"that have nothing to do with it, and one that begins them one after the other takes " +
			"its own line for an outage.",
		Alone: true, Check: manyNamesWaitedFor,
	},
}

func manyNamesWaitedFor(ctx context.Context, e *Env) error {
	n := e.count(70, 300, 2000)
	if e.traits.LeasePerConn {
		n = 20 // and a wait too
	}
	a := must(e.Open(ctx, fencelock.WithTTL(time.Minute)))
	b, quick := must2(e.slowly(ctx, 25*time.Millisecond, fencelock.WithTTL(time.Minute)))
	name := e.Name()
	held := make([]*fencelock.Lease, n)
	errs := make([]error, n)
	atOnce(n, func(i int) { held[i], errs[i] = try(ctx, a, name+strconv.Itoa(i), "a free lock among many") })
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	waits := make([]<-chan result, n)
	for i := range n {
		waits[i] = locking(ctx, b, name+strconv.Itoa(i))
	}
	// Every one is in its queue while the others wait. One looks for all: many looks would load the store.
	for queued, since := 0, time.Now(); queued < n; {
		if time.Since(since) > 5*time.Second {
			return fmt.Errorf("%d of %d waiters are in the store's queues, and for 5s no other has come", queued, n)
		}
		for i := range n {
			select {
			case r := <-waits[i]:
				if r.err == nil {
					return fmt.Errorf("wait %d of %d was granted a lock that another holds", i+1, n)
				}
				return fmt.Errorf("wait %d of %d for a lock that is held ended: %w", i+1, n, r.err)
			default:
			}
		}
		seen := 0
		for info, err := range a.List(ctx, name) {
			if err != nil {
				return err
			}
			if info.Waiters == 1 {
				seen++
			}
		}
		if seen > queued {
			queued, since = seen, time.Now()
		}
		check(sleep(ctx, 20*time.Millisecond))
	}
	const first = 3
	for i := n - 1; i >= n-first; i-- {
		if err := passedTo(ctx, held[i], waits[i]); err != nil {
			return fmt.Errorf("wait %d of %d, while the others wait: %w", i+1, n, err)
		}
	}
	quick()
	atOnce(n-first, func(i int) { errs[i] = unlock(ctx, held[i], "a holder of many") })
	for i := range n - first {
		if errs[i] != nil {
			return errs[i]
		}
		r := must(granted(ctx, waits[i], 10*time.Second, fmt.Sprintf("wait %d of %d", i+1, n)))
		check(unlock(ctx, r.lease, "a waiter of many"))
	}
	return nil
}

// slowly opens a client to which each way takes so long, where the link can do that, until its end is called.
func (e *Env) slowly(
	ctx context.Context, delay time.Duration, opts ...fencelock.Option,
) (*fencelock.Locker, func(), error) {
	if e.h.Link == nil || e.h.Calls {
		l, err := e.Open(ctx, opts...)
		return l, func() {}, err
	}
	l, link, err := e.OpenThrough(ctx, opts...)
	if err == nil {
		link.Set(faultproxy.Mode{Delay: delay})
	}
	return l, func() { link.Set(passAll) }, err
}

// passedTo releases a lock that a waiter is in the queue for, and waits until the waiter has had it.
func passedTo(ctx context.Context, holder *fencelock.Lease, waiter <-chan result) error {
	if err := unlock(ctx, holder, "the holder"); err != nil {
		return err
	}
	r, err := granted(ctx, waiter, 10*time.Second, "the waiter")
	if err != nil {
		return err
	}
	return unlock(ctx, r.lease, "the waiter")
}

// atOnce calls do for 0 to n-1, sixteen at a time, and waits for all of them.
func atOnce(n int, do func(int)) {
	places := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			do(i)
			<-places
		})
	}
	wg.Wait()
}
