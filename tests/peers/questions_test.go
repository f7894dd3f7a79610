package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// seen is what came of a question. Not offered: there is nothing to ask.
type seen struct {
	offered, kept bool
	what          string
}

func kept(format string, args ...any) seen {
	return seen{true, true, fmt.Sprintf(format, args...)}
}

func not(format string, args ...any) seen {
	return seen{true, false, fmt.Sprintf(format, args...)}
}

func none(what string) seen { return seen{what: what} }

// ask is how each question is asked.
var ask = map[string]func(*cell) seen{
	"lost-grant":    lostGrant,
	"ended-acquire": endedAcquire,
	"ended-wait":    endedWait,
	"hang-asking":   hangAsking,
	"hang-waiting":  hangWaiting,
	"ended-unlock":  endedUnlock,
	"first-come":    firstCome,
	"dead-waiter":   deadWaiter,
	"told-first":    toldFirst,
	"told-broken":   toldBroken,
	"token":         tokenRises,
	"zombie":        zombie,
	"late-unlock":   lateUnlock,
	"unlock-again":  unlockAgain,
	"relock":        relock,
	"slow-link":     slowLink,
}

const (
	atOnce = 2 * time.Second // far below a long lease, and enough for a busy machine
	inTime = time.Second     // after a ctx has ended

	// renewed is enough for a renewal that is made at once, and too little for the next.
	renewed = 300 * time.Millisecond
)

var black = faultproxy.BlackHole

// lostGrant loses each reply of an acquisition once.
func lostGrant(c *cell) seen {
	other := c.party(long)
	for k := 1; ; k++ {
		p, name := c.party(long), c.named("grant")
		p.lose(k, name)
		h, err, returned := c.once(p, name, 5*time.Second)
		if p.lost() == 0 {
			if k == 1 {
				c.cannot("fault", errors.New("no reply was lost"))
			}
			return kept("%d of %d lost replies: the lock is held, or free at once", k-1, k-1)
		}
		if !returned {
			return not("reply %d: the call does not return within 5 s", k)
		}
		if err == nil {
			if _, twice := c.gets(other, name, 300*time.Millisecond); twice {
				return not("reply %d: two hold it", k)
			}
			if err := h.unlock(c.ctx); err != nil {
				return not("reply %d: held, and cannot be unlocked: %s", k, brief(err))
			}
			continue
		}
		free, ok := c.gets(other, name, atOnce)
		if !ok {
			if _, ok := c.gets(p, name, atOnce); ok {
				return not("reply %d: the call fails (%s), and no other process can have the lock", k, brief(err))
			}
			return not("reply %d: the call fails (%s), and no process can have the lock, not its own either",
				k, brief(err))
		}
		if c.lib.taken(err) {
			return not("reply %d: the call says that another has the lock (%s), and nobody has", k, brief(err))
		}
		_ = free.unlock(c.ctx)
	}
}

// endedAcquire ends the caller's ctx while the reply to a request is under way, for each request of an
// acquisition.
func endedAcquire(c *cell) seen {
	if c.lib.noCtx {
		return none("Lock takes no context")
	}
	other := c.party(long)
	for k := 1; ; k++ {
		p, name := c.party(long), c.named("late")
		p.hold(k, name)
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		a, returned := within(time.Second+atOnce, func() (hold, error) { return p.mutex(name).lock(ctx) })
		p.set(faultproxy.Mode{})
		if returned && a.err == nil {
			if k == 1 {
				c.cannot("fault", errors.New("it was granted without a reply"))
			}
			return kept("%d of %d late replies: the lock is free at once", k-1, k-1)
		}
		free, ok := c.gets(other, name, atOnce)
		if !ok {
			return not("reply %d: Lock fails (%s), and no other process can have the lock", k, brief(a.err))
		}
		if !returned {
			return not("reply %d: Lock does not return", k)
		}
		_ = free.unlock(c.ctx)
	}
}

func endedWait(c *cell) seen {
	if c.lib.noCtx {
		return none("Lock takes no context")
	}
	holder, p, next, name := c.party(long), c.party(long), c.party(long), c.named("wait")
	h := c.must(holder.mutex(name).lock(c.ctx))
	ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
	defer cancel()
	if _, returned := within(500*time.Millisecond+inTime, func() (hold, error) {
		return p.mutex(name).lock(ctx)
	}); !returned {
		return not("Lock does not return within a second of the end of its ctx")
	}
	c.free(h)
	if _, ok := c.gets(next, name, atOnce); !ok {
		return not("what the waiter left keeps others out")
	}
	return kept("Lock returns, and the next has the lock at once")
}

func hangAsking(c *cell) seen {
	if c.lib.noCtx {
		return none("Lock takes no context")
	}
	p, name := c.party(long), c.named("hang")
	p.set(black)
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	if _, returned := within(time.Second+inTime, func() (hold, error) { return p.mutex(name).lock(ctx) }); !returned {
		return not("Lock does not return within a second of the end of its ctx")
	}
	return kept("Lock returns")
}

// hangWaiting makes the server hang while a waiter waits, whose ctx then ends.
func hangWaiting(c *cell) seen {
	if c.lib.noCtx {
		return none("Lock takes no context")
	}
	holder, p, name := c.party(long), c.party(long), c.named("hang")
	c.must(holder.mutex(name).lock(c.ctx))
	ctx, cancel := context.WithTimeout(c.ctx, 1500*time.Millisecond)
	defer cancel()
	time.AfterFunc(700*time.Millisecond, func() { p.set(black) })
	if _, returned := within(1500*time.Millisecond+inTime, func() (hold, error) {
		return p.mutex(name).lock(ctx)
	}); !returned {
		return not("Lock does not return within a second of the end of its ctx")
	}
	return kept("Lock returns")
}

func endedUnlock(c *cell) seen {
	p, other, name := c.party(long), c.party(long), c.named("ended")
	h := c.must(p.mutex(name).lock(c.ctx))
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	err := h.unlock(ctx)
	if _, ok := c.gets(other, name, atOnce); !ok {
		return not("the lock stays (%s)", brief(err))
	}
	return kept("the lock is free at once")
}

func firstCome(c *cell) seen {
	if !c.lib.fifo {
		return none("its documents name no order")
	}
	holder, name := c.party(long), c.named("queue")
	h := c.must(holder.mutex(name).lock(c.ctx))
	const n = 4
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i := range n {
		p := c.party(long)
		all.Go(func() {
			h, err := p.mutex(name).lock(c.ctx)
			if err != nil {
				return // the order lacks it
			}
			mu.Lock()
			order = append(order, i+1)
			mu.Unlock()
			_ = h.unlock(c.ctx)
		})
		time.Sleep(settled)
	}
	c.free(h)
	all.Wait()
	if !slices.Equal(order, []int{1, 2, 3, 4}) {
		return not("four waiters are served in the order %v", order)
	}
	return kept("four waiters are served in their order")
}

// settled is how long a waiter has to come to rest in the queue. No library but ours tells who waits,
// so nothing can be waited for; a waiter that is later gives another answer, which is tried three times.
const settled = 500 * time.Millisecond

func deadWaiter(c *cell) seen {
	dies, next, name := c.party(c.lib.short), c.party(c.lib.short), c.named("dead")
	holder := c.party(long)
	h := c.must(holder.mutex(name).lock(c.ctx))
	go dies.mutex(name).lock(c.ctx)
	time.Sleep(settled)
	granted := make(chan error, 1)
	go func() {
		_, err := next.mutex(name).lock(c.ctx)
		granted <- err
	}()
	time.Sleep(settled)
	dies.die()
	c.free(h)
	select {
	case err := <-granted:
		if err != nil {
			return not("the next waiter fails: %s", brief(err))
		}
		return kept("the next has the lock within 5 s")
	case <-time.After(5 * time.Second):
		return not("the next waits on after 5 s")
	}
}

// overtaken lets a party hold the lock, cuts it off in silence, and waits until another has the lock.
func overtaken(c *cell, p *party, name string) (first, second hold, next *party) {
	next = c.party(c.ttlHeld())
	first = c.must(p.mutex(name).lock(c.ctx))
	time.Sleep(renewed)
	p.set(black)
	second = c.must(next.mutex(name).lock(c.ctx))
	return first, second, next
}

func toldFirst(c *cell) seen {
	if !c.lib.lost {
		return none("a lock has no sign of its loss")
	}
	p, name := c.party(c.lib.short), c.named("told")
	first, _, _ := overtaken(c, p, name)
	if closed(first.lost) {
		return kept("the holder is told before another has the lock")
	}
	granted := time.Now()
	select {
	case <-first.lost:
		return not("the holder is told %v after another has the lock", time.Since(granted).Round(100*time.Millisecond))
	case <-time.After(5 * time.Second):
		return not("another has the lock, and 5 s later the holder is not told")
	}
}

func toldBroken(c *cell) seen {
	if !c.lib.lost || c.lib.breakIt == nil {
		return none("a lock has no sign of its loss but its time")
	}
	p, name := c.party(c.lib.short), c.named("broken")
	h := c.must(p.mutex(name).lock(c.ctx))
	if err := c.lib.breakIt(c.ctx, c.addrs, name); err != nil {
		c.cannot("step", err)
	}
	select {
	case <-h.lost:
		return kept("the holder is told within 3 s")
	case <-time.After(3 * time.Second):
		return not("the holder is not told within 3 s")
	}
}

func tokenRises(c *cell) seen {
	if !c.lib.token {
		return none("a lock has no number that rises")
	}
	var restart func() error
	c.addrs, _, restart = start(c.T, c.lib.store)
	p, name := c.party(c.lib.short), c.named("token")
	first := c.must(p.mutex(name).lock(c.ctx))
	a := first.token()
	p.die()
	if err := restart(); err != nil {
		c.cannot("step", err)
	}
	next := c.party(c.lib.short)
	second := c.must(next.mutex(name).lock(c.ctx))
	b := second.token()
	c.free(second)
	third := c.must(next.mutex(name).lock(c.ctx))
	if d := third.token(); a <= 0 || a >= b || b >= d {
		return not("the tokens are %d, after the restart %d, after a release %d", a, b, d)
	}
	return kept("it rises over the holder's death with a restart of the server, and over a release")
}

// zombie is a holder that was stopped: when it goes on, it writes.
func zombie(c *cell) seen {
	if c.lib.file != nil {
		return unguarded(c)
	}
	if !c.lib.token {
		return none("a lock has nothing that a resource could check")
	}
	p, name := c.party(c.lib.short), c.named("zombie")
	first, second, _ := overtaken(c, p, name)
	return write(c, first.token(), second.token(), name)
}

// unguarded is the zombie of a library whose writes carry nothing: only the look at the lock that
// came before.
func unguarded(c *cell) seen {
	p, name := c.party(c.lib.short), c.named("zombie")
	overtaken(c, p, name)
	for _, text := range []string{"the new holder's", "the old holder's"} {
		if err := c.lib.file(c.ctx, c.addrs, name+"-file", &text); err != nil {
			c.cannot("step", err)
		}
	}
	var text string
	if err := c.lib.file(c.ctx, c.addrs, name+"-file", &text); err != nil {
		c.cannot("step", err)
	}
	if text != "the new holder's" {
		return not("the old holder writes after the new one")
	}
	return kept("the resource refuses the old holder's write")
}

// write writes with the newer holder's token, then with the older's.
func write(c *cell, older, newer int64, name string) seen {
	var guard fence.Memory
	wrote := func() error { return nil }
	if err := guard.Do(c.ctx, name, fence.Token(newer), wrote); err != nil {
		c.cannot("step", err)
	}
	if err := guard.Do(c.ctx, name, fence.Token(older), wrote); err == nil {
		return not("the old holder writes after the new one")
	}
	return kept("the resource refuses the old holder's write")
}

func lateUnlock(c *cell) seen {
	p, third, name := c.party(c.lib.short), c.party(c.ttlHeld()), c.named("late")
	first, _, _ := overtaken(c, p, name)
	p.set(faultproxy.Mode{})
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
	defer cancel()
	within(4*time.Second, func() (any, error) { return nil, first.unlock(ctx) })
	if _, err, returned := c.once(third, name, 500*time.Millisecond); returned && err == nil {
		return not("a third has the lock of the second")
	}
	return kept("the second still has the lock")
}

func unlockAgain(c *cell) seen {
	p, other, name := c.party(long), c.party(long), c.named("again")
	first := c.must(p.mutex(name).lock(c.ctx))
	p.lose(1, name)
	ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
	defer cancel()
	within(5*time.Second, func() (any, error) { return nil, first.unlock(ctx) })
	if p.lost() == 0 {
		c.cannot("fault", errors.New("no reply was lost"))
	}
	if _, ok := c.gets(p, name, 3*time.Second); !ok {
		return not("after the lost reply the lock is not free")
	}
	within(3*time.Second, func() (any, error) { return nil, first.unlock(c.ctx) })
	if _, err, returned := c.once(other, name, 500*time.Millisecond); returned && err == nil {
		return not("the second Unlock frees the lock of the next holder")
	}
	return kept("the next holder keeps the lock")
}

// relock loses a lock and locks again with the same object.
func relock(c *cell) seen {
	p, name := c.party(c.lib.short), c.named("relock")
	m := p.mutex(name)
	next := c.party(c.lib.short)
	first := c.must(m.lock(c.ctx))
	p.set(black)
	second := c.must(next.mutex(name).lock(c.ctx))
	p.set(faultproxy.Mode{})
	c.free(second)
	ctx, cancel := context.WithTimeout(c.ctx, 6*time.Second)
	defer cancel()
	a, returned := within(8*time.Second, func() (hold, error) {
		for {
			_ = first.unlock(ctx) // as one does with a lock that one had
			h, err := m.lock(ctx)
			if err == nil || ctx.Err() != nil {
				return h, err
			}
			time.Sleep(200 * time.Millisecond)
			if ctx.Err() != nil {
				return h, err
			}
		}
	})
	if !returned || a.err != nil {
		return not("it cannot lock again within 6 s: %s", brief(a.err))
	}
	return kept("it locks again")
}

// slowLink lets another wait for a lock that its holder renews over a link with round trips of a
// twentieth of the lease.
func slowLink(c *cell) seen {
	if !c.lib.keeps {
		return none("it renews nothing by itself")
	}
	p, other, name := c.party(c.lib.short), c.party(c.lib.short), c.named("slow")
	h := c.must(p.mutex(name).lock(c.ctx))
	p.set(faultproxy.Mode{Delay: short / 40})
	a, returned := within(7500*time.Millisecond, func() (hold, error) { return other.mutex(name).lock(c.ctx) })
	if returned && a.err == nil {
		return not("another has the lock of a living holder")
	}
	if closed(h.lost) {
		return not("the holder is told of a loss that was none")
	}
	return kept("held as long as its holder wants")
}
