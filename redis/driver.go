package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

const (
	// claim is how long a grant by another client's release lasts until its
	// waiter has confirmed it.
	claim = 2 * time.Second
	// slack is how long after its next look a waiter counts as alive.
	slack = 2 * time.Second
	// floor is how long a waiter waits for a push at the most.
	floor = 5 * time.Second
	// foreignFloor is the same while a program that knows no queue holds the key.
	foreignFloor = time.Second
	// tombstone is how much longer than the TTL a late request of an abandoned
	// acquisition is refused.
	tombstone = 10 * time.Second
)

// claimMillis is claim as Redis takes it.
const claimMillis = int64(claim / time.Millisecond)

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

// Driver is the Redis backend. It implements backend.Driver, backend.Checker and backend.Gater.
type Driver struct {
	client  goredis.UniversalClient
	cluster *goredis.ClusterClient // client, if it is one
	own     bool                   // we opened the client
	prompt  bool                   // the client heeds the deadline of a ctx by itself
	prefix  string
	gates   string // the key of its gates, off a cluster
	process string // names this driver's channels
	publish string // PUBLISH or SPUBLISH
	hubs    hubs
	lane    lane
	known   atomic.Pointer[gateList]
	rest    string // ARGV[3] of run.lua
	began   time.Time
	ring    atomic.Pointer[ring]

	mu     sync.Mutex
	doubt  map[string]struct{} // nonces of which a request went unanswered
	flying sync.WaitGroup      // calls that outlived their callers
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Gater   = (*Driver)(nil)
)

// New returns a driver over a client that the program has: a *redis.Client
// (also of a Sentinel group) or a *redis.ClusterClient of go-redis v9. The client is
// neither changed nor closed, and nothing is sent. opts may be nil. A *redis.Ring is ErrInvalid:
// it would put the keys of one lock on different servers.
func New(client goredis.UniversalClient, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	prefix := opts.Prefix
	switch {
	case opts.NoPrefix && prefix != "":
		return nil, backend.Invalid("redis.Options has both Prefix and NoPrefix: want one")
	case prefix == "" && !opts.NoPrefix:
		prefix = backend.DefaultPrefix
	}
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	d := &Driver{
		client:  client,
		prefix:  prefix,
		gates:   ours(tags()[0]) + "g" + prefix,
		process: hex.EncodeToString(id[:]),
		publish: "PUBLISH",
		doubt:   map[string]struct{}{},
	}
	switch c := client.(type) {
	case nil:
		return nil, backend.Invalid("the Redis client is nil")
	case *goredis.Ring:
		return nil, backend.Invalid("a redis.Ring cannot carry locks: the keys of one lock would lie on different servers; use a Client or a ClusterClient")
	case *goredis.ClusterClient:
		if c == nil {
			return nil, backend.Invalid("the Redis client is nil")
		}
		d.cluster, d.publish = c, "SPUBLISH"
		d.prompt = c.Options().ContextTimeoutEnabled
	case *goredis.Client:
		if c == nil {
			return nil, backend.Invalid("the Redis client is nil")
		}
		// A copy that shares the pool, but heeds deadlines.
		mine := c.WithTimeout(requestMost)
		mine.Options().ContextTimeoutEnabled = true
		mine.Options().MaxRetries = min(mine.Options().MaxRetries, 1)
		// One of a Sentinel group asks the sentinels when it dials, without heeding a deadline.
		d.client, d.prompt = mine, c.Options().Addr != failoverAddr
	}
	d.hubs.d, d.lane.d = d, d
	d.rest = fmt.Sprintf("%s %d %d %s %s", plain, claimMillis, millis(slack), d.process, d.publish)
	d.began = time.Now()
	return d, nil
}

// Traits returns what the Redis backend promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("redis") }

// Release implements backend.Driver.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	n, err := d.end(ctx, h.Request, true)
	if err == nil && n == 0 {
		err = backend.ErrLost
	}
	return err
}

// Abandon implements backend.Driver.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	_, err := d.end(ctx, r, false)
	return err
}

// end sends a release or an abandon. A tombstone is left only where an acquire went
// unanswered, which may still be under way.
func (d *Driver) end(ctx context.Context, r *backend.Request, remember bool) (int64, error) {
	var keep time.Duration
	if d.inDoubt(r.Nonce) {
		keep = r.TTL + r.Grace + tombstone
	}
	shared := plain
	if keep > 0 || !remember {
		shared = fmt.Sprintf("%d %d", millis(keep), flag(remember))
	}
	c := &call{script: runScript, op: keysOf(d.prefix+r.Name).operation(false, r.Nonce, shared)}
	reply, err := d.send(ctx, c)
	if err != nil {
		return 0, err
	}
	n, ok := reply.(int64)
	if !ok {
		return 0, unexpected(reply)
	}
	if keep > 0 {
		d.clearDoubt(r.Nonce)
	}
	return n, nil
}

// Renew implements backend.Driver.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return d.each(ctx, renewScript, hs, func(h *backend.Hold) []any {
		return []any{h.Nonce, millis(h.TTL + h.Grace)}
	})
}

// Close implements backend.Driver.
func (d *Driver) Close() error {
	d.hubs.close()
	var err error
	if d.own {
		err = d.client.Close() // ends the calls that are under way
	}
	d.flying.Wait()
	return err
}

func (d *Driver) setDoubt(nonce string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.doubt[nonce] = struct{}{}
}

func (d *Driver) clearDoubt(nonce string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.doubt, nonce)
}

func (d *Driver) inDoubt(nonce string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.doubt[nonce]
	return ok
}

// millis is a duration as Redis takes it. It rounds up: the store may keep a
// lock longer, never shorter.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

var errUnexpected = errors.New("unexpected reply of the server")

func unexpected(reply any) error { return fmt.Errorf("%w: %v", errUnexpected, reply) }
