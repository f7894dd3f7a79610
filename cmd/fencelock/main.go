// Command fencelock holds a distributed lock while a command runs, and shows
// operators who holds what.
//
//	fencelock run jobs/nightly -- ./nightly.sh
//	fencelock ls jobs/
//
// It needs no server: without a URL it uses the file backend in a folder of the
// user's. See fencelock --help. Each subcommand is a package below internal;
// what they share is internal/cli.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9/logging"

	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/run"
	"github.com/fencelock/fencelock/conformance"
)

func main() {
	logging.Disable() // go-redis prints failed dials by itself; they come back as errors too
	run.BecomeOther(os.Args)
	conformance.Child()
	a := cli.New()
	os.Exit(a.Execute(context.Background(), root(a), os.Args[1:]))
}
