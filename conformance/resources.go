package conformance

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/fencelock/fencelock"
)

// resources is group J.
var resources = []Rule{
	{
		Name: "J1", What: "nothing is left after many cycles",
		Why:   "A leak of one thing a lock is a dead store in a month.",
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
		Why:   "A library that closes or changes a client that it was given breaks its host.",
		Needs: Needs{Given: true}, Check: givenClient,
	},
}

func nothingLeft(ctx context.Context, e *Env) error {
	rounds := e.count(50, 1000, 1000)
	// A first use starts things that are not to be counted.
	check(e.busy(ctx, 10))
	before := goroutines(ctx)
	check(e.busy(ctx, rounds))
	after := goroutines(ctx)
	if after > before+5 {
		return fmt.Errorf("goroutines after %d cycles: got %d, had %d before", rounds, after, before)
	}
	if e.h.Link != nil && !e.h.Calls {
		check(e.hangsUp(ctx))
	}
	return e.emptyWithin(ctx, e.TTL()+2*time.Second)
}

// hangsUp: a client that was closed has no connection left, whether or not a goroutine reads it.
func (e *Env) hangsUp(ctx context.Context) error {
	a, link := must2(e.OpenThrough(ctx))
	b := must(e.Open(ctx))
	le, line := e.lined(ctx, b, e.Name(), a)
	must(cycle(ctx, a, e.Name(), "while another waits"))
	check(passedTo(ctx, le, line[0]))
	check(want(a.Close(), nil, "Close"))
	return until(ctx, 5*time.Second, "Close leaves no connection", func() (bool, error) {
		return link.Counts().Open == 0, nil
	})
}

// busy opens two clients, cycles locks with waiting, cancelling and failing tries, and closes them.
func (e *Env) busy(ctx context.Context, rounds int) error {
	a, b := must2(e.Two(ctx))
	defer func() { _ = a.Close(); _ = b.Close() }()
	for i := range rounds {
		name := e.Name()
		le := must(try(ctx, a, name, "a free lock"))
		if i%10 == 0 {
			check(held(ctx, b, name, "held"))
			impatient, cancel := context.WithCancel(ctx)
			given := locking(impatient, b, name)
			ch := locking(ctx, b, name)
			cancel()
			<-given
			check(unlock(ctx, le, "the holder"))
			r := must(granted(ctx, ch, 5*time.Second, "the waiter"))
			le = r.lease
		}
		check(unlock(ctx, le, "a cycle"))
	}
	return nil
}

// goroutines returns the number of goroutines once it does not fall any more.
func goroutines(ctx context.Context) int {
	least := runtime.NumGoroutine()
	for same := 0; same < 10; same++ {
		check(sleep(ctx, 20*time.Millisecond))
		if n := runtime.NumGoroutine(); n < least {
			least, same = n, 0
		}
	}
	return least
}

func thousandLeases(ctx context.Context, e *Env) error {
	n := e.count(200, 1000, 1000)
	if e.traits.LeasePerConn {
		n = 20
	}
	// A TTL that is long enough to take them all on a busy machine.
	ttl := max(e.TTL(), 3*time.Second)
	a, b := must2(e.Two(ctx, fencelock.WithTTL(ttl)))
	all := make([]*fencelock.Lease, n)
	for i := range all {
		all[i] = must(try(ctx, a, e.Name(), fmt.Sprintf("lease %d", i+1)))
	}
	check(sleep(ctx, ttl*3/2))
	for i, le := range all {
		check(live(le, fmt.Sprintf("lease %d of %d, renewed", i+1, n)))
	}
	for _, i := range []int{0, n / 2, n - 1} {
		check(held(ctx, b, all[i].Name(), "one of many"))
	}
	began := time.Now()
	check(want(a.Close(), nil, fmt.Sprintf("Close with %d leases", n)))
	e.Notef("Close released %d leases in %v", n, time.Since(began).Round(time.Millisecond))
	for _, i := range []int{0, n / 2, n - 1} {
		must(try(ctx, b, all[i].Name(), "after Close"))
	}
	return nil
}

func brokenConnections(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx))
	for range 3 {
		// Several connections are in the pool when they break.
		name := e.Name()
		check(atOnce(8, func(i int) error {
			_, err := cycle(ctx, a, name+strconv.Itoa(i), "before the break")
			return err
		}))
		link.Cut()
		for i := range 20 {
			must(cycle(ctx, a, e.Name(), fmt.Sprintf("lock %d after the break", i+1)))
		}
	}
	return nil
}

func givenClient(ctx context.Context, e *Env) error {
	d, intact := must2(e.h.Given(ctx))
	l := must(fencelock.New(d, fencelock.WithTTL(ample)))
	le, line := e.lined(ctx, l, e.Name(), l)
	check(unlock(ctx, le, "the holder"))
	must(granted(ctx, line[0], time.Second+e.Slack(), "the waiter"))
	check(want(l.Close(), nil, "Close"))
	return want(intact(ctx), nil, "the caller's client after Close")
}
