// Command fencelock holds a distributed lock while a command runs, and shows
// operators who holds what.
//
//	fencelock run jobs/nightly -- ./nightly.sh
//	fencelock ls jobs/
//
// It needs no server: without a URL it uses the file backend in a folder of the
// user's. See fencelock --help.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9/logging"

	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/conformance"
)

func main() {
	logging.Disable() // go-redis prints failed dials on stderr by itself; they come back as errors too
	becomeOther(os.Args)
	conformance.Child()
	os.Exit(newApp().execute(context.Background(), os.Args[1:]))
}
