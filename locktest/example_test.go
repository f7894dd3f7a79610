package locktest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/locktest"
)

// inTest stands in for the *testing.T of a test, which an example has not.
type inTest struct {
	testing.TB
	cleanups []func()
}

func (t *inTest) Helper()           {}
func (t *inTest) Cleanup(fn func()) { t.cleanups = append(t.cleanups, fn) }
func (t *inTest) end() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

// The loss of a lock in the middle of a job.
func ExampleStore_Lose() {
	t := &inTest{} // in a test: t *testing.T
	defer t.end()

	store := locktest.New(t)
	locks := store.Locker(t)
	job := func(ctx context.Context, lease *fencelock.Lease) error {
		fmt.Println("token", lease.Token())
		store.Lose("jobs/nightly")
		<-ctx.Done()
		return context.Cause(ctx)
	}
	err := locks.Do(context.Background(), "jobs/nightly", job)
	fmt.Println(err)
	store.AssertFree(t, "jobs/nightly")
	// Output:
	// token 1
	// lease lost: revoked
}

// Somebody else holds the lock.
func ExampleStore_Hold() {
	t := &inTest{} // in a test: t *testing.T
	defer t.end()

	store := locktest.New(t)
	m := store.Locker(t).Mutex("jobs/nightly")
	free := store.Hold("jobs/nightly")
	_, err := m.TryLock(context.Background())
	fmt.Println(err)
	free()
	lease, err := m.TryLock(context.Background())
	fmt.Println("token", lease.Token(), err)
	// Output:
	// fencelock: trylock "jobs/nightly" (memory): locked by another holder
	// token 2 <nil>
}

// The store is away for a while.
func ExampleStore_Outage() {
	t := &inTest{} // in a test: t *testing.T
	defer t.end()

	store := locktest.New(t)
	m := store.Locker(t).Mutex("jobs/nightly")
	store.Outage(time.Minute)
	_, err := m.TryLock(context.Background())
	fmt.Println(err)
	store.Outage(0)
	_, err = m.TryLock(context.Background())
	fmt.Println(err)
	// Output:
	// fencelock: trylock "jobs/nightly" (memory): store unavailable: locktest: an Outage of the store
	// <nil>
}
