package zookeeper_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// A release leaves in the lock's node whose it was. That is not taken for the passing on of a
// waiter that gives up while another one holds.
func TestWaiterThatGivesUpPassesNothingOn(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	first := lock(t, open(t, z.URL()).Mutex("x"))
	second := queue(t, c, open(t, z.URL()), "x", 1)
	third := queue(t, c, open(t, z.URL()), "x", 2)
	fourth := queue(t, c, open(t, z.URL()), "x", 3)
	unlock(t, first)
	held := second.Granted(t, 5*time.Second)
	data, _, err := c.Get(at("x"))
	must(t, err)
	if len(data) == 0 {
		t.Error("the release says nothing of itself")
	}
	third.Cancel()
	<-third.Done
	await(t, 5*time.Second, "one in the queue", func() bool { return len(nodes(t, c, "x", "wait-")) == 1 })
	select {
	case <-fourth.Done:
		t.Fatalf("granted while another one holds: %v", fourth.Err)
	case <-time.After(300 * time.Millisecond):
	}
	unlock(t, held)
	last := fourth.Granted(t, 5*time.Second)
	if last.Token() <= held.Token() {
		t.Errorf("token: got %d after %d", last.Token(), held.Token())
	}
	unlock(t, last)
	awaitClean(t, c, time.Second)
}

// A waiter is granted the lock, and its session ends before it can be sure of that: it never had
// the lock, so it waits on, with another session.
func TestGrantThatNobodyWasGiven(t *testing.T) {
	t.Parallel()
	for mark, mode := range map[string]backend.Mode{
		"held-": backend.Exclusive, "read-": backend.Reader, "perm-": backend.Permit,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			grantThatNobodyWasGiven(t, mark, mode)
		})
	}
}

func grantThatNobodyWasGiven(t *testing.T, mark string, mode backend.Mode) {
	z := single(t)
	c := foreign(t, z.Addrs()...)
	holder := driver(t, z.URL())
	first := request("x")
	g, err := holder.Acquire(t.Context(), first)
	must(t, err)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	r := request("x")
	r.Mode, r.Limit, r.Wait = mode, 2, true
	told := make(chan error, 10)
	r.Lost = func(err error) { told <- err }
	type outcome struct {
		g   backend.Grant
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		g, err := d.Acquire(within(t, 30*time.Second), r)
		done <- outcome{g, err}
	}()
	await(t, 10*time.Second, "one waiter", func() bool { return len(nodes(t, c, "x", "wait")) == 1 })
	node := "/" + mark + r.Nonce
	grants, confirms := about(node, "/tokens/"), about("\x00\x00\x00\x0e", node)
	again := make(logins, 1)
	var asked atomic.Bool
	p.LoseReplyTo(1000, func(request []byte) bool {
		again.see(request)
		if grants(request) {
			return true
		}
		if confirms(request) { // it has found its grant, and looks whether its session is sure
			asked.Store(true)
			return true
		}
		return false
	})
	must(t, holder.Release(t.Context(), &core.Hold{Request: first, Grant: g}))
	await(t, 10*time.Second, "the grant's and the confirmation's replies are lost", asked.Load)
	p.Set(faultproxy.Mode{Refuse: true}) // or it takes its session back
	p.Cut()
	login := <-again
	await(t, 10*time.Second, "the session has ended", func() bool {
		end(t, z.Servers()[0].Addr(), login)
		return len(nodes(t, c, "x", mark)) == 0
	})
	p.LoseReplyTo(0, nil)
	p.Set(faultproxy.Mode{})
	got := <-done
	must(t, got.err)
	if got.g.Token <= g.Token {
		t.Errorf("token: got %d after %d", got.g.Token, g.Token)
	}
	must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: got.g}))
	awaitClean(t, c, 5*time.Second)
	select {
	case err := <-told:
		t.Errorf("the end of a grant that nobody was given was told: %v", err)
	default:
	}
}

// logins gets the first request in which a client asks for a session that it has.
type logins chan []byte

func (l logins) see(request []byte) {
	if len(request) < 28 || binary.BigEndian.Uint32(request[4:]) != 0 || binary.BigEndian.Uint64(request[20:]) == 0 {
		return
	}
	select {
	case l <- bytes.Clone(request):
	default:
	}
}

// end goes on in the session of a login and closes it. A server that still closes the session's last connection may
// hang up instead.
func end(t *testing.T, addr string, login []byte) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, _ = c.Write(login)
	_, _ = io.ReadFull(c, make([]byte, 40))                                // its answer
	_, _ = c.Write([]byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}) // request 1: close
	_, _ = io.ReadFull(c, make([]byte, 20))
}
