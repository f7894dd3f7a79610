package faultproxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// The most that a link keeps for each direction. Beyond it TCP's own back-pressure holds the sender.
const (
	chunkSize = 64 << 10
	maxChunks = 1024
)

// link is one client's connection and its counterpart to the store.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	store  *net.TCPConn    // nil until it is connected; guarded by proxy.mu
	ctx    context.Context // done when the link was cut
	cancel context.CancelFunc
	doomed bool // the next reply is lost; guarded by proxy.mu
}

// direction is one way through a link.
type direction struct {
	from, to *net.TCPConn
	queue    chan chunk
	held     func(*Mode) bool
	waiting  *int64                          // chunks read and not delivered; guarded by proxy.mu
	pass     func(l *link, data []byte) bool // counts a delivery; false: it is lost instead; called with proxy.mu held
}

// chunk is one read's data and the moment before which it does not leave. Without data it is the end of what the sender
// sends: in order, or broken by a reset.
type chunk struct {
	data   []byte
	broken bool
	due    time.Time
}

// count is what a chunk adds to the counts.
func (c *chunk) count() int64 {
	if c.data == nil {
		return 0
	}
	return 1
}

// run connects the link to the store and lives until both directions have ended.
func (l *link) run() {
	p := l.proxy
	defer l.close()
	store := l.connect()
	if store == nil {
		return
	}
	requests := &direction{
		from: l.client, to: store, queue: make(chan chunk, maxChunks),
		held:    func(m *Mode) bool { return m.HoldRequests },
		waiting: &p.counts.HeldRequests,
		pass:    (*link).passRequest,
	}
	replies := &direction{
		from: store, to: l.client, queue: make(chan chunk, maxChunks),
		held:    func(m *Mode) bool { return m.HoldReplies },
		waiting: &p.counts.HeldReplies,
		pass:    (*link).passReply,
	}
	var ways sync.WaitGroup
	for _, d := range []*direction{requests, replies} {
		ways.Go(func() { l.read(d) })
		ways.Go(func() { l.write(d) })
	}
	ways.Wait()
}

// connect connects to the store once requests are not held: behind a black hole even a dead store is only silent.
func (l *link) connect() *net.TCPConn {
	p := l.proxy
	l.awaitMode(func(m *Mode) bool { return !m.HoldRequests })
	c, err := p.dial(l.ctx, "tcp", p.target)
	if err != nil {
		l.awaitMode(func(m *Mode) bool { return !m.HoldRequests && !m.HoldReplies })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if l.ctx.Err() == nil {
			p.counts.Refused++
		}
		return nil
	}
	l.store = c.(*net.TCPConn)
	if l.ctx.Err() != nil { // cut meanwhile, when there was nothing to reset yet
		return nil
	}
	return l.store
}

// cut resets both sides and ends the link's goroutines. The caller holds proxy.mu and broadcasts.
func (l *link) cut() {
	l.cancel()
	reset(l.client)
	if l.store != nil {
		reset(l.store)
	}
}

// end cuts the link by itself.
func (l *link) end() {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.cut()
	l.proxy.changed.Broadcast()
}

// close frees what the link holds: without a reset if both sides have ended in order.
func (l *link) close() {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.store == nil || l.ctx.Err() != nil {
		l.cut()
	} else {
		l.cancel()
		_ = l.client.Close() // everything was delivered: an error has no meaning
		_ = l.store.Close()
	}
	delete(p.links, l)
	p.counts.Open--
	p.changed.Broadcast()
}

// read reads chunks until the sender has ended. The end is passed on like a chunk: a hold holds it too.
func (l *link) read(d *direction) {
	defer close(d.queue)
	buf := make([]byte, chunkSize)
	for {
		n, err := d.from.Read(buf)
		if n > 0 && !l.put(d, chunk{data: append([]byte(nil), buf[:n]...)}) {
			return
		}
		if err != nil {
			l.put(d, chunk{broken: !errors.Is(err, io.EOF)})
			return
		}
	}
}

// put queues a chunk, stamped with the delay of this moment; false means that the link was cut.
func (l *link) put(d *direction, c chunk) bool {
	p := l.proxy
	p.mu.Lock()
	c.due = time.Now().Add(p.mode.Delay + rand.N(max(p.mode.Jitter, 1)))
	*d.waiting += c.count()
	p.changed.Broadcast()
	p.mu.Unlock()
	select {
	case d.queue <- c:
		return true
	case <-l.ctx.Done():
		l.forget(d, c.count())
		return false
	}
}

// write delivers chunks, each when it is due and not held.
func (l *link) write(d *direction) {
	for c := range d.queue {
		l.sleepUntil(c.due)
		if !l.release(d, c) || !l.deliver(d, c) {
			l.end()
			break
		}
	}
	// Only after a cut is anything left; the reader ends then and closes the queue.
	left := int64(0)
	for c := range d.queue {
		left += c.count()
	}
	l.forget(d, left)
}

// release waits until the mode lets a chunk through and counts it; false means that it is lost with the link.
func (l *link) release(d *direction, c chunk) bool {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for d.held(&p.mode) && l.ctx.Err() == nil {
		p.changed.Wait()
	}
	*d.waiting -= c.count()
	p.changed.Broadcast()
	return l.ctx.Err() == nil && (c.data == nil || d.pass(l, c.data))
}

// deliver writes a chunk or passes the end of a side on; false means that the link is to be cut.
func (l *link) deliver(d *direction, c chunk) bool {
	if c.broken {
		return false
	}
	var err error
	if c.data == nil {
		err = d.to.CloseWrite()
	} else {
		_, err = d.to.Write(c.data)
	}
	if err == nil {
		return true
	}
	// The receiver is gone. That is news for the sender, and news does not travel through a hold.
	l.awaitMode(func(m *Mode) bool { return !m.HoldRequests && !m.HoldReplies })
	return false
}

// awaitMode waits for a mode, or until the link is cut.
func (l *link) awaitMode(ok func(*Mode) bool) {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for !ok(&p.mode) && l.ctx.Err() == nil {
		p.changed.Wait()
	}
}

// sleepUntil waits for a moment, or until the link is cut.
func (l *link) sleepUntil(due time.Time) {
	d := time.Until(due)
	if d <= 0 {
		return
	}
	select {
	case <-l.ctx.Done():
	case <-time.After(d):
	}
}

// forget uncounts chunks that a cut has thrown away.
func (l *link) forget(d *direction, n int64) {
	if n == 0 {
		return
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	*d.waiting -= n
	l.proxy.changed.Broadcast()
}

// passRequest counts a request and remembers whether its reply is to be lost.
func (l *link) passRequest(data []byte) bool {
	p := l.proxy
	if p.loseTo > 0 && p.match(data) {
		p.loseTo--
		l.doomed = true
	}
	p.counts.Requests++
	p.counts.RequestBytes += int64(len(data))
	return true
}

// passReply counts a reply; false means that it is one to lose.
func (l *link) passReply(data []byte) bool {
	p := l.proxy
	if l.doomed || p.lose > 0 {
		if !l.doomed {
			p.lose--
		}
		p.counts.LostReplies++
		return false
	}
	p.counts.Replies++
	p.counts.ReplyBytes += int64(len(data))
	return true
}
