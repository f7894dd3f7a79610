package redis

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// hubs are the pub/sub connections of a driver: one, or on a cluster one for each
// master that has a lock which is waited for, with one channel for each slot. They are
// opened by the first waiter and kept until Close.
type hubs struct {
	d *Driver

	mu     sync.Mutex
	byNode map[string]*hub // by address; "" off a cluster
	closed bool
}

// hub is one pub/sub connection.
type hub struct {
	hubs *hubs
	node string
	ps   *goredis.PubSub
	ends sync.WaitGroup // its goroutines

	mu       sync.Mutex
	channels map[string]*subscription
	waiters  map[string]*waiter // by nonce
	idle     *time.Timer        // runs while nobody waits
}

// idleFor is how long a hub without waiters is kept.
const idleFor = 30 * time.Second

// subscribeMost is how long a node of a cluster may take to confirm a subscription: one that
// does not have the slot any more never does.
const subscribeMost = 500 * time.Millisecond

// resubscribe is how soon after that the waiter looks again.
const resubscribe = 100 * time.Millisecond

// subscription is one channel of a hub.
type subscription struct {
	ready chan struct{} // closed when the server has confirmed it
}

// waiter is one acquisition that waits for a push.
type waiter struct {
	hubs  *hubs
	nonce string
	wake  chan struct{} // of size 1: look now

	hub     *hub // nil while it is not joined
	channel string
	mu      sync.Mutex
	timer   *time.Timer // look when somebody else's claim is over
}

// channel returns the channel of this driver for a lock, as queue.lua makes it.
func (d *Driver) channel(k keys) string {
	if d.cluster != nil {
		return k.ours() + "p" + d.process
	}
	return "fl\x00p" + d.process
}

// subscribed reports whether a waiter for this lock would hear a push already,
// so that it can join the queue with its first request.
func (hs *hubs) subscribed(k keys) bool {
	if hs.d.cluster != nil {
		return false
	}
	hs.mu.Lock()
	h := hs.byNode[""]
	hs.mu.Unlock()
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.channels[hs.d.channel(k)]
	return s != nil && s.isReady()
}

func (s *subscription) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// waiter returns a waiter that has not joined yet.
func (hs *hubs) waiter(nonce string) *waiter {
	return &waiter{hubs: hs, nonce: nonce, wake: make(chan struct{}, 1)}
}

// join makes sure that pushes about k reach the waiter: subscribed, and the
// subscription confirmed. It is called before every look, since on a cluster the
// slot may have moved to another node.
func (w *waiter) join(ctx context.Context, k keys) error {
	h, err := w.hubs.of(ctx, k)
	if err != nil {
		return err
	}
	if h != w.hub {
		w.leave()
		w.hub, w.channel = h, w.hubs.d.channel(k)
	}
	var late <-chan time.Time
	if w.hubs.d.cluster != nil {
		timer := time.NewTimer(subscribeMost)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-h.add(w):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late:
		// The slot has moved, probably. The next look subscribes where it is then; this one goes
		// without a push, and what it asks finds the node too.
		h.drop(w.channel)
		w.hubs.d.cluster.ReloadState(ctx)
		w.later(resubscribe)
		return nil
	}
}

// leave ends the waiter's pushes.
func (w *waiter) leave() {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	if w.hub != nil {
		w.hub.remove(w)
		w.hub = nil
	}
}

// poke makes the waiter look now.
func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// later makes the waiter look after d.
func (w *waiter) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(d, w.poke)
}

// of returns the hub that hears pushes about k.
func (hs *hubs) of(ctx context.Context, k keys) (*hub, error) {
	node := ""
	subscribe := hs.d.client.Subscribe
	if hs.d.cluster != nil {
		c, err := hs.d.cluster.MasterForKey(ctx, k.lock)
		if err != nil {
			return nil, err
		}
		node, subscribe = c.Options().Addr, c.SSubscribe
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.closed {
		return nil, goredis.ErrClosed
	}
	h := hs.byNode[node]
	if h == nil {
		h = &hub{
			hubs:     hs,
			node:     node,
			ps:       subscribe(context.Background()), // to nothing yet
			channels: map[string]*subscription{},
			waiters:  map[string]*waiter{},
		}
		messages := h.ps.ChannelWithSubscriptions(goredis.WithChannelSize(1024))
		h.ends.Go(func() { h.read(messages) })
		if hs.byNode == nil {
			hs.byNode = map[string]*hub{}
		}
		hs.byNode[node] = h
	}
	return h, nil
}

// close ends every hub and waits for its goroutines.
func (hs *hubs) close() {
	hs.mu.Lock()
	hs.closed = true
	all := hs.byNode
	hs.byNode = nil
	hs.mu.Unlock()
	for _, h := range all {
		h.close()
	}
}

func (h *hub) close() {
	h.mu.Lock()
	if h.idle != nil {
		h.idle.Stop()
	}
	h.mu.Unlock()
	_ = h.ps.Close() // what it reports does not matter any more
	h.ends.Wait()
}

// add registers a waiter, subscribes to its channel if that was not done, and
// returns what is closed when the server has confirmed the subscription.
func (h *hub) add(w *waiter) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[w.nonce] = w
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	s := h.channels[w.channel]
	if s == nil {
		s = &subscription{ready: make(chan struct{})}
		h.channels[w.channel] = s
		channel := w.channel
		// It may have to dial, so not on the waiter's time. If it fails, the channel
		// is subscribed to with the next connection, which the reader makes.
		h.ends.Go(func() {
			if h.hubs.d.cluster != nil {
				_ = h.ps.SSubscribe(context.Background(), channel)
			} else {
				_ = h.ps.Subscribe(context.Background(), channel)
			}
		})
	}
	return s.ready
}

// drop forgets a channel that this node does not serve.
func (h *hub) drop(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.channels[channel]; s != nil && !s.isReady() {
		delete(h.channels, channel)
	}
}

// remove forgets a waiter. The last one starts the time after which the hub is closed.
func (h *hub) remove(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters, w.nonce)
	if len(h.waiters) == 0 && h.idle == nil {
		h.idle = time.AfterFunc(idleFor, h.retire)
	}
}

// retire closes the hub if still nobody waits.
func (h *hub) retire() {
	hs := h.hubs
	hs.mu.Lock()
	h.mu.Lock()
	over := len(h.waiters) == 0 && h.idle != nil && hs.byNode[h.node] == h
	if over {
		delete(hs.byNode, h.node)
	}
	h.mu.Unlock()
	hs.mu.Unlock()
	if over {
		h.close()
	}
}

// read hands pushes to their waiters until the connection is closed.
func (h *hub) read(messages <-chan any) {
	for m := range messages {
		switch m := m.(type) {
		case *goredis.Message:
			h.push(m.Payload)
		case *goredis.Subscription:
			h.subscription(m)
		}
	}
}

// push is one message: "g nonce", it is yours, or "w<ms> nonce", look in that time.
func (h *hub) push(payload string) {
	what, nonce, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	w := h.waiters[nonce]
	h.mu.Unlock()
	switch {
	case w == nil: // it has left; its Abandon passes the grant on
	case what == "g":
		w.poke()
	case strings.HasPrefix(what, "w"):
		if ms, err := strconv.Atoi(what[1:]); err == nil && ms >= 0 {
			w.later(time.Duration(ms)*time.Millisecond + 5*time.Millisecond)
		}
	}
}

// subscription takes in the server's word about a channel. One that was confirmed
// before was lost and made again: what was pushed in between is gone, so its
// waiters look. One that the server took back (its slot has moved) is asked for again by the
// next look.
func (h *hub) subscription(m *goredis.Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.channels[m.Channel]
	if s == nil {
		return
	}
	switch m.Kind {
	case "subscribe", "ssubscribe":
		if !s.isReady() {
			close(s.ready)
			return
		}
	default:
		delete(h.channels, m.Channel)
		if c := h.hubs.d.cluster; c != nil {
			c.ReloadState(context.Background()) // in the background: the slot has moved
		}
	}
	for _, w := range h.waiters {
		if w.channel == m.Channel {
			w.poke()
		}
	}
}
