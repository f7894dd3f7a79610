package fencelock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

// oversleep makes the lease as if the process had been stopped, or the machine
// suspended, for longer than it may be trusted: no timer has fired.
func oversleep(h *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
	h.asked = h.asked.Add(-time.Hour)
}

// sleepy is a driver during whose calls the machine sleeps.
type sleepy struct {
	*memory.Driver
	h *hold // nil: it does not
}

func (d *sleepy) Renew(ctx context.Context, hs []*backend.Hold) []error {
	errs := d.Driver.Renew(ctx, hs)
	if d.h != nil {
		oversleep(d.h)
	}
	return errs
}

func (d *sleepy) Release(ctx context.Context, bh *backend.Hold) error {
	err := d.Driver.Release(ctx, bh)
	if d.h != nil {
		oversleep(d.h)
	}
	return err
}

// sleeper returns a lease, manually renewed, and its driver.
func sleeper(t *testing.T) (*Lease, *sleepy) {
	t.Helper()
	m, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	d := &sleepy{Driver: m}
	l, err := New(d, WithManualRenew())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	le, err := l.Mutex("n").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return le, d
}

// Whatever is looked at first after such a sleep says that the lease is lost.
func TestFirstLookAfterASleep(t *testing.T) {
	looks := map[string]func(ctx context.Context, le *Lease, held context.Context) error{
		"Err":    func(_ context.Context, le *Lease, _ context.Context) error { return le.Err() },
		"Renew":  func(ctx context.Context, le *Lease, _ context.Context) error { return le.Renew(ctx) },
		"Unlock": func(ctx context.Context, le *Lease, _ context.Context) error { return le.Unlock(ctx) },
		"Done": func(_ context.Context, le *Lease, _ context.Context) error {
			<-le.Done()
			return le.h.err
		},
		"the ctx's Err": func(_ context.Context, _ *Lease, held context.Context) error {
			_ = held.Err()
			return context.Cause(held)
		},
		"the ctx's Done": func(_ context.Context, _ *Lease, held context.Context) error {
			<-held.Done()
			return context.Cause(held)
		},
		"a new ctx": func(ctx context.Context, le *Lease, _ context.Context) error {
			c, cancel := le.Context(ctx)
			defer cancel()
			return context.Cause(c)
		},
		"re-entry finds none": func(ctx context.Context, le *Lease, held context.Context) error {
			if _, err := le.h.l.Mutex("n", WithReentrancy()).TryLock(context.WithoutCancel(held)); errors.Is(err, ErrDeadlock) {
				return err
			}
			return le.Err()
		},
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				le, _ := sleeper(t)
				held, cancel := le.Context(t.Context())
				defer cancel()
				oversleep(le.h)
				if err := look(t.Context(), le, held); !errors.Is(err, ErrLost) {
					t.Errorf("got %v, want lost", err)
				}
			})
		})
	}
}

// A store's yes that is seen after the deadline is too late, though no timer has
// said so.
func TestSleepDuringACall(t *testing.T) {
	calls := map[string]func(*Lease, context.Context) error{"renew": (*Lease).Renew, "unlock": (*Lease).Unlock}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				le, d := sleeper(t)
				d.h = le.h
				var lost *LostError
				if err := call(le, t.Context()); !errors.As(err, &lost) || lost.Reason != Expired {
					t.Errorf("got %v, want lost: expired", err)
				}
			})
		})
	}
}
