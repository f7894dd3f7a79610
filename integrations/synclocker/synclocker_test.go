package synclocker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/integrations/synclocker"
	"github.com/fencelock/fencelock/locktest"
)

func TestExcludes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, counter := locktest.New(t), 0
		var all sync.WaitGroup
		for range 4 {
			lock := synclocker.New(store.Locker(t).Mutex("n"), nil)
			for range 10 {
				all.Go(func() {
					lock.Lock()
					defer lock.Unlock()
					seen := counter
					time.Sleep(time.Millisecond)
					counter = seen + 1
				})
			}
		}
		all.Wait()
		if counter != 40 {
			t.Errorf("the counter is %d, want 40", counter)
		}
	})
}

// Lock tries again for as long as fail returns, over an outage that is longer than a wait's patience.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		var failed []error
		lock := synclocker.New(store.Locker(t).Mutex("n"), func(err error) { failed = append(failed, err) })
		store.Outage(12 * time.Second)
		lock.Lock()
		store.AssertHeld(t, "n")
		lock.Unlock()
		if len(failed) == 0 || len(failed) > 3 {
			t.Errorf("fail was called %d times in twelve seconds, want 1 to 3", len(failed))
		}
		for _, err := range failed {
			if !errors.Is(err, fencelock.ErrUnavailable) {
				t.Errorf("fail got %v, want ErrUnavailable", err)
			}
		}
	})
}

func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		var failed error
		lock := synclocker.New(store.Locker(t).Mutex("n"), func(err error) { failed = err })
		lock.Lock()
		store.Lose("n")
		lock.Unlock()
		if !errors.Is(failed, fencelock.ErrLost) {
			t.Errorf("fail got %v, want ErrLost", failed)
		}
		lock.Lock()
		store.AssertHeld(t, "n")
		lock.Unlock()
	})
}

// Close frees the lock, and the Unlock after it is told so.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		locks := store.Locker(t)
		var failed error
		lock := synclocker.New(locks.Mutex("n"), func(err error) { failed = err })
		lock.Lock()
		if err := locks.Close(); err != nil {
			t.Fatal(err)
		}
		store.AssertFree(t, "n")
		lock.Unlock()
		if !errors.Is(failed, fencelock.ErrReleased) {
			t.Errorf("fail got %v, want ErrReleased", failed)
		}
	})
}

// Whoever has lost the lock frees his own lease, and not that of the goroutine which waits for it.
func TestUnlockAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		var failed error
		lock := synclocker.New(store.Locker(t).Mutex("n"), func(err error) { failed = err })
		lock.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			lock.Lock()
			store.AssertHeld(t, "n")
			lock.Unlock()
		}()
		synctest.Wait()
		store.Lose("n")
		synctest.Wait()
		lock.Unlock()
		if !errors.Is(failed, fencelock.ErrLost) {
			t.Errorf("fail got %v, want ErrLost", failed)
		}
		<-done
		store.AssertFree(t, "n")
	})
}

func TestPanics(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T)
		want error
	}{
		{"not locked", func(t *testing.T) { synclocker.New(locktest.New(t).Locker(t).Mutex("n"), nil).Unlock() }, nil},
		{"no such name", func(t *testing.T) {
			synclocker.New(locktest.New(t).Locker(t).Mutex(""), func(error) {}).Lock()
		}, fencelock.ErrInvalid},
		{"nobody hears of the outage", func(t *testing.T) {
			store := locktest.New(t)
			lock := synclocker.New(store.Locker(t).Mutex("n"), nil)
			store.Outage(time.Minute)
			lock.Lock()
		}, fencelock.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					r := recover()
					err, _ := r.(error)
					if r == nil || tt.want != nil && !errors.Is(err, tt.want) {
						t.Errorf("it panicked with %v, want %v", r, tt.want)
					}
				}()
				tt.do(t)
			})
		})
	}
}

func ExampleNew() {
	locks, err := fencelock.Open(context.Background(), "memory://")
	if err != nil {
		panic(err)
	}
	defer locks.Close()

	lock := synclocker.New(locks.Mutex("report"), func(err error) { fmt.Println(err) })
	lock.Lock()
	fmt.Println("one at a time, whatever the process")
	lock.Unlock()
	// Output: one at a time, whatever the process
}
