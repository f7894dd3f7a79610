package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// address is the server's of Example.
var address = "localhost:6379"

// The program locks through the client that it has. A write checks the token first.
func Example() {
	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: address})
	defer client.Close()

	driver, err := redis.New(client, nil) // or fencelock.Open(ctx, "redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() // leaves the client open

	err = locks.Do(ctx, "stock/4711", func(ctx context.Context, lease *fencelock.Lease) error {
		if err := redis.CheckToken(ctx, client, "stock/4711", lease.Token()); err != nil {
			return err // ErrStale: somebody has the lock since
		}
		fmt.Println("sold")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	address = s.Addr()
	Example()
	if err := redis.CheckToken(t.Context(), foreign(t, s), "stock/4711", 1); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a token from before: got %v, want ErrStale", err)
	}
}
