package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	"github.com/fencelock/fencelock/fence"
)

func ExampleOpen() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://?ttl=15s") // a server's URL in earnest
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	lease, err := locks.Mutex("jobs/nightly").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lease.Name(), lease.Err() == nil)
	if err := lease.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("unlocked:", errors.Is(lease.Err(), fencelock.ErrReleased))
	// Output:
	// held: jobs/nightly true
	// unlocked: true
}

func ExampleLocker_Do() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = locks.Do(ctx, "accounts/7", func(ctx context.Context, lease *fencelock.Lease) error {
		// ctx ends with the lease; the token goes along with every write.
		fmt.Println("writing with a token:", lease.Token() > 0)
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// writing with a token: true
	// error: <nil>
}

func ExampleLocker_LockAll() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://") // a server's URL in earnest
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	accounts, err := locks.LockAll(ctx, "account/7", "account/3")
	if err != nil {
		log.Fatal(err)
	}
	held, cancel := accounts.Context(ctx) // ends when the first of them is lost
	defer cancel()
	fmt.Println("both are held:", held.Err() == nil)
	if err := accounts.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("unlocked:", errors.Is(accounts.Err(), fencelock.ErrReleased))
	// Output:
	// both are held: true
	// unlocked: true
}

// A catalogue that many read and one job rebuilds.
func ExampleLocker_RWMutex() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	catalogue := locks.RWMutex("catalogue")
	one, err := catalogue.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	another, err := catalogue.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("two read, with one token:", one.Token() == another.Token())
	_, err = catalogue.TryLock(ctx)
	fmt.Println("a writer has to wait:", errors.Is(err, fencelock.ErrLocked))
	if err := errors.Join(one.Unlock(ctx), another.Unlock(ctx)); err != nil {
		log.Fatal(err)
	}
	// Output:
	// two read, with one token: true
	// a writer has to wait: true
}

// Two at a time may use a service, and each has a part of it.
func ExampleLocker_Semaphore() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	printers := locks.Semaphore("printers", 2)
	for range 2 {
		lease, err := printers.Acquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock(ctx)
		fmt.Println("prints on", fence.Slot("printer", lease.Slot()))
	}
	_, err = printers.TryAcquire(ctx)
	fmt.Println("a third has to wait:", errors.Is(err, fencelock.ErrLocked))
	// Output:
	// prints on printer#0
	// prints on printer#1
	// a third has to wait: true
}

func ExampleMutex_TryLock() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	job := locks.Mutex("jobs/nightly")
	lease, err := job.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = job.TryLock(ctx)
	fmt.Println("somebody is at it already:", errors.Is(err, fencelock.ErrLocked))
	if err := lease.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// somebody is at it already: true
}

func ExampleLease_Context() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	// Held for no more than 50 ms, whatever the work does.
	lease, err := locks.Mutex("report", fencelock.WithMaxHold(50*time.Millisecond)).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	held, cancel := lease.Context(ctx)
	defer cancel()

	<-held.Done() // the work
	var lost *fencelock.LostError
	if errors.As(context.Cause(held), &lost) {
		fmt.Println("lost:", lost.Reason)
	}
	fmt.Println("unlock:", errors.Is(lease.Unlock(ctx), fencelock.ErrLost))
	// Output:
	// lost: maximum hold reached
	// unlock: true
}

func ExampleWithReentrancy() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithReentrancy())
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = locks.Do(ctx, "accounts/7", func(ctx context.Context, outer *fencelock.Lease) error {
		// ctx carries the lease, so that a function which locks by itself can be called.
		return locks.Do(ctx, "accounts/7", func(_ context.Context, inner *fencelock.Lease) error {
			fmt.Println("the same hold:", inner.Token() == outer.Token())
			return nil
		})
	})
	fmt.Println("error:", err)
	// Output:
	// the same hold: true
	// error: <nil>
}

func ExampleRequire() {
	ctx := context.Background()
	// What a program needs is said where it opens its backend, so that a change of
	// the URL cannot take it away unnoticed.
	locks, err := fencelock.Open(ctx, "memory://",
		fencelock.Require(fencelock.Need{Fencing: fencelock.Anchored, FIFO: true}))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	_, err = fencelock.Open(ctx, "memory://", fencelock.Require(fencelock.Need{SurvivesNode: true}))
	fmt.Println("refused:", errors.Is(err, fencelock.ErrUnsupported))
	// Output:
	// refused: true
}

func ExampleLeaseFrom() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	save := func(ctx context.Context) {
		if lease, ok := fencelock.LeaseFrom(ctx); ok {
			fmt.Println("saved under", lease.Name())
		}
	}
	err = locks.Do(ctx, "accounts/7", func(ctx context.Context, _ *fencelock.Lease) error {
		save(ctx)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// saved under accounts/7
}

func ExampleWithoutLease() {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	done := make(chan error)
	err = locks.Do(ctx, "report", func(ctx context.Context, _ *fencelock.Lease) error {
		// The job is not part of this hold: it waits for the lock, and outlives the lease.
		job := context.WithoutCancel(fencelock.WithoutLease(ctx))
		go func() {
			done <- locks.Do(job, "report", func(context.Context, *fencelock.Lease) error {
				fmt.Println("sent")
				return nil
			})
		}()
		fmt.Println("written")
		return nil
	})
	fmt.Println(errors.Join(err, <-done))
	// Output:
	// written
	// sent
	// <nil>
}
