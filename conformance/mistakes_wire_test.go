package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"iter"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// TestMain lets this binary be the second process of a rule.
func TestMain(m *testing.M) {
	Child(&wireBusy{})
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // most of the time over the wire is waiting
		panic(err)
	}
	os.Exit(m.Run())
}

// A toy over TCP: one connection for each request and its reply, both one JSON value. A waiter's request is
// answered at once the first time ("join"), and then when the lock is granted, or after a part of the shortest TTL with
// "not yet", and it asks again. What it is granted it confirms by another request, within two seconds.

const pollMost = 250 * time.Millisecond

// reply answers an order.
type reply struct {
	Code  string // "", "locked" or "lost"
	Token backend.Token
	Infos []backend.Info
}

// toyServer serves a toy.
type toyServer struct {
	store    *toy
	listener net.Listener
	running  sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

func newToyServer(t *testing.T, f flaw) *toyServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &toyServer{store: newToy(f), listener: l}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { s.cancel(); _ = l.Close(); s.running.Wait() })
	return s
}

// serve answers the one order of a connection.
func (s *toyServer) serve(c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(s.ctx, func() { _ = c.Close() })
	defer stop()
	var o order
	if json.NewDecoder(c).Decode(&o) != nil {
		return
	}
	var r reply
	var err error
	switch o.Op {
	case "stay": // the session of a waiter, open for as long as it waits
		awaitEnd(c)
		s.store.waiterGone(&o)
		return
	case "join", "acquire", "listen":
		r, err = s.acquire(c, &o)
	case "renew":
		err = s.store.renew(&o)
	case "check":
		err = s.store.check(&o)
	case "release":
		err = s.store.release(&o)
	case "abandon":
		err = s.store.abandon(&o)
	case "break":
		s.store.breakLock(&o)
	case "busy":
		s.store.work(&o)
	case "list":
		r.Infos, _ = s.store.list(o.Prefix, o.Name)
	}
	switch {
	case errors.Is(err, backend.ErrLocked):
		r.Code = "locked"
	case errors.Is(err, backend.ErrLost):
		r.Code = "lost"
	case err != nil:
		return
	}
	_ = json.NewEncoder(c).Encode(r) // to a client that may have gone
}

// acquire waits for the grant of a waiter; the place is kept when its connection ends.
func (s *toyServer) acquire(c net.Conn, o *order) (reply, error) {
	o.confirms = o.Wait && o.Op != "listen"
	w := s.store.ask(o, nil)
	if w == nil {
		return reply{}, backend.ErrLost
	}
	var poll <-chan time.Time // never, for "listen"
	if o.Op == "acquire" {
		timer := time.NewTimer(pollMost)
		defer timer.Stop()
		poll = timer.C
	}
	if o.Op == "join" {
		select {
		case t := <-w.grant:
			return reply{Token: t}, nil
		default:
			return reply{}, backend.ErrLocked
		}
	}
	gone := make(chan struct{})
	s.running.Go(func() { awaitEnd(c); close(gone) })
	select {
	case t := <-w.grant:
		return reply{Token: t}, nil
	case <-poll:
		return reply{}, backend.ErrLocked
	case <-gone:
		return reply{}, errDown
	}
}

// awaitEnd returns when a connection on which nothing comes any more has ended.
func awaitEnd(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }

// waiterGone is told that a waiter's session ended: its process died, or its wait is over.
func (s *toy) waiterGone(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[s.key(o)]
	if l == nil {
		return
	}
	for i, w := range l.queue {
		if w.order.Nonce != o.Nonce {
			continue
		}
		w.gone = true
		if s.flaw == nextTakesOver && i+1 < len(l.queue) {
			next := l.queue[i+1]
			l.drop(next.order.Nonce)
			l.drop(o.Nonce)
			s.give(l, next)
		}
		return
	}
}

// lines keeps what staysOnLine has left open from the garbage collector, which would close it.
var lines sync.Map

// toyClient is the driver of a toyServer.
type toyClient struct {
	addr string
	flaw flaw
	line sync.Once // of staysOnLine
	toyDriver
}

func init() {
	backend.Register("toy", func(_ context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		return core.Composite{Caller: newToyClient(u.Host, flaw(q.String("flaw", "")), q.Prefix())}, nil
	})
}

func newToyClient(addr string, f flaw, prefix string) *toyClient {
	return &toyClient{addr: addr, flaw: f, toyDriver: toyDriver{prefix: prefix, id: nonce()}}
}

// ask sends an order and returns the answer.
func (d *toyClient) ask(ctx context.Context, o *order) (reply, error) {
	var dialer net.Dialer
	var r reply
	c, err := dialer.DialContext(ctx, "tcp", d.addr)
	if err != nil {
		return r, errors.Join(ctx.Err(), err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if d.flaw == staysOnLine && o.Op == "release" {
		d.line.Do(func() {
			left, _ := dialer.DialContext(ctx, "tcp", d.addr)
			lines.Store(left, true)
		})
	}
	if err = json.NewEncoder(c).Encode(o); err == nil {
		err = json.NewDecoder(c).Decode(&r)
	}
	switch {
	case err != nil:
		return r, errors.Join(ctx.Err(), err)
	case r.Code == "locked":
		return r, backend.ErrLocked
	case r.Code == "lost":
		return r, backend.ErrLost
	}
	return r, nil
}

func (d *toyClient) Traits() backend.Traits {
	t := d.toyDriver.Traits()
	t.DeadWaiter, t.Revoked = 2*time.Second, time.Second
	return t
}

func (d *toyClient) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	var g backend.Grant
	op, given := "join", false
	look := func(ctx context.Context) (bool, time.Duration, error) {
		asked := backend.Now()
		if d.flaw == trustsAhead && r.Wait {
			asked = asked.Add(10 * time.Second)
		}
		rep, err := d.ask(ctx, d.order(op, r))
		op = "acquire"
		g = backend.Grant{Token: rep.Token, Asked: asked, Handle: &wireHandle{d, r}}
		if d.flaw == impatient && err != nil && !backend.Final(err) {
			return false, 0, backend.Invalid("the store is away: %w", err)
		}
		if r.Wait && errors.Is(err, backend.ErrLocked) {
			return false, 0, nil
		}
		if confirmed := !r.Wait || given || d.flaw == checkThenSet; err == nil && !confirmed {
			given = true
			return false, 0, nil
		}
		return err == nil, 0, err
	}
	if !r.Wait { // sent again if there is no answer for a while
		first, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
		_, _, err := look(first)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			_, _, err = look(ctx)
		}
		return g, err
	}
	session, cancel := context.WithCancel(ctx)
	var staying sync.WaitGroup
	staying.Go(func() { _, _ = d.ask(session, d.order("stay", r)) })
	defer func() { cancel(); staying.Wait() }()
	if d.flaw == pushOnly {
		rep, err := d.ask(ctx, d.order("listen", r))
		if err != nil {
			<-ctx.Done()
			return g, core.Ended(ctx, true, nil)
		}
		return backend.Grant{Token: rep.Token, Asked: backend.Now()}, nil
	}
	err := core.Wait(ctx, r.Nonce, nil, look)
	return g, err
}

// each asks for every hold.
func (d *toyClient) each(ctx context.Context, op string, hs []*core.Hold) []error {
	errs := make([]error, len(hs))
	for i, h := range hs {
		_, errs[i] = d.ask(ctx, d.order(op, h.Request))
	}
	return errs
}

func (*toyClient) Outage(string) error { return nil }

func (d *toyClient) Renew(ctx context.Context, hs []*core.Hold) []error {
	return d.each(ctx, "renew", hs)
}

func (d *toyClient) Tells() bool { return false }

func (d *toyClient) Check(ctx context.Context, hs []*core.Hold) []error {
	return d.each(ctx, "check", hs)
}

func (d *toyClient) Release(ctx context.Context, h *core.Hold) error {
	_, err := d.ask(ctx, d.order("release", h.Request))
	return err
}

func (d *toyClient) Abandon(ctx context.Context, r *backend.Request) error {
	_, err := d.ask(ctx, d.order("abandon", r))
	return err
}

func (d *toyClient) Break(ctx context.Context, name string) error {
	_, err := d.ask(ctx, &order{Op: "break", Prefix: d.prefix, Name: name})
	return err
}

func (d *toyClient) Inspect(ctx context.Context, name string) (backend.Info, error) {
	for info, err := range d.List(ctx, name) {
		if err != nil || info.Name == name {
			return info, err
		}
	}
	return backend.Info{Name: name}, nil
}

func (d *toyClient) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		r, err := d.ask(ctx, &order{Op: "list", Prefix: d.prefix, Name: prefix})
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for _, info := range r.Infos {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// wireHandle is the Handle of a lock over the wire.
type wireHandle struct {
	d *toyClient
	r *backend.Request
}

// wireBusy is Harness.Busy over the wire; without a store in the second process.
type wireBusy struct{ store *toy }

// Begin implements Busy.
func (*wireBusy) Begin(ctx context.Context, lease backend.Handler, key string, _ bool) error {
	h := lease.Handle().(*wireHandle)
	o := h.d.order("busy", h.r)
	o.Owner = key
	_, err := h.d.ask(ctx, o)
	return err
}

// Working implements Busy.
func (w *wireBusy) Working(_ context.Context, key string, _ bool) (bool, error) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return w.store.busy[key], nil
}

// work is told that the store is at work for a holder.
func (s *toy) work(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[o.Owner] = true
	if l := s.locks[s.key(o)]; s.flaw == workKeeps && s.mine(l, o.Nonce) {
		l.expires = l.expires.Add(time.Minute)
	}
}

// wireHarness reaches a toy over TCP, through fault proxies and from other processes.
func wireHarness(t *testing.T, m *mistake) Harness {
	t.Helper()
	s := newToyServer(t, m.flaw)
	direct := s.listener.Addr().String()
	return Harness{
		Name: m.String(),
		Driver: func(_ context.Context, c Client) (backend.Driver, error) {
			addr := direct
			if p, ok := c.Link.(*faultproxy.Proxy); ok {
				addr = p.Addr()
			}
			return core.Composite{Caller: newToyClient(addr, m.flaw, c.Prefix)}, nil
		},
		Link:  func(context.Context) (Link, error) { return faultproxy.New(direct) },
		Store: &rig{store: s.store},
		Busy:  &wireBusy{s.store},
		URL: func(c Client) string {
			return "toy://" + direct + "?flaw=" + url.QueryEscape(string(m.flaw)) + "&prefix=" +
				url.QueryEscape(c.Prefix)
		},
		Short:    true,
		tiny:     true,
		Parallel: 12,
	}
}

// overWire checks the rules that only names, in real time.
func overWire(t *testing.T, m *mistake, only ...string) outcome {
	t.Helper()
	o := outcome{}
	for res := range Report(t.Context(), wireHarness(t, m), only...) {
		o[res.Rule] = res
	}
	return o
}
