package bench

import (
	"context"
	"time"

	"github.com/fencelock/fencelock"
)

const (
	// settle is how long a waiter has, once it stands in the queue, to come to rest: to have its watch or subscription.
	settle = 10 * time.Millisecond
	look   = time.Millisecond // between two looks whether it does
)

// handovers hands a name over again and again for d, and twice at least, so that each client is once the waiter.
func handovers(ctx context.Context, r *relay, d time.Duration) (sample, error) {
	c := newClerk()
	for began := time.Now(); c.ops < 2 || time.Since(began) < d; {
		if err := r.arm(ctx); err != nil {
			return sample{}, err
		}
		if err := pause(ctx, settle); err != nil {
			return sample{}, err
		}
		took, err := r.fire(ctx)
		if err != nil {
			return sample{}, err
		}
		c.note(took)
	}
	s := gather([]*clerk{c})
	// The rate of a wait of that length, without the pauses.
	s.elapsed = time.Duration(float64(s.ops) * float64(s.latency.ValueAtQuantile(50)))
	return s, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// relay hands a lock from one client of the bed to the other; they change places each time.
func (b *bed) relay(name string) *relay {
	holder, waiter := b.one.Mutex(name), b.two.Mutex(name)
	var held, next *fencelock.Lease
	return &relay{
		hold: func(ctx context.Context) (err error) {
			holder, waiter = waiter, holder
			held, err = holder.Lock(ctx)
			return err
		},
		free: func(ctx context.Context) error { return held.Unlock(ctx) },
		wait: func(ctx context.Context) (err error) {
			next, err = waiter.Lock(ctx)
			return err
		},
		after: func(ctx context.Context) error { return next.Unlock(ctx) },
		seen: func(ctx context.Context) error {
			for {
				info, err := b.one.Inspect(ctx, name)
				if err != nil || info.Waiters != 0 { // -1: the store cannot tell, so the pause that follows must do
					return err
				}
				if err := pause(ctx, look); err != nil {
					return err
				}
			}
		},
	}
}
