package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

const (
	heldTTL  = 3 * time.Second // so that a short round sees renewals; more where the backend needs it
	grabbers = 32              // goroutines that acquire what is then held
)

// watcher sees the renewals and losses of the leases that are held.
type watcher struct {
	mu   sync.Mutex
	on   atomic.Bool
	note *clerk
	lost error
}

// Observe implements fencelock.Observer.
func (w *watcher) Observe(_ context.Context, e fencelock.Event) {
	switch e.Kind {
	case fencelock.Lost:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lost = fmt.Errorf("a held lease: %w: %v", fencelock.ErrLost, e.Reason)
	case fencelock.Renewed:
		if w.on.Load() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note.note(e.Took)
		}
	}
}

// hold acquires n leases and returns a function that measures them for d, at least one TTL, and what frees them.
func (b *bed) hold(ctx context.Context, n int) (measure func(ctx context.Context, d time.Duration, commands func() (int64, bool)) (sample, error), free func() error, err error) {
	w := &watcher{note: newClerk()}
	ttl := max(heldTTL, b.traits.MinTTL)
	l, err := b.locker(ctx, fencelock.WithTTL(ttl), fencelock.WithObserver(w))
	if err != nil {
		return nil, nil, err
	}
	var next atomic.Int64
	errs := make([]error, grabbers)
	var wg sync.WaitGroup
	for g := range grabbers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[g] == nil; i = int(next.Add(1)) - 1 {
				_, errs[g] = l.Mutex(nameOf(i)).Lock(ctx)
			}
		})
	}
	wg.Wait()
	if err := first(errs); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return func(ctx context.Context, d time.Duration, commands func() (int64, bool)) (sample, error) {
		return w.watch(ctx, max(d, ttl), n, commands)
	}, l.Close, nil
}

// watch measures for d. An op is one lease held for one second.
func (w *watcher) watch(ctx context.Context, d time.Duration, n int, commands func() (int64, bool)) (sample, error) {
	w.mu.Lock()
	w.note = newClerk()
	w.mu.Unlock()
	before := readMeter(commands)
	began := time.Now()
	w.on.Store(true)
	err := pause(ctx, d)
	w.on.Store(false)
	elapsed := time.Since(began)
	after := readMeter(commands)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.lost, err); err != nil {
		return sample{}, err
	}
	s := gather([]*clerk{w.note})
	s.elapsed, s.held = elapsed, float64(n)*elapsed.Seconds()
	s.since(before, after)
	return s, nil
}
