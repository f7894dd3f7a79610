package redis_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

func TestServerIsDown(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	l := open(t, s.URL())
	le := lock(t, l.Mutex("held", fencelock.WithTTL(time.Minute)))
	must(t, s.Stop())
	began := time.Now()
	_, err := l.Mutex("x").TryLock(t.Context())
	took := time.Since(began)
	want(t, "TryLock", err, fencelock.ErrUnavailable)
	t.Logf("TryLock of a server that is down: %v after %v", err, took)
	if took > 2*time.Second {
		t.Errorf("TryLock took %v, want an answer promptly", took)
	}
	began = time.Now()
	want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
	if took := time.Since(began); took > 5500*time.Millisecond {
		t.Errorf("Unlock took %v", took)
	}
	_, err = l.Inspect(t.Context(), "x")
	want(t, "Inspect", err, fencelock.ErrUnavailable)
	must(t, s.Start())
	// Where many dials have failed, go-redis makes one a second, and calls fail with its error until
	// then.
	await(t, 2*time.Second, "the server is reached again", func() bool {
		_, err := l.Inspect(t.Context(), "x")
		return err == nil
	})
	must(t, le.Err())
	must(t, le.Unlock(t.Context()))
	want(t, "Unlock after that", le.Unlock(t.Context()), fencelock.ErrReleased)
	info, err := l.Inspect(t.Context(), "held")
	must(t, err)
	if info.Held {
		t.Errorf("after Unlock: got %+v, want it free", info)
	}
}

// The client's pool tells of failed dials for up to a second after an outage. An Unlock bridges
// that.
func TestUnlockRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	d, err := redis.New(goredis.NewClient(&goredis.Options{Addr: s.Addr(), PoolSize: 1, DialerRetries: 1}), nil)
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	le := lock(t, l.Mutex("held", fencelock.WithTTL(time.Minute)))
	must(t, s.Stop())
	for range 3 {
		_, err := l.Inspect(t.Context(), "x")
		want(t, "Inspect", err, fencelock.ErrUnavailable)
	}
	began := time.Now()
	want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
	if took := time.Since(began); took > 5500*time.Millisecond {
		t.Errorf("Unlock took %v", took)
	}
	must(t, s.Start())
	must(t, le.Unlock(t.Context()))
}

// A release that found no server was never sent. The first one that arrives tells that the lock went with the
// server's data, though another has it by then.
func TestUnlockAfterALossOfData(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	l := open(t, s.URL())
	for name, take := range map[string]locks{"x": l.Mutex("x").Lock, "r": l.RWMutex("r").RLock} {
		le := get(t, take)
		must(t, s.Stop())
		_, err := l.Inspect(t.Context(), name) // no connection is left to send on
		want(t, "Inspect", err, fencelock.ErrUnavailable)
		want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		must(t, s.Start())
		next := lock(t, open(t, s.URL()).Mutex(name))
		want(t, "Unlock after another has locked it", le.Unlock(t.Context()), fencelock.ErrLost)
		must(t, next.Renew(t.Context()))
		unlock(t, next)
	}
}

func TestLockRidesOutAnOutage(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	must(t, c.Set(t.Context(), key("x"), ours, time.Minute).Err())
	p, url := proxied(t, s)
	l := open(t, url)
	wait := queue(t, c, l, "x", 1)
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	fresh := start(t, l.Mutex("y")) // begins while the store is down
	select {
	case <-wait.Done:
		t.Fatalf("the wait ended in the outage: %v", wait.Err)
	case <-fresh.Done:
		t.Fatalf("the Lock that began in the outage: %v", fresh.Err)
	case <-time.After(2500 * time.Millisecond):
	}
	must(t, c.Del(t.Context(), key("x")).Err())
	p.Set(faultproxy.Mode{})
	unlock(t, wait.Granted(t, 2*time.Second))
	unlock(t, fresh.Granted(t, 2*time.Second))
	// Requests went unanswered, so their acquisitions leave tombstones for a while.
	awaitTombstones(t, c, time.Second)
}

func TestLockGivesUpAfterALongOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("an outage of more than 5 s")
	}
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	for _, tt := range []struct {
		name string
		mode faultproxy.Mode
	}{
		{"refused", faultproxy.Mode{Refuse: true}},
		{"black hole", faultproxy.BlackHole},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, url := proxied(t, s)
			l := open(t, url)
			held := "held " + tt.name
			must(t, c.Set(t.Context(), key(held), ours, time.Minute).Err())
			before := []*pending{queue(t, c, l, held, 1)}
			for range 20 { // in line behind it
				before = append(before, start(t, l.Mutex(held)))
			}
			p.Set(tt.mode)
			if tt.mode.Refuse {
				p.Cut()
			}
			began := time.Now()
			gives := func(what string, wait *pending, most time.Duration) {
				t.Helper()
				select {
				case <-wait.Done:
				case <-time.After(15 * time.Second):
				}
				took := wait.At.Sub(began)
				want(t, what, wait.Err, fencelock.ErrUnavailable)
				t.Logf("%s gave up after %v: %v", what, took, wait.Err)
				if took < 4900*time.Millisecond || took > most {
					t.Errorf("%s gave up after %v, want 5 s to %v", what, took, most)
				}
			}
			gives("a Lock that began in the outage", start(t, l.Mutex("y "+tt.name)), 7500*time.Millisecond)
			for _, wait := range before {
				gives("a Lock that waited when it began", wait, 11*time.Second)
			}
			p.Set(faultproxy.Mode{})
		})
	}
}

// A ctx that ends is heeded whatever the server does.
func TestContextIsHeededBeforeASilentServer(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url)
	le := lock(t, l.Mutex("held"))
	c := foreign(t, s)
	must(t, c.Set(t.Context(), key("waited"), ours, time.Minute).Err())
	warm := queue(t, c, l, "waited", 1)
	p.Set(faultproxy.BlackHole)
	ops := []struct {
		name string
		call func(context.Context) error
	}{
		{"Lock", func(ctx context.Context) error { _, err := l.Mutex("x").Lock(ctx); return err }},
		{"TryLock", func(ctx context.Context) error { _, err := l.Mutex("tried").TryLock(ctx); return err }},
		{"Renew", func(ctx context.Context) error { return le.Renew(ctx) }},
		{"Inspect", func(ctx context.Context) error { _, err := l.Inspect(ctx, "x"); return err }},
		{"Break", func(ctx context.Context) error { return l.Break(ctx, "x") }},
		{"List", func(ctx context.Context) (err error) {
			for _, err = range l.List(ctx, "") {
			}
			return err
		}},
		{"Open", func(ctx context.Context) error {
			o, err := fencelock.Open(ctx, url)
			if err == nil {
				_ = o.Close()
			}
			return err
		}},
	}
	for _, tt := range []struct {
		name        string
		after, late time.Duration
		ctx         func(time.Duration) (context.Context, context.CancelFunc)
		target      error
	}{
		{
			"deadline", 300 * time.Millisecond, 350 * time.Millisecond,
			func(d time.Duration) (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), d)
			}, context.DeadlineExceeded,
		},
		{
			"cancel soon", 50 * time.Millisecond, time.Second,
			func(d time.Duration) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(d, cancel)
				return ctx, cancel
			}, context.Canceled,
		},
		{
			"cancel late", 1300 * time.Millisecond, time.Second,
			func(d time.Duration) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(d, cancel)
				return ctx, cancel
			}, context.Canceled,
		},
	} {
		type outcome struct {
			name string
			late time.Duration
			err  error
		}
		ended := make(chan outcome, len(ops))
		least := map[string]time.Duration{} // of two: the machine may be late itself
		for range 2 {
			for _, op := range ops {
				go func() {
					ctx, cancel := tt.ctx(tt.after)
					defer cancel()
					late, err := lateAfter(ctx, op.call)
					ended <- outcome{op.name, late, err}
				}()
			}
			for range ops {
				o := <-ended
				want(t, o.name+", "+tt.name, o.err, tt.target)
				if before, ok := least[o.name]; ok {
					o.late = min(o.late, before)
				}
				least[o.name] = o.late
			}
		}
		for name, late := range least {
			if late > tt.late {
				t.Errorf("%s, %s: returned %v after its ctx ended, want %v at most", name, tt.name, late, tt.late)
			}
		}
	}
	cancelled := time.Now()
	warm.Cancel()
	<-warm.Done
	if late := warm.At.Sub(cancelled); late > time.Second {
		t.Errorf("a wait in the queue returned %v after its ctx was cancelled", late)
	}
	// Unlock has a second of its own even if its ctx is done.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	err := le.Unlock(ctx)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Unlock with a ctx that is done took %v", took)
	}
	want(t, "Unlock with a ctx that is done", err, context.Canceled)
	p.Set(faultproxy.Mode{})
	must(t, le.Unlock(ctx)) // and works later, ctx done or not
	must(t, c.Del(t.Context(), key("waited")).Err())
}

func TestBrokenConnectionsDoNotPoisonThePool(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url+"?min_idle_conns=8&pool_size=8")
	for i := range 10 {
		le := lock(t, l.Mutex("x"))
		p.Cut() // every idle connection is dead now
		unlock(t, le)
		p.Cut()
		le, err := l.Mutex("x").TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock %d after a cut: %v", i, err)
		}
		unlock(t, le)
	}
}
