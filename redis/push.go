package redis

import (
	"context"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// subscribeMost is how long a node of a cluster may take to confirm a subscription: one that does
	// not have the slot any more never does.
	subscribeMost = 500 * time.Millisecond
	// resubscribe is how soon after that the waiter looks again.
	resubscribe = 100 * time.Millisecond
)

// given is what a push grants: the lock, by an ask that the server had answered with "queued". So
// the grant came after that ask was sent, and lasts for claim.
type given struct {
	ask   int64
	token backend.Token
	slot  int
}

// channel returns the channel of this driver for a lock, as queue.lua makes it: one, or on a cluster
// one for each slot.
func (s *store) channel(k keys) string {
	if s.cluster != nil {
		return k.ours() + "p" + s.process
	}
	return s.pushes
}

// hear joins a waiter to a hub whose subscription is confirmed already, so that it can join the
// queue with its first request. On a cluster its slot may have moved meanwhile.
func (s *store) hear(p *place) {
	if s.cluster != nil {
		return
	}
	if h := s.hubs.Ready("", p.listener.Channel); h != nil {
		_, _ = p.listener.Join(h) // where it has ended, Enter opens the next one
	}
}

// Enter implements backend.Driver: subscribed, and the subscription confirmed. On a cluster the slot
// may have moved to another node since the last time.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	h, err := s.hub(ctx, p.keys)
	if err != nil {
		return err
	}
	var late <-chan time.Time
	if s.cluster != nil {
		timer := time.NewTimer(subscribeMost)
		defer timer.Stop()
		late = timer.C
	}
	ready, err := p.listener.Join(h)
	if err != nil {
		return s.meaning(err)
	}
	select {
	case <-ready:
		return nil
	case <-h.Over():
		return s.meaning(h.End(nil))
	case <-ctx.Done():
		return ctx.Err()
	case <-late:
		// The slot has moved, probably. The next look subscribes where it is then; this one goes
		// without a push, and what it asks finds the node too.
		h.Drop(p.listener.Channel)
		s.cluster.ReloadState(ctx)
		c.Wake(resubscribe)
		return nil
	}
}

// hub returns the hub that hears pushes about a lock. On a cluster each master has its own.
func (s *store) hub(ctx context.Context, k keys) (*redisnode.Hub, error) {
	if s.cluster == nil {
		return s.hubs.Open("", func(ctx context.Context) redisnode.PubSub {
			return pubsub{s.client.Subscribe(ctx)}
		})
	}
	c, err := do(ctx, s, func(ctx context.Context) (*goredis.Client, error) { // asks, if it has asked nothing before
		return s.cluster.MasterForKey(ctx, k.lock)
	})
	if err != nil {
		return nil, err
	}
	return s.hubs.Open(c.Options().Addr, func(ctx context.Context) redisnode.PubSub {
		return sharded{pubsub{c.SSubscribe(ctx)}}
	})
}

// pubsub is a connection for pushes.
type pubsub struct{ *goredis.PubSub }

// Receive returns the next event.
func (p pubsub) Receive(ctx context.Context, timeout time.Duration) (redisnode.Event, error) {
	switch m, err := p.ReceiveTimeout(ctx, timeout); m := m.(type) {
	case *goredis.Message:
		return redisnode.Event{Kind: "message", Channel: m.Channel, Payload: m.Payload}, err
	case *goredis.Subscription:
		return redisnode.Event{Kind: m.Kind, Channel: m.Channel}, err
	default:
		return redisnode.Event{}, err
	}
}

// sharded is one for the channels of a cluster's slots.
type sharded struct{ pubsub }

// Subscribe asks for channels.
func (p sharded) Subscribe(ctx context.Context, channels ...string) error {
	return p.SSubscribe(ctx, channels...)
}

// Unsubscribe leaves channels.
func (p sharded) Unsubscribe(ctx context.Context, channels ...string) error {
	return p.SUnsubscribe(ctx, channels...)
}

// Push implements redisnode.Waiter: "h<ask>:<token>", of a permit with ":<slot>", it is yours, by that
// ask; or "g", it is yours if you ask.
func (p *place) Push(what string) {
	if by, ok := strings.CutPrefix(what, "h"); ok {
		if g := readGiven(by); g != nil {
			p.given.Store(g)
		}
		p.Wake(0)
	}
	if what == "g" {
		p.Wake(0)
	}
}

// readGiven reads "<ask>:<token>" or "<ask>:<token>:<slot>"; nil: it is neither.
func readGiven(text string) *given {
	ask, token, _ := strings.Cut(text, ":")
	token, slot, permit := strings.Cut(token, ":")
	g := &given{}
	var err1, err2, err3 error
	g.ask, err1 = strconv.ParseInt(ask, 10, 64)
	g.token, err2 = strconv.ParseInt(token, 10, 64)
	if permit {
		g.slot, err3 = strconv.Atoi(slot)
	}
	if err1 != nil || err2 != nil || err3 != nil || g.ask <= 0 || g.token <= 0 || g.slot < 0 {
		return nil
	}
	return g
}

// Wake implements redisnode.Waiter.
func (p *place) Wake(in time.Duration) { p.claim.Wake(in) }
