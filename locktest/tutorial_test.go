package locktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/locktest"
)

// What docs/tutorial.md shows.

func TestTutorialCalls(t *testing.T) {
	ctx, locks := t.Context(), locktest.New(t).Locker(t)

	lease, err := locks.Mutex("report").Lock(ctx) // waits in the queue
	held, stop := lease.Context(ctx)              // ends when the lease is lost
	lost := lease.Unlock(ctx)                     // ErrLost: it had ended before

	defer stop()
	if err != nil || lost != nil || !errors.Is(context.Cause(held), fencelock.ErrReleased) {
		t.Errorf("Lock: %v; Unlock: %v; the cause of held: %v", err, lost, context.Cause(held))
	}
}

func TestTutorialLoss(t *testing.T) {
	store := locktest.New(t)
	locks := store.Locker(t)
	lease, err := locks.Mutex("report").Lock(t.Context())
	store.Lose("report") // an operator breaks it
	<-lease.Done()       // closed; lease.Err() matches fencelock.ErrLost

	if err != nil || !errors.Is(lease.Err(), fencelock.ErrLost) {
		t.Errorf("Lock: %v; Err: %v", err, lease.Err())
	}
}

func TestTutorialGuard(t *testing.T) {
	ctx := t.Context()
	var guard fence.Memory
	first := guard.Check(ctx, "report", 42)  // nil; 42 is remembered
	second := guard.Check(ctx, "report", 41) // matches fencelock.ErrStale

	if first != nil || !errors.Is(second, fencelock.ErrStale) {
		t.Errorf("got %v and %v", first, second)
	}
}
