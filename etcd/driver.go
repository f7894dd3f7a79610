package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// closeMost bounds the requests of Close.
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
	return core.Keyspace(o.Prefix, o.NoPrefix)
}

// Driver is the etcd backend. It implements backend.Mover.
type Driver struct{ *store }

// store implements backend.Mover.
type store struct {
	client   *clientv3.Client
	transact committer // over it
	own      bool      // we opened the client
	keys     keys
	// Parts that most transactions have in common.
	getBase, getGates *pb.RequestOp
	noGatesKey        *pb.Compare

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	shut    func() error // close, once
	flying  core.Group   // goroutines of the store
	leases  leases
	push    push
	history history
	ids     ids
	base    atomic.Int64 // as it was seen last
	slow    atomic.Int32 // how many more batches go part by part
}

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
	s := &store{client: client, transact: committerOf(client), keys: keysOf(prefix)}
	s.getBase, s.getGates, s.noGatesKey = opGet(s.keys.base()), opGet(s.keys.gates()), createdAt(s.keys.gates(), 0)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.leases = leases{
		store: s, lc: clientv3.RetryLeaseClient(client),
		slots: map[slotKey]*slot{}, spare: map[int64][]*lease{},
	}
	s.push.s, s.push.watches = s, map[string]*watch{}
	s.push.ctx, s.push.cancel = context.WithCancel(s.ctx)
	s.history.onBack = func() {
		s.leases.giveUp()
		s.push.renew()
	}
	s.ids.free = map[string]string{}
	s.shut = sync.OnceValue(s.close)
	return &Driver{s}, nil
}

// Traits returns what the etcd backend promises.
func (s *store) Traits() backend.Traits { return backend.TraitsOf("etcd") }

// Calls implements backend.Driver. Servers allow 128 compares in a transaction by default, and a
// claim has two.
func (s *store) Calls() backend.Calls { return backend.Calls{Most: 60, Abreast: 2, Mixed: true} }

// Close implements backend.Driver. The leases that no lock is under are revoked if the server
// answers within a second; they would end by themselves. A second Close does nothing.
func (s *store) Close() error { return s.shut() }

func (s *store) close() error {
	s.push.close()
	late := time.AfterFunc(closeMost, s.cancel)
	defer late.Stop()
	s.leases.close(s.ctx)
	s.flying.Wait()
	s.cancel()
	if !s.own {
		return nil
	}
	err := s.client.Close()
	if shared, ok := s.client.Auth.(*logins); ok {
		shared.flying.Wait()
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// hold is the handle of a grant.
type hold struct {
	key   string
	rev   int64                 // its create revision: no other hold has it
	lease atomic.Pointer[lease] // the waiters' until the first renewal of a hold that was inherited

	value                // the one of its entry once it was renewed
	written atomic.Bool  // the entry has that value, or is about to
	seen    atomic.Int64 // the revision at which it was there last; 0: the revision of the grant

	// For Leave only:
	sent     bool // a release was sent
	bare     bool // one without a mark of its nonce went unanswered
	released bool
}

// newHold returns the handle of a grant under a lease.
func newHold(l *lease, v value) *hold {
	h := &hold{value: v}
	h.lease.Store(l)
	return h
}

// holdOf returns the handle of a claim that was granted.
func holdOf(c *backend.Claim) (*hold, error) {
	h, ok := c.Handle.(*hold)
	if !ok {
		return nil, backend.Invalid("the hold of %q has the handle %T: want the one that this "+
			"driver's Acquire returned", c.Name, c.Handle)
	}
	return h, nil
}

// grant is the hold as the engine sees it: the Deadline counts from the last confirmation of the lease.
func (h *hold) grant() backend.Grant {
	l := h.lease.Load()
	g := backend.Grant{Token: h.token, Slot: h.slot, Reserved: h.reserve, Asked: l.confirmed(), Handle: h}
	if l.kind == waits {
		g.Short = l.granted
	}
	return g
}

// freeMost is how many keys are kept for later claims.
const freeMost = 8192

// ids tell the entries of a queue apart. An id is the nonce of the first claim that has it. Once that claim was
// released, and no copy of its requests can be under way, the next claim of the name takes the id. Until etcd is
// compacted it looks at every key that has ever been in a range, so a name that is locked a thousand times a second
// would soon be slow if each time had a key of its own.
type ids struct {
	mu   sync.Mutex
	free map[string]string // by queue
}

// take returns the id for a claim.
func (s *ids) take(queue, nonce string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.free[queue]
	if !ok {
		return nonce
	}
	delete(s.free, queue)
	return id
}

// give takes back an id that no request under way names.
func (s *ids) give(queue, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) >= freeMost {
		for other := range s.free {
			delete(s.free, other)
			break
		}
	}
	s.free[queue] = id
}
