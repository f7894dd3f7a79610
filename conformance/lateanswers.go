package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// late is how late answers come in rule C13. A driver does not take so late an answer for none, and the delay is
// greater than the engine's margin and the time that the store may add to an expiry.
func (e *Env) late() time.Duration {
	return 450*time.Millisecond + min(e.traits.Resolution, time.Second)
}

// lateClient is a client whose answers come late, and one whose do not. It holds name in the end;
// other is a further name.
type lateClient struct {
	e *Env
	*fencelock.Locker
	link        Link
	b           *fencelock.Locker
	name, other string
	by          time.Duration
}

// lateWays are the ways to a lease whose Deadline a late answer could move.
var lateWays = []struct {
	what string
	take func(context.Context, *lateClient) *fencelock.Lease
}{
	{"granted late", func(ctx context.Context, c *lateClient) *fencelock.Lease {
		// The link is to hold up the grant, and nothing before it.
		must(cycle(ctx, c.Locker, c.other, "before"))
		check(sleep(ctx, 200*time.Millisecond)) // the slowest of several nodes
		return c.late(ctx, func() *fencelock.Lease { return must(c.e.try(ctx, c.Locker, c.name, "answered late")) })
	}},
	{"waited for and granted late", func(ctx context.Context, c *lateClient) *fencelock.Lease {
		le, line := c.e.lined(ctx, c.b, c.name, c.Locker)
		return c.late(ctx, func() *fencelock.Lease { return passed(ctx, le, line[0]) })
	}},
	{"renewed late", func(ctx context.Context, c *lateClient) *fencelock.Lease { return c.renewed(ctx, c.name) }},
	{"granted after a late renewal", func(ctx context.Context, c *lateClient) *fencelock.Lease {
		c.renewed(ctx, c.other)
		return must(c.e.try(ctx, c.Locker, c.name, "after a late renewal"))
	}},
	{"waited for and granted after a late renewal", func(ctx context.Context, c *lateClient) *fencelock.Lease {
		le, line := c.e.lined(ctx, c.b, c.name, c.Locker)
		c.renewed(ctx, c.other)
		return passed(ctx, le, line[0])
	}},
}

// late calls f, and delivers the answers that the store sends meanwhile a while later.
func (c *lateClient) late(ctx context.Context, f func() *fencelock.Lease) (le *fencelock.Lease) {
	c.link.Set(holdReplies)
	done := running(func() error { le = f(); return nil })
	err := sleep(ctx, c.by)
	c.link.Set(passAll)
	check(errors.Join(<-done, err))
	return le
}

// renewed holds a lock whose renewal is answered late.
func (c *lateClient) renewed(ctx context.Context, name string) *fencelock.Lease {
	le := must(c.e.try(ctx, c.Locker, name, "a free lock"))
	return c.late(ctx, func() *fencelock.Lease {
		check(want(le.Renew(ctx), nil, fmt.Sprintf("Renew, answered after %v", c.by)))
		return le
	})
}

// passed unlocks a lease and returns the next one, of the Lock that waits for it.
func passed(ctx context.Context, le *fencelock.Lease, wait <-chan result) *fencelock.Lease {
	check(unlock(ctx, le, "the holder"))
	return must(granted(ctx, wait, 10*time.Second, "the waiter")).lease
}

func countsFromSend(ctx context.Context, e *Env) error {
	ttl := max(6*time.Second, e.Kept())
	return together(len(lateWays), func(i int) error {
		a, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
		b := must(e.Open(ctx))
		c := &lateClient{e, a, link, b, e.Name(), e.Name(), e.late()}
		left := c.cutOff(ctx, lateWays[i].take, 2*ttl+e.traits.DeadWaiter+e.Slack())
		if left > 0 {
			return fmt.Errorf("%s: another client got the lock %v before the Deadline", lateWays[i].what, left)
		}
		e.Notef("%s: another client got the lock %v after the Deadline", lateWays[i].what, -left)
		return nil
	})
}

// cutOff cuts a holder off as soon as it has its lease, so that nothing renews it, and returns how
// far its Deadline was away when another client got the lock.
func (c *lateClient) cutOff(
	ctx context.Context, take func(context.Context, *lateClient) *fencelock.Lease, most time.Duration,
) time.Duration {
	le := take(ctx, c)
	c.link.Set(blackHole)
	r := must(granted(ctx, locking(ctx, c.b, c.name), most, "the next"))
	check(unlock(ctx, r.lease, "the next"))
	return le.Deadline().Sub(r.at).Round(time.Millisecond)
}
