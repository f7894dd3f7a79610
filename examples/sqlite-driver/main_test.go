package sqlitekv_test

import (
	"flag"
	"os"
	"testing"

	"github.com/fencelock/fencelock/conformance"
)

func TestMain(m *testing.M) {
	conformance.Child()
	// A rule waits for most of its time, but here it shares the processor with the store. -parallel on the
	// command line goes before.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
