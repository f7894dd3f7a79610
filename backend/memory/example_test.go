package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/memory"
)

// Two Lockers over one store exclude each other, as two processes do over a server.
func Example() {
	ctx := context.Background()
	store, err := memory.New()
	if err != nil {
		log.Fatal(err)
	}
	other, err := store.Client("")
	if err != nil {
		log.Fatal(err)
	}
	here, err := fencelock.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer here.Close()
	there, err := fencelock.New(other)
	if err != nil {
		log.Fatal(err)
	}
	defer there.Close()

	err = here.Do(ctx, "jobs/nightly", func(ctx context.Context, _ *fencelock.Lease) error {
		_, err := there.Mutex("jobs/nightly").TryLock(ctx)
		fmt.Println("held here:", errors.Is(err, fencelock.ErrLocked))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// held here: true
}
