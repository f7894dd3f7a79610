package guarantees_test

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	isolate()
	logging.Disable() // go-redis reports every dial that a fault makes fail
	// A round waits for most of its time, so all backends fit at once.
	flag.Parse()
	if err := flag.Set("test.parallel", "20"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
