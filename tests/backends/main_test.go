package backends

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock/conformance"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every dial that a fault makes fail
	conformance.Child(pgBusy{})
	// A rule waits for most of its time, so more of them fit at once than there are cores; with too
	// many, leases run out because nobody gets to renew them. How many run at once is each backend's
	// (run): a rule that waits for its turn counts here too.
	flag.Parse()
	if err := flag.Set("test.parallel", "1000"); err != nil {
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
