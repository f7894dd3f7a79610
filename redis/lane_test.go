package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// These count, and so do not run beside others.

// Many goroutines that lock names of their own share requests.
func TestCallsGoTogether(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	const goroutines, cycles = 64, 20
	p.ResetCounts()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			m := l.Mutex(fmt.Sprint("lock-", g))
			var last fencelock.Token
			for range cycles {
				le, err := m.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if le.Token() <= last {
					t.Errorf("token %d after %d", le.Token(), last)
				}
				last = le.Token()
				if err := le.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got, most := p.Counts().Requests, int64(2*goroutines*cycles*3/4); got > most {
		t.Errorf("client writes of %d cycles: got %d, want %d at most", goroutines*cycles, got, most)
	}
	awaitClean(t, foreign(t, s), 2*time.Second)
}

// A server that has forgotten the scripts is told them, also by requests that go together.
func TestForgottenScriptsOfMany(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(t, s.URL())
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			for range 50 {
				le, err := l.Mutex(fmt.Sprint("lock-", g)).Lock(t.Context())
				if err == nil {
					err = le.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		must(t, c.ScriptFlush(t.Context()).Err())
	}
	wg.Wait()
	awaitClean(t, c, 2*time.Second)
}

// A call that stands behind others ends with its ctx, though the server does not answer the others.
func TestCancelledInTheLane(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			le, err := l.Mutex(fmt.Sprint("lock-", g)).Lock(t.Context())
			if err == nil {
				err = le.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for g := range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			began := time.Now()
			le, err := l.Mutex(fmt.Sprint("cancelled-", g)).TryLock(ctx)
			took := time.Since(began)
			if err == nil { // it leads: go-redis does not interrupt a request before its deadline
				unlock(t, le)
				return
			}
			want(t, "TryLock", err, context.Canceled)
			if took > time.Second {
				t.Errorf("returned after %v", took)
			}
		})
	}
	wg.Wait()
	p.Set(faultproxy.Mode{})
	awaitFree(t, foreign(t, s))
}

// Everyone rides out a server that hangs for a while, also who stood in the queue meanwhile.
func TestHungServerOfMany(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.BlackHole)
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			le, err := l.Mutex(fmt.Sprint("lock-", g)).Lock(t.Context())
			if err == nil {
				err = le.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	time.AfterFunc(time.Second, func() { p.Set(faultproxy.Mode{}) })
	wg.Wait()
	awaitFree(t, foreign(t, s))
}

// awaitFree returns when no lock is held.
func awaitFree(t *testing.T, c *goredis.Client) {
	t.Helper()
	await(t, 5*time.Second, "no lock is held", func() bool { return len(c.Keys(t.Context(), key("*")).Val()) == 0 })
}
