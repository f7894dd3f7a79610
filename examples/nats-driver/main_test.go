package natskv_test

import (
	"flag"
	"os"
	"testing"

	"github.com/fencelock/fencelock/conformance"
)

func TestMain(m *testing.M) {
	conformance.Child()
	flag.Parse()
	if err := flag.Set("test.parallel", "40"); err != nil { // a rule waits for most of its time
		panic(err)
	}
	os.Exit(m.Run())
}
