package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
)

// late is how late answers come in rule C13: less than what a driver takes for no answer, and so
// much that it shows beside the engine's margin and what the store adds to an expiry.
func (e *Env) late() time.Duration {
	return 450*time.Millisecond + min(e.traits.Resolution, time.Second)
}

// lateClient is a client whose answers come late, and one whose do not. It holds name in the end;
// other is a further name.
type lateClient struct {
	*fencelock.Locker
	link        Link
	b           *fencelock.Locker
	name, other string
	by          time.Duration
}

// lateWays are the ways to a lease whose Deadline a late answer could move.
var lateWays = []struct {
	what string
	take func(context.Context, *lateClient) (*fencelock.Lease, error)
}{
	{"granted late", func(ctx context.Context, c *lateClient) (*fencelock.Lease, error) {
		// What is held up is the grant, and nothing before it.
		if _, err := cycle(ctx, c.Locker, c.other, "before"); err != nil {
			return nil, err
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil { // the slowest of several nodes
			return nil, err
		}
		return c.late(ctx, func() (*fencelock.Lease, error) { return try(ctx, c.Locker, c.name, "answered late") })
	}},
	{"waited for and granted late", func(ctx context.Context, c *lateClient) (*fencelock.Lease, error) {
		le, line, err := lined(ctx, c.b, c.name, c.Locker)
		if err != nil {
			return nil, err
		}
		return c.late(ctx, func() (*fencelock.Lease, error) { return c.passed(ctx, le, line[0]) })
	}},
	{
		"renewed late",
		func(ctx context.Context, c *lateClient) (*fencelock.Lease, error) {
			return c.renewed(ctx, c.name)
		},
	},
	{"granted after a late renewal", func(ctx context.Context, c *lateClient) (*fencelock.Lease, error) {
		if _, err := c.renewed(ctx, c.other); err != nil {
			return nil, err
		}
		return try(ctx, c.Locker, c.name, "after a late renewal")
	}},
	{"waited for and granted after a late renewal", func(ctx context.Context, c *lateClient) (*fencelock.Lease, error) {
		le, line, err := lined(ctx, c.b, c.name, c.Locker)
		if err != nil {
			return nil, err
		}
		if _, err := c.renewed(ctx, c.other); err != nil {
			return nil, err
		}
		return c.passed(ctx, le, line[0])
	}},
}

// late calls f, and delivers what the store answers meanwhile a while later.
func (c *lateClient) late(ctx context.Context, f func() (*fencelock.Lease, error)) (*fencelock.Lease, error) {
	c.link.Set(faultproxy.Mode{HoldReplies: true})
	ch := make(chan result, 1)
	go func() {
		le, err := f()
		ch <- result{lease: le, err: err}
	}()
	err := sleep(ctx, c.by)
	c.link.Set(passAll)
	if r := <-ch; r.err != nil {
		return nil, r.err
	} else if err == nil {
		return r.lease, nil
	}
	return nil, err
}

// renewed holds a lock whose renewal is answered late.
func (c *lateClient) renewed(ctx context.Context, name string) (*fencelock.Lease, error) {
	le, err := try(ctx, c.Locker, name, "a free lock")
	if err != nil {
		return nil, err
	}
	return c.late(ctx, func() (*fencelock.Lease, error) {
		if err := le.Renew(ctx); err != nil {
			return nil, fmt.Errorf("Renew, answered after %v: got %w, want nil", c.by, err)
		}
		return le, nil
	})
}

// passed unlocks b's lease and returns that of the client, which waits for it.
func (c *lateClient) passed(ctx context.Context, le *fencelock.Lease, wait <-chan result) (*fencelock.Lease, error) {
	if err := unlock(ctx, le, "the holder"); err != nil {
		return nil, err
	}
	r, err := granted(ctx, wait, 10*time.Second, "the waiter")
	return r.lease, err
}

func countsFromSend(ctx context.Context, e *Env) error {
	ttl := max(6*time.Second, e.Kept())
	results := make(chan error, len(lateWays))
	for _, way := range lateWays {
		a, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
		b := must(e.Open(ctx))
		c := &lateClient{a, link, b, e.Name(), e.Name(), e.late()}
		go func() {
			left, err := c.cutOff(ctx, way.take, 2*ttl+e.traits.DeadWaiter+e.Slack())
			switch {
			case err != nil:
				err = fmt.Errorf("%s: %w", way.what, err)
			case left > 0:
				err = fmt.Errorf("%s: another client got the lock %v before the Deadline", way.what, left)
			default:
				e.Notef("%s: another client got the lock %v after the Deadline", way.what, -left)
			}
			results <- err
		}()
	}
	var err error
	for range lateWays {
		if one := <-results; err == nil {
			err = one
		}
	}
	return err
}

// cutOff cuts a holder off as soon as it has its lease, so that nothing renews it, and returns how
// far its Deadline was away when another client got the lock.
func (c *lateClient) cutOff(
	ctx context.Context, take func(context.Context, *lateClient) (*fencelock.Lease, error),
	most time.Duration,
) (time.Duration, error) {
	le, err := take(ctx, c)
	if err != nil {
		return 0, err
	}
	c.link.Set(blackHole)
	r, err := granted(ctx, locking(ctx, c.b, c.name), most, "the next")
	if err != nil {
		return 0, err
	}
	return le.Deadline().Sub(r.at).Round(time.Millisecond), unlock(ctx, r.lease, "the next")
}
