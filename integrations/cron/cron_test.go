package cron_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/fencelock/fencelock"
	fencecron "github.com/fencelock/fencelock/integrations/cron"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/locktest"
)

// logged is a cron.Logger: what it was told, nil for Info.
type logged chan error

func (l logged) Info(string, ...any)                 { l <- nil }
func (l logged) Error(err error, _ string, _ ...any) { l <- err }

// pod starts a process that runs job each minute from now on.
func pod(ctx context.Context, t *testing.T, store *locktest.Store, job cron.Job, opts ...fencelock.Option) logged {
	log := make(logged, 100)
	c := cron.New()
	wrapped := cron.NewChain(
		cron.Recover(cron.DiscardLogger), fencecron.Lock(ctx, store.Locker(t).Mutex("report", opts...), log),
	).Then(job)
	c.Schedule(cron.Every(time.Minute), wrapped)
	c.Start()
	t.Cleanup(func() { <-c.Stop().Done() })
	return log
}

// wait waits until the n-th tick of each pod is over.
func wait(n int) {
	time.Sleep(time.Duration(n)*time.Minute + 40*time.Second)
	synctest.Wait()
}

func TestOneRuns(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []fencelock.Option
		job  func(context.Context)
	}{
		{"long", nil, func(context.Context) { time.Sleep(20 * time.Second) }},
		{"quick", []fencelock.Option{fencelock.WithMinHold(20 * time.Second)}, func(context.Context) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, runs := locktest.New(t), 0
				job := fencecron.Job(func(ctx context.Context) {
					if lease, ok := fencelock.LeaseFrom(ctx); !ok || lease.Token() != fencelock.Token(runs+1) {
						t.Error("the ctx has no lease of this run")
					}
					runs++
					tt.job(ctx)
				})
				one := pod(t.Context(), t, store, job, tt.opts...)
				time.Sleep(10 * time.Second)
				two := pod(t.Context(), t, store, job, tt.opts...)
				wait(3)
				if runs != 3 || len(one)+len(two) != 3 {
					t.Errorf("%d runs and %d skipped, want 3 of each", runs, len(one)+len(two))
				}
				for range len(two) {
					if err := <-two; err != nil {
						t.Errorf("skipped by %v", err)
					}
				}
			})
		})
	}
}

// What a job sees, and what the log is told, by what happens during its first run.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		during  func(store *locktest.Store, stop context.CancelFunc)
		job     error // ends its ctx
		log     error
		stopped bool
	}{
		{
			"loss", func(s *locktest.Store, _ context.CancelFunc) { s.Lose("report") },
			fencelock.ErrLost, fencelock.ErrLost, false,
		},
		{
			"outage", func(s *locktest.Store, _ context.CancelFunc) { s.Outage(50 * time.Second) },
			fencelock.ErrLost, fencelock.ErrLost, false,
		},
		{
			"stop", func(_ *locktest.Store, stop context.CancelFunc) { stop() },
			context.Canceled, context.Canceled, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, ends := locktest.New(t), make(chan error, 10)
				ctx, stop := context.WithCancel(t.Context())
				log := pod(ctx, t, store, fencecron.Job(func(ctx context.Context) {
					if len(ends) == 0 {
						tt.during(store, stop)
						<-ctx.Done()
					}
					ends <- context.Cause(ctx)
				}))
				wait(2)
				if got := <-ends; !errors.Is(got, tt.job) {
					t.Errorf("the job's ctx ended with %v, want %v", got, tt.job)
				}
				if got := <-log; !errors.Is(got, tt.log) {
					t.Errorf("logged %v, want %v", got, tt.log)
				}
				if again := len(ends) == 1; again == tt.stopped {
					t.Errorf("ran again: %v", again)
				}
				store.AssertFree(t, "report")
			})
		})
	}
}

func TestOutageSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, runs := locktest.New(t), 0
		log := pod(t.Context(), t, store, fencecron.Job(func(context.Context) { runs++ }))
		store.Outage(90 * time.Second)
		wait(2)
		if got := <-log; !errors.Is(got, fencelock.ErrUnavailable) {
			t.Errorf("logged %v, want ErrUnavailable", got)
		}
		if runs != 1 {
			t.Errorf("%d runs, want that of the second tick", runs)
		}
	})
}

func TestAnyJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, runs := locktest.New(t), 0
		pod(t.Context(), t, store, cron.FuncJob(func() {
			store.AssertHeld(t, "report")
			runs++
			panic("recovered outside of Lock")
		}))
		wait(2)
		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
		store.AssertFree(t, "report")
	})
}

// A wrapper between Lock and a Job hides it.
func TestJobOutsideOfLock(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a Job runs without a lock")
		}
	}()
	cron.NewChain(cron.SkipIfStillRunning(cron.DiscardLogger)).Then(fencecron.Job(func(context.Context) {})).Run()
}

// What a job wrote that panicked, or that its ctx has ended, is rolled back.
func TestFailedJobIsUndone(t *testing.T) {
	for name, tt := range map[string]struct {
		job  func(stop context.CancelFunc)
		undo bool
	}{
		"returns":  {func(context.CancelFunc) {}, false},
		"is ended": {func(stop context.CancelFunc) { stop() }, true},
		"panics":   {func(context.CancelFunc) { panic("recovered outside of Lock") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, x := testkit.Ledgers(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			cron.NewChain(cron.Recover(cron.DiscardLogger), fencecron.Lock(ctx, l.Mutex("report"), make(logged, 1))).
				Then(fencecron.Job(func(context.Context) { tt.job(stop) })).Run()
			if (x.Undone != nil) != tt.undo {
				t.Errorf("undone by %v, want any: %v", x.Undone, tt.undo)
			}
		})
	}
}
