package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
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
			if parts := strings.SplitN(value, ":", 3); len(parts) != 3 || len(parts[0]) != 32 ||
				parts[1] != fmt.Sprint(le.Token()) ||
				parts[2] != "a:b c" {
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
		err := c.SetArgs(t.Context(), key("x"), "a stranger's", goredis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).
			Err()
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
	if !info.Held || info.Owner != "" || info.Token != 0 || info.Leaked || info.ExpiresIn <= 29*time.Second ||
		info.ExpiresIn > 30*time.Second {
		t.Errorf("a stranger's lock: got %+v", info)
	}
	wait := queue(t, c, l, "x", 1)
	must(t, c.Del(t.Context(), key("x")).Err())
	freed := time.Now()
	unlock(t, wait.Granted(t, 3*time.Second))
	took := wait.At.Sub(freed)
	t.Logf("a stranger's release was noticed after %v", took)
	if took > 1300*time.Millisecond {
		t.Errorf("a stranger's release was noticed after %v, want about 1 s at most", took)
	}
}

// A stranger's key that expires in more than the 292 years of a time.Duration is waited for at rest.
func TestStrangerForCenturies(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	for _, ms := range []int64{9_223_372_036_854, 9_223_372_036_855, 46_000_000_000_000} {
		must(t, c.Do(t.Context(), "SET", key("x"), "a stranger's", "PX", ms).Err())
		info, err := l.Inspect(t.Context(), "x")
		must(t, err)
		if !info.Held || info.Leaked || info.ExpiresIn < 100*365*24*time.Hour {
			t.Errorf("PX %d: got %+v", ms, info)
		}
		must(t, c.ConfigResetStat(t.Context()).Err())
		_, err = l.Mutex("x").Lock(within(t, 2500*time.Millisecond))
		want(t, "Lock", err, context.DeadlineExceeded)
		if n := calls(t, c)["evalsha"]; n > 12 {
			t.Errorf("PX %d: %d scripts in 2.5 s of waiting, want a few", ms, n)
		}
	}
}

func TestForeignKeyWithoutExpiryIsLeaked(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	must(t, c.Set(t.Context(), key("x"), "Zm9vYmFyYmF6cXV4MTIzNA", 0).Err()) // as redislock writes it
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || !info.Leaked || info.ExpiresIn != 0 || info.Owner != "" || info.Token != 0 {
		t.Errorf("got %+v, want held and leaked", info)
	}
	must(t, l.Break(t.Context(), "x"))
	unlock(t, lock(t, l.Mutex("x")))
	must(t, l.Break(t.Context(), "x")) // free: no error
}

// What an application keeps under the prefix is no lock: it is not listed, and Break leaves it
// alone.
func TestApplicationKeys(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL()+"?prefix=")
	locks := map[string]bool{}
	for name, value := range map[string]string{
		"ours":      ours,
		"redsync":   "yNW3ZKvTAyKGxcZ0AHLXbA==",
		"redislock": "yNW3ZKvTAyKGxcZ0AHLXbA some text",
		"uuid":      "0b2a7f0e-3c3e-4f7b-9a53-6d1f7f2f1b11",
	} {
		must(t, c.Set(t.Context(), name, value, 0).Err())
		locks[name] = true
	}
	must(t, c.HSet(t.Context(), "redisson", "0b2a7f0e-3c3e-4f7b-9a53-6d1f7f2f1b11:42", 1).Err())
	locks["redisson"] = true
	kept := map[string]string{
		"balance": "1234567890123456", "name": "Grace Hopper, rear admiral",
		"json": `{"account":"0123456789abcdef0123"}`, "flag": "1", "empty": "", "large": strings.Repeat("a1", 2100),
	}
	for name, value := range kept {
		must(t, c.Set(t.Context(), name, value, 0).Err())
	}
	must(t, c.HSet(t.Context(), "user", "id", 1).Err())
	must(t, c.RPush(t.Context(), "jobs", 1).Err())
	for info, err := range l.List(t.Context(), "") {
		must(t, err)
		if !locks[info.Name] || !info.Leaked {
			t.Errorf("List: got %+v, want the locks alone, leaked", info)
		}
		delete(locks, info.Name)
	}
	if len(locks) > 0 {
		t.Errorf("List: %v are missing", locks)
	}
	for name, says := range map[string]string{
		"balance": "a string of 16 bytes", "name": "a string", "json": "a string",
		"flag": "a string of 1 bytes", "empty": "a string", "large": "a string of more than 4096 bytes",
		"user": "a hash", "jobs": "a list",
	} {
		before := c.Dump(t.Context(), name).Val()
		err := l.Break(t.Context(), name)
		want(t, "Break of "+name, err, fencelock.ErrInvalid)
		if err != nil &&
			(!strings.Contains(err.Error(), says) || kept[name] != "" &&
				len(kept[name]) > 1 && strings.Contains(err.Error(), kept[name])) {
			t.Errorf("Break of %s: got %v, want it to say %q, without the value", name, err, says)
		}
		if after := c.Dump(t.Context(), name).Val(); after != before {
			t.Errorf("%s has changed", name)
		}
	}
	for _, name := range []string{"ours", "redsync", "redislock", "uuid", "redisson"} {
		must(t, l.Break(t.Context(), name))
		if n := c.Exists(t.Context(), name).Val(); n != 0 {
			t.Errorf("%s is there after Break", name)
		}
	}
}

func TestForeignValuesAreNotOurs(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	hex := strings.Repeat("0a", 16)
	for _, value := range []string{
		"", "x", hex, hex + ":", hex + ":12", hex + ":x:y",
		strings.ToUpper(hex) + ":1:o", hex[1:] + ":1:o", "\x00\xff",
	} {
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
	if err != nil &&
		(!strings.Contains(err.Error(), `"list"`) ||
			!strings.Contains(err.Error(), "use another name or prefix") ||
			strings.Contains(err.Error(), "script")) {
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
	case <-wait.Done:
		want(t, "Lock that waited while the type changed", wait.Err, fencelock.ErrInvalid)
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
				if le, err := l.Mutex(fmt.Sprint("name-", i)).TryLock(t.Context()); err != nil ||
					le.Unlock(t.Context()) != nil {
					t.Errorf("name %d: %v", i, err)
				}
				if i%8 != 0 { // and most of them in one slot
					continue
				}
				if le, err := l.Mutex(fmt.Sprint("{one}", i)).TryLock(t.Context()); err != nil ||
					le.Unlock(t.Context()) != nil {
					t.Errorf("name {one}%d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if left := leftovers(t, c); len(left) > 0 {
		t.Fatalf("%d keys besides counters, such as %q", len(left), left[0])
	}
	counters := allKeys(t, c)
	for _, k := range counters {
		if ttl := c.PTTL(t.Context(), k).Val(); ttl != -1 {
			t.Errorf("counter %q expires in %v, want never", k, ttl)
		}
	}
	if len(counters) > names+1 {
		t.Errorf("got %d counters of %d names, want one for each slot at the most", len(counters), names)
	}
}

// A key of ours beside a lock that is of another type hides no holder: a list is an error then.
func TestListBesideForeignTypes(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	le := lock(t, l.Mutex("x"))
	must(t, c.Set(t.Context(), redis.OursOf(key("x"))+"m"+key("x"), "foreign", 0).Err())
	list := func() (err error) {
		for _, err = range l.List(t.Context(), "") {
		}
		return err
	}
	want(t, "List", list(), fencelock.ErrInvalid)
	var strict error
	for _, strict = range closing(t, s.URL()).Look(t.Context(), backend.Range{Strict: true}) {
	}
	want(t, "a strict look", strict, fencelock.ErrInvalid)
	must(t, c.Del(t.Context(), redis.OursOf(key("x"))+"m"+key("x")).Err())
	must(t, list())
	unlock(t, le)
}

// Under an empty prefix a list of locks does not fetch an application's own strings, nor read them to their end.
func TestListBesideLargeStrings(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL()+"?prefix=")
	le := lock(t, l.Mutex("x"))
	for i := range 100 {
		must(t, c.Set(t.Context(), fmt.Sprint("big", i), strings.Repeat("x", 1<<20), 0).Err())
	}
	must(t, c.ConfigResetStat(t.Context()).Err())
	n := 0
	for info, err := range l.List(t.Context(), "") {
		must(t, err)
		if n++; info.Name != "x" {
			t.Errorf("List: got %+v", info)
		}
	}
	if n != 1 {
		t.Errorf("List: got %d locks, want 1", n)
	}
	stats := c.InfoMap(t.Context(), "stats", "commandstats").Val()
	if sent, _ := strconv.Atoi(stats["Stats"]["total_net_output_bytes"]); sent > 1<<16 {
		t.Errorf("the server has sent %d bytes", sent)
	}
	var took int
	for of, what := range stats["Commandstats"] {
		if of == "cmdstat_evalsha" || of == "cmdstat_eval" {
			_, usec, _ := strings.Cut(what, "usec=")
			usec, _, _ = strings.Cut(usec, ",")
			n, err := strconv.Atoi(usec)
			must(t, err)
			took += n
		}
	}
	if took > 1e6 { // to read 100 MB by a pattern takes longer
		t.Errorf("scripts took %d µs", took)
	}
	unlock(t, le)
}
