package memory

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// claim is how long a lock that came free is kept for the first waiter, which was woken.
	claim = 2 * time.Second
	// remembered is how many acquisitions that ended a store knows, so that a release that is sent again is told nil,
	// and a request that comes after it was abandoned is not granted.
	remembered = 1024
)

// store is the map, and what its clients share.
type store struct {
	mu       sync.Mutex
	locks    map[string]*lock
	counter  backend.Token
	counting bool            // tokens are the counter alone
	past     map[string]bool // the acquisitions that ended: released by its holder, or abandoned
	oldest   []string        // of past, in order
	records  map[string]record
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
	return &store{locks: map[string]*lock{}, past: map[string]bool{}, records: map[string]record{}}
}

// ask grants the lock to c if it is free and c's turn; a waiter queues otherwise. The lock is
// granted in the step that asks, so Asked is the moment of that step.
func (s *store) ask(d *client, c *backend.Claim) error {
	if _, ended := s.past[c.Nonce]; ended {
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
		if g := s.gates(d.space); version(g) != version(c.Gates) {
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

// serve keeps the lock for the waiters at the head of the queue that may have it, and wakes them. It forgets a lock
// that has neither holders nor waiters, and sets the timer. A waiter that does not ask in time has gone.
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
	next := slices.MinFunc(l.holds, func(a, b hold) int { return a.expires.Compare(b.expires) })
	l.timer = time.AfterFunc(time.Until(next.expires), func() {
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
		s.remember(c.Nonce, true)
	case s.past[c.Nonce]:
	case !c.Held:
		s.remember(c.Nonce, false)
	default:
		return backend.ErrLost
	}
	return nil
}

// remember notes how an acquisition ended.
func (s *store) remember(nonce string, released bool) {
	if _, known := s.past[nonce]; !known {
		s.oldest = append(s.oldest, nonce)
	}
	s.past[nonce] = released
	if n := len(s.oldest) - remembered; n > 0 {
		delete(s.past, s.oldest[0])
		s.oldest = s.oldest[n:]
	}
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

// look describes the locks of a keyspace.
func (s *store) look(space string, r backend.Range) []backend.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Name != "" {
		return []backend.Info{s.inspect(space+r.Name, r.Name)}
	}
	var all []backend.Info
	for key := range s.locks {
		if name, ok := strings.CutPrefix(key, space); ok && strings.HasPrefix(name, r.Prefix) {
			if i := s.inspect(key, name); i.Held {
				all = append(all, i)
			}
		}
	}
	slices.SortFunc(all, func(a, b backend.Info) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (s *store) inspect(key, name string) backend.Info {
	l := s.locks[key]
	if l == nil {
		return backend.Info{Name: name}
	}
	s.serve(key, l)
	i := backend.Info{Name: name, Waiters: len(l.queue), Held: len(l.holds) > 0, Pending: true}
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

// record is one of a keyspace, and until when it is kept; the zero time: for ever. Its version is its data.
type record struct {
	backend.Record
	until time.Time
}

// load returns the records of a keyspace whose keys begin so, in their order.
func (s *store) load(space, begin string) []backend.Record {
	var all []backend.Record
	for key, r := range s.records {
		switch {
		case !r.until.IsZero() && !time.Now().Before(r.until):
			delete(s.records, key)
		case strings.HasPrefix(key, space+begin):
			all = append(all, r.Record)
		}
	}
	slices.SortFunc(all, func(a, b backend.Record) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (s *store) swap(key string, r backend.Record, keep time.Duration) error {
	switch {
	case r.Version != backend.AnyVersion && s.records[key].Version != r.Version:
		return backend.ErrGates
	case r.Data == nil:
		delete(s.records, key)
		return nil
	}
	r.Version = string(r.Data)
	kept := record{Record: r}
	if keep > 0 {
		kept.until = time.Now().Add(keep)
	}
	s.records[key] = kept
	return nil
}

// gates returns all gates of a keyspace as one list, or nil.
func (s *store) gates(space string) *backend.Record {
	if len(s.records) == 0 {
		return nil
	}
	var list []string
	for _, r := range s.load(space, backend.GateKey) {
		list = append(list, r.Version)
	}
	if list == nil {
		return nil
	}
	all := "[" + strings.Join(list, ",") + "]"
	return &backend.Record{Key: backend.GateKey, Data: []byte(all), Version: all}
}

func version(r *backend.Record) string {
	if r == nil {
		return ""
	}
	return r.Version
}
