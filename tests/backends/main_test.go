package backends

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock/conformance"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every dial that a fault makes fail
	conformance.Child(pgBusy{})
	// A rule waits for most of its time, so more of them fit at once than there are cores; with too
	// many, leases run out because nobody gets to renew them.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(15*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// skipShort leaves a second topology of a store to the whole run.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: one topology of each store")
	}
}
