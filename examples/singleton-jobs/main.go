// The program singleton-jobs is a job queue whose workers never work on two jobs of one customer at
// once, however many processes there are. What a queue calls its worker with goes through
// exclusively; a job that has to wait goes back to the queue.
//
//	go run ./examples/singleton-jobs redis://localhost:6379/0
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/redis" // for redis://
)

// exclusively runs a job unless another with its key is running anywhere: then it returns
// fencelock.ErrLocked at once, and the queue should give the job back later. It does not wait,
// because a job that waits occupies a worker.
func exclusively(
	ctx context.Context, locks *fencelock.Locker, key string,
	job func(context.Context, fencelock.Token) error,
) (err error) {
	lease, err := locks.Mutex(key).TryLock(ctx)
	if err != nil {
		return err
	}
	held, cancel := lease.Context(ctx) // ends with the lease: the job must stop then
	defer func() {
		cancel()
		err = errors.Join(err, lease.Unlock(ctx))
	}()
	return job(held, lease.Token())
}

const (
	customers = 3
	jobs      = 12
	workers   = 6
	snooze    = 30 * time.Millisecond
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: singleton-jobs redis://host:6379/0")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

// queue stands for any job queue: it gives its jobs to workers, and a job that was snoozed again later.
type queue struct {
	jobs    chan int
	left    sync.WaitGroup
	running [customers]atomic.Int64
}

func run(ctx context.Context, url string) error {
	q := &queue{jobs: make(chan int, jobs)}
	failures := make(chan error, jobs)
	for range workers {
		locks, err := fencelock.Open(ctx, url) // each worker a process of its own, in earnest
		if err != nil {
			return err
		}
		defer locks.Close()
		go func() {
			for job := range q.jobs {
				q.work(ctx, locks, job, failures)
			}
		}()
	}
	q.left.Add(jobs)
	for job := range jobs {
		q.jobs <- job
	}
	q.left.Wait()
	close(q.jobs)
	close(failures)
	for err := range failures {
		return err
	}
	fmt.Printf("%d jobs done, never two of one customer at once\n", jobs)
	return nil
}

// work is what the queue calls for a job.
func (q *queue) work(ctx context.Context, locks *fencelock.Locker, job int, failures chan<- error) {
	customer := job % customers
	err := exclusively(ctx, locks, fmt.Sprintf("examples/customer/%d", customer),
		func(ctx context.Context, t fencelock.Token) error {
			if q.running[customer].Add(1) > 1 {
				return fmt.Errorf("two jobs of customer %d at once", customer)
			}
			defer q.running[customer].Add(-1)
			fmt.Printf("job %d of customer %d, with token %d\n", job, customer, t)
			select {
			case <-time.After(20 * time.Millisecond): // the work
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	if errors.Is(err, fencelock.ErrLocked) {
		time.AfterFunc(snooze, func() { q.jobs <- job })
		return
	}
	if err != nil {
		failures <- err
	}
	q.left.Done()
}
