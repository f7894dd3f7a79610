// The program gocron-jobs has two schedulers of github.com/go-co-op/gocron/v2, as in two processes,
// that run each tick of a job once: by a lock for each run, and by a leader for all of them.
//
//	cd examples/gocron-jobs && go run . redis://localhost:6379/0
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/redis" // for redis://
)

const (
	every = time.Second
	ticks = 3
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gocron-jobs redis://host:6379/0")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	// A scheduler for each kind and each process.
	byLock := func(_ context.Context, locks *fencelock.Locker) gocron.SchedulerOption {
		return gocron.WithDistributedLocker(Locker{Locks: locks, Prefix: "examples/jobs/", Least: every / 2})
	}
	byLeader := func(ctx context.Context, locks *fencelock.Locker) gocron.SchedulerOption {
		e := new(Elector)
		go func() { _ = e.Stand(ctx, locks.Mutex("examples/leader")) }() // until ctx ends
		return gocron.WithDistributedElector(e)
	}
	if err := runs(ctx, url, "a lock", byLock); err != nil {
		return err
	}
	return runs(ctx, url, "a leader", byLeader)
}

// runs lets two schedulers run a job for some ticks, and counts its runs.
func runs(
	ctx context.Context, url, by string,
	option func(context.Context, *fencelock.Locker) gocron.SchedulerOption,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	count := map[int64]int{} // of each tick
	start := time.Now().Add(2 * every).Truncate(every)
	for range 2 {
		locks, err := fencelock.Open(ctx, url)
		if err != nil {
			return err
		}
		defer locks.Close()
		s, err := gocron.NewScheduler(option(ctx, locks))
		if err != nil {
			return err
		}
		defer s.Shutdown()
		job := func() {
			mu.Lock()
			defer mu.Unlock()
			count[time.Since(start).Round(every).Milliseconds()]++
		}
		if _, err := s.NewJob(gocron.DurationJob(every), gocron.NewTask(job), gocron.WithName("report"),
			gocron.WithStartAt(gocron.WithStartDateTime(start))); err != nil {
			return err
		}
		s.Start()
	}
	time.Sleep(time.Until(start.Add(ticks*every - every/2)))
	mu.Lock()
	defer mu.Unlock()
	for tick := range ticks {
		if n := count[(time.Duration(tick) * every).Milliseconds()]; n != 1 {
			return fmt.Errorf("by %s: tick %d had %d runs, want 1", by, tick, n)
		}
	}
	fmt.Printf("%d ticks of two schedulers, %d runs, by %s\n", ticks, len(count), by)
	return nil
}
