package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// A lock of Redisson, a hash of clients' threads, is a stranger's: it is excluded, waited for and
// shown. Any other hash is an error.
func TestLockOfRedisson(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, l := foreign(t, s), open(t, s.URL())
	before := lock(t, l.Mutex("x"))
	unlock(t, before)
	theirs := func(d time.Duration) {
		must(t, c.HSet(t.Context(), key("x"), "0b2a7f0e-3c3e-4f7b-9a53-6d1f7f2f1b11:42", 2).Err())
		must(t, c.PExpire(t.Context(), key("x"), d).Err())
	}
	theirs(time.Minute)
	_, err := l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if left := info.ExpiresIn; !info.Held || info.Owner != "" || info.Token != 0 ||
		left > time.Minute || left < 50*time.Second {
		t.Errorf("Inspect: got %+v, want it held by a stranger for a minute", info)
	}
	short := within(t, 100*time.Millisecond)
	_, err = l.RWMutex("x").RLock(short)
	want(t, "RLock", err, context.DeadlineExceeded)
	_, err = l.Semaphore("x", 2).Acquire(short)
	want(t, "Acquire", err, context.DeadlineExceeded)
	wait := queue(t, c, l, "x", 1)
	_, err = l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock beside a waiter", err, fencelock.ErrLocked)
	must(t, c.Del(t.Context(), key("x")).Err()) // Redisson tells its own clients
	le := wait.Granted(t, 3*time.Second)
	if le.Token() <= before.Token() {
		t.Errorf("the token is %d after %d", le.Token(), before.Token())
	}
	if err := c.HExists(t.Context(), key("x"), "0b2a7f0e-3c3e-4f7b-9a53-6d1f7f2f1b11:42").Err(); err == nil {
		t.Error("Redisson is told that it could enter a lock of ours")
	}
	// The key is deleted under our holder, and Redisson takes it.
	must(t, c.Del(t.Context(), key("x")).Err())
	theirs(time.Second)
	lost(t, le, 3*time.Second, fencelock.Revoked)
	unlock(t, lock(t, l.Mutex("x"))) // when its time is over
	must(t, c.HSet(t.Context(), key("x"), "name", "of a user").Err())
	_, err = l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock of another hash", err, fencelock.ErrInvalid)
}
