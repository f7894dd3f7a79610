package locktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/locktest"
)

// Nightly copies every part, as the only one to do so.
func Nightly(
	ctx context.Context, locks *fencelock.Locker, parts []string,
	copyPart func(string, fencelock.Token) error,
) error {
	return locks.Do(ctx, "jobs/nightly", func(ctx context.Context, lease *fencelock.Lease) error {
		for _, part := range parts {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the lock was lost, or the caller gave up
			}
			if err := copyPart(part, lease.Token()); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestNightlyStopsAtALoss(t *testing.T) {
	store := locktest.New(t)
	var copied []string
	err := Nightly(t.Context(), store.Locker(t), []string{"a", "b", "c"},
		func(part string, token fencelock.Token) error {
			copied = append(copied, part)
			if token != 1 {
				t.Errorf("got token %d, want that of the first grant, 1", token)
			}
			if part == "b" {
				store.Lose("jobs/nightly")
			}
			return nil
		})
	if !errors.Is(err, fencelock.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if len(copied) != 2 {
		t.Errorf("copied %q, want nothing after the loss", copied)
	}
	store.AssertFree(t, "jobs/nightly")
}

func TestNightlyRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		defer store.Hold("jobs/nightly")() // another pod
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Nightly(ctx, store.Locker(t), []string{"a"},
			func(string, fencelock.Token) error {
				t.Error("it runs too")
				return nil
			})
		if !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("got %v, want ErrLocked", err)
		}
	})
}

func TestNightlyInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		err := Nightly(t.Context(), store.Locker(t), []string{"a", "b", "c"},
			func(part string, _ fencelock.Token) error {
				if part == "b" {
					store.Outage(10 * time.Minute)
				}
				time.Sleep(time.Minute) // of virtual time
				return nil
			})
		if !errors.Is(err, fencelock.ErrLost) {
			t.Errorf("got %v, want ErrLost: no renewal came through", err)
		}
	})
}

// Stamp marks what is written under a lease.
func Stamp(lease *fencelock.Lease, line string) string { return line + " by " + lease.Owner() }

func TestStamp(t *testing.T) {
	lease := locktest.Lease(t, "report", fencelock.WithOwner("pod-1"))
	if got, want := Stamp(lease, "totals"), "totals by pod-1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
