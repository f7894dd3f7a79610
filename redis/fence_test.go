package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

func TestCheckToken(t *testing.T) {
	t.Parallel()
	c := foreign(t, servers.Redis(t, servers.RedisOptions{}))
	for _, tt := range []struct {
		what     string
		resource string
		token    fencelock.Token
		want     error
	}{
		{"first", "a", 9, nil},
		{"equal", "a", 9, nil},
		{"lower", "a", 8, fencelock.ErrStale},
		{"higher, with more digits", "a", 10, nil},
		{"what was the highest before", "a", 9, fencelock.ErrStale},
		{"another resource", "b", 1, nil},
		{"none", "a", 0, fencelock.ErrInvalid},
		{"negative", "a", -3, fencelock.ErrInvalid},
		{"no resource", "", 3, fencelock.ErrInvalid},
		{
			"hours ahead of the clock", "far", fencelock.Token(time.Now().Add(3 * time.Hour).UnixMicro()),
			fencelock.ErrInvalid,
		},
		{"near the end of the numbers", "far", 1<<53 - 2, fencelock.ErrInvalid},
		{"after those that were refused", "far", 1, nil},
	} {
		if err := redis.CheckToken(t.Context(), c, tt.resource, tt.token); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, err, tt.want)
		}
	}
	// The server's clock was ahead, and was set back: tokens go on from there.
	ahead := fencelock.Token(time.Now().Add(3 * time.Hour).UnixMicro())
	must(t, c.Set(t.Context(), "fl\x00fence:back", int64(ahead), 0).Err())
	must(t, redis.CheckToken(t.Context(), c, "back", ahead+1))
	var stale *fencelock.StaleError
	if err := redis.CheckToken(t.Context(), c, "a", 1); !errors.As(err, &stale) || stale.Max != 10 {
		t.Errorf("got %v, want a StaleError with Max 10", err)
	}
	must(t, c.Set(t.Context(), "fl\x00fence:text", "hello", 0).Err())
	must(t, c.RPush(t.Context(), "fl\x00fence:list", "x").Err())
	for _, resource := range []string{"text", "list"} {
		if err := redis.CheckToken(t.Context(), c, resource, 5); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("a foreign %s: got %v, want ErrInvalid", resource, err)
		}
	}
}

// A pipeline answers after what follows the check was done, so a check over it is refused.
func TestCheckTokenOverAPipeline(t *testing.T) {
	t.Parallel()
	c := foreign(t, servers.Redis(t, servers.RedisOptions{}))
	must(t, redis.CheckToken(t.Context(), c, "a", 10))
	for _, tt := range []struct {
		name string
		send func(context.Context, func(goredis.Pipeliner) error) ([]goredis.Cmder, error)
		as   func(goredis.Pipeliner) goredis.Scripter
		want error // nil: any
	}{
		{"MULTI", c.TxPipelined, func(p goredis.Pipeliner) goredis.Scripter { return p }, fencelock.ErrInvalid},
		{"pipeline", c.Pipelined, func(p goredis.Pipeliner) goredis.Scripter { return p }, fencelock.ErrInvalid},
		{"wrapped", c.TxPipelined, func(p goredis.Pipeliner) goredis.Scripter {
			return struct{ goredis.Scripter }{p}
		}, nil},
	} {
		_, err := tt.send(t.Context(), func(p goredis.Pipeliner) error {
			if err := redis.CheckToken(t.Context(), tt.as(p), "a", 9); err != nil {
				return err
			}
			return p.Set(t.Context(), "k", "stale", 0).Err()
		})
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if n := c.Exists(t.Context(), "k").Val(); n != 0 {
			t.Errorf("%s: a stale holder has written", tt.name)
		}
	}
	put := redis.NewFencedScript("return redis.call('SET', KEYS[1], ARGV[1])")
	_, err := put.Run(t.Context(), c.Pipeline(), "a", 11, []string{"k"}, "v")
	want(t, "a script in a pipeline", err, fencelock.ErrInvalid)
}

// A script with the check sees its own KEYS and ARGV, and does nothing under a stale token.
func TestFencedScript(t *testing.T) {
	t.Parallel()
	c := foreign(t, servers.Redis(t, servers.RedisOptions{}))
	put := redis.NewFencedScript("redis.call('SET', KEYS[1], ARGV[1]) return {#KEYS, #ARGV, ARGV[2]}")
	got, err := put.Run(t.Context(), c, "doc", 5, []string{"k"}, "v5", "last")
	if err != nil || fmt.Sprint(got) != "[1 2 last]" {
		t.Errorf("got %v, %v; want one key, two arguments", got, err)
	}
	if _, err := put.Run(t.Context(), c, "doc", 4, []string{"k"}, "v4", "x"); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a stale write: got %v, want ErrStale", err)
	}
	if v := c.Get(t.Context(), "k").Val(); v != "v5" {
		t.Errorf("after a stale write: got %q, want v5", v)
	}
	many := redis.NewFencedScript("return {#KEYS, #ARGV, ARGV[20000]}")
	args := make([]any, 20000)
	for i := range args {
		args[i] = i
	}
	got, err = many.Run(t.Context(), c, "doc", 5, nil, args...)
	if err != nil || fmt.Sprint(got) != "[0 20000 19999]" {
		t.Errorf("20,000 arguments: got %v, %v", got, err)
	}
	// Since Redis 7 a script may begin with its flags.
	flagged := redis.NewFencedScript("#!lua flags=allow-oom\nreturn redis.call('GET', KEYS[1])")
	if got, err := flagged.Run(t.Context(), c, "doc", 5, []string{"k"}); err != nil || got != "v5" {
		t.Errorf("a script with flags: got %v, %v", got, err)
	}
	read := redis.NewFencedScript("return redis.call('GET', KEYS[1])")
	if got, err := read.Run(t.Context(), c, "doc", 7, []string{"k"}); err != nil || got != "v5" {
		t.Errorf("a newer holder reads: got %v, %v", got, err)
	}
	if _, err := put.Run(t.Context(), c, "doc", 5, []string{"k"}, "late", "x"); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a write after a newer holder's read: got %v, want ErrStale", err)
	}
	if _, err := read.Run(t.Context(), c, "doc", 7, []string{"none"}); !errors.Is(err, goredis.Nil) {
		t.Errorf("a nil reply: got %v, want redis.Nil", err)
	}
	// A script that fails has read, and may have written: its token counts.
	fails := redis.NewFencedScript("return redis.error_reply('HALF done')")
	if _, err := fails.Run(t.Context(), c, "doc", 9, nil); err == nil || errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a script that fails: got %v, want its error", err)
	}
	if _, err := put.Run(t.Context(), c, "doc", 8, []string{"k"}, "late", "x"); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a write after a newer holder's script that failed: got %v, want ErrStale", err)
	}
}

// Many writers with many tokens at once: what is stored never goes back.
func TestFencedScriptsAreAtomic(t *testing.T) {
	t.Parallel()
	c := foreign(t, servers.Redis(t, servers.RedisOptions{}))
	raise := redis.NewFencedScript(
		"local was = tonumber(redis.call('GET', KEYS[1]) or '0'); redis.call('SET', KEYS[1], ARGV[1]); return was",
	)
	var wg sync.WaitGroup
	for token := fencelock.Token(1); token <= 64; token++ {
		wg.Go(func() {
			was, err := raise.Run(t.Context(), c, "{r}", token, []string{"{r}:value"}, token)
			if err == nil && was.(int64) > token {
				t.Errorf("token %d was let through after %v", token, was)
			} else if err != nil && !errors.Is(err, fencelock.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := c.Get(t.Context(), "{r}:value").Val(); got != "64" {
		t.Errorf("got %s as the last write, want 64", got)
	}
}

func TestFencedScriptInACluster(t *testing.T) {
	t.Parallel()
	g := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: g.Addrs()})
	t.Cleanup(func() { _ = c.Close() })
	put := redis.NewFencedScript("return redis.call('SET', KEYS[1], ARGV[1])")
	for i := range 20 {
		resource := fmt.Sprintf("{doc-%d}", i)
		if _, err := put.Run(t.Context(), c, resource, 5, []string{resource + ":text"}, "v"); err != nil {
			t.Errorf("%s: %v", resource, err)
		}
		if err := redis.CheckToken(t.Context(), c, resource, 4); !errors.Is(err, fencelock.ErrStale) {
			t.Errorf("%s: got %v, want ErrStale", resource, err)
		}
	}
}
