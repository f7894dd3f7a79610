package faultproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/faultproxy"
)

// newProxy starts a proxy that is closed, and found to have left no goroutine, before the store closes.
func newProxy(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(target)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			own, _, _ := strings.Cut(g, "created by")
			if strings.Contains(own, "faultproxy.(*link)") {
				t.Errorf("left behind after Close:\n%s", g)
			}
		}
		if c := p.Counts(); c.Open != 0 || c.HeldReplies != 0 || c.HeldRequests != 0 {
			t.Errorf("after Close: %+v", c)
		}
	})
	return p
}

func await(t *testing.T, p *faultproxy.Proxy, ok func(faultproxy.Counts) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, p.Await(ctx, ok))
}

func expectDone(t *testing.T, s *store, want string) {
	t.Helper()
	if got := s.done(); got != want {
		t.Errorf("the store did %q, want %q", got, want)
	}
}

func TestPassesOnAndCounts(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	c := dial(t, p.Addr())
	for range 10 {
		c.send(t, "a")
		c.receive(t, "done a")
	}
	want := faultproxy.Counts{Requests: 10, RequestBytes: 20, Replies: 10, ReplyBytes: 70, Open: 1, Opened: 1}
	if got := p.Counts(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	p.ResetCounts()
	if got, want := p.Counts(), (faultproxy.Counts{Open: 1}); got != want {
		t.Errorf("after ResetCounts: got %+v, want %+v", got, want)
	}
	c.Close()
	await(t, p, func(c faultproxy.Counts) bool { return c.Open == 0 })
}

func TestPassesBulkAndHalfClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	p := newProxy(t, l.Addr().String())
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	var echo sync.WaitGroup
	defer echo.Wait()
	echo.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		all, _ := io.ReadAll(c) // ends with the client's half-close only
		_, _ = c.Write(all)
	})
	c := dial(t, p.Addr())
	_, err = c.Write(data)
	must(t, err)
	must(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v, want the %d that were sent", len(got), err, len(data))
	}
}

func TestRefuse(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	old := dial(t, p.Addr())
	old.send(t, "a")
	old.receive(t, "done a")
	p.Set(faultproxy.Mode{Refuse: true})
	refused(t, p)
	old.send(t, "b")
	old.receive(t, "done b")
	p.Set(faultproxy.Mode{})
	again := dial(t, p.Addr())
	again.send(t, "c")
	again.receive(t, "done c")
}

func TestCut(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	for _, c := range []*client{a, b} {
		c.send(t, "x")
		c.receive(t, "done x")
	}
	p.Cut()
	a.broken(t)
	b.broken(t)
	await(t, p, func(c faultproxy.Counts) bool { return c.Open == 0 })
	c := dial(t, p.Addr())
	c.send(t, "y")
	c.receive(t, "done y")
}

func TestBlackHole(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	old := dial(t, p.Addr())
	old.send(t, "a")
	old.receive(t, "done a")
	p.Set(faultproxy.BlackHole)
	old.send(t, "b")
	fresh := dial(t, p.Addr())
	fresh.send(t, "c")
	old.silent(t)
	fresh.silent(t)
	expectDone(t, s, "a")
	p.Set(faultproxy.Mode{})
	old.receive(t, "done b")
	fresh.receive(t, "done c")
}

func TestBlackHoleHidesTheEndOfTheStore(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := newProxy(t, l.Addr().String())
	c := dial(t, p.Addr())
	server, err := l.Accept()
	must(t, err)
	p.Set(faultproxy.BlackHole)
	must(t, server.(*net.TCPConn).SetLinger(0))
	must(t, server.Close())
	must(t, l.Close())
	c.send(t, "a")
	c.silent(t)
	fresh := dial(t, p.Addr())
	fresh.silent(t)
	p.Set(faultproxy.Mode{})
	c.broken(t)
	fresh.broken(t)
}

func TestHoldRequests(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	c := dial(t, p.Addr())
	c.send(t, "a")
	c.receive(t, "done a")
	p.Set(faultproxy.Mode{HoldRequests: true})
	c.send(t, "b")
	await(t, p, func(c faultproxy.Counts) bool { return c.HeldRequests == 1 })
	expectDone(t, s, "a")
	c.Close() // the request of a dead client arrives all the same
	p.Set(faultproxy.Mode{})
	await(t, p, func(c faultproxy.Counts) bool { return c.Open == 0 })
	expectDone(t, s, "a b")
}

func TestHeldRepliesComeLate(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	c := dial(t, p.Addr())
	p.Set(faultproxy.Mode{HoldReplies: true})
	c.send(t, "a")
	await(t, p, func(c faultproxy.Counts) bool { return c.HeldReplies == 1 })
	expectDone(t, s, "a") // the request worked
	c.send(t, "b")
	await(t, p, func(c faultproxy.Counts) bool { return c.HeldReplies == 2 })
	c.silent(t)
	if got := p.Counts().Replies; got != 0 {
		t.Errorf("%d replies delivered while held", got)
	}
	p.Set(faultproxy.Mode{})
	c.receive(t, "done a")
	c.receive(t, "done b")
}

func TestLoseReplies(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	p.LoseReplies(1)
	a.send(t, "a")
	a.broken(t)
	expectDone(t, s, "a") // done, but nobody knows
	b.send(t, "b")
	b.receive(t, "done b")
	if got := p.Counts(); got.LostReplies != 1 || got.Replies != 1 {
		t.Errorf("got %+v, want one reply lost and one delivered", got)
	}
}

func TestLoseReplyTo(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	p.LoseReplyTo(1, func(r []byte) bool { return bytes.HasPrefix(r, []byte("lock")) })
	a.send(t, "get")
	a.receive(t, "done get")
	b.send(t, "lock b")
	b.broken(t)
	a.send(t, "lock a")
	a.receive(t, "done lock a")
	expectDone(t, s, "get lock b lock a")
}

func TestDelayIsEachWayAndDoesNotAddUp(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	c := dial(t, p.Addr())
	c.send(t, "a")
	c.receive(t, "done a")
	const delay = 200 * time.Millisecond
	p.Set(faultproxy.Mode{Delay: delay, Jitter: delay / 2})
	start := time.Now()
	for i := range 20 {
		c.send(t, fmt.Sprint(i))
	}
	for i := range 20 {
		c.receive(t, fmt.Sprint("done ", i))
	}
	if got := time.Since(start); got < 2*delay || got > 20*delay { // 40 times the delay if it added up
		t.Errorf("20 requests together took %v, want %v or somewhat more", got, 2*delay)
	}
}

func TestStoreThatIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	target := l.Addr().String()
	must(t, l.Close())
	p := newProxy(t, target)
	refused(t, p)
	await(t, p, func(c faultproxy.Counts) bool { return c.Refused == 1 && c.Open == 0 })
}

func TestNewAtKeepsItsAddress(t *testing.T) {
	s := newStore(t)
	first := newProxy(t, s.addr)
	addr := first.Addr()
	must(t, first.Close())
	p, err := faultproxy.NewAt(addr, s.addr)
	must(t, err)
	defer p.Close()
	if p.Addr() != addr || p.Target() != s.addr {
		t.Errorf("got %s to %s, want %s to %s", p.Addr(), p.Target(), addr, s.addr)
	}
	if _, err := faultproxy.NewAt(addr, s.addr); err == nil {
		t.Error("a second proxy listens on the same address")
	}
	if _, err := faultproxy.New("nonsense"); err == nil {
		t.Error("a target without a port was taken")
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	p := newProxy(t, newStore(t).addr)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := p.Await(ctx, func(c faultproxy.Counts) bool { return c.Requests > 0 })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestCloseWhileEverythingIsHeldAndBusy(t *testing.T) {
	s := newStore(t)
	p := newProxy(t, s.addr)
	var clients []*client
	for i := range 8 {
		c := dial(t, p.Addr())
		c.send(t, fmt.Sprint(i))
		c.receive(t, fmt.Sprint("done ", i))
		clients = append(clients, c)
	}
	p.Set(faultproxy.Mode{HoldReplies: true})
	var flood sync.WaitGroup
	for _, c := range clients {
		flood.Go(func() {
			for {
				if _, err := io.WriteString(c, "x\n"); err != nil {
					return
				}
			}
		})
	}
	await(t, p, func(c faultproxy.Counts) bool { return c.HeldReplies > 20 })
	must(t, p.Close())
	flood.Wait()
}
