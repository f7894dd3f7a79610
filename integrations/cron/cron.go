// Package cron runs each tick of a job of github.com/robfig/cron/v3 in one of many processes.
package cron

import (
	"context"
	"errors"

	"github.com/robfig/cron/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/integrations/internal/held"
)

// A Job is a cron.Job for Lock. Its ctx ends with the lease, which it carries for its Token
// (fencelock.LeaseFrom).
type Job func(ctx context.Context)

// Run panics: only Lock calls a Job.
func (Job) Run() {
	panic("cron: a Job is for Lock alone, which must be the last wrapper of its chain")
}

// Lock returns a JobWrapper that runs a job while it holds m, and skips the run if another has it. The
// job is a Job; any other does not hear of a loss, and goes on beside the next holder.
//
//	job := cron.NewChain(cron.Recover(logger), fencecron.Lock(ctx, m, logger)).Then(fencecron.Job(report))
//
// Processes do not tick at the same moment: a job that is quicker than that difference runs once in
// each of them, unless fencelock.WithMinHold keeps m for longer than their clocks and timers differ,
// and for less than the time between two runs.
//
// The end of ctx ends the run, after which the lock is released. logger gets a skipped run as Info, and
// as errors what else TryLock or Unlock returned: fencelock.ErrUnavailable if the store was out, for
// which a run is skipped too, and ErrLost if the run may have overlapped with another. Writes of a
// Job through the lease's own transaction are rolled back if it panicked or its ctx has ended.
func Lock(ctx context.Context, m fencelock.Mutex, logger cron.Logger) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			lease, err := m.TryLock(ctx)
			switch {
			case errors.Is(err, fencelock.ErrLocked):
				logger.Info("skip", "lock", m.Name())
				return
			case err != nil:
				logger.Error(err, "skip", "lock", m.Name())
				return
			}
			defer func() {
				if err := lease.Unlock(ctx); err != nil {
					logger.Error(err, "unlock", "lock", m.Name())
				}
			}()
			_ = held.Run(ctx, lease, func(ctx context.Context) error {
				switch job := job.(type) {
				case Job:
					job(ctx)
				default:
					job.Run()
				}
				return nil
			})
		})
	}
}
