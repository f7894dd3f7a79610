package prometheus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error)
		s.leaked.Store(&[]backend.Info{
			{Name: "old/1", Held: true, Leaked: true},
			{Name: "old/2", Held: true, Leaked: true},
			{Name: "nightly", Held: true, Leaked: true},
			{Name: "fine/1", Held: true},
		})
		go func() { ended <- c.Watch(ctx, l, "", time.Minute) }()
		synctest.Wait()
		want(t, "at once",
			c, numbers{
				"leaked{memory,old}": 2, "leaked{memory,other}": 1, "leaked{memory,fine}": 0,
				"listings_total{memory,ok}": 1,
			})
		s.down.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "a listing that failed changes nothing",
			c, numbers{
				"leaked{memory,old}": 2, "leaked{memory,other}": 1, "listings_total{memory,ok}": 1,
				"listings_total{memory,failed}": 1,
			})
		s.down.Store(false)
		s.leaked.Store(&[]backend.Info{{Name: "old/2", Held: true}})
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "mended",
			c, numbers{
				"leaked{memory,old}": 0, "listings_total{memory,ok}": 2,
				"listings_total{memory,failed}": 1,
			})
		s.leaked.Store(&[]backend.Info{{Name: "old/2", Held: true, Leaked: true}})
		time.Sleep(time.Minute)
		cause := errors.New("shutting down")
		stop(cause)
		if err := <-ended; err != cause {
			t.Errorf("got %v, want the cause", err)
		}
		for k := range scrape(t, c) {
			if strings.HasPrefix(k, "leaked{") {
				t.Errorf("%s is still exported after the watch has ended", k)
			}
		}
	})
}

func TestWatchThatCannotGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, l *fencelock.Locker, c *prometheus.Collector) {
		if err := c.Watch(t.Context(), l, "", 0); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("every 0: got %v, want invalid", err)
		}
		if err := c.Watch(t.Context(), l, "\x00", time.Minute); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("a bad prefix: got %v, want invalid", err)
		}
		ended := make(chan error)
		go func() { ended <- c.Watch(t.Context(), l, "", time.Minute) }()
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, fencelock.ErrClosed) {
			t.Errorf("a closed Locker: got %v, want closed", err)
		}
	})
}
