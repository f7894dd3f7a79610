// Package memory is the backend inside one process: a map. It serves tests,
// programs that run as one process for now, and as the first driver to read.
//
// A lease is an entry of the map that is free once its time is over, by the
// process's monotonic clock. Waiters are served first come, first served: a release wakes the
// first of them, and the free lock is kept for it for two seconds. Tokens come from one counter for
// the whole store and are anchored in the wall clock, so that they rise across stores too as far as
// the clock does. Nothing outlives the process, and nothing excludes another process.
//
// The URL is memory://, with prefix= and ttl=; each Open makes a store of its own. [Driver.Client]
// makes another client of the same store.
package memory

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
)

func init() {
	backend.Register("memory", func(_ context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		if u.Host != "" || (u.Path != "" && u.Path != "/") || u.User != nil {
			return nil, backend.Invalid("a memory URL has no host, user or path: want memory://?prefix=…&ttl=…")
		}
		return newDriver(newStore(), q.Prefix()), nil
	})
}

// Driver is a client of a store in memory. It implements backend.Mover.
type Driver struct{ *client }

var _ backend.Mover = (*Driver)(nil)

func newDriver(s *store, prefix string) *Driver {
	return &Driver{&client{s, prefix, strconv.Itoa(len(prefix)) + ":" + prefix}}
}

// New returns a driver with a new store and the default prefix. The error is always nil.
func New() (*Driver, error) { return newDriver(newStore(), backend.DefaultPrefix), nil }

// NewCounting returns a driver with a new store whose tokens are 1, 2, 3 and so on in the order of
// the grants of all names, and none is reserved: for tests, which can tell tokens before. A process
// passes none of its locks on within itself, and tokens begin again with each store.
func NewCounting() *Driver {
	s := newStore()
	s.counting = true
	return newDriver(s, backend.DefaultPrefix)
}

// Expire ends every hold of name as though its TTL and grace were over, and tells the holders before
// that: for tests. It reports whether there was one.
func (d *Driver) Expire(name string) bool {
	key := d.space + name
	holds := d.store.holders(key)
	for _, h := range holds {
		h.Lost(&backend.LostError{Reason: backend.Expired})
	}
	d.store.end(key, holds)
	return len(holds) > 0
}

// Client returns another client of the same store, such as the other program of a test. An empty
// prefix stands for d's own: the two exclude each other. Any other is another keyspace.
func (d *Driver) Client(prefix string) (*Driver, error) {
	if prefix == "" {
		prefix = d.prefix
	}
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	return newDriver(d.store, prefix), nil
}

// client is a backend.Mover: a keyspace of a store.
type client struct {
	store  *store
	prefix string
	space  string // what the keys of its locks and records begin with: another's are no names of this one
}

// Traits implements backend.Driver.
func (d *client) Traits() backend.Traits { return backend.TraitsOf("memory") }

// Calls implements backend.Driver.
func (d *client) Calls() backend.Calls { return backend.Calls{Most: 1, Tells: true} }

// Enter implements backend.Driver. Every client has the store, and can wake a waiter there.
func (d *client) Enter(context.Context, *backend.Claim) error { return nil }

// Ask implements backend.Driver.
func (d *client) Ask(_ context.Context, cs []*backend.Claim) {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range cs {
		c.Err = s.ask(d, c)
	}
}

// Keep implements backend.Driver.
func (d *client) Keep(_ context.Context, cs []*backend.Claim, extend bool) []error {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(cs))
	for i, c := range cs {
		key := d.space + c.Name
		h := s.locks[key].mine(c.Nonce)
		switch {
		case h == nil:
			errs[i] = backend.ErrLost
		case extend:
			h.expires = time.Now().Add(c.TTL + c.Grace)
			s.serve(key, s.locks[key]) // the timer
		}
	}
	return errs
}

// Leave implements backend.Driver.
func (d *client) Leave(_ context.Context, cs []*backend.Claim) {
	s := d.store
	var others []*backend.Request // whose holds somebody else ends
	s.mu.Lock()
	for _, c := range cs {
		key := d.space + c.Name
		if h := s.locks[key].mine(c.Nonce); h != nil && h.Request != c.Request {
			others = append(others, h.Request)
		}
		c.Err = s.leave(key, c)
	}
	s.mu.Unlock()
	for _, r := range others {
		r.Lost(backend.ErrLost)
	}
}

// Look implements backend.Driver.
func (d *client) Look(_ context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for _, i := range d.store.look(d.space, r) {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Break implements backend.Driver. The holders are told at once.
func (d *client) Break(_ context.Context, name string) error {
	holds := d.store.holders(d.space + name)
	d.store.end(d.space+name, holds)
	for _, h := range holds {
		h.Lost(backend.ErrLost)
	}
	return nil
}

// Close implements backend.Driver. The store lives on in its other clients.
func (d *client) Close() error { return nil }

// Load implements backend.Mover. The store is one place.
func (d *client) Load(_ context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		d.store.mu.Lock()
		all := d.store.load(d.space, prefix)
		d.store.mu.Unlock()
		if prefix == backend.GateKey && len(all) == 0 {
			all = []backend.Record{{Key: prefix}}
		}
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Swap implements backend.Mover.
func (d *client) Swap(_ context.Context, rs []backend.Record, keep time.Duration) error {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rs {
		if err := s.swap(d.space+r.Key, r, keep); err != nil {
			return err
		}
	}
	return nil
}

// Source implements backend.Mover.
func (d *client) Source(context.Context) (backend.Token, error) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.counter, nil
}

// Raise implements backend.Mover. There is one source for all names.
func (d *client) Raise(_ context.Context, floor backend.Token, held *backend.Claim) error {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if held != nil && s.locks[d.space+held.Name].mine(held.Nonce) == nil {
		return backend.ErrLost
	}
	s.counter = max(s.counter, floor)
	return nil
}
