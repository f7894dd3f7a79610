package redisnode

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/core"
)

// Hubs are the pub/sub connections of a driver, at most one to each server. The first waiter opens
// one, and it is kept until nobody has waited for a while.
type Hubs struct {
	Idle    time.Duration // how long a channel without waiters is kept, and a hub with the last one
	Sharded bool          // a hub has a channel for each slot
	Needed  bool          // a subscription that is refused ends the hub
	Moved   func()        // called when a server has taken a channel back

	ends   core.Group // the goroutines of all hubs
	mu     sync.Mutex
	byNode map[string]*Hub
	closed bool
}

const (
	// IdleFor is how long a hub without waiters is kept.
	IdleFor = 30 * time.Second
	// pingEvery is how long a hub hears nothing before it asks whether the server is there, and how
	// long that may take.
	pingEvery = 3 * time.Second
	// subscribeMost bounds a subscription, with the dial of the first one.
	subscribeMost = 3 * time.Second
)

// Why a hub has ended.
var (
	ErrUnheard = errors.New("the subscription was lost without a word")
	errIdle    = errors.New("nobody waited")
	errClosed  = errors.New("the driver is closed")
)

// PubSub is a connection for pushes, as a client library has it.
type PubSub interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	Receive(ctx context.Context, timeout time.Duration) (Event, error)
	Close() error
}

// Event is what a server says on such a connection.
type Event struct {
	Kind             string // "message", or "subscribe" and the other commands' names
	Channel, Payload string
}

// Hub is one pub/sub connection. It is never mended: when it ends, for whatever reason, its waiters
// look, and open the next one. go-redis would mend it, but asks for all channels in one command
// then, which a cluster refuses for channels of several slots.
type Hub struct {
	hubs *Hubs
	node string
	ps   PubSub
	ctx  context.Context // of its dials
	stop context.CancelFunc
	over chan struct{} // closed when it has ended

	mu       sync.Mutex
	channels map[string]*subscription
	reading  bool  // its reader has been started
	err      error // why it ended; nil while it has not
}

// subscription is one channel of a hub.
type subscription struct {
	ready   chan struct{}        // closed when the server has confirmed it
	waiters map[string]*Listener // by nonce
	idle    *time.Timer          // runs while nobody waits on it
}

// Listener is what a waiter has of the hub that it listens on.
type Listener struct {
	Waiter  Waiter
	Nonce   string // pushes name it
	Channel string // not changed once it has joined a hub
	hub     *Hub
	sub     *subscription // guarded by hub.mu
}

// A Waiter hears pushes. The methods may be called from any goroutine, and too late.
type Waiter interface {
	// Push is what was pushed about it, without its nonce; or "" when a channel was confirmed on
	// which it listens already: what was pushed before is gone.
	Push(what string)
	// Wake makes it look in that time.
	Wake(in time.Duration)
}

// Open returns the hub of a server, and opens it if there is none. It sends nothing yet.
func (hs *Hubs) Open(node string, open func(ctx context.Context) PubSub) (*Hub, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.closed {
		return nil, errClosed
	}
	h := hs.byNode[node]
	if h == nil {
		ctx, stop := context.WithCancel(context.Background())
		h = &Hub{
			hubs: hs, node: node, ps: open(ctx), ctx: ctx, stop: stop, over: make(chan struct{}),
			channels: map[string]*subscription{},
		}
		if hs.byNode == nil {
			hs.byNode = map[string]*Hub{}
		}
		hs.byNode[node] = h
	}
	return h, nil
}

// Ready returns the hub of a server if it has the server's word for a channel, or nil.
func (hs *Hubs) Ready(node, channel string) *Hub {
	hs.mu.Lock()
	h := hs.byNode[node]
	hs.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.channels[channel]; s == nil || !s.isReady() {
		return nil
	}
	return h
}

// Close ends every hub and waits for its goroutines.
func (hs *Hubs) Close() {
	hs.mu.Lock()
	hs.closed = true
	all := hs.byNode
	hs.byNode = nil
	hs.mu.Unlock()
	for _, h := range all {
		h.End(errClosed)
	}
	hs.ends.Wait()
}

func (s *subscription) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// stop ends the timer of a channel that nobody waits on.
func (s *subscription) stop() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// Hub returns the hub that the waiter has joined, or nil.
func (l *Listener) Hub() *Hub { return l.hub }

// Join makes a waiter hear what is pushed on its channel, and subscribes to that if it was not done.
// ready is closed when the server has confirmed the subscription.
func (l *Listener) Join(h *Hub) (ready <-chan struct{}, err error) {
	if l.hub != h {
		l.Leave()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	s := h.channels[l.Channel]
	if s == nil {
		s = &subscription{ready: make(chan struct{}), waiters: map[string]*Listener{}}
		first := !h.reading
		h.reading = true
		h.channels[l.Channel] = s
		h.hubs.ends.Go(func() { h.subscribe(l.Channel, first) }) // it may have to dial, so not on the waiter's time
	}
	l.hub, l.sub, s.waiters[l.Nonce] = h, s, l
	s.stop()
	return s.ready, nil
}

// Leave ends the pushes to a waiter. The last one on a channel starts the time after which that is left.
func (l *Listener) Leave() {
	h := l.hub
	if h == nil {
		return
	}
	l.hub = nil
	h.mu.Lock()
	defer h.mu.Unlock()
	s, channel := l.sub, l.Channel
	if delete(s.waiters, l.Nonce); len(s.waiters) == 0 && h.err == nil {
		s.idle = time.AfterFunc(h.hubs.Idle, func() { h.quit(channel, s) })
	}
}

// Over is closed when the hub has ended.
func (h *Hub) Over() <-chan struct{} { return h.over }

// End ends the hub, unless it has ended, and returns why it has. Waiters whose channel was confirmed
// look, since what is pushed from now on is for the next hub; the others are told by Join and Over.
func (h *Hub) End(why error) error {
	hs := h.hubs
	hs.mu.Lock()
	if hs.byNode[h.node] == h {
		delete(hs.byNode, h.node)
	}
	hs.ends.Add()
	hs.mu.Unlock()
	h.mu.Lock()
	if h.err != nil {
		defer h.mu.Unlock()
		hs.ends.Done()
		return h.err
	}
	h.err = why
	var heard []Waiter
	for _, s := range h.channels {
		s.stop()
		for _, l := range s.waiters {
			if s.isReady() {
				heard = append(heard, l.Waiter)
			}
		}
	}
	close(h.over)
	h.mu.Unlock()
	h.stop() // a dial that is under way holds the lock of ps
	go func() {
		defer hs.ends.Done()
		_ = h.ps.Close() // what it reports does not matter any more
	}()
	for _, w := range heard {
		w.Wake(0)
	}
	return why
}

// subscribe asks for a channel. The first one dials, and begins to read.
func (h *Hub) subscribe(channel string, first bool) {
	ctx, cancel := context.WithTimeout(h.ctx, subscribeMost)
	err := h.ps.Subscribe(ctx, channel)
	cancel()
	if err != nil {
		_ = h.End(err)
		return
	}
	if first {
		h.read()
	}
}

// Drop forgets a channel that this server does not confirm.
func (h *Hub) Drop(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.channels[channel]; s != nil && !s.isReady() {
		delete(h.channels, channel)
	}
}

// quit leaves a channel if still nobody waits on it, and ends the hub with the last one.
func (h *Hub) quit(channel string, s *subscription) {
	h.mu.Lock()
	idle := h.err == nil && s.idle != nil
	if idle && h.channels[channel] == s { // else it was dropped, or taken back
		delete(h.channels, channel)
		if len(h.channels) > 0 {
			h.hubs.ends.Go(func() {
				ctx, cancel := context.WithTimeout(h.ctx, subscribeMost)
				defer cancel()
				_ = h.ps.Unsubscribe(ctx, channel) // a connection that cannot be written to is seen by the reader
			})
		}
	}
	last := idle && len(h.channels) == 0
	h.mu.Unlock()
	if last {
		_ = h.End(errIdle)
	}
}

// read hands pushes to their waiters until the connection ends. Its ctx has ended before it begins,
// so that go-redis cannot dial a new connection when this one breaks.
func (h *Hub) read() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for asked := false; ; {
		e, err := h.ps.Receive(ended, pingEvery)
		switch {
		case err == nil,
			Replied(err) && !h.refused(err): // a refusal is a sign of life too
			asked = false
		case core.TimedOut(err) && !asked:
			asked = true
			if h.ps.Ping(ended) == nil {
				continue
			}
			fallthrough
		default:
			_ = h.End(err)
			return
		}
		h.take(e)
	}
}

// refused reports whether an answer ends the hub: a channel that was refused is never confirmed. In a cluster, where
// only one slot's channel may be refused, the waiter drops that. PING may be refused too, which is no right that the
// hub needs.
func (h *Hub) refused(err error) bool {
	text := err.Error()
	if !h.hubs.Needed || h.hubs.Sharded && !strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "'ping'") {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.channels {
		if !s.isReady() {
			return true
		}
	}
	return false
}

// take takes in an event.
func (h *Hub) take(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.channels[e.Channel]
	if s == nil { // it was left
		return
	}
	if e.Kind == "message" {
		what, nonce, _ := strings.Cut(e.Payload, " ")
		if l := s.waiters[nonce]; l != nil { // it may have left, and its release passes the grant on
			l.Waiter.Push(what)
		}
		return
	}
	confirmed := e.Kind == "subscribe" || e.Kind == "ssubscribe"
	switch {
	case confirmed == s.isReady(): // the end may be that of an earlier subscription, which was left
		return
	case confirmed:
		close(s.ready)
	default: // the server took it back, for its slot has moved: the next look asks for it again
		delete(h.channels, e.Channel)
		h.hubs.Moved()
	}
	for _, l := range s.waiters {
		if confirmed {
			l.Waiter.Push("")
		} else {
			l.Waiter.Wake(0)
		}
	}
}
