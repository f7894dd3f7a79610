package redlock

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// DefaultQuarantine is how long a node that may have forgotten votes does not vote.
	DefaultQuarantine = time.Minute
	// DefaultDrift is the share of the TTL that clocks may drift apart during it, as the
	// algorithm's page has it; 2 ms more are added for Redis's own granularity.
	DefaultDrift = 0.01

	driftLeast = 2 * time.Millisecond
	// tombstone is how much longer than the TTL a late request for a vote is refused whose ballot was
	// given up.
	tombstone = 10 * time.Second
	// reserveMs is for how long a freed lock is kept for the waiter that was told of it.
	reserveMs = 200
	// floor is how long a waiter waits for a push at the most.
	floor = 3 * time.Second
	// foreignFloor is the same while a program that knows no waiters holds the key.
	foreignFloor = time.Second
)

// Options of [New].
type Options struct {
	// Prefix goes before every lock's name to make its key; the default is
	// "fencelock:". See NoPrefix for none.
	Prefix string
	// NoPrefix makes the key the name itself.
	NoPrefix bool
	// Quarantine is how long a node that was restarted, flushed or restored, or that is new, does not
	// vote: the longest TTL + Grace that any client of these nodes uses. All must have the same. A TTL
	// + Grace above it is ErrInvalid. The default is DefaultQuarantine.
	Quarantine time.Duration
	// Drift is the share of the TTL by which the clocks of client and nodes may drift apart during it,
	// from 0 (none given: DefaultDrift) to below 0.5. The grant is trusted for that much less, and 2 ms.
	Drift float64
	// Fresh is an operator's word that no lock was forgotten: nodes in quarantine settle at once. It is heeded
	// only if every node answers and none has settled before; see the package documentation.
	Fresh bool
}

// Driver is the Redlock backend. It implements backend.Mover.
type Driver struct{ *store }

// store implements backend.Mover.
type store struct {
	nodes   []*node
	quorum  int
	own     bool // we opened the clients
	prefix  string
	process string // names this driver's channel
	hubs    redisnode.Hubs

	quarantine time.Duration
	drift      float64
	fresh      atomic.Bool // the operator's word is still to be given
	looked     atomic.Bool // the nodes have been looked at: no two are one server

	last   atomic.Int64 // the greatest number proposed or seen
	mended atomic.Int64 // when the gates were looked after, in ns since 1970

	flying core.Group // calls to nodes
}

// New returns a driver over clients that the program has, one *redis.Client of go-redis v9 for each
// node: an odd number from 3, of servers that do not replicate to each other. The clients are
// neither changed nor closed, and nothing is sent. opts may be nil. A client of a Cluster or a Ring
// is ErrInvalid, for it is no single node. Two clients of one database of one server are ErrInvalid
// when the first lock is asked for. Each node has a goroutine until Close.
func New(clients []goredis.UniversalClient, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	prefix, err := core.Keyspace(opts.Prefix, opts.NoPrefix)
	switch n := len(clients); {
	case err != nil:
		return nil, err
	case n < 3 || n%2 == 0:
		return nil, backend.Invalid("Redlock over %d nodes: want an odd number from 3, such as 3 "+
			"or 5 (an even one survives no more failures than one less)", n)
	case opts.Quarantine < 0:
		return nil, backend.Invalid("redlock.Options.Quarantine is %v: want a positive "+
			"duration, the longest TTL in use", opts.Quarantine)
	case !(opts.Drift >= 0 && opts.Drift < 0.5): // NaN is neither
		return nil, backend.Invalid("redlock.Options.Drift is %v: want a share of the TTL from 0 "+
			"to below 0.5, such as 0.01", opts.Drift)
	}
	s := &store{
		quorum:     len(clients)/2 + 1,
		prefix:     prefix,
		process:    redisnode.Process(),
		quarantine: cmp.Or(opts.Quarantine, DefaultQuarantine),
		drift:      cmp.Or(opts.Drift, DefaultDrift),
	}
	s.fresh.Store(opts.Fresh)
	s.hubs.Idle, s.hubs.Moved = redisnode.IdleFor, func() {}
	for i, c := range clients {
		n, err := s.node(i, c)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, n)
	}
	return &Driver{s}, nil
}

// node makes the node of a client: a copy that shares its pool, but heeds deadlines.
func (s *store) node(i int, client goredis.UniversalClient) (*node, error) {
	n := &node{s: s, index: i, client: client, addr: fmt.Sprintf("node %d", i+1), roused: make(chan bool, 1)}
	db := 0
	switch c := client.(type) {
	case nil:
		return nil, backend.Invalid("the Redis client of node %d is nil", i+1)
	case *goredis.ClusterClient, *goredis.Ring:
		return nil, backend.Invalid("the client of node %d is a %T: want a *redis.Client, for a "+
			"node is one server that knows nothing of the others", i+1, client)
	case *goredis.Client:
		if c == nil {
			return nil, backend.Invalid("the Redis client of node %d is nil", i+1)
		}
		mine := c.WithTimeout(callMost)
		mine.Options().ContextTimeoutEnabled = true
		mine.Options().MaxRetries = 0 // the engine sends again, and knows of the copies
		n.client, n.addr = mine, c.Options().Addr
		db = c.Options().DB
	}
	ahead := s.ahead()
	n.settings = fmt.Sprint(db, " ", redisnode.Millis(s.quarantine), " ", ahead.Microseconds(), " ",
		reserveMs, " ", s.prefix)
	return n, nil
}

// Traits returns what the Redlock backend promises.
func (s *store) Traits() backend.Traits { return backend.TraitsOf("redlock") }

// Calls implements backend.Driver. Each node has batches of its own, so that a lock waits for no other
// lock's votes.
func (s *store) Calls() backend.Calls { return backend.Calls{Most: 1} }

// Close implements backend.Driver. It first sends what it still owes to nodes that answer.
func (s *store) Close() error {
	s.hubs.Close()
	for _, n := range s.nodes {
		if silent := n.close(); silent && s.own {
			_ = n.client.Close() // ends the calls to it
		}
	}
	s.flying.Wait()
	for _, n := range s.nodes {
		if s.own {
			_ = n.client.Close()
		}
	}
	return nil
}

// number returns one above every number that this driver has proposed or seen, and at least the
// clock in µs.
func (s *store) number() int64 {
	for {
		last := s.last.Load()
		n := max(time.Now().UnixMicro(), last+1)
		if s.last.CompareAndSwap(last, n) {
			return n
		}
	}
}

// ahead is how far ahead of a node's clock a proposal may be.
func (s *store) ahead() time.Duration { return s.quarantine / 4 }

// saw takes in a token, so that the next proposal is above it. It leaves out one that is too far ahead, after a
// floor: nodes would not take the next proposal, and every name of this driver would pay for that.
func (s *store) saw(n int64) {
	if n > time.Now().Add(s.ahead()).UnixMicro() {
		return
	}
	for last := s.last.Load(); n > last && !s.last.CompareAndSwap(last, n); last = s.last.Load() {
	}
}
