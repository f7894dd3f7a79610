// The program zookeeper-fencing is a worker that is to run once in a fleet, over ZooKeeper. It
// holds a lock while it works, writes with the lock's token, and stops when the lock is lost. The
// resource refuses a writer that was overtaken.
//
//	go run ./examples/zookeeper-fencing zookeeper://localhost:2181
//
// Start it twice, and stop or kill the one that works (Ctrl-Z, Ctrl-C): the other takes over.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fence"
	_ "github.com/fencelock/fencelock/zookeeper"
)

// name is the lock's, and the resource's.
const name = "examples/ledger"

func main() {
	url := "zookeeper://localhost:2181"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, url); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	// A session lasts as long as the TTL: 10 s is well between a default server's 4 s and 40 s.
	locks, err := fencelock.Open(ctx, url, fencelock.WithTTL(10*time.Second))
	if err != nil {
		return err
	}
	defer locks.Close()
	var book ledger
	for {
		fmt.Println("waiting for the lock")
		// The function's ctx ends when the lock is lost; Do unlocks.
		err := locks.Do(ctx, name, func(ctx context.Context, lease *fencelock.Lease) error {
			fmt.Printf("working, with token %d\n", lease.Token())
			return work(ctx, &book, lease.Token())
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fencelock.ErrLost), errors.Is(err, fencelock.ErrStale):
			fmt.Println("overtaken:", err) // another works now: wait for the next turn
		case err != nil:
			return err
		}
	}
}

// work writes a line a second until ctx ends.
func work(ctx context.Context, book *ledger, token fencelock.Token) error {
	for line := 1; ; line++ {
		if err := book.write(ctx, token, fmt.Sprint("line ", line)); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ledger is the resource. In a real system it is a service or a database that many programs write to, and the guard is
// on its side: fence.Handler before an HTTP service, or a condition in the database's own transaction.
type ledger struct {
	guard fence.Memory
	lines []string
}

// write adds a line unless a newer token was seen. The guard checks and writes in one step.
func (l *ledger) write(ctx context.Context, token fencelock.Token, line string) error {
	return l.guard.Do(ctx, name, token, func() error {
		l.lines = append(l.lines, line)
		fmt.Printf("written with token %d: %s\n", token, line)
		return nil
	})
}
