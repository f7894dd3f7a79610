package peers

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// lab has the servers that all questions share, each started when the first asks for it.
type lab struct {
	whole *testing.T // ends them
	mu    sync.Mutex
	addrs map[string][]string
	now   Results // of this run
}

// outlives starts for one test what ends with another.
type outlives struct {
	testing.TB
	whole testing.TB
}

func (o outlives) Cleanup(f func()) { o.whole.Cleanup(f) }

func (l *lab) servers(t *testing.T, store string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addrs[store] == nil {
		addrs, version, _ := start(outlives{t, l.whole}, store)
		l.addrs[store], l.now.Servers[store] = addrs, version
	}
	return l.addrs[store]
}

// start starts a store that keeps its data, and returns how one of its servers is killed and started.
func start(tb testing.TB, store string) (addrs []string, version string, restart func() error) {
	tb.Helper()
	again := func(s *servers.Server) func() error {
		return func() error {
			if err := s.Kill(); err != nil {
				return err
			}
			return s.Start()
		}
	}
	durable := servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}}
	switch store {
	case "redis":
		s := servers.Redis(tb, durable)
		return []string{s.Addr()}, s.Version(), again(s)
	case "redlock":
		g := servers.Redises(tb, 3, durable)
		return g.Addrs(), g.Servers()[0].Version(), again(g.Servers()[0])
	case "etcd":
		g := servers.Etcd(tb, servers.EtcdOptions{})
		return g.Addrs(), g.Servers()[0].Version(), again(g.Servers()[0])
	case "zookeeper":
		g := servers.ZooKeeper(tb, servers.ZooKeeperOptions{
			Config: []string{"maxSessionTimeout=120000", "maxClientCnxns=0"},
		})
		return g.Addrs(), g.Servers()[0].Version(), again(g.Servers()[0])
	case "postgres":
		s := servers.Postgres(tb, servers.PostgresOptions{Config: []string{"max_connections=300"}})
		pglockTable(tb, s.Addr())
		return []string{s.Addr()}, s.Version(), again(s.Server)
	}
	tb.Fatalf("no store %q", store)
	return nil, "", nil
}

// A cell is one question while it is asked of one library.
type cell struct {
	*testing.T
	lib   library
	addrs []string
	ctx   context.Context
	after []func() // in reverse order
}

// stop is what ends a question that cannot be asked.
type stop struct{ error }

// try asks the question once. An error: it could not be asked.
func (c *cell) try(question func(*cell) seen) (s seen, err error) {
	ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
	defer func() {
		cancel()
		for _, f := range slices.Backward(c.after) {
			f()
		}
		c.after = nil
		switch r := recover().(type) {
		case nil:
		case stop:
			err = r.error
		default:
			panic(r)
		}
	}()
	c.ctx = ctx
	return question(c), nil
}

// cannot ends the question; only its own goroutine calls it.
func (c *cell) cannot(what string, err error) {
	panic(stop{fmt.Errorf("%s: %s: %w", c.lib.name, what, err)})
}

// a party is a process that uses the library, with a link of its own to the servers.
type party struct {
	client
	links []*faultproxy.Proxy
}

// party connects one. Its connections, scripts and statements are warm.
func (c *cell) party(ttl time.Duration) *party {
	p := &party{}
	var addrs []string
	for _, addr := range c.addrs {
		proxy, err := faultproxy.New(addr)
		if err != nil {
			c.cannot("proxy", err)
		}
		p.links, addrs = append(p.links, proxy), append(addrs, proxy.Addr())
	}
	opened, err := c.lib.open(c.ctx, addrs, ttl)
	if err != nil {
		c.cannot("open", err)
	}
	p.client = opened
	c.after = append(c.after, func() {
		p.set(faultproxy.Mode{})
		if _, returned := within(5*time.Second, func() (any, error) { p.close(); return nil, nil }); !returned {
			c.Log("close does not return: the links are closed under it")
		}
		for _, proxy := range p.links {
			_ = proxy.Close()
		}
	})
	warm := c.must(p.mutex(c.named("warm")).lock(c.ctx))
	c.free(warm)
	return p
}

var names struct {
	sync.Mutex
	n int
}

// named returns a fresh name that every library writes as it is.
func (c *cell) named(what string) string {
	names.Lock()
	defer names.Unlock()
	names.n++
	return fmt.Sprintf("%s%dx", what, names.n)
}

// must is for steps that no fault disturbs.
func (c *cell) must(h hold, err error) hold {
	if err != nil {
		c.cannot("lock", err)
	}
	return h
}

func (c *cell) free(h hold) {
	if err := h.unlock(c.ctx); err != nil {
		c.cannot("unlock", err)
	}
}

func (p *party) set(m faultproxy.Mode) {
	for _, l := range p.links {
		l.Set(m)
	}
}

// die is the end of the process: its connections are closed, and it makes no new ones.
func (p *party) die() {
	p.set(faultproxy.Mode{Refuse: true})
	for _, l := range p.links {
		l.Cut()
	}
}

// lose loses the reply to the k-th request that has a text, k from 1, on every link.
func (p *party) lose(k int, text string) {
	for _, l := range p.links {
		seen := 0
		l.LoseReplyTo(1, func(request []byte) bool {
			if has(request, text) {
				seen++
				return seen == k
			}
			return false
		})
	}
}

// hold keeps the replies back from the k-th request that has a text on, k from 1.
func (p *party) hold(k int, text string) {
	// While the request is delayed no reply can overtake the hold.
	slow := faultproxy.Mode{Delay: 50 * time.Millisecond}
	for _, l := range p.links {
		l.Set(slow)
		seen := 0
		l.LoseReplyTo(1, func(request []byte) bool {
			if has(request, text) {
				if seen++; seen == k {
					go l.Set(faultproxy.Mode{Delay: slow.Delay, HoldReplies: true})
				}
			}
			return false
		})
	}
}

// has reports whether a request has a text, as it is or as Postgres writes bytes.
func has(request []byte, text string) bool {
	return bytes.Contains(request, []byte(text)) || bytes.Contains(request, []byte(hex.EncodeToString([]byte(text))))
}

// ttlHeld is the lease of one who must hold the lock while the question is asked.
func (c *cell) ttlHeld() time.Duration {
	if c.lib.keeps {
		return c.lib.short
	}
	return long
}

// lost is how many replies were lost.
func (p *party) lost() (n int64) {
	for _, l := range p.links {
		n += l.Counts().LostReplies
	}
	return n
}

// once takes the lock if it is free: with one try, or with a Lock that is given as long.
func (c *cell) once(p *party, name string, d time.Duration) (h hold, err error, returned bool) {
	m := p.mutex(name)
	do := m.try
	if do == nil {
		do = m.lock
	}
	a, returned := within(d, func() (hold, error) { return do(c.ctx) })
	return a.v, a.err, returned
}

// gets reports whether another process gets the lock within d.
func (c *cell) gets(p *party, name string, d time.Duration) (hold, bool) {
	end := time.Now().Add(d)
	for {
		h, err, returned := c.once(p, name, time.Until(end))
		if returned && err == nil {
			return h, true
		}
		if time.Now().After(end) || !returned {
			return hold{}, false
		}
		time.Sleep(50 * time.Millisecond)
	}
}

type answer[T any] struct {
	v   T
	err error
}

// within calls f and waits for it as long as d. What does not return by then ends with its client.
func within[T any](d time.Duration, f func() (T, error)) (a answer[T], returned bool) {
	done := make(chan answer[T], 1)
	go func() {
		v, err := f()
		done <- answer[T]{v, err}
	}()
	select {
	case a = <-done:
		return a, true
	case <-time.After(d):
		return a, false
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// chance is what differs from run to run in an error: ports and names.
var chance = regexp.MustCompile(`127\.0\.0\.1:\d+(->127\.0\.0\.1:\d+)?|\b[a-z]+\d+x\b`)

// brief says what an error is, in a line.
func brief(err error) string {
	if err == nil {
		return "nil"
	}
	s, _, _ := strings.Cut(err.Error(), "\n")
	return chance.ReplaceAllString(s, "…")
}
