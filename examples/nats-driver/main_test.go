package natskv_test

import (
	"flag"
	"os"
	"testing"

	"github.com/fencelock/fencelock/conformance"
)

func TestMain(m *testing.M) {
	conformance.Child()
	if err := flag.Set("test.parallel", "40"); err != nil { // a rule mostly waits; -parallel goes before
		panic(err)
	}
	os.Exit(m.Run())
}
