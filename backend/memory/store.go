package memory

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// claim is how long a lock that came free is kept for the first waiter, which was woken.
const claim = 2 * time.Second

// store is the map, and what its clients share.
type store struct {
	mu       sync.Mutex
	locks    map[string]*lock
	counter  backend.Token
	counting bool // tokens are the counter alone
	past     past
	records  map[recordKey]record
	version  int
}

// lock is one name that is held or waited for.
type lock struct {
	holder   *backend.Claim // nil: free
	token    backend.Token
	reserved int // numbers after token that are its holder's too
	expires  time.Time
	pending  bool // the holder was woken, and has not asked yet
	queue    []*backend.Claim
	timer    *time.Timer // fires at expires while somebody waits
}

func newStore() *store {
	return &store{locks: map[string]*lock{}, past: newPast(), records: map[recordKey]record{}}
}

// ask grants the lock to c if it is free and c's turn; a waiter queues otherwise. The lock is
// granted in the step that asks, so Asked is the moment of that step.
func (s *store) ask(prefix string, c *backend.Claim) error {
	if s.past.get(c.Nonce) != unknown {
		return backend.ErrLost
	}
	now := time.Now()
	if c.Floor > s.counter { // which Raise may have moved ahead
		if err := backend.CheckFloor(c.Floor, now.UnixMicro()); err != nil {
			return err
		}
	}
	key := prefix + c.Name
	l := s.locks[key]
	if l == nil {
		l = &lock{}
		s.locks[key] = l
	}
	defer s.serve(key, l)
	l.expire()
	turn := l.mine(c.Nonce)
	again := turn && !l.pending // the same claim again
	if !turn && (l.holder != nil || len(l.queue) > 0 && l.queue[0].Nonce != c.Nonce) {
		if c.Wait {
			l.join(c)
			c.Queued = true
		}
		return backend.ErrLocked
	}
	if !again {
		if g := s.gates(prefix); !sameVersion(g, c.Gates) {
			c.Gates = g
			return backend.ErrGates
		}
	}
	if !again || l.token <= c.Floor {
		l.token = max(s.counter, c.Floor) + 1
		l.reserved = 0
		if !s.counting {
			if !again {
				l.token = max(l.token, now.UnixMicro())
			}
			l.reserved = backend.Reserve(c.Request, l.token, now)
		}
		s.counter = l.token + backend.Token(l.reserved)
	}
	l.drop(c.Nonce)
	l.holder, l.pending, l.expires = c, false, now.Add(c.TTL+c.Grace)
	c.Grant = backend.Grant{Token: l.token, Reserved: l.reserved, Asked: backend.Now()}
	return nil
}

// expire ends a hold whose time is over.
func (l *lock) expire() {
	if l.holder != nil && !time.Now().Before(l.expires) {
		l.holder, l.pending = nil, false
	}
}

// serve keeps a free lock for the first in the queue, whom it wakes, forgets a lock that nobody
// wants, and sets the timer. A waiter that does not ask in time has gone.
func (s *store) serve(key string, l *lock) {
	l.expire()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.holder == nil && len(l.queue) > 0 {
		l.holder, l.pending, l.expires = l.queue[0], true, time.Now().Add(claim)
		l.queue = l.queue[1:]
		l.holder.Wake(0)
	}
	switch {
	case l.holder == nil:
		delete(s.locks, key)
		return
	case len(l.queue) == 0 && !l.pending:
		return
	}
	l.timer = time.AfterFunc(time.Until(l.expires), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.locks[key] == l {
			s.serve(key, l)
		}
	})
}

// join puts c at the end of the queue if it has no place in it.
func (l *lock) join(c *backend.Claim) {
	i := slices.IndexFunc(l.queue, func(w *backend.Claim) bool { return w.Nonce == c.Nonce })
	if i < 0 {
		l.queue = append(l.queue, c)
		return
	}
	l.queue[i] = c
}

// drop takes a nonce out of the queue.
func (l *lock) drop(nonce string) {
	l.queue = slices.DeleteFunc(l.queue, func(w *backend.Claim) bool { return w.Nonce == nonce })
}

// mine reports whether the nonce holds the lock.
func (l *lock) mine(nonce string) bool {
	return l != nil && l.holder != nil && l.holder.Nonce == nonce && time.Now().Before(l.expires)
}

// leave takes c out of the queue, or frees the lock if c is its holder.
func (s *store) leave(key string, c *backend.Claim) error {
	l := s.locks[key]
	mine := l.mine(c.Nonce)
	if l != nil {
		l.drop(c.Nonce)
		if mine {
			l.holder, l.pending = nil, false
		}
		s.serve(key, l)
	}
	switch {
	case mine:
		s.past.put(c.Nonce, released)
	case s.past.get(c.Nonce) == released:
	case !c.Held:
		s.past.put(c.Nonce, abandoned)
	default:
		return backend.ErrLost
	}
	return nil
}

// expireNow ends a hold as though its time were over, and reports whether there was one. The holder
// is told before.
func (s *store) expireNow(key string) bool {
	s.mu.Lock()
	var holder *backend.Claim
	if l := s.locks[key]; l != nil {
		if l.expire(); !l.pending {
			holder = l.holder
		}
	}
	s.mu.Unlock()
	if holder == nil {
		return false
	}
	holder.Lost(&backend.LostError{Reason: backend.Expired})
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[key]; l.mine(holder.Nonce) {
		l.expires = time.Now()
		s.serve(key, l)
	}
	return true
}

// breakLock frees a lock and returns who had it, or nil.
func (s *store) breakLock(key string) *backend.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil || l.pending { // free, and kept
		return nil
	}
	l.expire()
	holder := l.holder
	l.holder = nil
	s.serve(key, l)
	return holder
}

func (s *store) inspect(key string) backend.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		return backend.Info{}
	}
	s.serve(key, l)
	i := backend.Info{Waiters: len(l.queue)}
	if h := l.holder; h != nil {
		i.Held, i.Owner, i.ExpiresIn = true, h.Owner, time.Until(l.expires)
		if i.Pending = l.pending; !l.pending {
			i.Token = l.token
		}
		if h.Phase == backend.PhaseBoth {
			i.Both = h.Move
		}
	}
	return i
}

// recordKey is a record of a keyspace.
type recordKey struct{ prefix, key string }

// record is one, and until when it is kept; the zero time: for ever.
type record struct {
	backend.Record
	until time.Time
}

// load returns the records of a keyspace whose keys begin so, in their order.
func (s *store) load(prefix, begin string) []backend.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loadLocked(prefix, begin)
}

func (s *store) loadLocked(prefix, begin string) []backend.Record {
	var all []backend.Record
	for k, r := range s.records {
		switch {
		case !r.until.IsZero() && !time.Now().Before(r.until):
			delete(s.records, k)
		case k.prefix == prefix && strings.HasPrefix(k.key, begin):
			all = append(all, r.Record)
		}
	}
	slices.SortFunc(all, func(a, b backend.Record) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (s *store) swap(prefix string, r backend.Record, keep time.Duration) error {
	key := recordKey{prefix, r.Key}
	switch {
	case r.Version != backend.AnyVersion && s.records[key].Version != r.Version:
		return backend.ErrGates
	case r.Data == nil:
		delete(s.records, key)
		return nil
	}
	s.version++
	r.Version = strconv.Itoa(s.version)
	kept := record{Record: r}
	if keep > 0 {
		kept.until = time.Now().Add(keep)
	}
	s.records[key] = kept
	return nil
}

// gates returns all gates of a keyspace as one list, or nil. Its version is that of the last one.
func (s *store) gates(prefix string) *backend.Record {
	if len(s.records) == 0 {
		return nil
	}
	all := s.loadLocked(prefix, backend.GateKey)
	if len(all) == 0 {
		return nil
	}
	last := 0
	list := make([][]byte, len(all))
	for i, r := range all {
		n, _ := strconv.Atoi(r.Version)
		list[i], last = r.Data, max(last, n)
	}
	data := slices.Concat([]byte("["), bytes.Join(list, []byte(",")), []byte("]"))
	return &backend.Record{Key: backend.GateKey, Data: data, Version: strconv.Itoa(last)}
}

func sameVersion(a, b *backend.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Version == b.Version
}
