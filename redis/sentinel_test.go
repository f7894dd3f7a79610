package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// The master dies. What was replicated goes on at the promoted replica; a waiter survives; tokens
// rise.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	n := servers.RedisSentinel(t, servers.SentinelOptions{})
	l, other := open(t, n.URL()), open(t, n.URL())
	unlock(t, lock(t, l.Mutex("x")))
	le := lock(t, l.Mutex("x"))
	old, err := n.Master(t.Context())
	must(t, err)
	c := foreign(t, old)
	wait := queue(t, c, other, "x", 1)
	before := lock(t, other.Mutex("y"))
	if got := c.Wait(t.Context(), 1, time.Second).Val(); got != 1 {
		t.Fatalf("replicas that have all: got %d, want 1", got)
	}
	killed := time.Now()
	must(t, old.Kill())
	master, err := n.AwaitMaster(within(t, 20*time.Second), old)
	if err != nil {
		t.Fatalf("%v; a sentinel's log ends with:\n%s", err, n.Sentinels()[0].Tail())
	}
	promoted := time.Since(killed)

	first := lock(t, l.Mutex("z"))
	t.Logf("promoted after %v, locked again after %v", promoted, time.Since(killed))
	unlock(t, first)
	must(t, le.Err())
	if promoted > 4*time.Second { // a wait rides out 5 s: on a machine this slow it may have ended
		wait.Cancel()
		<-wait.Done
		wait = start(t, other.Mutex("x"))
		waiters(t, l, "x", 1)
	}
	if wait.Over() {
		t.Fatalf("the waiter: %v, %v in the failover", wait.Lease, wait.Err)
	}
	released := time.Now()
	unlock(t, le)
	next := wait.Granted(t, 6*time.Second)
	t.Logf("hand-over after the failover: %v", wait.At.Sub(released))
	if next.Token() <= le.Token() {
		t.Errorf("token after the failover: got %d, want more than %d", next.Token(), le.Token())
	}
	unlock(t, next)
	unlock(t, before)
	again := lock(t, l.Mutex("y"))
	if again.Token() <= before.Token() {
		t.Errorf("token after the failover: got %d, want more than %d", again.Token(), before.Token())
	}
	unlock(t, again)
	awaitTombstones(t, foreign(t, master), time.Second) // of the lock that was asked for in the failover
}

func TestSentinelURLs(t *testing.T) {
	t.Parallel()
	n := servers.RedisSentinel(t, servers.SentinelOptions{})
	master, err := n.Master(t.Context())
	must(t, err)
	for _, tt := range []struct{ url, says string }{
		{"redis+sentinel://" + n.Addrs()[0] + "/nobody", `no master "nobody"`},
		{"redis+sentinel://" + master.Addr() + "/main", "is no sentinel"},
		{"redis://" + n.Addrs()[0], "use redis+sentinel://"},
	} {
		began := time.Now()
		_, err := fencelock.Open(t.Context(), tt.url)
		want(t, tt.url, err, fencelock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want it to say %s", tt.url, err, tt.says)
		}
		if took := time.Since(began); took > 5500*time.Millisecond {
			t.Errorf("Open of %s took %v, want 5 s at most", tt.url, took)
		}
	}
	open(t, "redis+sentinel://"+n.Addrs()[0]+"/main/1") // with a database
	// A client of a Sentinel group that the program has.
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: n.MasterName(), SentinelAddrs: n.Addrs()})
	t.Cleanup(func() { _ = c.Close() })
	clientsOfTheCaller(t, c)
}

// Many goroutines share requests there too.
func TestSentinelCallsGoTogether(t *testing.T) {
	t.Parallel()
	n := servers.RedisSentinel(t, servers.SentinelOptions{})
	l := open(t, n.URL())
	master, err := n.Master(t.Context())
	must(t, err)
	const goroutines, cycles = 64, 20
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for range cycles {
				unlock(t, lock(t, l.Mutex(fmt.Sprint("lock-", g))))
			}
		})
	}
	wg.Wait()
	stats := foreign(t, master).Info(t.Context(), "commandstats").Val()
	_, calls, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	calls, _, _ = strings.Cut(calls, ",")
	got, err := strconv.Atoi(calls)
	must(t, err)
	if most := 2 * goroutines * cycles * 3 / 4; got > most {
		t.Errorf("scripts of %d cycles: got %d, want %d at most", goroutines*cycles, got, most)
	}
	t.Log(got)
}
