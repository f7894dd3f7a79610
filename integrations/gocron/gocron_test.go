package gocron_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/fencelock/fencelock"
	fencegocron "github.com/fencelock/fencelock/integrations/gocron"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/leader"
	"github.com/fencelock/fencelock/locktest"
)

const limit = 10 * time.Second

// A pod has a scheduler of its own, as a process has, with one job that is started by hand.
type pod struct {
	gocron.Job
	scheduler gocron.Scheduler
	began     chan context.Context
	end       chan struct{}
	skipped   chan error // by its lock
	failed    chan error
}

type task = func(context.Context, *fencelock.Lease) error

func newPod(t *testing.T, name string, wrap func(task) func(context.Context) error, opt gocron.SchedulerOption) *pod {
	t.Helper()
	p := &pod{
		began: make(chan context.Context, 1), end: make(chan struct{}),
		skipped: make(chan error, 1), failed: make(chan error, 1),
	}
	var err error
	if p.scheduler, err = gocron.NewScheduler(opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.scheduler.Shutdown() })
	run := wrap(func(ctx context.Context, _ *fencelock.Lease) error {
		p.began <- ctx
		select {
		case <-ctx.Done():
		case <-p.end:
		}
		return nil
	})
	tell := func(to chan error) func(uuid.UUID, string, error) {
		return func(_ uuid.UUID, _ string, err error) { to <- err }
	}
	p.Job, err = p.scheduler.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(run), gocron.WithName(name),
		gocron.WithEventListeners(gocron.AfterLockError(tell(p.skipped)), gocron.AfterJobRunsWithError(tell(p.failed))))
	if err != nil {
		t.Fatal(err)
	}
	p.scheduler.Start()
	return p
}

// byLock returns a pod whose job takes a lock for each run.
func byLock(t *testing.T, store *locktest.Store, opts ...fencelock.Option) *pod {
	t.Helper()
	l := fencegocron.NewLocker(store.Locker(t), "jobs/", opts...)
	wrap := func(fn task) func(context.Context) error { return l.Task("report", fn) }
	return newPod(t, "report", wrap, gocron.WithDistributedLocker(l))
}

func (p *pod) run(t *testing.T) {
	t.Helper()
	if err := p.RunNow(); err != nil {
		t.Fatal(err)
	}
}

func next[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func wantSkip(t *testing.T, p *pod, want error) {
	t.Helper()
	p.run(t)
	if err := next(t, p.skipped); !errors.Is(err, want) {
		t.Errorf("skipped: got %v, want %v", err, want)
	}
}

func TestLocker(t *testing.T) {
	store := locktest.New(t)
	one, two := byLock(t, store), byLock(t, store)
	one.run(t)
	next(t, one.began)
	wantSkip(t, two, fencelock.ErrLocked)
	one.end <- struct{}{}
	for deadline := time.Now().Add(limit); ; { // gocron unlocks after the task, and tells nobody
		two.run(t)
		select {
		case <-two.began:
			two.end <- struct{}{}
			return
		case err := <-two.skipped:
			if !errors.Is(err, fencelock.ErrLocked) || time.Now().After(deadline) {
				t.Fatalf("the lock of a run that has ended: %v", err)
			}
		}
	}
}

// A job without a name of its own has gocron's, by which its Task finds no lease.
func TestUnnamedJob(t *testing.T) {
	l := fencegocron.NewLocker(locktest.New(t).Locker(t), "jobs/")
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(l))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	skipped := make(chan error, 1)
	run := l.Task("report", func(context.Context, *fencelock.Lease) error { return nil })
	j, err := s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(run), gocron.WithEventListeners(
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { skipped <- err })))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if err := j.RunNow(); err != nil {
		t.Fatal(err)
	}
	if err := next(t, skipped); !errors.Is(err, fencelock.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// A job that is quicker than the difference of two ticks.
func TestMinHold(t *testing.T) {
	store := locktest.New(t)
	opt := fencelock.WithMinHold(20 * time.Second)
	one, two := byLock(t, store, opt), byLock(t, store, opt)
	one.run(t)
	next(t, one.began)
	one.end <- struct{}{}
	wantSkip(t, two, fencelock.ErrLocked)
	wantSkip(t, one, fencelock.ErrLocked)
}

func TestLoss(t *testing.T) {
	store := locktest.New(t)
	one, two := byLock(t, store), byLock(t, store)
	one.run(t)
	ctx := next(t, one.began)
	store.Lose("jobs/report")
	if cause := context.Cause(ctx); !errors.Is(cause, fencelock.ErrLost) {
		t.Errorf("ctx ended with %v, want ErrLost", cause)
	}
	if err := next(t, one.failed); !errors.Is(err, fencelock.ErrLost) {
		t.Errorf("the run ended with %v, want ErrLost", err)
	}
	two.run(t)
	next(t, two.began)
	two.end <- struct{}{}
}

func TestOutage(t *testing.T) {
	store := locktest.New(t)
	one := byLock(t, store)
	store.Outage(time.Hour)
	wantSkip(t, one, fencelock.ErrUnavailable)
	store.Outage(0)
	one.run(t)
	next(t, one.began)
	one.end <- struct{}{}
}

func TestShutdown(t *testing.T) {
	store := locktest.New(t)
	one := byLock(t, store)
	one.run(t)
	ctx := next(t, one.began)
	if err := one.scheduler.Shutdown(); err != nil { // waits for the job, and for Unlock
		t.Fatal(err)
	}
	if ctx.Err() == nil {
		t.Error("the ctx of the job goes on")
	}
	store.AssertFree(t, "jobs/report")
}

// A Locker forgets the runs of jobs whose task was made by other means, and names that come once only.
func TestLockerForgetsRuns(t *testing.T) {
	l := fencegocron.NewLocker(locktest.New(t).Locker(t), "jobs/")
	for i := range 1000 {
		lock, err := l.Lock(t.Context(), fmt.Sprint("report ", i))
		if err == nil {
			err = lock.Unlock(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := l.Runs(); got != 0 {
		t.Errorf("it remembers %d runs, want none", got)
	}
}

// The Unlock of a run that has lost its lease leaves the next run its own.
func TestUnlockOfALostRun(t *testing.T) {
	store := locktest.New(t)
	l := fencegocron.NewLocker(store.Locker(t), "jobs/")
	lost, err := l.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	store.Lose("jobs/report")
	next, err := l.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Unlock(t.Context()); !errors.Is(err, fencelock.ErrLost) {
		t.Errorf("Unlock of the first: got %v, want ErrLost", err)
	}
	run := l.Task("report", func(context.Context, *fencelock.Lease) error { return nil })
	if err := errors.Join(run(t.Context()), next.Unlock(t.Context())); err != nil {
		t.Errorf("the second run: %v", err)
	}
}

// A Task outside of a run that has a lease.
func TestTaskWithoutLease(t *testing.T) {
	never := func(context.Context, *fencelock.Lease) error { panic("called") }
	l := fencegocron.NewLocker(locktest.New(t).Locker(t), "")
	if err := l.Task("report", never)(t.Context()); err == nil {
		t.Error("got no error of a Locker")
	}
	if err := new(fencegocron.Elector).Task(never)(t.Context()); err == nil {
		t.Error("got no error of an Elector")
	}
}

func TestElector(t *testing.T) {
	store := locktest.New(t)
	stand := func() (*pod, *fencegocron.Elector, context.CancelFunc, chan error) {
		e := new(fencegocron.Elector)
		ctx, cancel := context.WithCancel(t.Context())
		locks, stood := store.Locker(t), make(chan error)
		go func() { stood <- e.Stand(ctx, locks.Mutex("scheduler"), leader.Callbacks{}) }()
		return newPod(t, "report", e.Task, gocron.WithDistributedElector(e)), e, cancel, stood
	}
	leads := func(e *fencegocron.Elector, want bool) {
		t.Helper()
		for deadline := time.Now().Add(limit); (e.IsLeader(t.Context()) == nil) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it leads: want %v", want)
			}
		}
	}

	one, first, _, _ := stand()
	leads(first, true)
	two, second, cancel, stood := stand()
	if second.IsLeader(t.Context()) == nil {
		t.Error("two lead")
	}
	one.run(t)
	ctx := next(t, one.began)

	store.Lose("scheduler")
	if cause := context.Cause(ctx); !errors.Is(cause, fencelock.ErrLost) {
		t.Errorf("ctx ended with %v, want ErrLost", cause)
	}
	if err := next(t, one.failed); !errors.Is(err, fencelock.ErrLost) {
		t.Errorf("the run ended with %v, want ErrLost", err)
	}
	leads(second, true)
	if first.IsLeader(t.Context()) == nil {
		t.Error("who lost it leads on")
	}
	two.run(t)
	next(t, two.began)

	cancel()
	leads(second, false)
	store.AssertHeld(t, "scheduler") // until the task has ended
	two.end <- struct{}{}
	if err := next(t, stood); !errors.Is(err, context.Canceled) {
		t.Errorf("Stand: %v", err)
	}
	leads(first, true)
}

// What a task wrote that failed, panicked, or outlived the scheduler, is rolled back.
func TestFailedTaskIsUndone(t *testing.T) {
	for name, tt := range map[string]struct {
		task func(stop context.CancelFunc) error
		undo bool
	}{
		"returns":  {func(context.CancelFunc) error { return nil }, false},
		"fails":    {func(context.CancelFunc) error { return errors.New("broken") }, true},
		"is ended": {func(stop context.CancelFunc) error { stop(); return nil }, true},
		"panics":   {func(context.CancelFunc) error { panic("broken") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			locks, x := testkit.Ledgers(t)
			l := fencegocron.NewLocker(locks, "jobs/")
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			lock, err := l.Lock(ctx, "report")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = recover()
				_ = lock.Unlock(ctx)
				if (x.Undone != nil) != tt.undo {
					t.Errorf("undone by %v, want any: %v", x.Undone, tt.undo)
				}
			}()
			_ = l.Task("report", func(context.Context, *fencelock.Lease) error { return tt.task(stop) })(ctx)
		})
	}
}

// gocron gives a function of another Locker such a name.
func TestTaskOfAnotherLocker(t *testing.T) {
	l := fencegocron.NewLocker(locktest.New(t).Locker(t), "jobs/")
	if _, err := l.Lock(t.Context(), "example.com/reports.(*Locker).Task.func1"); err != nil {
		t.Errorf("got %v, want the lock", err)
	}
}
