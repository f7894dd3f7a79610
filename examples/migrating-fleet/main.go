// The program migrating-fleet moves six running processes from one store to another and back, while
// all of them increment a counter under a lock: read, think, write. Nothing is lost. Then it does
// the same the wrong way, by changing the URL of the store, and shows what is lost then.
//
//	go run ./examples/migrating-fleet redis://localhost:6379/0 etcd://localhost:2379
//
// The processes are this program, run again; right.yaml is their configuration. Any two backends will do.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"
)

// workerKey is set for the processes of the fleet.
const workerKey = "FLEET_WORKER"

func main() {
	log.SetFlags(0)
	size := flag.Int("size", 6, "processes")
	mixed := flag.Duration("mixed", 200*time.Millisecond, "how long the fleet works between two restarts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if os.Getenv(workerKey) != "" {
		if err := work(ctx); err != nil {
			log.Fatal(err)
		}
		return
	}
	if flag.NArg() != 2 {
		log.Fatal("usage: migrating-fleet [flags] OLD_URL NEW_URL, such as " +
			"redis://localhost:6379/0 etcd://localhost:2379")
	}
	if err := show(ctx, *size, *mixed, flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatal(err)
	}
}

// show runs the fleet the right way and the wrong way.
func show(ctx context.Context, size int, mixed time.Duration, old, new string) error {
	phase := func(p string) []string {
		return []string{"CONFIG=right.yaml", "PHASE=" + p, "OLD_URL=" + old, "NEW_URL=" + new}
	}
	store := func(url string) []string { return []string{"CONFIG=wrong.yaml", "STORE_URL=" + url} }
	for _, way := range []struct {
		title   string
		guarded bool
		deploys [][]string
	}{
		{
			"from, both, to, both, from", true,
			[][]string{phase("from"), phase("both"), phase("to"), phase("both"), phase("from")},
		},
		{"only the URL changed", false, [][]string{store(old), store(new), store(old)}},
		{"only the URL changed, behind a guard", true, [][]string{store(old), store(new), store(old)}},
	} {
		res := newResource(way.guarded)
		if err := res.serve(); err != nil {
			return err
		}
		err := roll(ctx, size, mixed, res.url(), way.deploys)
		res.close()
		if err != nil {
			return fmt.Errorf("%s: %w", way.title, err)
		}
		fmt.Printf("%s: %s\n", way.title, res.result())
	}
	return nil
}
