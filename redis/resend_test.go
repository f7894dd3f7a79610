package redis_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// stray is a Dialer. What is written next once it is armed arrives when it lets go, however often
// the connection was closed meanwhile.
type stray struct {
	cut   bool // the connection seems to end at once; otherwise it is silent
	armed atomic.Bool
	held  atomic.Int64
	once  sync.Once
	free  chan struct{}
}

func newStray(cut bool) *stray { return &stray{cut: cut, free: make(chan struct{})} }

func (s *stray) letGo() { s.once.Do(func() { close(s.free) }) }

func (s *stray) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	return &strayConn{Conn: c, s: s}, err
}

type strayConn struct {
	net.Conn
	s    *stray
	late atomic.Bool
}

func (c *strayConn) Write(b []byte) (int, error) {
	if !c.s.armed.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	c.late.Store(true)
	c.s.held.Add(1)
	data := append([]byte(nil), b...)
	go func() {
		<-c.s.free
		_ = c.SetWriteDeadline(time.Time{})
		_, _ = c.Conn.Write(data)
	}()
	return len(b), nil
}

func (c *strayConn) Read(b []byte) (int, error) {
	if c.late.Load() && c.s.cut {
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

func (c *strayConn) Close() error {
	if c.late.Load() {
		return c.SetReadDeadline(time.Now())
	}
	return c.Conn.Close()
}

// The first copy of an acquire is late. The second one is granted, and released; then the first one
// arrives, and takes nothing.
func TestLateFirstCopyTakesNothing(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	try := func(t *testing.T, m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) }
	wait := func(t *testing.T, m fencelock.Mutex) (*fencelock.Lease, error) {
		return m.Lock(within(t, 5*time.Second))
	}
	for i, tt := range []struct {
		cut  bool
		take func(*testing.T, fencelock.Mutex) (*fencelock.Lease, error)
	}{{false, try}, {false, wait}, {true, try}, {true, wait}} {
		way := newStray(tt.cut)
		t.Cleanup(way.letGo)
		client := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Dialer: way.dial})
		t.Cleanup(func() { _ = client.Close() })
		l := over(t, client)
		unlock(t, lock(t, l.Mutex("warm")))
		name := fmt.Sprint("x", i)
		way.armed.Store(true)
		le, err := tt.take(t, l.Mutex(name))
		must(t, err)
		if n := way.held.Load(); n != 1 {
			t.Fatalf("%d requests are late, want 1", n)
		}
		unlock(t, le)
		before := calls(t, c)["evalsha"]
		way.letGo()
		await(t, 2*time.Second, "the first copy has arrived", func() bool { return calls(t, c)["evalsha"] > before })
		if v := c.Get(t.Context(), key(name)).Val(); v != "" {
			t.Errorf("%s: the first copy took the lock: %q", name, v)
		}
	}
}

// The first copy of a release is late. A later one frees the lock and its reply is lost; then the first one
// arrives, and takes it for no loss.
func TestLateFirstCopyOfARelease(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, _ := proxied(t, s)
	for _, tt := range []struct {
		name, hash string
		take       func(*fencelock.Locker) locks
	}{
		{"x", redis.RunHash, func(l *fencelock.Locker) locks { return l.Mutex("x").Lock }},
		{"r", redis.ShareHash, func(l *fencelock.Locker) locks { return l.RWMutex("r").RLock }},
	} {
		way := newStray(true)
		t.Cleanup(way.letGo)
		client := goredis.NewClient(&goredis.Options{Addr: p.Addr(), Dialer: way.dial})
		t.Cleanup(func() { _ = client.Close() })
		le := get(t, tt.take(over(t, client, fencelock.WithTTL(time.Minute))))
		p.LoseReplyTo(100, calling(tt.hash, tt.name))
		way.armed.Store(true)
		want(t, "Unlock without any reply", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		p.LoseReplyTo(0, nil)
		if n := way.held.Load(); n != 1 {
			t.Fatalf("%d requests are late, want 1", n)
		}
		before := calls(t, c)["evalsha"]
		way.letGo()
		await(t, 2*time.Second, "the first copy has arrived", func() bool { return calls(t, c)["evalsha"] > before })
		must(t, le.Unlock(t.Context()))
	}
}

// A try whose second copy finds the lock held is given up whole: the first copy must not take the
// lock when it is free.
func TestLateFirstCopyOfARefusedTry(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	for i, cut := range []bool{false, true} { // a quick answer is not looked after by the engine
		way := newStray(cut)
		t.Cleanup(way.letGo)
		client := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Dialer: way.dial})
		t.Cleanup(func() { _ = client.Close() })
		l := over(t, client)
		unlock(t, lock(t, l.Mutex("warm")))
		name := fmt.Sprint("x", i)
		holder := lock(t, open(t, s.URL()).Mutex(name))
		way.armed.Store(true)
		_, err := l.Mutex(name).TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
		unlock(t, holder)
		before := calls(t, c)["evalsha"]
		way.letGo()
		await(t, 2*time.Second, "the first copy has arrived", func() bool { return calls(t, c)["evalsha"] > before })
		if v := c.Get(t.Context(), key(name)).Val(); v != "" {
			t.Errorf("%s: the first copy took the lock: %q", name, v)
		}
	}
}

// deriving is a hook of a program: every command has a ctx of its own.
type deriving struct{}

func (deriving) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (deriving) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return next(ctx, cmd)
	}
}

func (deriving) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// A hook that derives a ctx keeps no call longer than the caller's ctx. It is a ClusterClient's hook: the driver's copy
// of a Client has no hooks.
func TestUsedUpPoolUnderAHook(t *testing.T) {
	t.Parallel()
	g := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	client := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: g.Addrs(), PoolSize: 1, PoolTimeout: 10 * time.Second, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(deriving{})
	l := over(t, client)
	unlock(t, lock(t, l.Mutex("{x}")))
	node, err := client.MasterForKey(t.Context(), "{x}jobs")
	must(t, err)
	c := goredis.NewClient(&goredis.Options{Addr: node.Options().Addr})
	t.Cleanup(func() { _ = c.Close() })
	go client.BLPop(t.Context(), 30*time.Second, "{x}jobs")
	await(t, 5*time.Second, "the pool is used up", func() bool { return blocked(c) == 1 })
	began := time.Now()
	_, err = l.Mutex("{x}").TryLock(within(t, time.Second))
	want(t, "TryLock", err, context.DeadlineExceeded)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a call whose ctx ends after a second returned after %v", took)
	}
	must(t, c.LPush(t.Context(), "{x}jobs", "done").Err())
}

// blocked is how many connections wait in a command.
func blocked(c *goredis.Client) (n int) {
	for line := range strings.Lines(c.Info(context.Background(), "clients").Val()) {
		_, _ = fmt.Sscanf(line, "blocked_clients:%d", &n)
	}
	return n
}

// A caller's pool that is used up makes no call outlive its ctx.
func TestUsedUpPool(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr(), PoolSize: 3})
	t.Cleanup(func() { _ = client.Close() })
	l := over(t, client)
	unlock(t, lock(t, l.Mutex("warm")))
	c := foreign(t, s)
	for i := range 3 {
		go client.BLPop(t.Context(), 30*time.Second, fmt.Sprint("jobs", i))
	}
	await(t, 5*time.Second, "the pool is used up", func() bool { return blocked(c) == 3 })
	const most = time.Second
	for _, tt := range []struct {
		name string
		ends func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, most)
		}, context.DeadlineExceeded},
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			stop := time.AfterFunc(most, cancel)
			return ctx, func() { stop.Stop(); cancel() }
		}, context.Canceled},
	} {
		const n = 60
		ended := make(chan time.Duration, n)
		for i := range n {
			go func() {
				ctx, cancel := tt.ends(t.Context())
				defer cancel()
				began := time.Now()
				_, err := l.Mutex(fmt.Sprint(tt.name, i)).TryLock(ctx)
				took := time.Since(began)
				want(t, "TryLock", err, tt.want)
				ended <- took
			}()
		}
		var worst time.Duration
		for range n {
			worst = max(worst, <-ended)
		}
		t.Logf("%s: %d calls whose ctx ends after %v returned after %v at the latest", tt.name, n, most, worst)
		if worst > most+2*time.Second { // the pool gives up after 4 s
			t.Errorf("%s: a call whose ctx ends after %v returned after %v", tt.name, most, worst)
		}
	}
}
