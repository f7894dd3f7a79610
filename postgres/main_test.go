package postgres_test

import (
	"flag"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/internal/servers"
)

// TestMain fails the package if a goroutine is left when every test has ended.
// pgx cancels what was under way on a closed connection in the background, for 15 s at the most.
func TestMain(m *testing.M) {
	if servers.Slow() {
		flag.Parse()
		if err := flag.Set("test.parallel", "1"); err != nil {
			panic(err)
		}
	}
	leaks.Main(m, 6, 20*time.Second)
}
