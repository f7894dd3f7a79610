package zookeeper

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// baseLength is the session that every driver has: for what is about no lock in particular, and for
// holds of the default TTL.
const baseLength = 30 * time.Second

// Options of [New].
type Options struct {
	// Prefix is the keyspace: every lock's node is under Chroot/Prefix; the default is "fencelock:".
	// See NoPrefix for none. It is none of locks, tokens, done, clients and zookeeper.
	Prefix string
	// NoPrefix puts the locks under the node that an empty prefix has.
	NoPrefix bool
	// Chroot is the node under which everything is, such as "/prod"; it is made if it is missing.
	// The default is the root.
	Chroot string
	// User and Password authenticate with the digest scheme. What the driver makes is then
	// accessible to this user only; without User, to everybody.
	User, Password string
	// Dial connects to a server; the default dials TCP. For TLS, which a URL has by zookeepers://,
	// give a tls.Dialer's DialContext. It has 2 s; the default has one.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Driver is the ZooKeeper backend. It implements backend.Mover.
type Driver struct{ *store }

// store implements backend.Mover.
type store struct {
	servers  []string
	at       places
	acl      []zk.ACL
	auth     []byte // user:password; nil without
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	dialMost time.Duration
	base     base
	clock    clock
	gates    gates
	ticks    atomic.Int64   // see tick
	flying   core.Group     // calls that may outlive their callers, and sessions that are being closed
	tidying  sync.WaitGroup // see tidy

	mu       sync.Mutex
	closed   bool
	sessions []*session
	sights   map[string]sight  // by lock
	crowd    int               // of sights, before old ones are forgotten
	places   map[string]*place // by nonce: those that were not given up
}

// New returns a driver for an ensemble: servers are "host:port" each, port 2181 where none is
// given. Nothing is sent before the first call. The driver opens its own sessions, because how long
// a session lives is how long its leases last. opts may be nil. Close ends the sessions.
func New(servers []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	prefix, err := core.Keyspace(opts.Prefix, opts.NoPrefix)
	if err == nil {
		err = checkPrefix(prefix)
	}
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		return nil, backend.Invalid("no ZooKeeper server is given: want host:port of each")
	}
	if err := checkChroot(opts.Chroot); err != nil {
		return nil, err
	}
	st := &store{
		servers: zk.FormatServers(servers),
		at:      newPlaces(strings.TrimSuffix(opts.Chroot, "/"), prefix),
		acl:     zk.WorldACL(zk.PermAll),
		dial:    opts.Dial, dialMost: 2 * dialMost,
		places: map[string]*place{},
		sights: map[string]sight{},
	}
	for _, s := range st.servers {
		if host, _, err := net.SplitHostPort(s); err != nil || host == "" {
			return nil, backend.Invalid("ZooKeeper server %q: want host:port, "+
				"an IPv6 address in brackets", s)
		}
	}
	if st.dial == nil {
		st.dial, st.dialMost = (&net.Dialer{}).DialContext, dialMost
	}
	if opts.User == "" && opts.Password != "" || strings.Contains(opts.User, ":") {
		return nil, backend.Invalid("the ZooKeeper user must be there if there is a password, " +
			"and without a colon")
	}
	if strings.ContainsFunc(opts.User+opts.Password, func(r rune) bool { return r >= 0x80 }) {
		return nil, backend.Invalid("the ZooKeeper user and password must be ASCII: servers read others as their " +
			"locale says, and would let nobody in again")
	}
	if opts.User != "" {
		st.auth = []byte(opts.User + ":" + opts.Password)
		st.acl = zk.DigestACL(zk.PermAll, opts.User, opts.Password)
	}
	return &Driver{st}, nil
}

// checkChroot returns nil for a path that ZooKeeper takes.
func checkChroot(p string) error {
	trimmed := strings.TrimSuffix(p, "/")
	if trimmed == "" {
		return nil
	}
	bad := !strings.HasPrefix(trimmed, "/") || strings.HasPrefix(trimmed+"/", "/zookeeper/") ||
		backend.CheckName(trimmed) != nil
	for part := range strings.SplitSeq(strings.TrimPrefix(trimmed, "/"), "/") {
		bad = bad || part == "" || part == "." || part == ".."
	}
	for _, r := range trimmed {
		bad = bad || r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff ||
			r >= 0xfff0 // above 0xffff it is a pair of surrogates in UTF-16, which ZooKeeper refuses
	}
	if bad {
		return backend.Invalid("the chroot %q: want an absolute path such as /prod, without . "+
			"and .. and control characters, and not /zookeeper", p)
	}
	return nil
}

// Traits returns what the ZooKeeper backend promises.
func (st *store) Traits() backend.Traits { return backend.TraitsOf("zookeeper") }

// Calls implements backend.Driver. Claims are put together in a session; see batch.
func (st *store) Calls() backend.Calls { return backend.Calls{Most: 1, Abreast: 1} }

// Close implements backend.Driver. It returns when every session has ended, or could not be told to
// within a second, after as long for what releases have left to do. A session with a lost hold whose
// grace is not over is left to the servers.
func (st *store) Close() error {
	st.mu.Lock()
	st.closed = true
	sessions := st.sessions
	st.sessions = nil
	st.mu.Unlock()
	tidied := make(chan struct{})
	go func() { st.tidying.Wait(); close(tidied) }()
	select {
	case <-tidied:
	case <-time.After(closeMost):
	}
	for _, s := range sessions {
		s.end()
	}
	st.flying.Wait()
	return nil
}

// tick is the servers' tick, as long as it can be: half of their shortest session; 0: not known
// yet.
func (st *store) tick() time.Duration { return time.Duration(st.ticks.Load()) }
