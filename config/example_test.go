package config_test

import (
	"context"
	"fmt"
	"strings"

	_ "github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/config"
)

func ExampleLoad() {
	cfg, err := config.Load(strings.NewReader(`
backends:
  here: {url: "memory://", ttl: 15s}
locks:
  - {match: "dedup/*", scenario: deduplication, backend: here}
  - {match: "orders/*", scenario: general, backend: here}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	locks, err := cfg.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	lease, err := locks.Mutex("orders/4711").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locked", lease.Name())
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// locked orders/4711
	// <nil>
}

// A backend that cannot carry a scenario is found when the file is loaded.
func ExampleLoad_refused() {
	_, err := config.Load(strings.NewReader(`backends:
  rows: {url: "postgres://db/app?mode=lease"}
locks:
  - {match: "ledger/*", scenario: transactional, backend: rows}
`))
	lines := strings.NewReplacer("; ", ";\n", ". ", ".\n", " (", "\n(", " needs ", "\nneeds ")
	fmt.Println(lines.Replace(err.Error()))
	// Output:
	// config:4:59: rule "ledger/*": scenario transactional
	// (the write is in Postgres: it commits with the unlock, or not at all)
	// needs a lock that is part of the database transaction that writes
	// (Transactional);
	// backend "rows" is postgres-lease, and does not have that.
	// These backends can carry it: postgres-row
	// (url postgres://host/db?mode=row), postgres-advisory
	// (url postgres://host/db?mode=advisory).
	// Point the rule at one of them, or choose a scenario that asks less
}
