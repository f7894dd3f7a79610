package config_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/internal/leaks"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every dial that a test makes fail
	leaks.Main(m, 8, 5*time.Second)
}
