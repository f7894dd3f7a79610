package redlock_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/redlock"
)

// calls is how many calls of the library a node has had.
func (c *cluster) calls(t *testing.T, node int) string {
	t.Helper()
	stats, err := c.direct[node].Info(t.Context(), "commandstats").Result()
	must(t, err)
	return regexp.MustCompile(`cmdstat_fcall:calls=\d+`).FindString(stats)
}

// heard is a connection that tells what is about to be sent.
type heard struct {
	net.Conn
	tell func([]byte)
}

func (h heard) Write(b []byte) (int, error) {
	h.tell(b)
	return h.Conn.Write(b)
}

// A Break of a stranger's lock that reaches two nodes late frees no lock that another stranger has taken meanwhile.
func TestLateBreakOfAStranger(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, _ := c.proxied(t, "")
	var clients []goredis.UniversalClient
	var through atomic.Bool // what is sent arrives
	late := proxies[1:]
	for i, p := range proxies {
		tell := func(b []byte) {
			if i > 0 && !through.Load() && bytes.Contains(b, []byte("\r\n$1\r\nb\r\n")) {
				p.Set(faultproxy.Mode{HoldRequests: true}) // it has answered what the Break looks at first
			}
		}
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return heard{conn, tell}, err
		}
		r := goredis.NewClient(&goredis.Options{Addr: p.Addr(), Dialer: dial})
		t.Cleanup(func() { _ = r.Close() })
		clients = append(clients, r)
	}
	d, err := redlock.New(clients, &redlock.Options{Fresh: true})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	stranger := func(value string) {
		t.Helper()
		for _, r := range c.direct {
			must(t, r.Set(t.Context(), "fencelock:a", value, time.Minute).Err())
		}
	}
	stranger("first")
	want(t, "Break that one node has carried out", l.Break(t.Context(), "a"), fencelock.ErrUnavailable)
	if v := c.value(t, 0, "a"); v != "" {
		t.Fatalf("the node that the Break has reached has %q", v)
	}
	stranger("second")
	for i, p := range late {
		had := c.calls(t, i+1)
		through.Store(true)
		p.Set(faultproxy.Mode{})
		await(t, 10*time.Second, "the late Break", func() bool { return c.calls(t, i+1) != had })
	}
	for i := range c.direct {
		if v := c.value(t, i, "a"); v != "second" {
			t.Errorf("node %d has %q after the late Break, want the second stranger's", i+1, v)
		}
	}
	for _, value := range []string{"", "with spaces: and\x00more", strings.Repeat("AB", 16) + ":5:looks like ours"} {
		stranger(value)
		must(t, l.Break(t.Context(), "a"))
		for i := range c.direct {
			await(t, 5*time.Second, fmt.Sprintf("node %d has freed the lock of %q", i+1, value), func() bool {
				return c.direct[i].Exists(t.Context(), "fencelock:a").Val() == 0
			})
		}
	}
}

// Break ends the holder's lock, and leaves the vote that one node has for a waiter.
func TestBreakLeavesWaiters(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "")
	open(t, c.url("fresh=1"))
	refuse(proxies[2])
	lock(t, open(t, through).Mutex("a"))
	waiter := strings.Repeat("ab", 16) + ".1"
	must(t, c.direct[2].Set(t.Context(), "fencelock:a", waiter+":5:one who waits", time.Minute).Err())
	must(t, open(t, c.url("")).Break(t.Context(), "a"))
	for i, r := range c.direct {
		if n := r.Exists(t.Context(), "fl\x00rl:x"+waiter).Val(); n != 0 {
			t.Errorf("node %d refuses the vote of one who waits", i+1)
		}
		if v := c.value(t, i, "a"); (v != "") != (i == 2) {
			t.Errorf("node %d has %q", i+1, v)
		}
	}
}

// A release whose answers are lost is sent again when the nodes have dropped what they remember of it: it may have been
// done, and is not told that the lock was lost. The first release of a lock that was lost is.
func TestReleaseSentAgainAfterManyOthers(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	d := closing(t, through)
	take := func(nonce string) *core.Hold {
		t.Helper()
		r := request("a", nonce, backend.Phase(""))
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		for i := range c.direct {
			await(t, 5*time.Second, "the vote", func() bool { return c.value(t, i, "a") != "" })
		}
		return &core.Hold{Request: r, Grant: g}
	}
	free := func() {
		t.Helper()
		for i := range c.direct {
			await(t, 5*time.Second, "the release", func() bool { return c.value(t, i, "a") == "" })
		}
	}
	h := take("a")
	for _, p := range proxies {
		p.Set(faultproxy.Mode{HoldReplies: true})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	want(t, "Release without answers", d.Release(ctx, h), context.DeadlineExceeded)
	free()
	other := open(t, c.url("")).Mutex("a")
	for range 200 {
		unlock(t, lock(t, other))
	}
	free()
	for _, p := range proxies {
		p.Cut()
		p.Set(faultproxy.Mode{})
	}
	if err := d.Release(t.Context(), h); err == nil || backend.Final(err) ||
		!strings.Contains(err.Error(), "does not know") {
		t.Errorf("Release sent again: got %v, want that the nodes do not know", err)
	}
	h = take("b")
	for _, r := range c.direct {
		must(t, r.Del(t.Context(), "fencelock:a").Err())
	}
	want(t, "the first Release of a lock that was lost", d.Release(t.Context(), h), fencelock.ErrLost)
}
