package postgres_test

import (
	"flag"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/internal/machine"
)

// TestMain fails the package if a goroutine is left when every test has ended.
// pgx cancels what was under way on a closed connection in the background, for 15 s at the most.
func TestMain(m *testing.M) {
	flag.Parse()
	parallel := 6
	switch {
	case machine.Slow():
		parallel = 1
	case !testing.Short():
		parallel = 3 // many of those that only the whole run has begin dozens of connections
	}
	leaks.Main(m, parallel, 20*time.Second)
}
