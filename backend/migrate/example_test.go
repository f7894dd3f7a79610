package migrate_test

import (
	"context"
	"fmt"
	"log"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/backend/migrate"
)

// The middle one of the three deploys: every lock is taken in the old store, then in the new one. Package config
// makes the same of a configuration file.
func ExampleNew() {
	ctx := context.Background()
	from, err := memory.New() // the old store's driver
	if err != nil {
		log.Fatal(err)
	}
	to, err := memory.New() // the new store's
	if err != nil {
		log.Fatal(err)
	}
	driver, err := migrate.New(ctx, migrate.Options{
		Move:  "jobs-to-etcd",
		Scope: backend.Scope{{Match: "jobs/*"}},
		Phase: backend.PhaseBoth,
		From:  from,
		To:    to,
	})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = locks.Do(ctx, "jobs/nightly", func(ctx context.Context, _ *fencelock.Lease) error {
		inOld, err := from.Inspect(ctx, "jobs/nightly")
		if err != nil {
			return err
		}
		inNew, err := to.Inspect(ctx, "jobs/nightly")
		fmt.Println("held in the old store:", inOld.Held, "in the new one:", inNew.Held)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// held in the old store: true in the new one: true
}
