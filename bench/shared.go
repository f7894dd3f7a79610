package bench

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

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
