package bench

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// rawTTL is the expiry of what the raw sides lock: longer than any round's cycle, so that no renewal is missing.
const rawTTL = 30 * time.Second

// cycle locks one name, calls held and unlocks. One goroutine calls it at a time.
type cycle func(ctx context.Context, held func()) error

// raw is the store itself, through its own client.
type raw interface {
	// cycle returns the cheapest lock and unlock of a name that excludes others.
	cycle(name string) (cycle, error)
	// relay returns the store's own way to tell another client that something is free.
	relay(ctx context.Context, name string) (*relay, error)
	// commands returns how many requests the server has served so far; false if it cannot be asked cheaply.
	commands(ctx context.Context) (int64, bool)
	// wipe deletes what is under the prefix of the run, the library's too, but for what keeps tokens rising.
	wipe(ctx context.Context) error
	close() error
}

// place is where a raw side works.
type place struct {
	u      *url.URL
	q      *backend.Query
	keys   url.Values
	prefix string // of the keys of this run, the library's included
	id     string // the part of prefix that is this run's only: letters and digits
}

// key is the raw key of a name: beside the library's, not among them.
func (p place) key(name string) string { return p.prefix + "raw:" + name }

// openRaw returns the raw side of a store; nil if there is none.
func openRaw(ctx context.Context, p place) (raw, error) {
	switch p.u.Scheme {
	case "memory":
		return &rawMemory{}, nil
	case "file":
		return openRawFile(p)
	case "redis", "rediss", "redis+sentinel", "redis+cluster":
		return openRawRedis(p)
	case "redlock", "redlocks":
		return openRawRedlock(p)
	case "etcd", "etcds":
		return openRawEtcd(ctx, p)
	case "zookeeper":
		return openRawZooKeeper(ctx, p)
	case "postgres", "postgresql":
		return openRawPostgres(ctx, p)
	}
	return nil, nil
}

// within is a cycle that takes mu first: the queue of a process in front of a store.
func within(mu *sync.Mutex, c cycle) cycle {
	return func(ctx context.Context, held func()) error {
		mu.Lock()
		defer mu.Unlock()
		return c(ctx, held)
	}
}
