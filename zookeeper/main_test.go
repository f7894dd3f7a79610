package zookeeper_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/leaks"
)

// TestMain fails the package if a goroutine is left when every test has ended.
func TestMain(m *testing.M) { leaks.Main(m, 4, 10*time.Second) }
