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
		for what, store := range map[string]backend.Driver{"old": from, "new": to} {
			for info, err := range store.Look(ctx, backend.Range{Name: "jobs/nightly"}) {
				if err != nil {
					return err
				}
				fmt.Printf("held in the %s store: %t\n", what, info.Held)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// held in the old store: true
	// held in the new store: true
}
