// Package gocron runs jobs of github.com/go-co-op/gocron/v2 on one of many schedulers: by a lock for
// each run (Locker), or by a leader for all of them (Elector).
//
// A job whose task is made by Locker.Task or Elector.Task gets a ctx that ends with the lease, and the
// lease for its Token. gocron passes neither on to any other task: such a one goes on after a loss,
// beside the run of another scheduler.
package gocron

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/integrations/internal/held"
	"github.com/fencelock/fencelock/leader"
)

// A Locker takes a lock for each run: gocron.WithDistributedLocker.
type Locker struct {
	locks  *fencelock.Locker
	prefix string
	opts   []fencelock.Option

	mu   sync.Mutex
	runs map[string]*fencelock.Lease // by job: of its run, until its Task begins or it is unlocked
}

// NewLocker returns a Locker whose locks are named prefix and the job's name (gocron.WithName), and
// have opts. Schedulers do not tick at the same moment: a job that is quicker than that difference
// runs once on each of them, unless fencelock.WithMinHold keeps its lock for longer than their clocks
// and timers differ, and for less than the time between two runs.
func NewLocker(locks *fencelock.Locker, prefix string, opts ...fencelock.Option) *Locker {
	return &Locker{locks: locks, prefix: prefix, opts: opts, runs: map[string]*fencelock.Lease{}}
}

// Lock implements gocron.Locker. On an error gocron skips the run and calls gocron.AfterLockError: with
// fencelock.ErrLocked if another has the lock, with ErrUnavailable if the store is out. gocron drops
// the error of Unlock: the lock is free after the TTL then, and an Observer of the Locker sees it.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	if strings.HasPrefix(job, taskNames) {
		return nil, fmt.Errorf("%w: the job has no name of its own: give it that of its Task by gocron.WithName",
			fencelock.ErrInvalid)
	}
	lease, err := l.locks.Mutex(l.prefix+job, l.opts...).TryLock(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[job] = lease
	return holding{l, job, lease}, nil
}

// holding is the gocron.Lock of a run: its lease, which the Locker remembers.
type holding struct {
	l     *Locker
	job   string
	lease *fencelock.Lease
}

// Unlock implements gocron.Lock.
func (h holding) Unlock(ctx context.Context) error {
	h.l.mu.Lock()
	if h.l.runs[h.job] == h.lease { // the task was not made by Task
		delete(h.l.runs, h.job)
	}
	h.l.mu.Unlock()
	return h.lease.Unlock(ctx)
}

// Task returns the function of a job, for gocron.NewTask; gocron.WithName gives the job the same name. It calls fn with
// the lease of the run and a ctx that ends with the lease and with gocron's. Its error, which
// gocron.AfterJobRunsWithError sees, is fn's, or else fencelock.ErrLost where the lease was lost. Writes of fn
// through the lease's own transaction are rolled back if it failed, panicked or outlived its ctx.
//
//go:noinline // or taskNames are others
func (l *Locker) Task(job string, fn func(context.Context, *fencelock.Lease) error) func(context.Context) error {
	return func(ctx context.Context) error {
		l.mu.Lock()
		lease := l.runs[job]
		delete(l.runs, job) // for one run only
		l.mu.Unlock()
		if lease == nil {
			return fmt.Errorf("%w: is %q the job's name by gocron.WithName?", errNotHeld, job)
		}
		return held.Run(ctx, lease, func(ctx context.Context) error { return run(ctx, lease, fn) })
	}
}

// taskNames begins the names that gocron itself gives to the functions that Locker.Task returns.
const taskNames = "github.com/fencelock/fencelock/integrations/gocron.(*Locker).Task."

// An Elector lets one scheduler run all jobs: gocron.WithDistributedElector(&elector), and Stand on a
// goroutine.
type Elector struct {
	lease atomic.Pointer[fencelock.Lease]
	tasks sync.RWMutex // read: of each Task
}

// Stand is leader.Run with c, whose Lead it sets. A term ends after the tasks that Task has made and
// that are running: whoever ends ctx shuts the scheduler down as well, which ends theirs.
func (e *Elector) Stand(ctx context.Context, m fencelock.Mutex, c leader.Callbacks) error {
	c.Lead = func(ctx context.Context, lease *fencelock.Lease) error {
		e.lease.Store(lease)
		<-ctx.Done()
		e.lease.Store(nil)
		e.tasks.Lock()
		defer e.tasks.Unlock()
		return nil
	}
	return leader.Run(ctx, m, c)
}

// IsLeader implements gocron.Elector. It asks no server.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.lease.Load(); lease == nil || lease.Err() != nil {
		return errNotHeld
	}
	return nil
}

// Task returns the function of a job, for gocron.NewTask: as Locker.Task, with the lease of the term.
func (e *Elector) Task(fn func(context.Context, *fencelock.Lease) error) func(context.Context) error {
	return func(ctx context.Context) error {
		e.tasks.RLock()
		defer e.tasks.RUnlock()
		return run(ctx, e.lease.Load(), fn)
	}
}

func run(ctx context.Context, lease *fencelock.Lease, fn func(context.Context, *fencelock.Lease) error) error {
	if lease == nil || lease.Err() != nil {
		return errNotHeld
	}
	ctx, cancel := lease.Context(ctx)
	defer cancel()
	if err := fn(ctx, lease); err != nil {
		return err
	}
	return lease.Err()
}

var errNotHeld = errors.New("this scheduler has no lease for the job")
