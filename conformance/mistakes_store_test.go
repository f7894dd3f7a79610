package conformance

import (
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// toy is a small sound store in memory with one switch: with a flaw set it
// makes that one mistake. It is reached by calls in virtual time, and by toyServer over TCP.
type toy struct {
	flaw flaw

	mu      sync.Mutex
	down    bool
	full    bool
	locks   map[string]*toyLock
	ended   map[string]flaw          // nonces that were released or abandoned, with their prefix
	past    []string                 // nonces that were released, in order
	broken  map[string]bool          // nonces whose lock an operator took away
	rows    map[string]bool          // what a flaw leaves behind, by prefix
	counter map[string]backend.Token // by prefix: the floors of one rule push no other's tokens ahead of the clock
	cached  map[string]backend.Token // numbers that a flaw took too early
	uses    map[string]int           // grants by client and name
	written map[string]bool          // by holders, and committed
	busy    map[string]bool          // what the store was asked to work at
	turned  map[string]bool          // nonces that came out of a queue
	stop    chan struct{}            // closed at the end
	asker   string                   // the owner of the last request
}

// order is a request for one name, flat so that it can go over a wire.
type order struct {
	Op, Prefix, Name, Nonce, Owner, Client string

	TTL, Grace time.Duration
	Floor      backend.Token
	Wait, Auto bool
	Reserve    int

	confirms bool // a waiter's over the wire: what it is granted it asks for again
}

// toyLock is one name that is held or waited for.
type toyLock struct {
	order     *order // of the holder; nil: free
	lost      func(error)
	began     time.Time
	waited    bool // the holder came out of the queue
	prefix    string
	name      string
	token     backend.Token
	expires   time.Time
	renewed   time.Time // when
	before    time.Time // it expired without that
	queue     []*toyWaiter
	timer     *time.Timer
	releasing bool
}

type toyWaiter struct {
	order  *order
	lost   func(error)
	since  time.Time
	gone   bool               // its connection ended while it waited
	claims bool               // over the wire: what it is granted it has to confirm
	grant  chan backend.Token // of size 1
}

// How a nonce ended.
const (
	wasReleased  flaw = "released"
	wasAbandoned flaw = "abandoned"
)

func newToy(f flaw) *toy {
	return &toy{
		flaw: f, locks: map[string]*toyLock{}, ended: map[string]flaw{}, broken: map[string]bool{},
		rows:   map[string]bool{},
		cached: map[string]backend.Token{}, uses: map[string]int{}, stop: make(chan struct{}),
		counter: map[string]backend.Token{},
		written: map[string]bool{}, busy: map[string]bool{}, turned: map[string]bool{},
	}
}

// commit keeps what a holder wrote.
func (s *toy) commit(x *toyTx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range x.wrote {
		s.written[key] = true
	}
}

// ask puts the order into the queue, serves the queue, and returns the waiter
// whose grant may be there already: nil if the nonce has ended. A try that was not served has left again.
func (s *toy) ask(o *order, lost func(error)) *toyWaiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &toyWaiter{order: o, lost: lost, since: time.Now(), grant: make(chan backend.Token, 1)}
	key := s.key(o)
	l := s.locks[key]
	s.asker = o.Owner
	if how := s.ended[s.nonce(o)]; how == wasReleased && s.flaw != copyTakes ||
		how == wasAbandoned && s.flaw != abandonForgotten {
		return nil
	}
	if l == nil {
		l = &toyLock{prefix: o.Prefix, name: o.Name}
		s.locks[key] = l
	}
	if s.mine(l, o.Nonce) && s.flaw != resentIsTaken {
		switch s.flaw {
		case resentNewToken:
			l.token = s.next(l, w)
		case resentExpiry:
			w.grant <- l.token
			return w
		}
		s.grantTo(l, w)
		return w
	}
	if s.askBadly(key, l, w) {
		return w
	}
	s.join(l, w)
	s.serve(key, l)
	if !o.Wait && len(w.grant) == 0 {
		if s.flaw == failedTryWrites {
			s.rows[o.Prefix+"row of "+o.Nonce] = true
		}
		if s.flaw == tokenEarly {
			s.counter[o.Prefix]++
			s.cached[o.Client+o.Name] = max(s.counter[o.Prefix], time.Now().UnixMicro())
		}
		l.drop(o.Nonce)
		s.serve(key, l)
	}
	return w
}

// askBadly makes the mistakes of an acquire that is no queueing; true: w was dealt with.
func (s *toy) askBadly(key string, l *toyLock, w *toyWaiter) bool {
	o := w.order
	l.until(s)
	switch s.flaw {
	case sessionShares, clientIsHolder:
		if l.order != nil && l.order.Client == o.Client &&
			(s.flaw == sessionShares || strings.HasPrefix(o.Client, "shared")) {
			s.give(l, w)
			return true
		}
	case checkThenSet:
		if l.order == nil && len(l.queue) == 0 {
			s.mu.Unlock() // the other round trip, slow enough to show every time
			time.Sleep(100 * time.Millisecond)
			s.mu.Lock()
			s.locks[key] = l
			s.give(l, w)
			return true
		}
	case threeAtOnce:
		n := 0
		for _, other := range s.locks {
			if other.prefix == o.Prefix && other.order != nil {
				n++
			}
		}
		return n >= 3 && l.order == nil && !o.Wait
	case triesUsedUp:
		s.uses[o.Client+o.Name]++
		return s.uses[o.Client+o.Name] > 9
	case deadForTry:
		return !o.Wait && l.order != nil
	case turnKept:
		if l.order != nil && l.order.Nonce != o.Nonce && s.turned[o.Nonce] {
			w.grant <- l.token
			return true
		}
	case overtaking:
		if !o.Wait && l.order == nil && len(l.queue) > 0 {
			s.give(l, w)
			return true
		}
	}
	return false
}

// serve ends a hold that has expired, gives a free lock to the first in the
// queue, forgets a lock that nobody wants, and sets the timer.
func (s *toy) serve(key string, l *toyLock) {
	l.until(s)
	if l.order == nil && len(l.queue) > 0 {
		i := 0
		if s.flaw == lifo {
			i = len(l.queue) - 1
		}
		if s.flaw == placesAge {
			for j, w := range l.queue {
				if time.Since(w.since)%(3*time.Second) > time.Since(l.queue[i].since)%(3*time.Second) {
					i = j
				}
			}
		}
		w := l.queue[i]
		l.queue = slices.Delete(l.queue, i, i+1)
		handed := l.token > 0 // from one holder to the next
		s.give(l, w)
		s.turned[w.order.Nonce] = true
		l.waited = w.order.Wait && time.Since(w.since) > 0 || w.order.Wait && s.flaw == heartbeatOfWait
		if s.flaw == claimKept && handed {
			l.expires = time.Now().Add(2 * time.Second)
		}
		if s.flaw == waitLeavesRow && w.order.Wait {
			s.rows[w.order.Prefix+"queue of "+w.order.Name] = true
		}
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	switch {
	case l.order == nil:
		if s.locks[key] == l {
			delete(s.locks, key)
		}
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

// give makes w the holder, with a new token.
func (s *toy) give(l *toyLock, w *toyWaiter) {
	l.order, l.lost, l.waited, l.releasing = w.order, w.lost, false, false
	l.began = time.Now()
	l.token = s.next(l, w)
	if s.flaw == sharedTTL {
		for _, other := range s.locks {
			if end := time.Now().Add(w.order.TTL); other.order != nil &&
				other.order.Client == w.order.Client && other.expires.After(end) {
				other.expires = end
			}
		}
	}
	s.grantTo(l, w)
}

// grantTo sets the expiry and sends the grant.
func (s *toy) grantTo(l *toyLock, w *toyWaiter) {
	if l.token <= w.order.Floor && s.flaw != floorIgnored {
		s.counter[l.prefix] = max(s.counter[l.prefix], w.order.Floor) + 1
		l.token = s.counter[l.prefix]
	}
	l.expires = time.Now().Add(s.span(w.order))
	if s.flaw == longestTTL {
		for _, other := range s.locks {
			if other.order != nil && other.order.Client == w.order.Client && other.expires.After(l.expires) {
				l.expires = other.expires
			}
		}
	}
	switch {
	case w.gone && s.flaw == deadStalls:
		l.expires = l.expires.Add(time.Hour)
	case w.claims:
		l.expires = time.Now().Add(min(2*time.Second, s.span(w.order)))
	}
	w.grant <- l.token
}

// span is how long the store keeps a hold.
func (s *toy) span(o *order) time.Duration {
	switch s.flaw {
	case neverExpires:
		return 24 * time.Hour
	case expiresEarly:
		return o.TTL * 8 / 10
	case expiresLate:
		return o.TTL + o.Grace + 5*time.Second
	case graceIgnored:
		return o.TTL
	case shortNumbers:
		return time.Duration(int32((o.TTL+o.Grace)/time.Millisecond)) * time.Millisecond
	}
	return o.TTL + o.Grace
}

// memberGone: the member that clients are connected to falls silent.
func (s *toy) memberGone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flaw != reportsLate {
		return
	}
	for key, l := range s.locks {
		if time.Since(l.renewed) < 500*time.Millisecond {
			l.expires = l.before
			s.serve(key, l)
		}
	}
}

// until ends the hold if its time is over.
func (l *toyLock) until(s *toy) {
	if l.order != nil && !time.Now().Before(l.expires) && (s.flaw != deadForTry || len(l.queue) > 0) {
		if s.flaw == crowdStays && len(l.name) > 256 {
			if s.uses["dead "+l.order.Client]++; s.uses["dead "+l.order.Client] > 50 {
				return
			}
		}
		if s.flaw == deadLeaveRow {
			s.rows[l.prefix+"row of the dead "+l.order.Nonce] = true
		}
		l.order = nil
	}
}

// join puts w at the end of the queue, or in its own place if it is there already.
func (s *toy) join(l *toyLock, w *toyWaiter) {
	w.claims = w.order.confirms
	for i, other := range l.queue {
		if other.order.Nonce == w.order.Nonce && s.flaw != resentIsTaken {
			w.since = other.since
			l.queue[i] = w
			return
		}
	}
	l.queue = append(l.queue, w)
	if s.flaw == waitEndsHold && w.order.Wait {
		time.AfterFunc(w.order.TTL*3/2, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if slices.Contains(l.queue, w) {
				l.drop(w.order.Nonce)
				w.grant <- s.next(l, w) // told that it holds
			}
		})
	}
}

// drop takes a nonce out of the queue.
func (l *toyLock) drop(nonce string) {
	l.queue = slices.DeleteFunc(l.queue, func(w *toyWaiter) bool { return w.order.Nonce == nonce })
}

// mine reports whether the nonce holds the lock.
func (s *toy) mine(l *toyLock, nonce string) bool {
	return l != nil && l.order != nil && l.order.Nonce == nonce && time.Now().Before(l.expires)
}

// list returns what a prefix has, for Inspect, List and the look behind the library's back.
func (s *toy) list(prefix, name string) (all []backend.Info, left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.locks {
		if !s.lists(prefix, l.prefix) || !strings.HasPrefix(l.name, name) {
			continue
		}
		s.serve(key, l)
		if l.order != nil {
			info := backend.Info{
				Name: l.name, Held: true, Owner: l.order.Owner, Token: l.token,
				ExpiresIn: time.Until(l.expires), Waiters: len(l.queue),
			}
			switch s.flaw {
			case holderWaits:
				info.Waiters++
			case ownerUnknown:
				info.Owner = s.asker
			case ownerLine:
				info.Owner, _, _ = strings.Cut(info.Owner, "\n")
			case otherUnit:
				info.ExpiresIn *= 1000
			case takenForLeak:
				info.Leaked = true
			case listedTwice:
				all = append(all, info)
			}
			all, left = append(all, info), append(left, l.name)
		}
	}
	for row := range s.rows {
		if strings.HasPrefix(row, prefix) {
			left = append(left, row)
		}
	}
	return all, left
}

// lists reports whether List of a client with a prefix shows the locks of one with the prefix of.
func (s *toy) lists(prefix, of string) bool {
	if s.flaw == prefixPattern {
		like, err := path.Match(strings.ReplaceAll(prefix, "/", ":"), strings.ReplaceAll(of, "/", ":"))
		return like && err == nil || prefix == of
	}
	return prefix == of
}
