package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/leader"
)

// Locker lets one of many schedulers run each job: gocron.WithDistributedLocker(Locker{…}). A run
// that another scheduler has is skipped. The job itself does not see the lease: one that must stop
// with it, or needs the token, locks by itself with Locks.Do.
type Locker struct {
	Locks  *fencelock.Locker
	Prefix string // before the job's name
	// Least is how long the lock of a run is kept, also when the job is done earlier: longer than
	// the schedulers' clocks and timers differ, shorter than the time between two runs. Otherwise a
	// quick job runs once more on a scheduler whose tick comes later.
	Least time.Duration
}

// Lock implements gocron.Locker.
func (l Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := l.Locks.Mutex(l.Prefix + job).TryLock(ctx)
	if err != nil {
		return nil, err
	}
	return lock{lease, time.Now().Add(l.Least)}, nil
}

type lock struct {
	lease *fencelock.Lease
	least time.Time
}

// Unlock implements gocron.Lock. What is still kept when the program ends is freed by Locks.Close.
func (l lock) Unlock(ctx context.Context) error {
	left := time.Until(l.least)
	if left <= 0 {
		return l.lease.Unlock(ctx)
	}
	time.AfterFunc(left, func() { _ = l.lease.Unlock(context.WithoutCancel(ctx)) })
	return nil
}

// Elector lets one scheduler run all jobs: gocron.WithDistributedElector(&elector), and Stand on a goroutine.
type Elector struct {
	lease atomic.Pointer[fencelock.Lease]
}

// Stand stands for election until ctx ends.
func (e *Elector) Stand(ctx context.Context, m fencelock.Mutex) error {
	return leader.Run(ctx, m, leader.Callbacks{
		Lead: func(ctx context.Context, lease *fencelock.Lease) error {
			e.lease.Store(lease)
			defer e.lease.Store(nil)
			<-ctx.Done()
			return nil
		},
	})
}

// IsLeader implements gocron.Elector.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.lease.Load(); lease == nil || lease.Err() != nil {
		return errors.New("another scheduler leads")
	}
	return nil
}
