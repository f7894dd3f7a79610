package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

// heldTTL is so short that a short round sees renewals. A backend may need a longer one.
const heldTTL = 3 * time.Second

// watcher collects the renewals and losses of held leases.
type watcher struct {
	mu   sync.Mutex
	seen measure.Sample
	lost error
}

// Observe implements fencelock.Observer.
func (w *watcher) Observe(_ context.Context, e fencelock.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case fencelock.Lost:
		w.lost = fmt.Errorf("a held lease: %w: %v", fencelock.ErrLost, e.Reason)
	case fencelock.Renewed:
		w.seen.Latency.Note(e.Took)
		w.seen.Each[0]++
	}
}

// begin returns the renewals so far, and forgets them.
func (w *watcher) begin() (measure.Sample, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = measure.NewSample(1)
	return seen, w.lost
}

// hold acquires n leases. A round watches them for one TTL at least.
func (b *bed) hold(ctx context.Context, n int) (side, error) {
	w := &watcher{seen: measure.NewSample(1)}
	ttl := max(heldTTL, b.traits.MinTTL)
	l, err := b.locker(ctx, fencelock.WithTTL(ttl), fencelock.WithObserver(w))
	if err != nil {
		return side{}, err
	}
	err = measure.Grab(n, func(i int) error {
		_, err := l.Mutex(nameOf(i)).Lock(ctx)
		return err
	})
	if err != nil {
		return side{}, errors.Join(err, l.Close())
	}
	return side{func(ctx context.Context, d time.Duration) (measure.Sample, error) {
		_, _ = w.begin() // the end of the round reports a loss
		began, spent := time.Now(), measure.Meter(b.commands(ctx))
		err := measure.Pause(ctx, max(d, ttl))
		s, lost := w.begin()
		s.Elapsed, s.Spent = time.Since(began), spent()
		return s, errors.Join(lost, err)
	}, l.Close}, nil
}
