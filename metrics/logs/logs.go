// Package logs writes what a Locker does to a [slog.Logger]:
//
//	l, err := fencelock.Open(ctx, url, fencelock.WithObserver(logs.New(slog.Default())))
//
// The message is "lock " and the kind of the event in words. The attributes are backend, name,
// owner, and where the event has them mode (unless that is exclusive), slot (of a permit), token, took,
// reason, margin and err. No secret is in any of
// them.
package logs

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fencelock/fencelock"
)

// Observer logs events. Its methods may be called by many goroutines.
type Observer struct {
	to *slog.Logger
}

// New returns an Observer that logs to a logger; nil means slog.Default() at the time of each
// event. What is logged is the logger's to choose, by the level: see Level.
func New(to *slog.Logger) *Observer { return &Observer{to} }

// Observe logs an event with the context that it came with, so that a handler can add its trace. It is
// for the Locker to call.
func (o *Observer) Observe(ctx context.Context, e fencelock.Event) {
	to, level := o.to, Level(e)
	if to == nil {
		to = slog.Default()
	}
	if !to.Enabled(ctx, level) {
		return
	}
	as := make([]slog.Attr, 0, 10)
	as = append(as, slog.String("backend", e.Backend), slog.String("name", e.Name), slog.String("owner", e.Owner))
	if e.Mode != fencelock.Exclusive {
		as = append(as, slog.String("mode", e.Mode.String()))
	}
	if e.Token != 0 && e.Mode == fencelock.Permit {
		as = append(as, slog.Int("slot", e.Slot))
	}
	if e.Token != 0 {
		as = append(as, slog.Int64("token", int64(e.Token)))
	}
	if e.Kind != fencelock.Left {
		as = append(as, slog.Duration("took", e.Took))
	}
	if e.Kind == fencelock.Lost {
		as = append(as, slog.String("reason", e.Reason.String()))
		if e.Reason == fencelock.Expired || e.Reason == fencelock.MaxHold {
			as = append(as, slog.Duration("margin", e.Margin))
		}
	}
	if e.Err != nil {
		as = append(as, slog.String("err", e.Err.Error()))
	}
	to.LogAttrs(ctx, level, "lock "+e.Kind.String(), as...)
}

// Level returns how loudly an event is logged. Error: a lease was lost, or the writes of its
// transaction were. Warn: the store does not answer, a lease ran into its WithMaxHold, or the
// program made a mistake (a bad name, a deadlock, a second Unlock). Info: a wait ended without the
// lock. Debug: everything that is in order, and what only follows from something else.
func Level(e fencelock.Event) slog.Level {
	switch e.Kind {
	case fencelock.Lost:
		if e.Reason == fencelock.MaxHold {
			return slog.LevelWarn
		}
		return slog.LevelError
	case fencelock.Released:
		if e.Err != nil {
			return slog.LevelError
		}
	case fencelock.NotAcquired:
		return notAcquired(e.Err)
	case fencelock.RenewFailed:
		if !errors.Is(e.Err, fencelock.ErrReleased) && !errors.Is(e.Err, fencelock.ErrLost) {
			return slog.LevelWarn
		}
	case fencelock.NotReleased:
		if _, undone := errors.AsType[*fencelock.UndoneError](e.Err); undone {
			return slog.LevelError
		}
		return slog.LevelWarn
	default: // in order
	}
	return slog.LevelDebug
}

// notAcquired is the Level of a failed Lock or TryLock.
func notAcquired(err error) slog.Level {
	switch {
	case errors.Is(err, fencelock.ErrUnavailable):
		return slog.LevelWarn
	case errors.Is(err, fencelock.ErrClosed):
		return slog.LevelDebug
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return slog.LevelInfo
	case errors.Is(err, fencelock.ErrLocked):
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
