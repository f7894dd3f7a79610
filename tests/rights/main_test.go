package rights

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	_ "github.com/fencelock/fencelock/backend/all"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports what a refused client does by itself
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil { // most of a task's time is waiting
		panic(err)
	}
	os.Exit(m.Run())
}
