// Command demo locks and unlocks on the stores that it is given and serves the metrics of that:
// something for the dashboard to show and for the alerts to watch.
//
//	go run ./deploy/demo [-listen 127.0.0.1:9464] memory:// redis://…
//
// On each store it holds jobs/leader all the time, as a singleton would, lets a few workers contend
// for orders/0 to orders/4, and looks for leaked locks. It ends on SIGINT and SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/metrics/logs"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run is the program; it ends with ctx.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:9464", "serve /metrics here")
	ttl := flags.Duration("ttl", 10*time.Second, "of the leases")
	list := flags.Duration("list", 15*time.Second, "look for leaked locks this often")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("which stores? such as memory:// or redis://localhost:6379/0")
	}
	d := &demo{metrics: prometheus.New(nil), ttl: *ttl, list: *list}
	registry := client.NewRegistry()
	registry.MustRegister(d.metrics)
	at, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer func() { _ = server.Close() }() // the program ends
	go func() { _ = server.Serve(at) }()
	fmt.Printf("metrics at http://%s/metrics\n", at.Addr())

	var stores sync.WaitGroup
	for _, url := range flags.Args() {
		stores.Go(func() { d.use(ctx, url) })
	}
	stores.Wait()
	return nil
}

// demo is what its stores share.
type demo struct {
	metrics   *prometheus.Collector
	ttl, list time.Duration
}

// use keeps a store busy until ctx ends.
func (d *demo) use(ctx context.Context, url string) {
	var l *fencelock.Locker
	for l == nil {
		var err error
		l, err = fencelock.Open(ctx, url, fencelock.WithTTL(d.ttl),
			fencelock.WithObserver(d.metrics), fencelock.WithObserver(logs.New(nil)))
		if err != nil {
			slog.WarnContext(ctx, "not connected, trying again", "err", err)
		}
		if err != nil && !pause(ctx, time.Second) {
			return
		}
	}
	defer func() { _ = l.Close() }() // what it cannot release expires
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = d.metrics.Watch(ctx, l, "", d.list) })
	all.Go(func() { lead(ctx, l) })
	for range 3 {
		all.Go(func() { work(ctx, l) })
	}
}

// lead holds one lock for as long as it can, and takes it again after a loss.
func lead(ctx context.Context, l *fencelock.Locker) {
	for ctx.Err() == nil {
		err := l.Do(ctx, "jobs/leader", func(held context.Context, _ *fencelock.Lease) error {
			<-held.Done()
			return nil
		})
		if err != nil && !pause(ctx, time.Second) {
			return
		}
	}
}

// work takes short turns, and now and then tries what is surely held.
func work(ctx context.Context, l *fencelock.Locker) {
	for pause(ctx, between(10*time.Millisecond, 200*time.Millisecond)) {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		_ = l.Do(limited, fmt.Sprint("orders/", rand.IntN(5)), func(held context.Context, _ *fencelock.Lease) error {
			pause(held, between(5*time.Millisecond, 100*time.Millisecond))
			return nil
		}) // what fails shows in the metrics and the log
		cancel()
		if le, err := l.Mutex("jobs/leader").TryLock(ctx); err == nil {
			_ = le.Unlock(ctx)
		}
	}
}

func between(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

// pause reports whether d has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
