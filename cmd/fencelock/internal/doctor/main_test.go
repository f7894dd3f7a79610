package doctor

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock/internal/leaks"
)

// TestMain fails the package if a goroutine is left when every test has ended.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis logs the faults that the tests make
	leaks.Main(m, 6, 15*time.Second)
}
