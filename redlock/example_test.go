package redlock_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/redlock"
)

// addresses are those of Example's servers, which do not replicate to each other.
var addresses = []string{"h1:6379", "h2:6379", "h3:6379"}

// The program locks through the clients that it has, one for each server.
func Example() {
	ctx := context.Background()
	var nodes []goredis.UniversalClient
	for _, address := range addresses {
		client := goredis.NewClient(&goredis.Options{Addr: address})
		defer client.Close()
		nodes = append(nodes, client)
	}
	// Fresh: these servers are new, and no lock was ever on them. Without it they do not vote for a while.
	driver, err := redlock.New(nodes, &redlock.Options{Fresh: true})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() // leaves the clients open

	err = locks.Do(ctx, "jobs/nightly", func(ctx context.Context, lease *fencelock.Lease) error {
		info, err := locks.Inspect(ctx, "jobs/nightly")
		fmt.Println("a majority holds it for", info.Owner)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	c := start(t, 3)
	addresses = c.addrs
	Example()
	for _, node := range c.direct {
		if n, err := node.Exists(t.Context(), state).Result(); n != 1 || err != nil {
			t.Errorf("a node has not voted: %d, %v", n, err)
		}
	}
}
