package conformance

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// CallLink is a Link for a store without a network: it stands between the
// engine and a driver, and takes one call of the driver for one request. Delay
// and Jitter are not supported; Refuse fails new calls. With it Harness.Calls
// is true, and Harness.Driver returns Wrap(d, c.Link).
type CallLink struct {
	mu      sync.Mutex
	mode    faultproxy.Mode
	changed chan struct{} // closed at the next change of mode
	cut     chan struct{} // closed by Cut
	lose    int
	counts  faultproxy.Counts
	open    map[*backend.Request]*backend.Request // the copies that the driver was given
}

// errCut is the error of a call whose connection would have been reset.
var errCut = errors.New("connection reset")

// NewCallLink returns a link that passes everything.
func NewCallLink() *CallLink {
	return &CallLink{
		changed: make(chan struct{}), cut: make(chan struct{}),
		open: map[*backend.Request]*backend.Request{},
	}
}

// Set implements Link.
func (c *CallLink) Set(m faultproxy.Mode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mode = m
	close(c.changed)
	c.changed = make(chan struct{})
}

// Cut implements Link.
func (c *CallLink) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.cut)
	c.cut = make(chan struct{})
}

// LoseReplies implements Link.
func (c *CallLink) LoseReplies(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = n
}

// Counts implements Link: Requests and LostReplies only.
func (c *CallLink) Counts() faultproxy.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// Close implements Link.
func (c *CallLink) Close() error {
	c.Set(faultproxy.Mode{})
	return nil
}

// Wrap returns d behind the link, for package fencelock; d itself if link is nil.
func Wrap(d backend.Driver, link Link) backend.Driver {
	c, _ := link.(*CallLink)
	if c == nil {
		return d
	}
	return core.Composite{Caller: &linked{core.Of(d), c}}
}

// pass waits while held says so.
func (c *CallLink) pass(held func(faultproxy.Mode) bool) error {
	for {
		c.mu.Lock()
		m, changed, cut := c.mode, c.changed, c.cut
		c.mu.Unlock()
		if !held(m) {
			return nil
		}
		select {
		case <-changed:
		case <-cut:
			return errCut
		}
	}
}

// call is one request and its reply. The request is done even if its caller has
// gone meanwhile, for a network delivers a packet that was sent.
func call[T any](ctx context.Context, c *CallLink, do func(context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	c.mu.Lock()
	if c.mode.Refuse {
		c.mu.Unlock()
		return none, errCut
	}
	c.counts.Requests++
	c.mu.Unlock()
	type reply struct {
		v   T
		err error
	}
	ch := make(chan reply, 1)
	go func() {
		if err := c.pass(func(m faultproxy.Mode) bool { return m.HoldRequests }); err != nil {
			ch <- reply{err: err}
			return
		}
		v, err := do(ctx)
		c.mu.Lock()
		lost := c.lose > 0
		if lost {
			c.lose--
			c.counts.LostReplies++
		}
		c.mu.Unlock()
		if lost {
			v, err = none, errCut
		} else if held := c.pass(func(m faultproxy.Mode) bool { return m.HoldReplies }); held != nil {
			v, err = none, held
		}
		ch <- reply{v, err}
	}()
	select {
	case r := <-ch:
		return r.v, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// send is call for a request whose reply is an error alone.
func send(ctx context.Context, c *CallLink, do func(context.Context) error) error {
	_, err := call(ctx, c, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// linked is the Caller of a driver behind a CallLink.
type linked struct {
	core.Caller
	link *CallLink
}

// request returns a copy of r whose pushes come through the link: another one for each message, for
// a late one may meet the next.
func (l *linked) request(r *backend.Request) *backend.Request {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if mine := l.link.open[r]; mine != nil {
		sent := *mine
		return &sent
	}
	mine := *r
	mine.Claim = nil
	mine.Lost = func(err error) {
		go func() {
			if l.link.pass(func(m faultproxy.Mode) bool { return m.HoldReplies }) == nil {
				r.Lost(err)
			}
		}()
	}
	l.link.open[r] = &mine
	sent := mine
	return &sent
}

func (l *linked) forget(r *backend.Request) {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	delete(l.link.open, r)
}

func (l *linked) hold(h *core.Hold) *core.Hold {
	return &core.Hold{Request: l.request(h.Request), Grant: h.Grant}
}

// Acquire implements core.Caller. A request that is done late, when its caller has gone, has a ctx that has ended. The
// caller's Abandon removes the place that it took in the queue.
func (l *linked) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	asked := backend.Now()
	acquire := func() (backend.Grant, error) {
		mine := l.request(r)
		return call(ctx, l.link, func(ctx context.Context) (backend.Grant, error) {
			return l.Caller.Acquire(ctx, mine)
		})
	}
	g, err := acquire()
	for r.Wait && errors.Is(err, errCut) && time.Since(asked.Time()) < core.Patience {
		if sleep(ctx, 20*time.Millisecond) != nil { // a driver rides out an outage while it waits
			break
		}
		g, err = acquire()
	}
	if !r.Wait && err == nil {
		g.Asked, g.Sent = asked, 0 // the driver stamped it when the request arrived
	}
	return g, err
}

// Renew implements core.Caller.
func (l *linked) Renew(ctx context.Context, hs []*core.Hold) []error {
	mine := make([]*core.Hold, len(hs))
	for i, h := range hs {
		mine[i] = l.hold(h)
	}
	errs, err := call(ctx, l.link, func(ctx context.Context) ([]error, error) {
		return l.Caller.Renew(ctx, mine), nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(hs))
	}
	return errs
}

// Release implements core.Caller.
func (l *linked) Release(ctx context.Context, h *core.Hold) error {
	mine := l.hold(h)
	err := send(ctx, l.link, func(ctx context.Context) error { return l.Caller.Release(ctx, mine) })
	if err == nil {
		l.forget(h.Request)
	}
	return err
}

// Abandon implements core.Caller.
func (l *linked) Abandon(ctx context.Context, r *backend.Request) error {
	mine := l.request(r)
	err := send(ctx, l.link, func(ctx context.Context) error { return l.Caller.Abandon(ctx, mine) })
	if err == nil {
		l.forget(r)
	}
	return err
}

// Inspect implements core.Caller.
func (l *linked) Inspect(ctx context.Context, name string) (backend.Info, error) {
	return call(ctx, l.link, func(ctx context.Context) (backend.Info, error) { return l.Caller.Inspect(ctx, name) })
}

// List implements core.Caller.
func (l *linked) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return l.Caller.List(ctx, prefix)
}

// Break implements core.Caller.
func (l *linked) Break(ctx context.Context, name string) error {
	return send(ctx, l.link, func(ctx context.Context) error { return l.Caller.Break(ctx, name) })
}
