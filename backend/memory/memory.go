// Package memory is the backend inside one process: a map. It serves tests,
// programs that run as one process for now, and as the shortest complete driver to read.
//
// A lease is an entry of the map that is free once its time is over, by the
// process's monotonic clock. Waiters are served first come, first served; a release hands the lock
// to the first of them in the same step. Tokens come from one counter for the whole store and are anchored
// in the wall clock, so that they rise across stores too as far as the clock does. Nothing outlives the
// process, and nothing excludes another process.
//
// The URL is memory://, with prefix= and ttl=; each Open makes a store of its own. [Driver.Client] makes
// another client of the same store.
package memory

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

func init() {
	backend.Register("memory", func(_ context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		if u.Host != "" || (u.Path != "" && u.Path != "/") || u.User != nil {
			return nil, backend.Invalid("a memory URL has no host, user or path: want memory://?prefix=…&ttl=…")
		}
		return &Driver{store: newStore(), prefix: q.Prefix()}, nil
	})
}

// Driver is a client of a store in memory. It implements backend.Driver and backend.Gater.
type Driver struct {
	store  *store
	prefix string
}

var (
	_ backend.Driver = (*Driver)(nil)
	_ backend.Gater  = (*Driver)(nil)
)

// New returns a driver with a new store and the default prefix. The error is always nil.
func New() (*Driver, error) {
	return &Driver{store: newStore(), prefix: backend.DefaultPrefix}, nil
}

// Client returns another client of the same store, with its own prefix, which may be empty.
func (d *Driver) Client(prefix string) (*Driver, error) {
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	return &Driver{store: d.store, prefix: prefix}, nil
}

// Traits returns what the memory backend promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("memory") }

// Acquire implements backend.Driver. The lock is granted to a waiter in the
// step that frees it, so its Asked is the moment of that step.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	w := d.store.ask(d.prefix, r)
	if w == nil {
		return backend.Grant{}, backend.ErrLost
	}
	select {
	case a := <-w:
		return a.grant, a.err
	default:
	}
	if !r.Wait {
		return backend.Grant{}, backend.ErrLocked
	}
	select {
	case a := <-w:
		return a.grant, a.err
	case <-ctx.Done():
		return backend.Grant{}, backend.Ended(ctx, true, nil)
	}
}

// Renew implements backend.Driver.
func (d *Driver) Renew(_ context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	for i, h := range hs {
		errs[i] = d.store.renew(d.prefix+h.Name, h.Request)
	}
	return errs
}

// Release implements backend.Driver.
func (d *Driver) Release(_ context.Context, h *backend.Hold) error {
	return d.store.leave(d.prefix+h.Name, h.Nonce, released)
}

// Abandon implements backend.Driver.
func (d *Driver) Abandon(_ context.Context, r *backend.Request) error {
	return d.store.leave(d.prefix+r.Name, r.Nonce, abandoned)
}

// Inspect implements backend.Driver.
func (d *Driver) Inspect(_ context.Context, name string) (backend.Info, error) {
	info, _ := d.store.inspect(d.prefix + name)
	info.Name = name
	return info, nil
}

// List implements backend.Driver.
func (d *Driver) List(_ context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for _, key := range d.store.keys(d.prefix + prefix) {
			info, ok := d.store.inspect(key)
			if !ok {
				continue
			}
			info.Name = strings.TrimPrefix(key, d.prefix)
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Break implements backend.Driver. The holder is told at once.
func (d *Driver) Break(_ context.Context, name string) error {
	d.store.breakLock(d.prefix + name)
	return nil
}

// Close implements backend.Driver. The store lives on in its other clients.
func (d *Driver) Close() error { return nil }

// store is the map, and what its clients share.
type store struct {
	mu      sync.Mutex
	locks   map[string]*lock
	counter backend.Token
	past    past
	gates   map[string][]backend.Gate // of each prefix
	clients map[clientKey]client
}

// lock is one name that is held or waited for.
type lock struct {
	prefix   string
	holder   *backend.Request // nil: free
	token    backend.Token
	reserved int // numbers after token that are its holder's too
	expires  time.Time
	queue    []*waiter
	timer    *time.Timer // fires at the expiry while somebody waits
}

type waiter struct {
	r      *backend.Request
	answer chan answer // of size 1
}

// answer is a grant, or a gate's refusal.
type answer struct {
	grant backend.Grant
	err   error
}

func newStore() *store {
	return &store{locks: map[string]*lock{}, past: newPast(), gates: map[string][]backend.Gate{}, clients: map[clientKey]client{}}
}

// ask puts r into the queue, serves the queue, and returns where r's answer
// comes: nil if r was released or abandoned before. A try that was not served
// has left the queue again.
func (s *store) ask(prefix string, r *backend.Request) <-chan answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &waiter{r, make(chan answer, 1)}
	key := prefix + r.Name
	l := s.locks[key]
	switch {
	case s.past.get(r.Nonce) != unknown:
		return nil
	case l == nil:
		l = &lock{prefix: prefix}
		s.locks[key] = l
	case l.holder != nil && l.holder.Nonce == r.Nonce && time.Now().Before(l.expires):
		l.regrant(s, w, false) // the same request again
		return w.answer
	}
	l.join(w)
	s.serve(key, l)
	if !r.Wait && len(w.answer) == 0 {
		l.drop(r.Nonce)
		s.serve(key, l)
	}
	return w.answer
}

// serve ends a hold that has expired, gives a free lock to the first in the
// queue, forgets a lock that nobody wants, and sets the timer.
func (s *store) serve(key string, l *lock) {
	if l.holder != nil && !time.Now().Before(l.expires) {
		l.holder = nil
	}
	for l.holder == nil && len(l.queue) > 0 {
		w := l.queue[0]
		l.queue = l.queue[1:]
		gated, err := backend.Admit(s.gates[l.prefix], w.r)
		if err != nil {
			w.answer <- answer{err: err}
			continue
		}
		l.holder = w.r
		now := time.Now()
		l.grant(s, w.r, max(s.counter+1, now.UnixMicro(), w.r.Floor+1), now)
		l.regrant(s, w, w.r.Phase != "" && !gated)
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	switch {
	case l.holder == nil:
		delete(s.locks, key)
	case len(l.queue) > 0:
		l.timer = time.AfterFunc(time.Until(l.expires), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.locks[key] == l {
				s.serve(key, l)
			}
		})
	}
}

// grant sets the token, and moves the counter on.
func (l *lock) grant(s *store, r *backend.Request, token backend.Token, now time.Time) {
	l.token, l.reserved = token, backend.Reserve(r, token, now)
	s.counter = token + backend.Token(l.reserved)
}

// regrant sets the expiry and sends the grant.
func (l *lock) regrant(s *store, w *waiter, ungated bool) {
	if l.token <= w.r.Floor {
		l.grant(s, w.r, max(s.counter, w.r.Floor)+1, time.Now())
	}
	asked := backend.Now()
	l.expires = time.Now().Add(w.r.TTL + w.r.Grace)
	w.answer <- answer{grant: backend.Grant{Token: l.token, Reserved: l.reserved, Asked: asked, Ungated: ungated}}
}

// join puts w at the end of the queue, or in its own place if it is there already.
func (l *lock) join(w *waiter) {
	for i := range l.queue {
		if l.queue[i].r.Nonce == w.r.Nonce {
			l.queue[i] = w
			return
		}
	}
	l.queue = append(l.queue, w)
}

// drop takes a nonce out of the queue.
func (l *lock) drop(nonce string) {
	for i, w := range l.queue {
		if w.r.Nonce == nonce {
			l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
			return
		}
	}
}

// mine reports whether the nonce holds the lock.
func (l *lock) mine(nonce string) bool {
	return l != nil && l.holder != nil && l.holder.Nonce == nonce && time.Now().Before(l.expires)
}

func (s *store) renew(key string, r *backend.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if !l.mine(r.Nonce) {
		return backend.ErrLost
	}
	l.expires = time.Now().Add(r.TTL + r.Grace)
	s.serve(key, l) // the timer
	return nil
}

// leave takes the nonce out of the queue, or frees the lock if it is its holder.
func (s *store) leave(key, nonce string, how outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	mine := l.mine(nonce)
	was := s.past.get(nonce)
	if l != nil {
		l.drop(nonce)
		if mine {
			l.holder = nil
		}
		s.serve(key, l)
	}
	switch {
	case mine || how == abandoned:
		s.past.put(nonce, how)
		return nil
	case was == released:
		return nil
	}
	return backend.ErrLost
}

func (s *store) breakLock(key string) {
	s.mu.Lock()
	l := s.locks[key]
	var holder *backend.Request
	if l != nil {
		holder, l.holder = l.holder, nil
		s.serve(key, l)
	}
	s.mu.Unlock()
	if holder != nil && holder.Lost != nil {
		holder.Lost(backend.ErrLost)
	}
}

// inspect reports false for a name that is neither held nor waited for.
func (s *store) inspect(key string) (backend.Info, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		return backend.Info{}, false
	}
	s.serve(key, l)
	info := backend.Info{Waiters: len(l.queue)}
	if l.holder != nil {
		info.Held, info.Owner, info.Token = true, l.holder.Owner, l.token
		info.ExpiresIn = time.Until(l.expires)
	}
	return info, info.Held || info.Waiters > 0
}

func (s *store) keys(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for k := range s.locks {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	return keys
}
