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

// shared makes the library ready for a case with several holders of one name.
func (b *bed) shared(ctx context.Context, c Case) (side, error) {
	name := nameOf(0)
	if c.Op == Turns {
		reader := measure.Ours(b.one.RWMutex(name).RLocker())
		return handing(reader, measure.Ours(b.two.RWMutex(name))), nil
	}
	clients := []*fencelock.Locker{b.one}
	var opened []*fencelock.Locker
	free := func() error {
		var errs []error
		for _, l := range opened {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	for len(clients) < c.Clients {
		l, err := b.locker(ctx)
		if err != nil {
			return side{}, errors.Join(err, free())
		}
		clients, opened = append(clients, l), append(opened, l)
	}
	all := make([]measure.Mutex, c.Goroutines)
	for i := range all {
		l := clients[i%len(clients)]
		if c.Op == Readers {
			all[i] = measure.Of(l.RWMutex(name).RLock)
		} else {
			all[i] = measure.Of(l.Semaphore(name, permits).Acquire)
		}
	}
	s, err := b.crowding(ctx, c, all)
	if err != nil {
		return side{}, errors.Join(err, free())
	}
	s.free = free
	return s, nil
}

// slots makes the raw store ready for permits: a name for each permit, and a list of the free ones in the process.
func (b *bed) slots(ctx context.Context, c Case) (side, error) {
	list := make(chan measure.Mutex, permits)
	for i := range permits {
		m, err := b.raw.Mutex(ctx, nameOf(i), false)
		if err != nil {
			return side{}, err
		}
		list <- m
	}
	all := make([]measure.Mutex, c.Goroutines)
	for i := range all {
		var mine measure.Mutex
		all[i] = measure.Mutex{
			Lock: func(ctx context.Context) error {
				select {
				case mine = <-list:
				case <-ctx.Done():
					return ctx.Err()
				}
				err := mine.Lock(ctx)
				if err != nil {
					list <- mine
				}
				return err
			},
			Unlock: func(ctx context.Context) error {
				defer func() { list <- mine }()
				return mine.Unlock(ctx)
			},
		}
	}
	return b.crowding(ctx, c, all)
}
