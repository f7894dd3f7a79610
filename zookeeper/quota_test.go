package zookeeper_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// Where a quota lets nothing be written any more a lock is released, and the next one in the queue has it as far as
// that can be written.
func TestReleaseUnderAFullQuota(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{
		Config: []string{"maxSessionTimeout=60000", "enforceQuota=true"},
	})
	c := foreign(t, z.Addrs()...)
	for i, limits := range []string{"byteHardLimit=-1;countHardLimit=1", "byteHardLimit=1;countHardLimit=-1"} {
		l := open(t, fmt.Sprintf("%s?prefix=p%d", z.URL(), i), fencelock.WithTTL(20*time.Second))
		unlock(t, lock(t, l.Mutex("warm")))
		le, waited := lock(t, l.Mutex("x")), lock(t, l.Mutex("y"))
		wait := start(t, l.Mutex("y"))
		await(t, 5*time.Second, "a waiter", func() bool {
			info, err := l.Inspect(t.Context(), "y")
			return err == nil && info.Waiters == 1
		})
		quota := fmt.Sprintf("/zookeeper/quota/p%d", i)
		must(t, put(c, quota, ""))
		must(t, put(c, quota+"/zookeeper_limits", "count=-1,bytes=-1=;"+limits))
		must(t, put(c, quota+"/zookeeper_stats", "count=0,bytes=0"))
		_, err := l.Mutex("new").TryLock(t.Context())
		want(t, "TryLock over the quota", err, fencelock.ErrUnavailable)
		unlock(t, le)
		unlock(t, waited)
		must(t, c.Delete(quota+"/zookeeper_limits", -1))
		began := time.Now()
		unlock(t, wait.Granted(t, 10*time.Second))
		t.Logf("%s: the next one has it %v after the quota went", limits, time.Since(began))
	}
}

func put(c *zk.Conn, path, data string) error {
	_, err := c.Create(path, []byte(data), 0, zk.WorldACL(zk.PermAll))
	return err
}

// What was asked in vain in an outage leaves nothing that waits for its end.
func TestOutageLeavesNothing(t *testing.T) { // alone, for it counts goroutines
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	_, err := l.Mutex("first").TryLock(within(t, 500*time.Millisecond)) // from here on nothing is sent
	want(t, "TryLock in the outage", err, context.DeadlineExceeded)
	before := runtime.NumGoroutine()
	done := make(chan struct{})
	for i := range 2000 {
		go func() {
			_, _ = l.Mutex(fmt.Sprint("n", i)).TryLock(within(t, 50*time.Millisecond))
			done <- struct{}{}
		}()
	}
	for range 2000 {
		<-done
	}
	await(t, 5*time.Second, "no goroutine for each that has given up", func() bool {
		return runtime.NumGoroutine() < before+100
	})
}
