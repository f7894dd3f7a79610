package redis

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// claim is how long a grant by another client's release lasts until its
	// waiter has confirmed it.
	claim = 2 * time.Second
	// slack is how long after its next look a waiter counts as alive.
	slack = 2 * time.Second
	// floor is how long a waiter waits for a push at the most: no longer than a claim, so that it finds one that
	// nobody takes when that ends.
	floor = claim
	// foreignFloor is the same while a program that knows no queue holds the key.
	foreignFloor = time.Second
	// tombstone is how much longer than the TTL a late request of an abandoned
	// acquisition is refused.
	tombstone = 10 * time.Second
)

// failoverAddr is what go-redis calls the address of a client that asks sentinels.
const failoverAddr = "FailoverClient"

// Options of [New].
type Options struct {
	// Prefix goes before every lock's name to make its key; the default is
	// "fencelock:". See NoPrefix for none.
	Prefix string
	// NoPrefix makes the key the name itself.
	NoPrefix bool
}

// Driver is the Redis backend. It implements backend.Mover.
type Driver struct{ *store }

// store implements backend.Mover.
type store struct {
	client  goredis.UniversalClient
	cluster *goredis.ClusterClient // client, if it is one
	own     bool                   // we opened the client
	prompt  bool                   // the client heeds the deadline of a ctx by itself
	prefix  string
	gates   string // the key of its gates, off a cluster
	process string // names this driver's channels
	pushes  string // the only channel, off a cluster
	publish string // PUBLISH or SPUBLISH
	rest    string // ARGV[3] of run.lua
	hubs    redisnode.Hubs
	flying  core.Group // requests that outlived their callers
}

// New returns a driver over a client that the program has: a *redis.Client
// (also of a Sentinel group) or a *redis.ClusterClient of go-redis v9. The client is
// neither changed nor closed, and nothing is sent. opts may be nil. A *redis.Ring is ErrInvalid:
// it would put the keys of one lock on different servers. So is a *redis.ClusterClient with
// ClusterSlots, as NewFailoverClusterClient makes it and NewUniversalClient may: its servers are not a
// Redis Cluster, and beside plain clients of theirs its locks would go other ways. It is refused also
// where ClusterSlots tells of a real cluster, which New cannot see.
func New(client goredis.UniversalClient, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	prefix, err := core.Keyspace(opts.Prefix, opts.NoPrefix)
	if err != nil {
		return nil, err
	}
	s := &store{
		client:  client,
		prefix:  prefix,
		gates:   ours(tags()[0]) + "g" + prefix,
		process: redisnode.Process(),
		publish: "PUBLISH",
	}
	s.pushes = "fl\x00p" + s.process
	switch c := client.(type) {
	case nil:
		return nil, backend.Invalid("the Redis client is nil")
	case *goredis.Ring:
		return nil, backend.Invalid("a redis.Ring cannot carry locks: the keys of one lock would lie " +
			"on different servers; use a Client or a ClusterClient")
	case *goredis.ClusterClient:
		if c == nil {
			return nil, backend.Invalid("the Redis client is nil")
		}
		if c.Options().ClusterSlots != nil {
			return nil, backend.Invalid("the ClusterClient has ClusterSlots, as that of NewFailoverClusterClient: " +
				"its servers are not a Redis Cluster: give the client of NewFailoverClient")
		}
		s.cluster, s.publish = c, "SPUBLISH"
		s.prompt = c.Options().ContextTimeoutEnabled
	case *goredis.Client:
		if c == nil {
			return nil, backend.Invalid("the Redis client is nil")
		}
		// A copy that shares the pool, but heeds deadlines.
		mine := c.WithTimeout(requestMost)
		mine.Options().ContextTimeoutEnabled = true
		mine.Options().MaxRetries = min(mine.Options().MaxRetries, 1)
		// One of a Sentinel group asks the sentinels when it dials, without heeding a deadline.
		s.client, s.prompt = mine, c.Options().Addr != failoverAddr
	}
	s.hubs.Idle, s.hubs.Sharded, s.hubs.Needed = redisnode.IdleFor, s.cluster != nil, true
	s.hubs.Moved = func() {
		if s.cluster != nil {
			s.cluster.ReloadState(context.Background()) // in the background
		}
	}
	s.rest = fmt.Sprintf("%d %d %s %s", redisnode.Millis(claim), redisnode.Millis(slack), s.process, s.publish)
	return &Driver{s}, nil
}

// Traits returns what the Redis backend promises.
func (s *store) Traits() backend.Traits { return backend.TraitsOf("redis") }

// Calls implements backend.Driver. On a cluster the keys of two locks lie in two slots, as a rule.
func (s *store) Calls() backend.Calls {
	c := backend.Calls{Most: 100, Abreast: 2, Mixed: true, Aside: !s.prompt}
	if s.cluster != nil {
		c.Most = 1
	} else {
		c.Looks = 5000 // of which the server has the values in 2 ms
	}
	return c
}

// Close implements backend.Driver.
func (s *store) Close() error {
	s.hubs.Close()
	var err error
	if s.own {
		err = s.client.Close() // ends the calls that are under way
	}
	s.flying.Wait()
	return err
}
