package conformance_test

import (
	"context"
	"fmt"
	"log"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/conformance"
)

// Two rules for a driver that is being written. Its test calls Run, for all of them.
func ExampleReport() {
	store, err := memory.New()
	if err != nil {
		log.Fatal(err)
	}
	harness := conformance.Harness{
		Name: "mystore",
		Driver: func(_ context.Context, c conformance.Client) (backend.Driver, error) {
			return store.Client(c.Prefix) // a new client of the same store
		},
	}
	for result := range conformance.Report(context.Background(), harness, "A1", "A5") {
		fmt.Printf("%s (%s) broken: %v\n", result.Rule, result.What, result.Err)
	}
	// Unordered output:
	// A1 (one holder per name) broken: <nil>
	// A5 (TryLock on a held name answers at once) broken: <nil>
}
