package config_test

import (
	"testing"
	"time"

	_ "github.com/fencelock/fencelock/backend/file"
	_ "github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/leaks"
)

func TestMain(m *testing.M) {
	leaks.Main(m, 8, 5*time.Second)
}
