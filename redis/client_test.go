package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// clientsOfTheCaller locks, waits, loses and closes with two drivers over one client of the test,
// which must stay open.
func clientsOfTheCaller(t *testing.T, c goredis.UniversalClient) {
	t.Helper()
	before := plain(c)
	a, b, name := over(t, c), over(t, c), t.Name()
	le := lock(t, a.Mutex(name))
	_, err := b.Mutex(name).TryLock(t.Context())
	want(t, "TryLock through the other driver", err, fencelock.ErrLocked)
	wait := start(t, b.Mutex(name))
	waiters(t, a, name, 1)
	unlock(t, le)
	next := wait.Granted(t, time.Second)
	must(t, a.Close())
	must(t, next.Renew(t.Context())) // the other driver's
	must(t, c.Del(t.Context(), key(name)).Err())
	lost(t, next, 1100*time.Millisecond, fencelock.Revoked)
	must(t, b.Close())
	if err := c.Set(t.Context(), "theirs:"+name, "1", 0).Err(); err != nil {
		t.Errorf("the caller's client after Close: %v", err)
	}
	must(t, c.Del(t.Context(), "theirs:"+name).Err())
	if after := plain(c); !reflect.DeepEqual(before, after) {
		t.Errorf("options of the client: got %v, want %v as before", after, before)
	}
}

func TestCallersClientIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	for _, tt := range []struct {
		name string
		opts goredis.Options
	}{
		{"defaults", goredis.Options{}},
		{"ContextTimeoutEnabled", goredis.Options{ContextTimeoutEnabled: true}},
		{"RESP2", goredis.Options{Protocol: 2}},
		{"one connection", goredis.Options{PoolSize: 1}},
		{"short timeouts", goredis.Options{ReadTimeout: 300 * time.Millisecond, MaxRetries: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.opts.Addr = s.Addr()
			c := goredis.NewClient(&tt.opts)
			defer c.Close()
			clientsOfTheCaller(t, c)
		})
	}
}

// plain is the fields of a client's options that can be compared.
func plain(c goredis.UniversalClient) map[string]any {
	m := map[string]any{}
	var v reflect.Value
	switch c := c.(type) {
	case *goredis.Client:
		v = reflect.ValueOf(c.Options()).Elem()
	case *goredis.ClusterClient:
		v = reflect.ValueOf(c.Options()).Elem()
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && v.Field(i).Comparable() {
			m[f.Name] = v.Field(i).Interface()
		}
	}
	return m
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	var single *goredis.Client
	var many *goredis.ClusterClient
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	ok := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"}) // New sends nothing
	t.Cleanup(func() { _ = ok.Close() })
	failover := goredis.NewFailoverClusterClient(&goredis.FailoverOptions{
		MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("New asked a sentinel")
			return nil, errors.New("not to be dialled")
		},
	})
	t.Cleanup(func() { _ = failover.Close() })
	for _, tt := range []struct {
		name   string
		client goredis.UniversalClient
		opts   *redis.Options
		bad    bool
	}{
		{"a client", ok, nil, false},
		{"an empty prefix", ok, &redis.Options{NoPrefix: true}, false},
		{"nil", nil, nil, true},
		{"nil Client", single, nil, true},
		{"nil ClusterClient", many, nil, true},
		{"Ring", ring, nil, true},
		{"ClusterClient of a Sentinel group", failover, nil, true},
		{"both prefixes", ok, &redis.Options{Prefix: "p", NoPrefix: true}, true},
		{"NUL in the prefix", ok, &redis.Options{Prefix: "a\x00b"}, true},
		{"prefix that is not UTF-8", ok, &redis.Options{Prefix: "\xff"}, true},
	} {
		d, err := redis.New(tt.client, tt.opts)
		if tt.bad {
			want(t, tt.name, err, fencelock.ErrInvalid)
			continue
		}
		must(t, err)
		must(t, d.Close())
	}
}

// With one connection a request may have to wait for another, but a wait for a lock holds no
// connection.
func TestPoolOfOneConnection(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(t, s.URL()+"?pool_size=1", fencelock.WithTTL(2*time.Second))
	other := open(t, s.URL())
	var held []*fencelock.Lease
	for i := range 10 {
		held = append(held, lock(t, other.Mutex(fmt.Sprint("x-", i))))
	}
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() {
			le, err := l.Mutex(fmt.Sprint("x-", i)).Lock(within(t, 10*time.Second))
			if err != nil {
				t.Errorf("Lock %d: %v", i, err)
				return
			}
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock %d: %v", i, err)
			}
		})
	}
	for i := range held {
		await(t, 5*time.Second, "all wait", func() bool { return queued(t, c, fmt.Sprint("x-", i)) == 1 })
	}
	mine := lock(t, l.Mutex("mine"))
	for _, le := range held {
		unlock(t, le)
	}
	wg.Wait()
	must(t, mine.Err())
	unlock(t, mine)
	awaitClean(t, c, time.Second)
}
