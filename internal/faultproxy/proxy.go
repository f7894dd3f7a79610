package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Mode is the set of faults that are on. The zero value passes everything on.
type Mode struct {
	// Refuse resets new connections at once. Open ones live on; see Cut.
	Refuse bool
	// HoldRequests keeps what clients send, and new connections, from the store: clients see silence.
	HoldRequests bool
	// HoldReplies keeps what the store sends from the clients: requests work, and their replies
	// come late, in order, when the hold ends.
	HoldReplies bool
	// Delay is how long each chunk stays in the proxy, each way. Chunks overtake nothing and do not add up: two that
	// arrive together leave together.
	Delay time.Duration
	// Jitter is added to Delay, at random up to its value.
	Jitter time.Duration
}

// BlackHole holds both directions without a reset: connections stay open, new ones are accepted, nothing comes through.
var BlackHole = Mode{HoldRequests: true, HoldReplies: true}

// Proxy stands between clients and one address of a store. Its methods may be called by many goroutines at once.
type Proxy struct {
	target   string
	listener net.Listener
	dial     Dial
	ctx      context.Context // done when the proxy closes
	cancel   context.CancelFunc
	running  sync.WaitGroup // every goroutine of the proxy

	mu      sync.Mutex
	changed *sync.Cond // anything below changed, or a link was cut
	mode    Mode
	lose    int    // replies to lose
	loseTo  int    // requests whose reply to lose,
	match   match  // of those that match
	counts  Counts // what passed
	links   map[*link]struct{}
}

type match func(request []byte) bool

// New starts a proxy to target on a free port of the loopback address. It connects to target when a client connects.
func New(target string) (*Proxy, error) { return NewAt("127.0.0.1:0", target) }

// NewAt is New with the address to listen on, for stores that announce their addresses.
func NewAt(listen, target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("faultproxy: target %q is not host:port: %w", target, err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	return NewOn(l, target, (&net.Dialer{}).DialContext), nil
}

// Dial connects to a TCP address, as [net.Dialer.DialContext] does.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// NewOn is New with a TCP listener, which the proxy closes, and a way to connect to target: those
// of two network namespaces, for example.
func NewOn(l net.Listener, target string, dial Dial) *Proxy {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{target: target, listener: l, dial: dial, ctx: ctx, cancel: cancel, links: map[*link]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	p.running.Go(p.accept)
	return p
}

// Addr is the address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Target is the store's address.
func (p *Proxy) Target() string { return p.target }

// Set replaces the mode. Everything read after Set has returned is under the new mode; what was
// held is delivered if the new mode does not hold it.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	p.changed.Broadcast()
}

// Cut resets every open connection on both sides. Chunks that are held or under way are lost. New connections follow
// the mode.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
	p.changed.Broadcast()
}

// LoseReplies drops the next n chunks that the store sends to any client and resets the connection of each: the request
// was done, and its client cannot know. It replaces an earlier number; 0 stops it.
func (p *Proxy) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

// LoseReplyTo is LoseReplies for chosen requests: of the next n chunks from clients for which match
// returns true, the first chunk that the store sends afterwards on the same connection is dropped,
// and the connection is reset. match must neither keep nor change its argument, nor call the proxy.
func (p *Proxy) LoseReplyTo(n int, match func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseTo, p.match = n, match
}

// Close stops listening, resets every connection and returns when all goroutines of the proxy have
// ended. A second Close is nil.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.listener.Close()
	p.Cut()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept takes connections until the listener closes.
func (p *Proxy) accept() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		c, err := p.listener.Accept()
		if err == nil {
			p.admit(c.(*net.TCPConn))
			continue
		}
		// Closed, or out of file descriptors: then the next one may work.
		pause.Reset(10 * time.Millisecond)
		select {
		case <-p.ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// admit gives a connection its link, or resets it.
func (p *Proxy) admit(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Opened++
	defer p.changed.Broadcast()
	if p.mode.Refuse || p.ctx.Err() != nil {
		p.counts.Refused++
		reset(client)
		return
	}
	p.counts.Open++
	ctx, cancel := context.WithCancel(p.ctx)
	l := &link{proxy: p, client: client, ctx: ctx, cancel: cancel}
	p.links[l] = struct{}{}
	p.running.Go(l.run)
}

// reset closes a connection with a TCP reset, which also throws away what was not sent yet.
func reset(c *net.TCPConn) {
	// Both fail only on a connection that is closed already.
	_ = c.SetLinger(0)
	_ = c.Close()
}
