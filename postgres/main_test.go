package postgres_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/leaks"
)

// TestMain fails the package if a goroutine is left when every test has ended.
// pgx cancels what was under way on a closed connection in the background, for 15 s at the most.
func TestMain(m *testing.M) { leaks.Main(m, 6, 20*time.Second) }
