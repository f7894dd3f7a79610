package zookeeper

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// baseLength is the session that every driver has: for what is about no lock in particular, and for
	// holds of the default TTL.
	baseLength = 30 * time.Second
	// remembered is how many acquisitions that have ended are known as such.
	remembered = 10_000
)

// Options of [New].
type Options struct {
	// Prefix is the keyspace: every lock's node is under Chroot/Prefix; the default is "fencelock:". See NoPrefix
	// for none.
	Prefix string
	// NoPrefix puts the locks under the node that an empty prefix has.
	NoPrefix bool
	// Chroot is the node under which everything is, such as "/prod"; it is made if it is missing. The default is the root.
	Chroot string
	// User and Password authenticate with the digest scheme. What the driver makes is then accessible to
	// this user only; without User, to everybody.
	User, Password string
	// Dial connects to a server; the default dials TCP. A program that wants TLS gives a tls.Dialer's DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Driver is the ZooKeeper backend. It implements backend.Driver, backend.Checker and backend.Gater.
type Driver struct {
	servers []string
	at      places
	acl     []zk.ACL
	auth    []byte // user:password; nil without
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	buckets [buckets]*bucket
	clock   clock
	gates   gates
	flying  sync.WaitGroup // calls that may outlive their callers, and sessions that are being closed

	mu       sync.Mutex
	closed   bool
	sessions []*session
	most     limit
	entries  map[string]*entry // by nonce
	ended    ring
	suspects map[string]suspect   // by lock
	busy     map[string]time.Time // by lock: when it was found held
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Gater   = (*Driver)(nil)
)

// New returns a driver for an ensemble: servers are "host:port" each, port 2181 where none is given. Nothing is sent
// before the first call. The driver opens its own sessions, because how long a session lives is how long its
// leases last. opts may be nil. Close ends the sessions.
func New(servers []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	prefix := opts.Prefix
	switch {
	case opts.NoPrefix && prefix != "":
		return nil, backend.Invalid("zookeeper.Options has both Prefix and NoPrefix: want one")
	case prefix == "" && !opts.NoPrefix:
		prefix = backend.DefaultPrefix
	}
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		return nil, backend.Invalid("no ZooKeeper server is given: want host:port of each")
	}
	if err := checkChroot(opts.Chroot); err != nil {
		return nil, err
	}
	d := &Driver{
		servers:  zk.FormatServers(servers),
		at:       newPlaces(strings.TrimSuffix(opts.Chroot, "/"), prefix),
		acl:      zk.WorldACL(zk.PermAll),
		dial:     opts.Dial,
		entries:  map[string]*entry{},
		suspects: map[string]suspect{},
		busy:     map[string]time.Time{},
	}
	for _, s := range d.servers {
		if host, _, err := net.SplitHostPort(s); err != nil || host == "" {
			return nil, backend.Invalid("ZooKeeper server %q: want host:port, an IPv6 address in brackets", s)
		}
	}
	if d.dial == nil {
		d.dial = (&net.Dialer{}).DialContext
	}
	if opts.User == "" && opts.Password != "" || strings.Contains(opts.User, ":") {
		return nil, backend.Invalid("the ZooKeeper user must be there if there is a password, and without a colon")
	}
	if opts.User != "" {
		d.auth = []byte(opts.User + ":" + opts.Password)
		d.acl = zk.DigestACL(zk.PermAll, opts.User, opts.Password)
	}
	for i := range d.buckets {
		d.buckets[i] = &bucket{path: d.at.counter(i)}
	}
	return d, nil
}

// checkChroot returns nil for a path that ZooKeeper takes.
func checkChroot(p string) error {
	trimmed := strings.TrimSuffix(p, "/")
	if trimmed == "" {
		return nil
	}
	bad := !strings.HasPrefix(trimmed, "/") || strings.HasPrefix(trimmed+"/", "/zookeeper/") || backend.CheckName(trimmed) != nil
	for part := range strings.SplitSeq(strings.TrimPrefix(trimmed, "/"), "/") {
		bad = bad || part == "" || part == "." || part == ".."
	}
	for _, r := range trimmed {
		bad = bad || r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 && r <= 0xffff
	}
	if bad {
		return backend.Invalid("the chroot %q: want an absolute path such as /prod, without . and .. and control characters, and not /zookeeper", p)
	}
	return nil
}

// Traits returns what the ZooKeeper backend promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("zookeeper") }

// Close implements backend.Driver. It returns when every session has ended, or
// could not be told to within a second.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	sessions := d.sessions
	d.sessions = nil
	for _, e := range d.entries {
		e.stop()
	}
	d.mu.Unlock()
	for _, s := range sessions {
		s.end()
	}
	d.flying.Wait()
	return nil
}

// bucket returns the counter of a name.
func (d *Driver) bucket(name string) *bucket { return d.buckets[bucketOf(name)] }

// forgetStore makes the next grants ask for the counters and the gates: behind a broken connection may be servers that went
// back to an older state.
func (d *Driver) forgetStore() {
	d.gates.forget()
	d.forgetCounters()
}

// forgetCounters makes the next grants ask for the counters.
func (d *Driver) forgetCounters() {
	for _, b := range d.buckets {
		b.forget()
	}
}

// depart lets what waits on other sessions for counters that a flight of s had leave.
func (d *Driver) depart(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.sessions {
		if o != s {
			o.batches.add(o)
		}
	}
}

// entry returns the acquisition of a request, and makes it if it is new and has not ended.
func (d *Driver) entry(r *backend.Request) (*entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, backend.ErrClosed
	case d.ended.has(r.Nonce):
		return nil, errGone
	}
	e := d.entries[r.Nonce]
	if e == nil {
		e = newEntry(d, r)
		d.entries[r.Nonce] = e
	}
	return e, nil
}

// find returns the acquisition of a nonce, or nil.
func (d *Driver) find(nonce string) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries[nonce]
}

// finish forgets an acquisition but for that it has ended.
func (d *Driver) finish(e *entry, how end) {
	e.stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.r.Nonce)
	d.ended.add(e.r.Nonce, how)
}

// drop forgets an acquisition that never came to anything.
func (d *Driver) drop(e *entry) {
	e.stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.r.Nonce)
}

// sessionLost tells the holders of a session that has ended.
func (d *Driver) sessionLost(s *session) {
	d.mu.Lock()
	closed := d.closed
	var lost []*entry
	for _, e := range d.entries {
		if e.holdsOn(s) {
			lost = append(lost, e)
		}
	}
	d.mu.Unlock()
	if closed {
		return
	}
	for _, e := range lost {
		e.tellLost(&backend.LostError{Reason: backend.SessionLost})
	}
}

// errGone is the answer to a request of an acquisition that has ended.
var errGone = errors.Join(backend.ErrLost, errors.New("the request was abandoned"))

// end says how an acquisition ended.
type end int

const (
	abandoned end = iota
	released
)

// ring remembers the acquisitions that ended last.
type ring struct {
	how   map[string]end
	order []string
	next  int
}

func (r *ring) add(nonce string, how end) {
	if r.how == nil {
		r.how = map[string]end{}
	}
	if _, known := r.how[nonce]; !known {
		if len(r.order) < remembered {
			r.order = append(r.order, nonce)
		} else {
			delete(r.how, r.order[r.next])
			r.order[r.next] = nonce
			r.next = (r.next + 1) % remembered
		}
	}
	r.how[nonce] = how
}

func (r *ring) has(nonce string) bool { _, ok := r.how[nonce]; return ok }

func (r *ring) released(nonce string) bool { how, ok := r.how[nonce]; return ok && how == released }
