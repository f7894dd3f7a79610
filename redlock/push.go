package redlock

import (
	"context"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// subscribeMost is how long a waiter waits for a majority of nodes to confirm its subscription.
	subscribeMost = 300 * time.Millisecond
	// gather is how long after the first push of a release a waiter looks, if not a majority pushed
	// before.
	gather = 4 * time.Millisecond
)

// waiter is a claim that listens to all nodes.
type waiter struct {
	claim   *backend.Claim
	quorum  int
	entered bool          // it has its place among the waiters, whichever nodes confirm
	pushed  atomic.Uint64 // the nodes that have pushed since it looked last, a bit each
	nodes   []listener
}

// listener is a waiter at one node.
type listener struct {
	redisnode.Listener
	w    *waiter
	node int
}

// join makes the claim hear the pushes of all nodes, and subscribes where that was not done or was
// lost. It returns what is closed when a node has confirmed; nil of one that cannot be asked.
func (s *store) join(c *backend.Claim, p *place) []<-chan struct{} {
	if p.waiter == nil {
		w := &waiter{claim: c, quorum: s.quorum, nodes: make([]listener, len(s.nodes))}
		for i := range w.nodes {
			l := &w.nodes[i]
			l.w, l.node = w, i
			l.Listener = redisnode.Listener{Waiter: l, Nonce: c.Nonce, Channel: channel + s.process}
		}
		p.waiter = w
	}
	ready := make([]<-chan struct{}, len(s.nodes))
	for i, n := range s.nodes {
		h, err := s.hubs.Open(strconv.Itoa(i), func(ctx context.Context) redisnode.PubSub {
			return pubsub{n.client.Subscribe(ctx)} // to nothing yet
		})
		if err == nil {
			ready[i], _ = p.waiter.nodes[i].Join(h)
		}
	}
	return ready
}

// confirmed is how many nodes have confirmed.
func confirmed(ready []<-chan struct{}) (n int) {
	for _, r := range ready {
		select {
		case <-r:
			n++
		default:
		}
	}
	return n
}

// hears reports whether a claim that asks can join the waiters: pushes about it reach it, or it has
// waited long enough for the nodes to confirm.
func (s *store) hears(c *backend.Claim, p *place) bool {
	if p.waiter == nil {
		open := 0
		for i := range s.nodes {
			if s.hubs.Ready(strconv.Itoa(i), channel+s.process) != nil {
				open++
			}
		}
		if open < s.quorum {
			return false
		}
	}
	ready := s.join(c, p)
	p.waiter.pushed.Store(0)
	return p.waiter.entered || confirmed(ready) >= s.quorum
}

// Enter implements backend.Driver: the pushes of a majority reach the claim, or those of the nodes
// that answer in time.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	c.Place = p
	ready := s.join(c, p)
	p.waiter.entered = true
	if confirmed(ready) >= s.quorum {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, subscribeMost)
	defer cancel()
	heard := make(chan struct{}, len(ready))
	for _, r := range ready {
		s.flying.Go(func() {
			select {
			case <-r:
				heard <- struct{}{}
			case <-limited.Done():
			}
		})
	}
	for range s.quorum {
		select {
		case <-heard:
		case <-limited.Done(): // without pushes, the floor timer is left
			return ctx.Err()
		}
	}
	return nil
}

// leave ends the pushes about a claim.
func (p *place) leave() {
	if p.waiter == nil {
		return
	}
	for i := range p.waiter.nodes {
		p.waiter.nodes[i].Leave()
	}
	p.waiter = nil
}

// Push implements redisnode.Waiter: "g", the lock is free and kept for you, or "w<ms>", look in that
// time. The waiter looks once a majority has told it that the lock is free, or soon.
func (l *listener) Push(what string) {
	pause, told := pushedPause(what)
	switch {
	case told:
		l.Wake(pause)
	case what == "g":
		n := bits.OnesCount64(l.w.pushed.Or(1<<l.node) | 1<<l.node)
		if n >= l.w.quorum {
			l.Wake(0)
		} else if n == 1 {
			l.Wake(gather)
		}
	case what == "":
		l.Wake(gather)
	}
}

// pushedPause reads the "w<ms>" of a push: look in that time.
func pushedPause(what string) (time.Duration, bool) {
	text, ok := strings.CutPrefix(what, "w")
	ms, err := strconv.Atoi(text)
	return time.Duration(ms)*time.Millisecond + redisnode.JustAfter, ok && err == nil && ms >= 0
}

// Wake implements redisnode.Waiter.
func (l *listener) Wake(in time.Duration) { l.w.claim.Wake(in) }

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
