package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

func TestLockKeyIsPrefixAndName(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	for _, tt := range []struct{ query, prefix string }{
		{"", "fencelock:"}, {"?prefix=", ""}, {"?prefix=my/%7Bapp%7D:", "my/{app}:"},
	} {
		l := open(t, s.URL()+tt.query, fencelock.WithTTL(7*time.Second), fencelock.WithOwner("a:b c"))
		for _, name := range []string{"n", "{}", "a{b}c", "é", strings.Repeat("x", 512)} {
			le := lock(t, l.Mutex(name))
			value, err := c.Get(t.Context(), tt.prefix+name).Result()
			must(t, err)
			if parts := strings.SplitN(value, ":", 3); len(parts) != 3 || len(parts[0]) != 32 || parts[1] != fmt.Sprint(le.Token()) || parts[2] != "a:b c" {
				t.Errorf("value of %q: got %q, want nonce:%d:a:b c", tt.prefix+name, value, le.Token())
			}
			left, err := c.PTTL(t.Context(), tt.prefix+name).Result()
			must(t, err)
			if end := time.Now().Add(left); left > 7*time.Second || end.Before(le.Deadline()) {
				t.Errorf("expiry of %q in %v: want at most 7s, and after the Deadline", name, left)
			}
			unlock(t, le)
		}
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("keys left: %q", left)
	}
}

func TestPlainRecipeExcludesAndIsExcluded(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	recipe := func() bool {
		t.Helper()
		err := c.SetArgs(t.Context(), key("x"), "a stranger's", goredis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).Err()
		if err != nil && !errors.Is(err, goredis.Nil) {
			t.Fatal(err)
		}
		return err == nil
	}
	le := lock(t, l.Mutex("x"))
	if recipe() {
		t.Error("the plain recipe took a lock that is held")
	}
	unlock(t, le)
	if !recipe() {
		t.Fatal("the plain recipe could not take a free lock")
	}
	_, err := l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock of a stranger's lock", err, fencelock.ErrLocked)
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || info.Owner != "" || info.Token != 0 || info.Leaked || info.ExpiresIn <= 29*time.Second || info.ExpiresIn > 30*time.Second {
		t.Errorf("a stranger's lock: got %+v", info)
	}
	wait := queue(t, c, l, "x", 1)
	must(t, c.Del(t.Context(), key("x")).Err())
	freed := time.Now()
	unlock(t, wait.granted(t, 3*time.Second))
	took := wait.at.Sub(freed)
	t.Logf("a stranger's release was noticed after %v", took)
	if took > 1300*time.Millisecond {
		t.Errorf("a stranger's release was noticed after %v, want about 1 s at most", took)
	}
}

func TestForeignKeyWithoutExpiryIsLeaked(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	must(t, c.Set(t.Context(), key("x"), "1", 0).Err())
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || !info.Leaked || info.ExpiresIn != 0 || info.Owner != "" || info.Token != 0 {
		t.Errorf("got %+v, want held and leaked", info)
	}
	must(t, l.Break(t.Context(), "x"))
	unlock(t, lock(t, l.Mutex("x")))
	must(t, l.Break(t.Context(), "x")) // free: no error
}

func TestForeignValuesAreNotOurs(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	hex := strings.Repeat("0a", 16)
	for _, value := range []string{"", "x", hex, hex + ":", hex + ":12", hex + ":x:y", strings.ToUpper(hex) + ":1:o", hex[1:] + ":1:o", "\x00\xff"} {
		must(t, c.Set(t.Context(), key("x"), value, time.Minute).Err())
		_, err := l.Mutex("x").TryLock(t.Context())
		want(t, fmt.Sprintf("TryLock over %q", value), err, fencelock.ErrLocked)
		info, err := l.Inspect(t.Context(), "x")
		if err != nil || !info.Held || info.Owner != "" || info.Token != 0 {
			t.Errorf("Inspect over %q: got %+v, %v", value, info, err)
		}
	}
}

func TestKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL(), fencelock.WithTTL(3*time.Second))
	must(t, c.RPush(t.Context(), key("list"), "1", "2").Err())
	_, err := l.Mutex("list").Lock(within(t, 3*time.Second))
	want(t, "Lock", err, fencelock.ErrInvalid)
	_, err = l.Mutex("list").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrInvalid)
	if err != nil && (!strings.Contains(err.Error(), `"list"`) || !strings.Contains(err.Error(), "delete it, or use another name or prefix")) {
		t.Errorf("got %v, want the lock's name and what to do", err)
	}
	_, err = l.Inspect(t.Context(), "list")
	want(t, "Inspect", err, fencelock.ErrInvalid)
	err = l.Break(t.Context(), "list")
	want(t, "Break", err, fencelock.ErrInvalid)
	if n := c.LLen(t.Context(), key("list")).Val(); n != 2 {
		t.Errorf("the list has %d elements, want 2 as before", n)
	}

	// It appears under a held name: that lease is lost, the others of the batch are renewed.
	doomed := lock(t, l.Mutex("doomed"))
	var others []*fencelock.Lease
	for i := range 20 {
		others = append(others, lock(t, l.Mutex(fmt.Sprint("other-", i))))
	}
	wait := queue(t, c, open(t, s.URL()), "doomed", 1)
	_, err = c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
		p.Del(t.Context(), key("doomed"))
		p.RPush(t.Context(), key("doomed"), "1")
		return nil
	})
	must(t, err)
	lost(t, doomed, time.Second, fencelock.Revoked)
	<-time.After(7 * time.Second) // more than two TTLs
	for i, le := range others {
		if err := le.Err(); err != nil {
			t.Errorf("lease %d of the batch: %v", i, err)
		}
	}
	select {
	case <-wait.done:
		want(t, "Lock that waited while the type changed", wait.err, fencelock.ErrInvalid)
	case <-time.After(5 * time.Second):
		t.Error("a waiter has not noticed that the key is of another type")
	}
	if n := c.LLen(t.Context(), key("doomed")).Val(); n != 1 {
		t.Errorf("the list under the held name has %d elements, want 1 as before", n)
	}
	for info, err := range l.List(t.Context(), "") {
		if err != nil || strings.HasPrefix(info.Name, "doomed") || strings.HasPrefix(info.Name, "list") {
			t.Errorf("List: got %+v, %v", info, err)
		}
	}
}

func TestReleasedNamesLeaveConstantState(t *testing.T) {
	t.Parallel()
	names := 2500
	if testing.Short() {
		names = 1000
	}
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(t, s.URL()+"?pool_size=4")
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < names; i += 4 {
				if le, err := l.Mutex(fmt.Sprint("name-", i)).TryLock(t.Context()); err != nil || le.Unlock(t.Context()) != nil {
					t.Errorf("name %d: %v", i, err)
				}
				if i%8 != 0 { // and most of them in one slot
					continue
				}
				if le, err := l.Mutex(fmt.Sprint("{one}", i)).TryLock(t.Context()); err != nil || le.Unlock(t.Context()) != nil {
					t.Errorf("name {one}%d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if left := leftovers(t, c); len(left) > 0 {
		t.Fatalf("%d keys besides counters and rings, such as %q", len(left), left[0])
	}
	counters, rings, ringed := 0, 0, int64(0)
	for _, k := range allKeys(t, c) {
		ttl := c.PTTL(t.Context(), k).Val()
		if strings.HasSuffix(k, "}c") {
			counters++
			if ttl != -1 {
				t.Errorf("counter %q expires in %v, want never", k, ttl)
			}
			continue
		}
		rings++
		ringed = max(ringed, c.LLen(t.Context(), k).Val())
		if ttl <= time.Minute || ttl > 3*time.Minute {
			t.Errorf("ring %q expires in %v, want within three minutes", k, ttl)
		}
		must(t, c.PExpire(t.Context(), k, time.Millisecond).Err()) // they are over
	}
	t.Logf("%d names left %d counters and %d rings, the longest of %d nonces", names, counters, rings, ringed)
	if rings > 2 || counters > names+1 {
		t.Errorf("got %d counters and %d rings, want a counter a slot and a ring a minute", counters, rings)
	}
	await(t, time.Second, "only counters are left", func() bool { return len(allKeys(t, c)) == counters })
}

func TestRingHasAnEnd(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(t, s.URL())
	unlock(t, lock(t, l.Mutex("x")))
	ring := ""
	for _, k := range allKeys(t, c) {
		if strings.Contains(k, "}r") {
			ring = k
		}
	}
	for range 7 {
		some := make([]any, 10_000)
		for i := range some {
			some[i] = nonceB + ":"
		}
		must(t, c.RPush(t.Context(), ring, some...).Err())
	}
	unlock(t, lock(t, l.Mutex("x")))
	if got := c.LLen(t.Context(), ring).Val(); got != 65536 {
		t.Errorf("nonces in the ring: got %d, want 65536", got)
	}
}
