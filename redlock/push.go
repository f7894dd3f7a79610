package redlock

import (
	"context"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

const (
	// idleFor is how long the pub/sub connections are kept without waiters.
	idleFor = 30 * time.Second
	// subscribeMost is how long the first waiter waits for a majority of nodes to confirm its subscription.
	subscribeMost = 300 * time.Millisecond
	// gather is how long after the first push of a release a waiter looks, if not a majority pushed before.
	gather = 4 * time.Millisecond
)

// hub hears the pushes of all nodes, over one connection to each. It is opened by the first waiter and
// kept while there are any, and a while longer.
type hub struct {
	s *store

	mu      sync.Mutex
	subs    []*goredis.PubSub // by node; nil: not open
	heard   []bool            // nodes that have confirmed the subscription
	nheard  int
	enough  chan struct{}      // closed when a majority has
	waiters map[string]*waiter // by nonce
	idle    *time.Timer
	closed  bool
	ends    sync.WaitGroup
}

// waiter is a claim that waits for a push.
type waiter struct {
	claim  *backend.Claim
	pushed uint64 // the nodes that have pushed since it looked last, a bit each
}

// hears reports whether pushes about a claim that asks reach it, so that it can join the waiters.
func (h *hub) hears(c *backend.Claim) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waiters[c.Nonce]
	if w == nil && h.subs != nil && h.nheard >= h.s.quorum {
		w = h.add(c)
	}
	if w != nil {
		w.pushed = 0
	}
	return w != nil
}

// add makes a claim a waiter; h.mu is held.
func (h *hub) add(c *backend.Claim) *waiter {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.waiters == nil {
		h.waiters = map[string]*waiter{}
	}
	w := &waiter{claim: c}
	h.waiters[c.Nonce] = w
	return w
}

// Enter implements backend.Driver: the pushes of a majority reach the claim, or those of the nodes that answer in time.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	h := &s.hub
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return goredis.ErrClosed
	}
	if h.waiters[c.Nonce] == nil {
		h.add(c)
	}
	if h.subs == nil {
		h.open()
	}
	enough := h.enough
	h.mu.Unlock()
	select {
	case <-enough:
		return nil
	default:
	}
	timer := time.NewTimer(subscribeMost)
	defer timer.Stop()
	select {
	case <-enough:
	case <-timer.C: // without pushes, the floor timer is left
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// open subscribes at every node; h.mu is held.
func (h *hub) open() {
	h.subs = make([]*goredis.PubSub, len(h.s.nodes))
	h.heard = make([]bool, len(h.s.nodes))
	h.nheard = 0
	h.enough = make(chan struct{})
	for i, n := range h.s.nodes {
		// Subscribing is lazy, and with no channel nothing is sent yet.
		ps := n.client.Subscribe(context.Background())
		h.subs[i] = ps
		enough := h.enough
		h.ends.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callMost)
			_ = ps.Subscribe(ctx, channel+h.s.process) // if that fails, the reader's reconnect does it
			cancel()
			for m := range ps.ChannelWithSubscriptions() {
				switch m := m.(type) {
				case *goredis.Message:
					h.push(i, m.Payload)
				case *goredis.Subscription:
					h.confirmed(i, enough)
				}
			}
		})
	}
}

// confirmed takes in that a node has (re)subscribed us: what it pushed before may be gone, so all look.
func (h *hub) confirmed(node int, enough chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.enough != enough {
		return // of a connection that was closed
	}
	if !h.heard[node] {
		h.heard[node] = true
		if h.nheard++; h.nheard == h.s.quorum {
			close(enough)
			return
		}
		if h.nheard < h.s.quorum {
			return
		}
	}
	for _, w := range h.waiters {
		w.claim.Wake(gather)
	}
}

// push is one message: "g nonce", the lock is free and kept for you, or "w<ms> nonce", look in that
// time. The waiter looks once a majority has told it that the lock is free, or soon.
func (h *hub) push(node int, payload string) {
	what, nonce, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waiters[nonce]
	switch {
	case w == nil:
	case what == "g":
		w.pushed |= 1 << node
		if n := bits.OnesCount64(w.pushed); n >= h.s.quorum {
			w.claim.Wake(0)
		} else if n == 1 {
			w.claim.Wake(gather)
		}
	case strings.HasPrefix(what, "w"):
		if ms, err := strconv.Atoi(what[1:]); err == nil && ms >= 0 {
			w.claim.Wake(time.Duration(ms)*time.Millisecond + 5*time.Millisecond)
		}
	}
}

// leave ends the pushes about a claim. The last one starts the time after which the connections are closed.
func (h *hub) leave(c *backend.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters, c.Nonce)
	if len(h.waiters) == 0 && h.idle == nil && h.subs != nil && !h.closed {
		h.idle = time.AfterFunc(idleFor, h.retire)
	}
}

// retire closes the connections if still nobody waits.
func (h *hub) retire() {
	h.mu.Lock()
	var subs []*goredis.PubSub
	if len(h.waiters) == 0 && h.idle != nil {
		subs, h.subs, h.idle, h.enough = h.subs, nil, nil, nil
	}
	h.mu.Unlock()
	for _, ps := range subs {
		_ = ps.Close() // it was ours alone, and only listens
	}
}

// close ends the hub and waits for its goroutines.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	if h.idle != nil {
		h.idle.Stop()
	}
	subs := h.subs
	h.subs, h.enough = nil, nil
	h.mu.Unlock()
	for _, ps := range subs {
		_ = ps.Close()
	}
	h.ends.Wait()
}
