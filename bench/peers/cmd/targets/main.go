// Command targets measures this library against others and against what one writes by hand, and
// holds the ratios to their goals.
//
//	go run ./cmd/targets -rounds 5 -duration 2s -only R
//
// It starts the servers on this machine. With -update it also writes the tables of
// runs/README.md. The exit code is 1 if a goal is missed by more than a tenth or something
// could not be measured.
//
// Given files that -json has written, it measures nothing and shows the first, with the goals'
// figures of the others beside it:
//
//	go run ./cmd/targets -update runs/README.md $(ls -r runs/*.json)
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock/bench/peers"
)

func main() {
	logging.Disable() // go-redis reports every fault that is made on purpose
	peers.Child()
	var o peers.Options
	flag.IntVar(&o.Rounds, "rounds", 5, "in each of which every library has its turn")
	flag.DurationVar(&o.Duration, "duration", 2*time.Second, "of one library's turn")
	flag.IntVar(&o.Held, "held", 10_000, "leases that are held and renewed")
	only := flag.String("only", "", "goals, by the beginnings of their ids: R,E3 (default all)")
	asJSON := flag.Bool("json", false, "print the whole report as JSON, with every round")
	update := flag.String("update", "", "write the tables into this document, between its marks")
	flag.Parse()
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	began := time.Now()
	o.Progress = func(line string) {
		fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(began).Seconds(), line)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := func() (peers.Report, error) { return peers.Run(ctx, o) }
	if flag.NArg() > 0 {
		run = func() (peers.Report, error) { return peers.Read(flag.Args()...) }
	}
	rep, err := run()
	switch {
	case *asJSON:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		_ = e.Encode(rep) // there is no other place to report an error
	default:
		_ = rep.WriteScores(os.Stdout)
	}
	if *update != "" && ctx.Err() == nil {
		err = errors.Join(err, rep.Update(*update))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, s := range rep.Scores {
		if s.State == "miss" {
			os.Exit(1)
		}
	}
}
