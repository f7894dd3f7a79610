// Package asynq lets one task of a kind run at a time, on all servers of github.com/hibiken/asynq.
//
//	mux.Use(fenceasynq.Middleware(func(t *asynq.Task) fencelock.Mutex {
//		return locks.Mutex("customers/" + string(t.Payload()))
//	}))
//	asynq.Config{IsFailure: fenceasynq.IsFailure, RetryDelayFunc: fenceasynq.RetryDelay(10 * time.Second)}
package asynq

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/integrations/internal/held"
)

// Middleware returns an asynq.MiddlewareFunc that processes a task while it holds the Mutex that mutex
// returns for it, or nil for none. The ctx of the task ends with the lease too, which it carries for its
// Token (fencelock.LeaseFrom).
//
// A task whose lock another has gives its worker back at once, with fencelock.ErrLocked, and is retried. asynq would
// archive one that has no retry left: that one waits for the lock, as long as its timeout allows.
// The error of a task is joined with that of Unlock, so that asynq retries it: ErrLost if the task may
// have overlapped with another; ErrUnavailable if the store is out, and the lock is free after the TTL
// only. Where asynq gives a task up (its timeout, a shutdown), the lock is held until it has returned.
// Writes of a task through the lease's own transaction (Traits.Transactional) are rolled back if it
// failed, panicked or outlived its ctx.
func Middleware(mutex func(*asynq.Task) fencelock.Mutex) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
			m := mutex(task)
			if m == nil {
				return next.ProcessTask(ctx, task)
			}
			lock := m.TryLock
			retried, _ := asynq.GetRetryCount(ctx)
			if most, ok := asynq.GetMaxRetry(ctx); ok && retried >= most {
				lock = m.Lock
			}
			lease, err := lock(ctx)
			if err != nil {
				return err
			}
			defer func() {
				unlocked := lease.Unlock(ctx)
				if err == nil || !errors.As(unlocked, new(*fencelock.UndoneError)) { // else err has undone it
					err = errors.Join(err, unlocked)
				}
			}()
			return held.Run(ctx, lease, func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
		})
	}
}

// IsFailure is for asynq.Config: that another has the lock is no failure, and uses up no retry.
func IsFailure(err error) bool { return err != nil && !errors.Is(err, fencelock.ErrLocked) }

// RetryDelay is for asynq.Config: a task whose lock another has is retried after locked, any other as by
// default.
func RetryDelay(locked time.Duration) asynq.RetryDelayFunc {
	return func(n int, err error, task *asynq.Task) time.Duration {
		if errors.Is(err, fencelock.ErrLocked) {
			return locked
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
}
