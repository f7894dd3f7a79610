package conformance

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// hostileLimits are rules K6 and K49: one more than every bound, and a hundred times more.
var hostileLimits = []Rule{
	{
		Name: "K6", What: "a process waits for many names at once over a slow way, and each wait is its own",
		Why: "A driver that serves so many waits at a time leaves the next one behind holders " +
			"that have nothing to do with it, and one that begins them one after the other takes " +
			"its own line for an outage.",
		Alone: true, Solo: ForMeasure, Check: manyNamesWaitedFor,
	},
	{
		Name: "K49", What: "each of many callers that the store does not answer is told so, or served, " +
			"as one alone would be",
		Why: "Callers share requests and connections. If they hear of an outage one after the other, the last of a " +
			"thousand waits for a store that is dead.",
		Needs: Needs{Link: true}, Alone: true, Solo: ForMeasure, timed: true, Check: manyUnanswered,
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
	check(atOnce(n, func(i int) (err error) {
		held[i], err = try(ctx, a, name+strconv.Itoa(i), "a free lock among many")
		return err
	}))
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
			check(err)
			if info.Waiters == 1 || e.h.uncounted {
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
		part(fmt.Sprintf("wait %d of %d, while the others wait", i+1, n), func() error {
			return passedTo(ctx, held[i], waits[i])
		})
	}
	quick()
	check(atOnce(n-first, func(i int) error { return unlock(ctx, held[i], "a holder of many") }))
	for i := range n - first {
		check(turn(ctx, waits[i], 10*time.Second, fmt.Sprintf("wait %d of %d", i+1, n)))
	}
	return nil
}

// outages is held by K49: where the outages of several backends end at once, the machine has the callers of them all to
// serve in the second that each is given.
var outages sync.Mutex

func manyUnanswered(ctx context.Context, e *Env) error {
	outages.Lock()
	defer outages.Unlock()
	n := e.count(70, 140, 1000)
	if e.traits.LeasePerConn {
		n = 10
	}
	clients := 2 // one cut off for as long as a Lock rides out, and one for longer
	if e.h.Calls {
		clients = 1 // such a call ends with its ctx only
	}
	links, calls := make([]Link, clients), make([][]<-chan result, clients)
	var began time.Time
	for c := range clients {
		var l *fencelock.Locker
		l, links[c] = must2(e.OpenThrough(ctx, fencelock.WithTTL(time.Minute)))
		name := e.Name()
		must(cycle(ctx, l, name, "before"))
		links[c].Set(blackHole)
		began = time.Now()
		for i := range 2 * n {
			m := l.Mutex(name + strconv.Itoa(i))
			lock := m.Lock
			if i%2 == 1 {
				lock = m.TryLock
			}
			calls[c] = append(calls[c], calling(ctx, lock))
		}
	}
	check(sleep(ctx, stallMost))
	links[0].Set(passAll)
	late := began.Add(core.Patience + 3*time.Second + e.Slack()) // two requests, a pause and a last look
	var leases []*fencelock.Lease
	for c := range clients {
		for i, call := range calls[c] {
			r := <-call
			what := fmt.Sprintf("call %d of %d, no answer for long: %v", i+1, len(calls[c]), c == 1)
			switch {
			case c == 0 && r.err == nil:
				leases = append(leases, r.lease)
			case r.at.After(late), c == 0 && i%2 == 0:
				return fmt.Errorf("%s: got %w after %v", what, r.err, r.at.Sub(began))
			default: // a TryLock may be told sooner than a Lock
				check(want(r.err, fencelock.ErrUnavailable, what))
			}
		}
	}
	for _, link := range links {
		link.Set(passAll)
	}
	return atOnce(len(leases), func(i int) error { return unlock(ctx, leases[i], "one of many") })
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
	return unlock(ctx, passed(ctx, holder, waiter), "the waiter")
}

// atOnce calls do for 0 to n-1, sixteen at a time, waits for all of them, and returns the first error.
func atOnce(n int, do func(int) error) error {
	places, first := make(chan struct{}, 16), make(chan error, 1)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			if err := do(i); err != nil {
				select {
				case first <- err:
				default:
				}
			}
			<-places
		})
	}
	wg.Wait()
	close(first)
	return <-first
}
