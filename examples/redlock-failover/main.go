// The program redlock-failover works under a lock of three or five independent Redis servers, again
// and again, and says what it sees. Stop a minority of the servers: it goes on. Stop a majority: it
// says that the store is unavailable, and goes on when they are back, after their quarantine.
//
//	go run ./examples/redlock-failover 'redlock://h1:6379,h2:6379,h3:6379?fresh=1'
//
// fresh=1 is for servers that are new; leave it out once they run.
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
	_ "github.com/fencelock/fencelock/redlock"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: redlock-failover redlock://h1:6379,h2:6379,h3:6379")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	// The lease is kept by renewal; a TTL as short as this is what others wait for when the holder dies.
	locks, err := fencelock.Open(ctx, url, fencelock.WithTTL(5*time.Second),
		fencelock.Require(fencelock.Need{Fencing: fencelock.Anchored, SurvivesNode: true}))
	if err != nil {
		return err
	}
	defer locks.Close()
	for ctx.Err() == nil {
		err := locks.Do(ctx, "examples/report", func(ctx context.Context, l *fencelock.Lease) error {
			fmt.Println("working, with token", l.Token()) // hand it to what you write to: see examples/http-fencing
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done(): // the lease was lost, or the program is to end
				return context.Cause(ctx)
			}
		})
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, fencelock.ErrUnavailable), errors.Is(err, fencelock.ErrLost):
			fmt.Println(err)
			time.Sleep(time.Second)
		case err != nil:
			return err
		}
	}
	return nil
}
