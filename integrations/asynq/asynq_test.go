package asynq_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/fencelock/fencelock"
	fenceasynq "github.com/fencelock/fencelock/integrations/asynq"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/locktest"
)

// A failed task, and why.
type failed chan error

func (f failed) HandleError(_ context.Context, _ *asynq.Task, err error) { f <- err }

// server starts a server of its own on the queue at addr.
func server(t *testing.T, addr string, locks *fencelock.Locker, errs asynq.ErrorHandler, h asynq.HandlerFunc) {
	t.Helper()
	mux := asynq.NewServeMux()
	mux.Use(fenceasynq.Middleware(func(task *asynq.Task) fencelock.Mutex {
		if task.Type() == "free" {
			return nil
		}
		return locks.Mutex("customers/" + string(task.Payload()))
	}))
	mux.HandleFunc("locked", h)
	mux.HandleFunc("free", h)
	again := fenceasynq.RetryDelay(0)
	s := asynq.NewServer(asynq.RedisClientOpt{Addr: addr}, asynq.Config{
		Concurrency: 2, ErrorHandler: errs, IsFailure: fenceasynq.IsFailure, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 10 * time.Millisecond,
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			if !errors.Is(err, fencelock.ErrLocked) {
				return 0 // by default it is some seconds
			}
			return again(n, err, task)
		},
	})
	if err := s.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
}

func queue(t *testing.T, addr string, kind, customer string, opts ...asynq.Option) {
	t.Helper()
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: addr})
	defer client.Close()
	if _, err := client.Enqueue(asynq.NewTask(kind, []byte(customer)), opts...); err != nil {
		t.Fatal(err)
	}
}

func next[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestOneAtATime(t *testing.T) {
	store, addr := locktest.New(t), servers.Redis(t, servers.RedisOptions{}).Addr()
	errs, began, end := make(failed, 1000), make(chan int, 10), make(chan struct{})
	var inside atomic.Int32
	for range 2 {
		server(t, addr, store.Locker(t), errs, func(ctx context.Context, task *asynq.Task) error {
			if _, ok := fencelock.LeaseFrom(ctx); ok != (task.Type() == "locked") {
				t.Errorf("task %s: has a lease: %v", task.Type(), ok)
			}
			if task.Type() == "locked" && inside.Add(1) > 1 {
				t.Error("two at a time")
			}
			retries, _ := asynq.GetRetryCount(ctx)
			began <- retries
			<-end
			if task.Type() == "locked" {
				inside.Add(-1)
			}
			return nil
		})
	}
	queue(t, addr, "locked", "7")
	next(t, began)
	queue(t, addr, "locked", "7")
	for range 3 {
		if err := next(t, errs); !errors.Is(err, fencelock.ErrLocked) {
			t.Fatalf("the second: %v, want ErrLocked", err)
		}
	}
	queue(t, addr, "free", "7") // beside the first
	next(t, began)
	end <- struct{}{}
	end <- struct{}{}
	if retries := next(t, began); retries != 0 {
		t.Errorf("the second has used up %d retries", retries)
	}
	end <- struct{}{}
}

// waits is an Observer that tells of every Lock that begins.
type waits chan struct{}

func (waits) Observe(context.Context, fencelock.Event) {}

func (w waits) Begin(ctx context.Context, e fencelock.Event) context.Context {
	if e.Kind == fencelock.Locking {
		w <- struct{}{}
	}
	return ctx
}

// A task that has no retry left waits for another's lock.
func TestLastTryWaits(t *testing.T) {
	store, addr := locktest.New(t), servers.Redis(t, servers.RedisOptions{}).Addr()
	errs, held, began, waiting := make(failed, 1000), make(chan struct{}), make(chan int, 10), make(waits, 10)
	onError := asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		errs.HandleError(ctx, task, err)
		<-held // before asynq retries it
	})
	locks := store.Locker(t, fencelock.WithObserver(waiting))
	server(t, addr, locks, onError, func(ctx context.Context, _ *asynq.Task) error {
		retries, _ := asynq.GetRetryCount(ctx)
		began <- retries
		if retries == 0 {
			return errors.New("broken")
		}
		return nil
	})
	queue(t, addr, "locked", "7", asynq.MaxRetry(1))
	next(t, errs)
	next(t, began)
	free := store.Hold("customers/7")
	close(held)
	select {
	case <-waiting:
	case err := <-errs:
		t.Fatalf("the last try ended with %v, want it to wait for the lock", err)
	case <-time.After(10 * time.Second):
		t.Fatal("the last try did not begin")
	}
	free()
	if retries := next(t, began); retries != 1 {
		t.Errorf("the handler ran for retry %d, want 1", retries)
	}
}

func TestLoss(t *testing.T) {
	store, addr := locktest.New(t), servers.Redis(t, servers.RedisOptions{}).Addr()
	errs, done, runs := make(failed, 1000), make(chan struct{}), 0
	server(t, addr, store.Locker(t), errs, func(ctx context.Context, _ *asynq.Task) error {
		if runs++; runs > 1 {
			close(done)
			return nil
		}
		store.Lose("customers/7")
		if cause := context.Cause(ctx); !errors.Is(cause, fencelock.ErrLost) {
			t.Errorf("ctx ended with %v, want ErrLost", cause)
		}
		return nil // it has not looked
	})
	queue(t, addr, "locked", "7")
	if err := next(t, errs); !errors.Is(err, fencelock.ErrLost) || !fenceasynq.IsFailure(err) {
		t.Errorf("the task ended with %v, want ErrLost", err)
	}
	next(t, done)
}

// What a task wrote that failed, panicked, or returned after its time was over, is rolled back.
func TestFailedTaskIsUndone(t *testing.T) {
	fault := errors.New("broken")
	for name, tt := range map[string]struct {
		task func(stop context.CancelFunc) error
		want error // of the task, as it is
		undo bool
	}{
		"returns":  {func(context.CancelFunc) error { return nil }, nil, false},
		"fails":    {func(context.CancelFunc) error { return fault }, fault, true},
		"is ended": {func(stop context.CancelFunc) error { stop(); return nil }, nil, true},
		"panics":   {func(context.CancelFunc) error { panic(fault) }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, x := testkit.Ledgers(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			defer func() {
				_ = recover()
				if (x.Undone != nil) != tt.undo {
					t.Errorf("undone by %v, want any: %v", x.Undone, tt.undo)
				}
			}()
			lock := fenceasynq.Middleware(func(*asynq.Task) fencelock.Mutex { return l.Mutex("customers/7") })
			err := lock(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return tt.task(stop) })).
				ProcessTask(ctx, asynq.NewTask("locked", nil))
			if tt.want != nil && err != tt.want {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}
