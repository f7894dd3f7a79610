package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/fencelock/fencelock/backend"
)

// closeMost bounds what Close asks of the server.
const closeMost = time.Second

// Options of [New].
type Options struct {
	// Prefix is what every key begins with; the default is "fencelock:". See
	// NoPrefix for none.
	Prefix string
	// NoPrefix makes the keys begin with a ~.
	NoPrefix bool
}

// prefix returns what opts say; opts may be nil.
func (o *Options) prefix() (string, error) {
	if o == nil {
		o = &Options{}
	}
	p := o.Prefix
	switch {
	case o.NoPrefix && p != "":
		return "", backend.Invalid("etcd.Options has both Prefix and NoPrefix: want one")
	case p == "" && !o.NoPrefix:
		p = backend.DefaultPrefix
	}
	return p, backend.CheckPrefix(p)
}

// Driver is the etcd backend. It implements backend.Driver, backend.Checker and backend.Gater.
type Driver struct {
	client *clientv3.Client
	own    bool // we opened the client
	keys   keys

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	shut    func() error   // close, once
	flying  sync.WaitGroup // goroutines of the driver
	leases  leases
	hubs    hubs
	keeper  keeper
	history history
	ledger  ledger
	ids     ids
	gates   gates
	batches batches
	reports reports
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Gater   = (*Driver)(nil)
)

// New returns a driver over a client that the program has. The client is neither
// changed nor closed, and nothing is sent. opts may be nil. How soon an outage is
// over for the driver is up to the client: set DialKeepAliveTime and a short
// back-off as the package comment says.
func New(client *clientv3.Client, opts *Options) (*Driver, error) {
	if client == nil {
		return nil, backend.Invalid("the etcd client is nil")
	}
	prefix, err := opts.prefix()
	if err != nil {
		return nil, err
	}
	d := &Driver{client: client, keys: keysOf(prefix)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.leases = leases{d: d, lc: clientv3.RetryLeaseClient(client), slots: map[slotKey]*slot{}}
	d.hubs.d, d.hubs.byQueue = d, map[string]*hub{}
	d.keeper = keeper{d: d, waiters: map[*waiter]slotKey{}, over: make(chan struct{})}
	d.batches.d = d
	d.ledger.init()
	d.ids.init()
	d.shut = sync.OnceValue(d.close)
	return d, nil
}

// Traits returns what the etcd backend promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("etcd") }

// Close implements backend.Driver. The leases that no lock is under are revoked if
// the server answers within a second; they would end by themselves. A second Close does nothing.
func (d *Driver) Close() error { return d.shut() }

func (d *Driver) close() error {
	d.hubs.close()
	d.keeper.close()
	late := time.AfterFunc(closeMost, d.cancel)
	defer late.Stop()
	if conn := d.client.ActiveConnection(); conn == nil || conn.GetState() == connectivity.Ready {
		d.leases.close(d.ctx)
	}
	d.flying.Wait()
	d.leases.hangUp()
	d.cancel()
	if !d.own {
		return nil
	}
	if err := d.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// hold is the handle of a grant.
type hold struct {
	key   string
	queue string
	rev   int64 // its create revision: never another's
	secs  int64 // of its own lease; 0 if it shares one
	lease *lease

	value         // what its entry holds once it was renewed
	reserved int  // as in backend.Grant
	ungated  bool // likewise

	mu      sync.Mutex
	written bool // that stands in the entry
	sent    bool // a release went unanswered
}

func (h *hold) isWritten() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written
}

func (h *hold) setWritten() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.written = true
}

// rememberReleased is how many released nonces a driver remembers.
const rememberReleased = 4096

// ledger is what a driver remembers of acquisitions, by nonce.
type ledger struct {
	mu       sync.Mutex
	held     map[string]*hold
	doubt    map[string]struct{} // a request that creates went unanswered
	released map[string]struct{}
	ring     []string // the released, oldest at next
	next     int
}

func (l *ledger) init() {
	l.held, l.doubt, l.released = map[string]*hold{}, map[string]struct{}{}, map[string]struct{}{}
}

func (l *ledger) setHeld(nonce string, h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[nonce] = h
}

func (l *ledger) heldBy(nonce string) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[nonce]
}

func (l *ledger) setDoubt(nonce string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubt[nonce] = struct{}{}
}

func (l *ledger) inDoubt(nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.doubt[nonce]
	return ok
}

// forget ends the memory of an acquisition that left nothing behind. It returns
// its hold, if it was granted.
func (l *ledger) forget(nonce string) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[nonce]
	delete(l.held, nonce)
	delete(l.doubt, nonce)
	return h
}

// setReleased remembers a release that was confirmed.
func (l *ledger) setReleased(nonce string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < rememberReleased {
		l.ring = append(l.ring, nonce)
	} else {
		delete(l.released, l.ring[l.next])
		l.ring[l.next] = nonce
		l.next = (l.next + 1) % rememberReleased
	}
	l.released[nonce] = struct{}{}
}

func (l *ledger) wasReleased(nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.released[nonce]
	return ok
}

var errUnexpected = errors.New("unexpected reply of the server")
