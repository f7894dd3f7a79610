// Package locktest tests code that locks: a store in memory whose locks a test can lose, expire,
// give to somebody else, and make unavailable.
//
//	store := locktest.New(t)
//	locks := store.Locker(t) // what the code under test gets
//
//	store.Lose("jobs/nightly")   // the holder loses its lease now
//	store.AssertFree(t, "jobs/nightly")
//
// Tokens are 1, 2, 3 and so on, in the order of the grants of all names of one Store. A loss takes
// microseconds. What takes longer, such as a renewal, is tested in virtual time: a Store that is
// made in a bubble of testing/synctest follows the clock of the bubble, and so do its Lockers.
//
// Code that takes a *fencelock.Lease and no more gets one from [Lease].
package locktest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
)

// somebody is the owner of what Hold holds.
const somebody = "locktest: somebody else"

// forever is longer than any test takes, also in virtual time.
const forever = 100 * 365 * 24 * time.Hour

// Store is a store of locks in memory. All its Lockers and Drivers exclude each other, as programs
// with one server do. Its methods may be called from many goroutines; those that fail the test
// (Lose, Expire, Hold) from the test's own goroutine only, as t.Fatal.
type Store struct {
	t     testing.TB
	data  *memory.Driver // what the store has, whether or not it answers
	calls core.Caller    // of it

	mu   sync.Mutex
	back time.Time // the end of the last outage
}

// New returns an empty Store. t is the test that fails where Lose, Expire or Hold cannot be done.
func New(t testing.TB) *Store {
	data := memory.NewCounting()
	return &Store{t: t, data: data, calls: core.Of(data)}
}

// Driver returns another client of the store, for fencelock.New, which refuses what wraps it. It has
// the Traits of the memory backend.
func (s *Store) Driver() backend.Driver { return core.Composite{Caller: &client{s.calls, s}} }

// Locker returns a new Locker of the store. It is closed when t ends, after the store was made to
// answer again.
func (s *Store) Locker(t testing.TB, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.New(s.Driver(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Outage(0)
		if err := l.Close(); err != nil {
			t.Errorf("locktest: %v", err)
		}
	})
	return l
}

// Lose breaks the lock, as an operator does. Before it returns, the holder's lease is lost with
// Reason Revoked, its contexts are cancelled, and the lock has gone to the first who waits for it
// or is free. It works during an Outage too. The test fails if nobody holds the lock.
func (s *Store) Lose(name string) {
	s.t.Helper()
	info := s.inspect(s.t, name)
	if !info.Held {
		s.t.Fatalf("locktest: Lose(%q): nobody holds this lock", name)
	}
	if err := s.data.Break(context.Background(), name); err != nil {
		s.t.Fatalf("locktest: Lose(%q): %v", name, err)
	}
}

// Expire ends the lease as though it had not been renewed until TTL and grace were over. Before it
// returns, the holder's lease is lost with Reason Expired, its contexts are cancelled, and the lock
// has gone to the first who waits for it or is free. It works during an Outage too. The test fails
// if nobody holds the lock.
func (s *Store) Expire(name string) {
	s.t.Helper()
	if !s.data.Expire(name) {
		s.t.Fatalf("locktest: Expire(%q): nobody holds this lock", name)
	}
}

// Hold makes somebody else the holder, until the returned function is called. It takes a token.
// The test fails if the lock is held already. Calling the function again, or after Lose or Expire,
// does nothing.
func (s *Store) Hold(name string) (free func()) {
	s.t.Helper()
	r := &backend.Request{Name: name, Nonce: core.Nonce(), Owner: somebody, TTL: forever, Lost: func(error) {}}
	if err := backend.CheckName(name); err != nil {
		s.t.Fatalf("locktest: Hold: %v", err)
	}
	g, err := s.calls.Acquire(context.Background(), r)
	if err != nil {
		info := s.inspect(s.t, name)
		s.t.Fatalf("locktest: Hold(%q): %v: %s", name, err, info.Owner)
	}
	h := &core.Hold{Request: r, Grant: g}
	return func() { _ = s.calls.Release(context.Background(), h) } // lost is gone, too
}

// Outage makes the store unreachable for d from now on, instead of for what was left of an outage
// before; 0 ends one. It returns at once. Meanwhile the store answers nothing: calls match
// fencelock.ErrUnavailable, leases are not renewed and are lost at their Deadline, and a Lock waits
// for up to 5 s for the store to come back. What the store has it keeps, and leases run out in it.
func (s *Store) Outage(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = time.Now().Add(d)
}

// outage is errOutage during an outage.
func (s *Store) outage() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.back) {
		return errOutage
	}
	return nil
}

// AssertHeld fails the test, which goes on, if nobody holds the lock.
func (s *Store) AssertHeld(t testing.TB, name string) {
	t.Helper()
	if !s.inspect(t, name).Held {
		t.Errorf("locktest: %q is free, want it held", name)
	}
}

// AssertFree fails the test, which goes on, if somebody holds the lock.
func (s *Store) AssertFree(t testing.TB, name string) {
	t.Helper()
	if info := s.inspect(t, name); info.Held {
		t.Errorf("locktest: %q is held by %s with token %d, want it free", name, info.Owner, info.Token)
	}
}

// inspect looks past an outage.
func (s *Store) inspect(t testing.TB, name string) backend.Info {
	t.Helper()
	info, err := s.calls.Inspect(context.Background(), name)
	if err != nil {
		t.Fatalf("locktest: %v", err)
	}
	return info
}

// Lease returns a lease with token 1 in a store of its own, for code that takes a lease. It is
// released when t ends. The options are those of the Locker. Code whose lease is to be lost gets it
// from a Locker of a [Store].
func Lease(t testing.TB, name string, opts ...fencelock.Option) *fencelock.Lease {
	t.Helper()
	le, err := New(t).Locker(t, opts...).Mutex(name).TryLock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return le
}
