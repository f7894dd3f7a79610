package peers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// What docs/coming-from.md says of old and new programs on one key of Redis: each excludes the other.
func TestOldProgramsOnOneKey(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	c := goredisClient(s.Addr())
	t.Cleanup(func() { _ = c.Close() })
	old, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{s.Addr()}}, KeyMajority: 1, NoLoopTracking: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(old.Close)
	for _, tt := range []struct {
		name, query string
		try         func(ctx context.Context) (func() error, error)
	}{
		{"redsync", "?prefix=", func(ctx context.Context) (func() error, error) {
			m := redsync.New(redsyncpool.NewPool(c)).NewMutex("report")
			return func() error { _, err := m.UnlockContext(ctx); return err }, m.TryLockContext(ctx)
		}},
		{"redislock", "?prefix=", func(ctx context.Context) (func() error, error) {
			l, err := redislock.New(c).Obtain(ctx, "report", 8*time.Second, nil)
			return func() error { return l.Release(ctx) }, err
		}},
		{"rueidislock", "?prefix=rueidislock:0:", func(ctx context.Context) (func() error, error) {
			_, cancel, err := old.TryWithContext(ctx, "report")
			return func() error { cancel(); return nil }, err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, err := fencelock.Open(t.Context(), s.URL()+tt.query)
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			m := ours.Mutex("report")
			free, err := tt.try(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
				t.Errorf("TryLock of a lock of theirs: got %v, want ErrLocked", err)
			}
			if err := free(); err != nil {
				t.Fatal(err)
			}
			lease, err := m.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tt.try(t.Context()); err == nil {
				t.Error("they took a lock of ours")
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if free, err = tt.try(t.Context()); err != nil {
				t.Errorf("after our Unlock: %v", err)
			} else if err := free(); err != nil {
				t.Error(err)
			}
		})
	}
}
