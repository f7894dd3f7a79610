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
	holds []hold        // of one mode
	room  [1]hold       // theirs, mostly
	era   backend.Token // of the readers that hold at once; 0: none has read yet
	queue []*backend.Claim
	timer *time.Timer // fires when the first hold ends, while that matters
}

// hold is one of a lock's.
type hold struct {
	*backend.Claim
	token    backend.Token
	reserved int // numbers after token that are its holder's too
	slot     int
	expires  time.Time
	pending  bool // it was woken, and has not asked yet
}

func newStore() *store {
	return &store{locks: map[string]*lock{}, past: newPast(), records: map[recordKey]record{}}
}

// ask grants the lock to c if it is free and c's turn; a waiter queues otherwise. The lock is
// granted in the step that asks, so Asked is the moment of that step.
func (s *store) ask(d *client, c *backend.Claim) error {
	if s.past.get(c.Nonce) != unknown {
		return backend.ErrLost
	}
	asked, now := backend.Now(), time.Now()
	if c.Floor > s.counter { // which Raise may have moved ahead
		if err := backend.CheckFloor(c.Floor, now.UnixMicro()); err != nil {
			return err
		}
	}
	key := d.space + c.Name
	l := s.locks[key]
	if l == nil {
		l = &lock{}
		l.holds = l.room[:0]
		s.locks[key] = l
	}
	defer s.serve(key, l)
	l.expire()
	h := l.find(c.Nonce)
	first := len(l.queue) == 0 || l.queue[0].Nonce == c.Nonce
	if h == nil && !(first && c.Admits(l.requests())) {
		if c.Wait {
			l.join(c)
			c.Queued = true
		}
		return backend.ErrLocked
	}
	again := h != nil && !h.pending // the same claim again
	if !again {
		if g := s.gates(d.prefix); !sameVersion(g, c.Gates) {
			c.Gates = g
			return backend.ErrGates
		}
	}
	if h == nil {
		h = l.hold(hold{Claim: c, pending: true})
	}
	h.expires = now.Add(c.TTL + c.Grace)
	if !again || h.token <= c.Floor {
		s.number(l, h, now)
	}
	l.drop(c.Nonce)
	c.Grant = backend.Grant{Token: h.token, Slot: h.slot, Reserved: h.reserved, Asked: asked}
	return nil
}

// number gives a hold its token, and a permit its slot.
func (s *store) number(l *lock, h *hold, now time.Time) {
	if h.pending && h.Mode == backend.Permit {
		for slices.ContainsFunc(l.holds, func(o hold) bool { return !o.pending && o.slot == h.slot }) {
			h.slot++
		}
	}
	if h.Mode == backend.Reader && l.era > h.Floor {
		h.token, h.pending = l.era, false
		return
	}
	h.token = max(s.counter, h.Floor) + 1
	h.reserved = 0
	if !s.counting {
		if h.pending {
			h.token = max(h.token, now.UnixMicro())
		}
		h.reserved = backend.Reserve(h.Request, h.token, now)
	}
	s.counter = h.token + backend.Token(h.reserved)
	if h.pending = false; h.Mode == backend.Reader {
		l.era = h.token
	}
}

// expire ends the holds whose time is over.
func (l *lock) expire() {
	now := time.Now()
	l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return !now.Before(h.expires) })
	if len(l.holds) == 0 {
		l.era = 0
	}
}

// find returns the hold of a nonce, or nil.
func (l *lock) find(nonce string) *hold {
	i := slices.IndexFunc(l.holds, func(h hold) bool { return h.Nonce == nonce })
	if i < 0 {
		return nil
	}
	return &l.holds[i]
}

// hold adds a hold, and returns it.
func (l *lock) hold(h hold) *hold {
	l.holds = append(l.holds, h)
	return &l.holds[len(l.holds)-1]
}

// requests are those that hold the lock.
func (l *lock) requests() []*backend.Request {
	all := make([]*backend.Request, len(l.holds))
	for i, h := range l.holds {
		all[i] = h.Request
	}
	return all
}

// serve keeps the lock for those at the head of the queue who may have it, whom it wakes, forgets a lock that
// nobody wants, and sets the timer. A waiter that does not ask in time has gone.
func (s *store) serve(key string, l *lock) {
	l.expire()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	for len(l.queue) > 0 && l.queue[0].Admits(l.requests()) {
		c := l.queue[0]
		l.queue = l.queue[1:]
		l.hold(hold{Claim: c, pending: true, expires: time.Now().Add(claim)})
		c.Wake(0)
	}
	if len(l.holds) == 0 {
		delete(s.locks, key)
		return
	}
	if len(l.queue) == 0 {
		return
	}
	next := l.holds[0].expires
	for _, h := range l.holds {
		if h.expires.Before(next) {
			next = h.expires
		}
	}
	l.timer = time.AfterFunc(time.Until(next), func() {
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

// mine returns the hold of a nonce, or nil.
func (l *lock) mine(nonce string) *hold {
	if l == nil {
		return nil
	}
	l.expire()
	return l.find(nonce)
}

// free ends the hold of a nonce, and reports whether there was one.
func (l *lock) free(nonce string) bool {
	n := len(l.holds)
	l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return h.Nonce == nonce })
	return len(l.holds) < n
}

// leave takes c out of the queue, and ends its hold.
func (s *store) leave(key string, c *backend.Claim) error {
	l := s.locks[key]
	mine := false
	if l != nil {
		l.expire()
		l.drop(c.Nonce)
		mine = l.free(c.Nonce)
		s.serve(key, l)
	}
	switch {
	case mine && c.Held:
		s.past.put(c.Nonce, released)
	case s.past.get(c.Nonce) == released:
	case !c.Held:
		s.past.put(c.Nonce, abandoned)
	default:
		return backend.ErrLost
	}
	return nil
}

// holders returns the holds of a lock that its holders know of.
func (s *store) holders(key string) []hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		return nil
	}
	l.expire()
	return slices.DeleteFunc(slices.Clone(l.holds), func(h hold) bool { return h.pending })
}

// end ends holds, and serves the queue.
func (s *store) end(key string, holds []hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		return
	}
	for _, h := range holds {
		l.free(h.Nonce)
	}
	s.serve(key, l)
}

func (s *store) inspect(key string) backend.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		return backend.Info{}
	}
	s.serve(key, l)
	i := backend.Info{Waiters: len(l.queue), Held: len(l.holds) > 0, Pending: true}
	for _, h := range l.holds {
		i.Owner, i.ExpiresIn = h.Owner, max(i.ExpiresIn, time.Until(h.expires))
		if !h.pending {
			i.Pending, i.Token = false, max(i.Token, h.token)
		}
		if h.Phase == backend.PhaseBoth {
			i.Both = h.Move
		}
		if i.Mode = h.Mode; i.Mode != backend.Exclusive {
			i.Holders++
			i.Holds = append(i.Holds, backend.Held{
				ID: h.Nonce, Owner: h.Owner, Token: h.token, Slot: h.slot, ExpiresIn: time.Until(h.expires),
			})
		}
	}
	i.Holds = backend.FirstHolds(i.Holds)
	if i.Pending = i.Pending && i.Held; i.Holders > 1 {
		i.Owner = ""
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
