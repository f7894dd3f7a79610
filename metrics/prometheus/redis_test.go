package prometheus_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/metrics/prometheus"
	_ "github.com/fencelock/fencelock/redis"
)

// A key that somebody set without an expiry is a leaked lock, and shows until it is gone.
func TestWatchFindsALeakedLockOfRedis(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	redis := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = redis.Close() })
	c := prometheus.New(nil)
	l, err := fencelock.Open(t.Context(), s.URL(), fencelock.WithObserver(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lock(t, l.Mutex("jobs/held"))
	if err := redis.Set(t.Context(), backend.DefaultPrefix+"jobs/leaked", "somebody", 0).Err(); err != nil {
		t.Fatal(err)
	}
	watch := func(want float64) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Watch(ctx, l, "jobs/", time.Second) }()
		before := scrape(t, c)["listings_total{redis,ok}"]
		for scrape(t, c)["listings_total{redis,ok}"] == before {
			if ctx.Err() != nil {
				t.Fatal("no listing")
			}
			<-time.After(time.Millisecond)
		}
		if got, ok := scrape(t, c)["leaked{redis,jobs}"]; got != want || !ok {
			t.Errorf("got %v leaked, want %v", got, want)
		}
		stop()
		<-ended
	}
	watch(1)
	if err := l.Break(t.Context(), "jobs/leaked"); err != nil {
		t.Fatal(err)
	}
	watch(0)
}
