package prometheus_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	lockmetrics "github.com/fencelock/fencelock/metrics/prometheus"
)

func Example() {
	metrics := lockmetrics.New(nil)
	prometheus.MustRegister(metrics)
	http.Handle("/metrics", promhttp.Handler()) // what your program has already

	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithObserver(metrics))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	lease, err := locks.Mutex("jobs/nightly").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)
	fmt.Println(get("/metrics", `distributed_lock_held{`))
	// Output:
	// distributed_lock_held{backend="memory",mode="exclusive",resource="jobs"} 1
}

func ExampleOptions() {
	metrics := lockmetrics.New(&lockmetrics.Options{
		// tenant-7/orders/123 → orders
		Resource: func(name string) string {
			if parts := strings.Split(name, "/"); len(parts) == 3 {
				return parts[1]
			}
			return "" // "other"
		},
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	http.Handle("/orders", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithObserver(metrics))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	lease, err := locks.Mutex("tenant-7/orders/123").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)
	fmt.Println(get("/orders", `distributed_lock_held{`))
	// Output:
	// distributed_lock_held{backend="memory",mode="exclusive",resource="orders"} 1
}

func ExampleCollector_Watch() {
	ctx, stop := context.WithCancel(context.Background())
	metrics := lockmetrics.New(nil)
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithObserver(metrics))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	ended := make(chan error)
	go func() { ended <- metrics.Watch(ctx, locks, "", time.Minute) }()
	// …
	stop()
	fmt.Println(<-ended)
	// Output:
	// context canceled
}

// get returns the first line with this prefix that the program serves at a path.
func get(path, prefix string) string {
	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
