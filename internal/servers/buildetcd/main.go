// Command buildetcd builds the etcd server that the tests run, if the cache does not have it, and prints its path.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	program, err := stores.EtcdProgram(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "buildetcd:", err)
		os.Exit(1)
	}
	fmt.Println(program)
}
