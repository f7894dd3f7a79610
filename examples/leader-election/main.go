// The program leader-election has two candidates for one job. One leads until an operator breaks
// its lock; then the next does, with a greater token.
//
//	go run ./examples/leader-election redis://localhost:6379/0
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/leader"
	_ "github.com/fencelock/fencelock/redis" // for redis://
)

const name = "examples/scheduler"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: leader-election redis://host:6379/0")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	elected := make(chan string)
	var candidates sync.WaitGroup
	defer candidates.Wait()
	for _, who := range []string{"a", "b"} { // each a process of its own, in earnest
		locks, err := fencelock.Open(ctx, url, fencelock.WithOwner(who))
		if err != nil {
			return err
		}
		defer locks.Close()
		candidates.Go(func() {
			if err := stand(ctx, locks, who, elected); ctx.Err() == nil {
				log.Print(who, ": ", err)
			}
		})
	}
	defer stop() // before the candidates are waited for

	operator, err := fencelock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer operator.Close()
	first := <-elected
	if err := operator.Break(ctx, name); err != nil {
		return err
	}
	if second := <-elected; second == first {
		return fmt.Errorf("%s leads again, though another was waiting", first)
	}
	return nil
}

func stand(ctx context.Context, locks *fencelock.Locker, who string, elected chan<- string) error {
	return leader.Run(ctx, locks.Mutex(name), leader.Callbacks{
		Lead: func(ctx context.Context, lease *fencelock.Lease) error {
			fmt.Println(who, "leads with token", lease.Token())
			elected <- who
			<-ctx.Done() // the work of a leader, which takes the token along and ends with ctx
			return nil
		},
		Lost: func(_ *fencelock.Lease, err error) { fmt.Println(who, "lost it:", err) },
		Late: func(_ *fencelock.Lease, late time.Duration) {
			if late > 5*time.Second {
				log.Fatal("the work does not stop: ending the process, because another leads by now")
			}
		},
		Failed: func(err error) { log.Print(who, " tries again: ", err) },
	})
}
