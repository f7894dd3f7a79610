package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
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
	d.hubs.d = d
	return d, nil
}

// Traits returns what the Redis backend promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("redis") }

// Acquire implements backend.Driver: one script in one round trip if the lock
// is free. A waiter subscribes before it joins the queue.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	a := &attempt{d: d, r: r, keys: keysOf(d.prefix + r.Name)}
	var outage error
	if !r.Wait || !d.hubs.subscribed(a.keys) {
		res, err := a.first(ctx)
		switch {
		case err == nil && res.granted:
			return a.grant, nil
		case err == nil && !r.Wait:
			return backend.Grant{}, backend.ErrLocked
		case err != nil && (!r.Wait || backend.Final(err)):
			return backend.Grant{}, err
		}
		outage = err
	}
	w := d.hubs.waiter(r.Nonce)
	defer w.leave()
	err := backend.Wait(ctx, w.wake, func(ctx context.Context) (bool, time.Duration, error) {
		if err := w.join(ctx, a.keys); err != nil {
			if outage != nil {
				err = outage // says more than that there was no answer
			}
			return false, 0, err
		}
		res, err := a.ask(ctx, true)
		outage = err
		return res.granted, res.look, err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return a.grant, nil
}

// first is the ask of a lock that is probably free. Before a wait it is cut short if there is no answer, for
// the wait has its own patience.
func (a *attempt) first(ctx context.Context) (answer, error) {
	switch {
	case !a.r.Wait:
	case a.d.prompt:
		ctx = deadlined(ctx, promptMost)
	default:
		limited, cancel := context.WithTimeout(ctx, promptMost)
		defer cancel()
		ctx = limited
	}
	return a.ask(ctx, false)
}

// attempt is one acquisition.
type attempt struct {
	d      *Driver
	r      *backend.Request
	keys   keys
	ticket int64 // the place in the queue, kept if the server forgets it
	grant  backend.Grant
}

// answer is the server's to one request of an attempt.
type answer struct {
	granted bool
	look    time.Duration // when to look again
}

// ask sends the acquire script once; queue: join the queue if the lock is held.
func (a *attempt) ask(ctx context.Context, queue bool) (answer, error) {
	mode := "t"
	if queue {
		mode = "w"
	}
	asked := backend.Now()
	args := append(make([]any, 0, 12), a.r.Nonce, millis(a.r.TTL+a.r.Grace), mode, a.ticket, a.r.Floor,
		millis(claim), millis(slack), a.d.process, a.d.publish, mark(a.r))
	if a.r.Move != "" {
		args = append(args, string(a.r.Phase), a.r.Move)
	}
	keys := a.keys.acquire(a.r.Nonce, a.d.gatesOf(a.keys))
	reply, err := a.d.run(ctx, acquireScript, keys, args...)
	if err != nil {
		if !backend.Final(err) {
			a.d.setDoubt(a.r.Nonce)
		}
		return answer{}, err
	}
	if token, ok := reply.(int64); ok {
		a.grant = backend.Grant{Token: token, Asked: asked, Ungated: a.r.Move != ""}
		return answer{granted: true}, nil
	}
	res, ok := reply.([]any)
	if !ok || len(res) == 0 {
		return answer{}, unexpected(reply)
	}
	switch res[0] {
	case "ok":
		token, _ := res[len(res)-1].(int64)
		a.grant = backend.Grant{Token: token, Asked: asked}
		return answer{granted: true}, nil
	case "gate":
		return answer{}, refusal(res, a.r.Phase)
	case "badgate":
		return answer{}, badGate(keys[5])
	case "gone":
		return answer{}, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	case "locked":
		return answer{}, nil
	case "queued":
		return a.queued(res)
	}
	return answer{}, unexpected(reply)
}

// queued reads {"queued", ticket, pttl, foreign}.
func (a *attempt) queued(res []any) (answer, error) {
	if len(res) != 4 {
		return answer{}, unexpected(res)
	}
	ticket, ok1 := res[1].(string)
	left, ok2 := res[2].(int64)
	foreign, ok3 := res[3].(int64)
	n, err := strconv.ParseInt(ticket, 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil {
		return answer{}, unexpected(res)
	}
	a.ticket = n
	look := floor
	if left >= 0 {
		look = min(look, time.Duration(left)*time.Millisecond+5*time.Millisecond)
	}
	if foreign == 1 {
		look = min(look, foreignFloor)
	}
	return answer{look: look}, nil
}

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

// end sends the release script. A tombstone is left only where an acquire went
// unanswered, which may still be under way.
func (d *Driver) end(ctx context.Context, r *backend.Request, remember bool) (int64, error) {
	var keep time.Duration
	if d.inDoubt(r.Nonce) {
		keep = r.TTL + r.Grace + tombstone
	}
	flag := "0"
	if remember {
		flag = "1"
	}
	reply, err := d.run(ctx, releaseScript, keysOf(d.prefix+r.Name).release(r.Nonce),
		r.Nonce, millis(claim), millis(keep), d.publish, flag)
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

// Check implements backend.Checker.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	return d.each(ctx, checkScript, hs, func(h *backend.Hold) []any { return []any{h.Nonce} })
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

var errUnexpected = errors.New("unexpected reply of the server")

func unexpected(reply any) error { return fmt.Errorf("%w: %v", errUnexpected, reply) }
