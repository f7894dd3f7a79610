// The program redis-fencing guards a balance in Redis with a lock and its
// fencing token: the read and the write run in scripts that check the token in the same step. A worker
// that was held up for longer than its lease cannot write over the work of the next.
//
//	go run ./examples/redis-fencing redis://localhost:6379/0
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/redis"
)

// In a cluster the resource and its key share a hash slot by their {tag}.
const (
	resource = "{account-7}"
	key      = "{account-7}:balance"
)

var (
	readBalance  = redis.NewFencedScript(`return redis.call('GET', KEYS[1]) or '0'`)
	writeBalance = redis.NewFencedScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: redis-fencing redis://host:6379/0")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	options, err := goredis.ParseURL(url)
	if err != nil {
		return err
	}
	client := goredis.NewClient(options)
	defer client.Close()
	d, err := redis.New(client, nil) // the same client for the locks and for the data
	if err != nil {
		return err
	}
	locks, err := fencelock.New(d)
	if err != nil {
		return err
	}
	defer locks.Close()
	const name = "examples/account-7"

	// The first worker reads, and is held up: its lease ends before it writes.
	first, err := locks.Mutex(name, fencelock.WithTTL(2*time.Second), fencelock.WithManualRenew()).Lock(ctx)
	if err != nil {
		return err
	}
	stale, err := read(ctx, client, first.Token())
	if err != nil {
		return err
	}

	// The second one gets the lock, and does its work.
	err = locks.Do(ctx, name, func(ctx context.Context, l *fencelock.Lease) error {
		balance, err := read(ctx, client, l.Token())
		if err != nil {
			return err
		}
		return write(ctx, client, l.Token(), balance+100)
	})
	if err != nil {
		return err
	}

	// The first goes on, and would write over it.
	err = write(ctx, client, first.Token(), stale+1)
	if !errors.Is(err, fencelock.ErrStale) {
		return fmt.Errorf("the late write: got %w, want it refused", err)
	}
	fmt.Println("refused:", err)
	return nil
}

func read(ctx context.Context, c *goredis.Client, t fencelock.Token) (int, error) {
	reply, err := readBalance.Run(ctx, c, resource, t, []string{key})
	if err != nil {
		return 0, err
	}
	text, _ := reply.(string)
	return strconv.Atoi(text)
}

func write(ctx context.Context, c *goredis.Client, t fencelock.Token, balance int) error {
	if _, err := writeBalance.Run(ctx, c, resource, t, []string{key}, balance); err != nil {
		return err
	}
	fmt.Printf("balance is %d, written with token %d\n", balance, t)
	return nil
}
