package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// hubs are the pub/sub connections of a driver: one, or on a cluster one for each
// master that has a lock which is waited for, with one channel for each slot. They are
// opened by the first waiter and kept until nobody has waited for a while.
type hubs struct {
	s    *store
	idle time.Duration  // idleFor
	ends sync.WaitGroup // the goroutines of all hubs

	mu     sync.Mutex
	byNode map[string]*hub // by address; "" off a cluster
	closed bool
}

// hub is one pub/sub connection. It is never mended: when it ends, for whatever reason, its waiters
// look, and open the next one. go-redis would mend it, but asks for all channels in one command
// then, which a cluster refuses for channels of several slots.
type hub struct {
	hubs *hubs
	node string
	ps   *goredis.PubSub
	ctx  context.Context // of its dials
	stop context.CancelFunc
	over chan struct{} // closed when it has ended

	mu       sync.Mutex
	channels map[string]*subscription
	waiters  map[string]*place // by nonce
	idle     *time.Timer       // runs while nobody waits
	reading  bool              // its reader has been started
	err      error             // why it ended; nil while it has not
}

// idleFor is how long a hub without waiters is kept, and a channel of one.
const idleFor = 30 * time.Second

// pingEvery is how long a hub hears nothing before it asks whether the server is there, and how
// long that may take.
const pingEvery = 3 * time.Second

// subscribeMost is how long a node of a cluster may take to confirm a subscription: one that
// does not have the slot any more never does.
const subscribeMost = 500 * time.Millisecond

// resubscribe is how soon after that the waiter looks again.
const resubscribe = 100 * time.Millisecond

// subscription is one channel of a hub.
type subscription struct {
	ready   chan struct{} // closed when the server has confirmed it
	waiters int
	idle    *time.Timer // runs while nobody waits on it
}

// channel returns the channel of this driver for a lock, as queue.lua makes it.
func (s *store) channel(k keys) string {
	if s.cluster != nil {
		return k.ours() + "p" + s.process
	}
	return "fl\x00p" + s.process
}

// hear joins a waiter to a hub whose subscription is confirmed already, so that it can join the
// queue with its first request.
func (hs *hubs) hear(p *place) {
	if hs.s.cluster != nil { // its slot may have moved meanwhile
		return
	}
	hs.mu.Lock()
	h := hs.byNode[""]
	hs.mu.Unlock()
	if h == nil {
		return
	}
	channel := hs.s.channel(p.keys)
	h.mu.Lock()
	sub := h.channels[channel]
	h.mu.Unlock()
	if sub == nil || !sub.isReady() {
		return
	}
	p.channel = channel
	if _, err := h.add(p); err == nil {
		p.hub = h
	}
}

func (s *subscription) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// Enter implements backend.Driver: subscribed, and the subscription confirmed. On a cluster the slot
// may have moved to another node since the last time.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	h, err := s.hubs.of(ctx, p.keys)
	if err != nil {
		return err
	}
	if h != p.hub {
		p.leave()
		p.hub, p.channel = h, s.channel(p.keys)
	}
	var late <-chan time.Time
	if s.cluster != nil {
		timer := time.NewTimer(subscribeMost)
		defer timer.Stop()
		late = timer.C
	}
	ready, err := h.add(p)
	if err != nil {
		return err
	}
	select {
	case <-ready:
		return nil
	case <-h.over:
		return h.end(nil)
	case <-ctx.Done():
		return ctx.Err()
	case <-late:
		// The slot has moved, probably. The next look subscribes where it is then; this one goes
		// without a push, and what it asks finds the node too.
		h.drop(p.channel)
		s.cluster.ReloadState(ctx)
		c.Wake(resubscribe)
		return nil
	}
}

// leave ends the pushes about a claim.
func (p *place) leave() {
	if p.hub != nil {
		p.hub.remove(p)
		p.hub = nil
	}
}

// of returns the hub that hears pushes about k.
func (hs *hubs) of(ctx context.Context, k keys) (*hub, error) {
	node := ""
	subscribe := hs.s.client.Subscribe
	if hs.s.cluster != nil {
		c, err := hs.s.cluster.MasterForKey(ctx, k.lock)
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
		ctx, stop := context.WithCancel(context.Background())
		h = &hub{
			hubs:     hs,
			node:     node,
			ps:       subscribe(ctx), // to nothing yet
			ctx:      ctx,
			stop:     stop,
			over:     make(chan struct{}),
			channels: map[string]*subscription{},
			waiters:  map[string]*place{},
		}
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
		h.end(goredis.ErrClosed)
	}
	hs.ends.Wait()
}

// Why a hub has ended.
var (
	errUnheard = errors.New("the subscription was lost without a word")
	errIdle    = errors.New("nobody waited")
)

// end ends the hub, unless it has ended, and returns why it has. Waiters whose channel was
// confirmed look, since what was pushed from now on is for the next hub; the others are told in
// join.
func (h *hub) end(why error) error {
	hs := h.hubs
	hs.mu.Lock()
	if hs.byNode[h.node] == h {
		delete(hs.byNode, h.node)
	}
	aside := !hs.closed // then somebody will wait for it
	if aside {
		hs.ends.Add(1)
	}
	hs.mu.Unlock()
	h.mu.Lock()
	if h.err != nil {
		defer h.mu.Unlock()
		if aside {
			hs.ends.Done()
		}
		return h.err
	}
	h.err = why
	if h.idle != nil {
		h.idle.Stop()
	}
	for _, s := range h.channels {
		s.stop()
	}
	var heard []*place
	for _, w := range h.waiters {
		if s := h.channels[w.channel]; s != nil && s.isReady() {
			heard = append(heard, w)
		}
	}
	close(h.over)
	h.mu.Unlock()
	h.stop() // a dial that is under way holds the lock of ps
	if aside {
		go func() {
			defer hs.ends.Done()
			_ = h.ps.Close() // what it reports does not matter any more
		}()
	} else {
		_ = h.ps.Close()
	}
	for _, w := range heard {
		w.claim.Wake(0)
	}
	return why
}

// stop ends the timer of a channel that nobody waits on.
func (s *subscription) stop() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// add registers a waiter, subscribes to its channel if that was not done, and
// returns what is closed when the server has confirmed the subscription.
func (h *hub) add(w *place) (<-chan struct{}, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	s := h.channels[w.channel]
	if s == nil {
		s = &subscription{ready: make(chan struct{})}
		first := !h.reading
		h.reading = true
		h.channels[w.channel] = s
		h.hubs.ends.Go(func() { h.subscribe(w.channel, first) }) // it may have to dial, so not on the waiter's time
	}
	if w.sub != s {
		w.sub = s // an earlier one was dropped
		s.waiters++
	}
	h.waiters[w.claim.Nonce] = w
	s.stop()
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	return s.ready, nil
}

// subscribe asks for a channel. The first one dials, and begins to read.
func (h *hub) subscribe(channel string, first bool) {
	ask := h.ps.Subscribe
	if h.hubs.s.cluster != nil {
		ask = h.ps.SSubscribe
	}
	ctx, cancel := context.WithTimeout(h.ctx, requestMost)
	err := ask(ctx, channel)
	cancel()
	if err != nil {
		h.end(err)
		return
	}
	if first {
		h.read()
	}
}

// drop forgets a channel that this node does not serve.
func (h *hub) drop(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.channels[channel]; s != nil && !s.isReady() {
		delete(h.channels, channel)
	}
}

// remove forgets a waiter. The last one starts the time after which the hub is closed, and the last
// one on a channel of several the time after which that is left.
func (h *hub) remove(w *place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters[w.claim.Nonce] != w {
		return
	}
	delete(h.waiters, w.claim.Nonce)
	s := w.sub
	w.sub = nil
	if h.err != nil {
		return
	}
	if s != nil {
		if s.waiters--; s.waiters == 0 && h.channels[w.channel] == s && h.hubs.s.cluster != nil {
			channel := w.channel
			s.idle = time.AfterFunc(h.hubs.idle, func() { h.quit(channel, s) })
		}
	}
	if len(h.waiters) == 0 && h.idle == nil {
		h.idle = time.AfterFunc(h.hubs.idle, h.retire)
	}
}

// quit leaves a channel if still nobody waits on it.
func (h *hub) quit(channel string, s *subscription) {
	h.mu.Lock()
	over := h.err == nil && s.waiters == 0 && s.idle != nil && h.channels[channel] == s && len(h.waiters) > 0
	if over {
		delete(h.channels, channel)
		h.hubs.ends.Go(func() {
			ctx, cancel := context.WithTimeout(h.ctx, requestMost)
			defer cancel()
			_ = h.ps.SUnsubscribe(ctx, channel) // a connection that cannot be written to is seen by the reader
		})
	}
	h.mu.Unlock()
}

// retire closes the hub if still nobody waits.
func (h *hub) retire() {
	h.mu.Lock()
	over := len(h.waiters) == 0 && h.idle != nil
	h.mu.Unlock()
	if over {
		h.end(errIdle)
	}
}

// read hands pushes to their waiters until the connection ends. Its ctx has ended before it begins,
// so that go-redis cannot dial a new connection when this one breaks.
func (h *hub) read() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for asked := false; ; {
		m, err := h.ps.ReceiveTimeout(ended, pingEvery)
		switch {
		case err == nil,
			isReply(err): // a refusal is a sign of life too; a channel that was refused is never confirmed
			asked = false
		case core.TimedOut(err) && !asked:
			asked = true
			if h.ps.Ping(ended) == nil {
				continue
			}
			fallthrough
		default:
			h.end(err)
			return
		}
		switch m := m.(type) {
		case *goredis.Message:
			h.push(m.Payload)
		case *goredis.Subscription:
			h.subscription(m)
		}
	}
}

// push is one message: "h<ask>:<token> nonce", it is yours, by that ask; "g nonce", it is yours if
// you ask; or "w<ms> nonce", look in that time.
func (h *hub) push(payload string) {
	what, nonce, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	w := h.waiters[nonce]
	h.mu.Unlock()
	switch {
	case w == nil: // it has left; its Abandon passes the grant on
	case what == "g":
		w.claim.Wake(0)
	case strings.HasPrefix(what, "h"):
		ask, token, _ := strings.Cut(what[1:], ":")
		g := &given{}
		var bad error
		if g.ask, bad = strconv.ParseInt(ask, 10, 64); bad == nil {
			g.token, bad = strconv.ParseInt(token, 10, 64)
		}
		if bad == nil && g.ask > 0 && g.token > 0 {
			w.given.Store(g)
		}
		w.claim.Wake(0)
	case strings.HasPrefix(what, "w"):
		if ms, err := strconv.Atoi(what[1:]); err == nil && ms >= 0 {
			w.claim.Wake(time.Duration(ms)*time.Millisecond + 5*time.Millisecond)
		}
	}
}

// subscription takes in the server's word about a channel. One that the server took back (its slot
// has moved) is asked for again by the next look.
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
		}
		return
	default:
		delete(h.channels, m.Channel)
		if c := h.hubs.s.cluster; c != nil {
			c.ReloadState(context.Background()) // in the background: the slot has moved
		}
	}
	for _, w := range h.waiters {
		if w.channel == m.Channel {
			w.claim.Wake(0)
		}
	}
}
