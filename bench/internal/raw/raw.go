// Package raw locks in stores through their own clients, as programs do by hand. Fencelock is compared with
// it. These locks have no fencing token, no renewal and no answer to a lost reply.
package raw

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

// ttl is the expiry of a lock. It is longer than any cycle, so that no lock needs a renewal.
const ttl = 30 * time.Second

var errTaken = errors.New("the raw lock is taken, and nobody should have it")

// A Store is a store through its own client.
type Store interface {
	// Mutex returns the cheapest lock of a name that excludes others. With waits, Lock waits until the store
	// tells of another client's Unlock. Without it, the name must be free, unless the store's lock waits by
	// itself.
	Mutex(ctx context.Context, name string, waits bool) (measure.Mutex, error)
	// Commands returns how many requests the server has served so far; false if it cannot be asked
	// cheaply.
	Commands(ctx context.Context) (int64, bool)
	// Wipe deletes the keys under the prefix, the library's too, but for the keys that keep tokens rising.
	Wipe(ctx context.Context) error
	Close() error
}

// Place is a keyspace of a store.
type Place struct {
	URL    *url.URL
	Query  *backend.Query // of the URL, once a driver has read it; nil: no keys about connections
	Prefix string         // of all keys of this run, the library's included
	ID     string         // the part of Prefix that no other run has: letters and digits
}

// key is the raw key of a name: beside the library's, not among them.
func (p Place) key(name string) string { return p.Prefix + "raw:" + name }

// Open returns the raw side of a store; nil if there is none.
func Open(ctx context.Context, p Place) (Store, error) {
	if p.Query == nil {
		p.Query = &backend.Query{}
	}
	switch p.URL.Scheme {
	case "memory":
		return &memory{}, nil
	case "file":
		return openFile(p)
	case "redis", "rediss", "redis+sentinel", "redis+cluster":
		return openRedis(p)
	case "redlock", "redlocks":
		return openRedlock(p)
	case "etcd", "etcds":
		return openEtcd(ctx, p)
	case "zookeeper", "zookeepers":
		return openZooKeeper(ctx, p)
	case "postgres", "postgresql":
		return openPostgres(ctx, p)
	}
	return nil, nil
}

// Total sums the counts of servers; false if one of them does not tell.
func Total(
	ctx context.Context, servers []string, count func(ctx context.Context, server string) (int64, error),
) (sum int64, told bool) {
	for _, s := range servers {
		n, err := count(ctx, s)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

// untold is for a store that does not tell its requests, or not cheaply.
type untold struct{}

func (untold) Commands(context.Context) (int64, bool) { return 0, false }

// memory is the lock of a process without a store: a sync.Mutex for each name.
type memory struct {
	untold
	names sync.Map
}

func (m *memory) Mutex(_ context.Context, name string, _ bool) (measure.Mutex, error) {
	one, _ := m.names.LoadOrStore(name, &sync.Mutex{})
	mu := one.(*sync.Mutex)
	return measure.Mutex{
		Lock:   func(context.Context) error { mu.Lock(); return nil },
		Unlock: func(context.Context) error { mu.Unlock(); return nil },
	}, nil
}

func (*memory) Wipe(context.Context) error { return nil }
func (*memory) Close() error               { return nil }
