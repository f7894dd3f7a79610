package controllerruntime_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fencelock/fencelock"
	controllerruntime "github.com/fencelock/fencelock/integrations/controller-runtime"
	"github.com/fencelock/fencelock/leader"
	"github.com/fencelock/fencelock/locktest"
)

var _ manager.LeaderElectionRunnable = controllerruntime.Runnable{}

// A pod has a manager of its own.
type pod struct {
	terms chan context.Context // as they begin
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, m fencelock.Mutex) *pod {
	t.Helper()
	mgr, err := manager.New(&rest.Config{Host: "https://127.0.0.1:1"}, manager.Options{ // nothing asks Kubernetes
		Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p := &pod{terms: make(chan context.Context, 10), stop: stop, ended: make(chan error, 1)}
	err = mgr.Add(controllerruntime.Runnable{Mutex: m, Callbacks: leader.Callbacks{
		Lead: func(ctx context.Context, _ *fencelock.Lease) error {
			p.terms <- ctx
			<-ctx.Done()
			return nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- mgr.Start(ctx) }()
	return p
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

// waits returns when somebody waits for the lock.
func waits(t *testing.T, locks *fencelock.Locker, name string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		info, err := locks.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Waiters > 0 {
			return
		}
	}
	t.Fatal("nobody waits")
}

func TestRunnable(t *testing.T) {
	store := locktest.New(t)
	mutex := func() fencelock.Mutex { return store.Locker(t).Mutex("operator") }
	one := start(t, mutex())
	term := next(t, one.terms)
	two := start(t, mutex())
	waits(t, store.Locker(t), "operator")
	store.Lose("operator")
	if cause := context.Cause(term); !errors.Is(cause, fencelock.ErrLost) {
		t.Errorf("the term ended with %v, want ErrLost", cause)
	}
	term = next(t, two.terms)
	two.stop()
	if err := next(t, two.ended); err != nil {
		t.Errorf("the manager ended with %v", err)
	}
	if term.Err() == nil {
		t.Error("the manager ended before the term")
	}
	next(t, one.terms)
	one.stop()
	if err := next(t, one.ended); err != nil {
		t.Errorf("the manager ended with %v", err)
	}
	store.AssertFree(t, "operator")
}

// An error that trying again cannot mend ends the manager.
func TestBadMutex(t *testing.T) {
	p := start(t, locktest.New(t).Locker(t).Mutex(""))
	if err := next(t, p.ended); !errors.Is(err, fencelock.ErrInvalid) {
		t.Errorf("the manager ended with %v, want ErrInvalid", err)
	}
}
