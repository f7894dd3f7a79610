package leader_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	"github.com/fencelock/fencelock/leader"
)

func ExampleRun() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	locks, err := fencelock.Open(ctx, "memory://") // a server's URL in earnest
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = leader.Run(ctx, locks.Mutex("scheduler"), leader.Callbacks{
		Lead: func(ctx context.Context, lease *fencelock.Lease) error {
			fmt.Println("leading, with a token:", lease.Token() > 0)
			stop() // the program ends
			<-ctx.Done()
			return nil
		},
		Lost:   func(_ *fencelock.Lease, err error) { log.Print("lost: ", err) },
		Failed: func(err error) { log.Print("will try again: ", err) },
	})
	fmt.Println("ended:", errors.Is(err, context.Canceled))
	// Output:
	// leading, with a token: true
	// ended: true
}

// A leader whose work can be interrupted steps down when another process wants to lead.
func ExampleRun_stepDown() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	locks, err := fencelock.Open(ctx, "memory://") // a server's URL in earnest
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	terms := make(chan string)
	for _, who := range []string{"green", "blue"} {
		go leader.Run(ctx, locks.Mutex("scheduler"), leader.Callbacks{
			Lead: func(ctx context.Context, lease *fencelock.Lease) error {
				terms <- who
				select {
				case <-lease.Wanted():
				case <-ctx.Done():
				}
				return nil
			},
		})
	}
	first, second, third := <-terms, <-terms, <-terms
	fmt.Println("they take turns:", first != second && third == first)
	// Output:
	// they take turns: true
}
