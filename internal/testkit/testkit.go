// Package testkit has the steps of the drivers' tests: they open Lockers, take locks, wait, look and unlock.
package testkit

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// patience is how long Get waits for a lock that is free, or soon will be.
const patience = 20 * time.Second

// Open returns a Locker of its own: one more client of the store.
func Open(t testing.TB, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	Must(t, err)
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its server away
	return l
}

// Proxied puts a fault proxy in front of a server.
func Proxied(t testing.TB, addr string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(addr)
	Must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Want fails the test unless err matches target.
func Want(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// Await returns when ok does, and fails the test if that takes too long.
func Await(t testing.TB, most time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// Within is a ctx of the test that ends after d.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Locks is a method that locks, as Mutex.Lock.
type Locks func(context.Context) (*fencelock.Lease, error)

// Get takes a lock that is free, or soon will be.
func Get(t testing.TB, lock Locks) *fencelock.Lease {
	t.Helper()
	le, err := lock(Within(t, patience))
	Must(t, err)
	return le
}

// Lock is Get of a Mutex.
func Lock(t testing.TB, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	return Get(t, m.Lock)
}

// Unlock frees a lock that is surely held.
func Unlock(t testing.TB, le *fencelock.Lease) {
	t.Helper()
	Must(t, le.Unlock(context.WithoutCancel(t.Context())))
}

// Pending is a call that waits for a lock, on a goroutine of its own.
type Pending struct {
	Cancel context.CancelFunc
	Done   chan struct{} // closed when it has returned
	At     time.Time     // when; it and the fields below are valid once Done is closed
	Lease  *fencelock.Lease
	Err    error
}

// Begin begins to wait.
func Begin(t testing.TB, lock Locks) *Pending {
	ctx, cancel := context.WithCancel(t.Context())
	p := &Pending{Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(p.Done)
		p.Lease, p.Err = lock(ctx)
		p.At = time.Now()
	}()
	t.Cleanup(func() { p.Cancel(); <-p.Done })
	return p
}

// Start is Begin of a Mutex.
func Start(t testing.TB, m fencelock.Mutex) *Pending { return Begin(t, m.Lock) }

// Granted returns the lease of a wait, which must have been granted in time.
func (p *Pending) Granted(t testing.TB, most time.Duration) *fencelock.Lease {
	t.Helper()
	select {
	case <-p.Done:
	case <-time.After(most):
		t.Fatalf("not granted within %v", most)
	}
	Must(t, p.Err)
	return p.Lease
}

// Over reports whether a wait has ended.
func (p *Pending) Over() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Lost waits for the end of a lease, which must be for one of the reasons if there are any, and returns when it was
// seen.
func Lost(t testing.TB, le *fencelock.Lease, most time.Duration, reasons ...fencelock.Reason) time.Time {
	t.Helper()
	select {
	case <-le.Done():
	case <-time.After(most):
		t.Fatalf("the loss was not seen within %v", most)
	}
	at := time.Now()
	lost, ok := errors.AsType[*fencelock.LostError](le.Err())
	if !ok || len(reasons) > 0 && !slices.Contains(reasons, lost.Reason) {
		t.Errorf("got %v, want a loss: %v", le.Err(), reasons)
	}
	return at
}
