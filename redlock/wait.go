package redlock

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
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
	d *Driver

	mu      sync.Mutex
	subs    []*goredis.PubSub // by node; nil: not open
	heard   []bool            // nodes that have confirmed the subscription
	nheard  int
	enough  chan struct{} // closed when a majority has
	waiters map[string]*waiter
	idle    *time.Timer
	closed  bool
	ends    sync.WaitGroup
}

// waiter is one acquisition that waits for a push.
type waiter struct {
	hub   *hub
	nonce string
	wake  chan struct{} // of size 1: look now

	mu     sync.Mutex
	pushed map[int]bool // nodes that have pushed since the last look
	timer  *time.Timer
}

// ready reports whether a waiter would hear pushes already, so that it can join with its first request.
func (h *hub) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.subs != nil && h.nheard >= h.d.quorum
}

func (h *hub) waiter(nonce string) *waiter {
	return &waiter{hub: h, nonce: nonce, wake: make(chan struct{}, 1), pushed: map[int]bool{}}
}

// join makes sure that pushes reach the waiter: those of a majority, or of the nodes that answer in time.
func (w *waiter) join(ctx context.Context) error {
	h := w.hub
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return goredis.ErrClosed
	}
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.subs == nil {
		h.open()
	}
	if h.waiters == nil {
		h.waiters = map[string]*waiter{}
	}
	h.waiters[w.nonce] = w
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
	h.subs = make([]*goredis.PubSub, len(h.d.nodes))
	h.heard = make([]bool, len(h.d.nodes))
	h.nheard = 0
	h.enough = make(chan struct{})
	for i, n := range h.d.nodes {
		// Subscribing is lazy, and with no channel nothing is sent yet.
		ps := n.client.Subscribe(context.Background())
		h.subs[i] = ps
		enough := h.enough
		h.ends.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callMost)
			_ = ps.Subscribe(ctx, channel+h.d.process) // if that fails, the reader's reconnect does it
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
		if h.nheard++; h.nheard == h.d.quorum {
			close(enough)
			return
		}
		if h.nheard < h.d.quorum {
			return
		}
	}
	for _, w := range h.waiters {
		w.later(gather)
	}
}

// push is one message: "g nonce", the lock is free and kept for you, or "w<ms> nonce", look in that time.
func (h *hub) push(node int, payload string) {
	what, nonce, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	w := h.waiters[nonce]
	h.mu.Unlock()
	switch {
	case w == nil:
	case what == "g":
		w.push(node)
	case strings.HasPrefix(what, "w"):
		if ms, err := strconv.Atoi(what[1:]); err == nil && ms >= 0 {
			w.later(time.Duration(ms)*time.Millisecond + 5*time.Millisecond)
		}
	}
}

// push notes one node's push, and makes the waiter look once a majority has pushed, or soon.
func (w *waiter) push(node int) {
	w.mu.Lock()
	w.pushed[node] = true
	n := len(w.pushed)
	w.mu.Unlock()
	if n >= w.hub.d.quorum {
		w.poke()
	} else if n == 1 {
		w.later(gather)
	}
}

// looking forgets the pushes so far: a look is under way.
func (w *waiter) looking() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.pushed)
}

// poke makes the waiter look now.
func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// later makes the waiter look after t, or earlier if it was to look earlier.
func (w *waiter) later(t time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(t, w.poke)
}

// leave ends the waiter's pushes. The last one starts the time after which the connections are closed.
func (w *waiter) leave() {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters, w.nonce)
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
