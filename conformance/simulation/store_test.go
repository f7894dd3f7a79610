package simulation

import (
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	claimed = 2 * time.Second // how long a freed lock is kept for the first in the queue
	deadFor = 5 * time.Second // a waiter that was not heard of for this long is dead
	revoked = time.Second     // a holder that can be reached is told within this
	lookAll = 2 * time.Second // a waiter looks at least so often
)

// How an acquisition ended.
const (
	released  = "released"
	abandoned = "abandoned"
	freed     = "either, and no copy of it may come"
)

// acq is one acquisition, as the store and the oracles know it.
type acq struct {
	c                  *client
	r                  *backend.Request
	name, nonce, owner string
	id                 string         // of its messages
	wake               chan struct{}  // of size 1
	claim              *backend.Claim // of a bare driver, once it has entered
	counts             map[string]int

	// The truth.
	token     backend.Token // of the last grant
	applied   time.Time     // when an acquire or a renewal was applied last
	ended     string        // how the store ended it last
	endedAt   time.Time
	tokens    []backend.Token // of all its grants
	excused   string          // why its holder may not know that it was taken away
	over      time.Time       // when nobody wanted it any more; zero: somebody does
	sends     int             // of its acquire
	waits     bool            // its Acquire waits
	heard     time.Time       // when that heard of the store last
	waitEnd   bool            // the ctx of its wait has ended
	kept      time.Time       // until when it is kept after its loss
	unlockAt  time.Time       // when that was
	unlocking bool            // Unlock was called
	shared    bool            // of a burst: it may be passed on
	reserved  int             // tokens after that of the grant
	seen      backend.Instant // when the grant was seen
	asked     backend.Instant // when it was asked for
}

// place is one in the queue.
type place struct {
	a           *acq
	since, seen time.Time
}

// lock is one name that is held or waited for.
type lock struct {
	key     string
	holder  *acq
	token   backend.Token
	expires time.Time
	claim   *acq // for whom it is kept
	until   time.Time
	queue   []*place
}

// reply is what the store answers.
type reply struct {
	err   error
	token backend.Token
	slot  int           // of a permit
	spare int           // tokens reserved after it
	in    time.Duration // when to look again
	errs  []error
	each  []reply // of what went together
	info  backend.Info
}

// store is the simulated store. It is sound but for the flaw. The world's mutex guards it.
type store struct {
	w       *world
	flaw    flaw
	locks   map[string]*lock
	past    map[string]string // how nonces ended
	counter backend.Token
	guards  map[string]backend.Token // the resources': the greatest token seen
	group   *group                   // of the common name
	early   map[string]backend.Token // numbers that a flaw drew too early
	late    bool                     // it applies what it took in while it hung
}

func (s *store) reset() {
	s.locks, s.past, s.counter = map[string]*lock{}, map[string]string{}, 0
	s.early = map[string]backend.Token{}
	g := &group{s: s}
	if s.group != nil { // tokens rise through a loss of the data
		g.last = s.group.last
	}
	s.group = g
}

func (s *store) lock(name string) *lock {
	key := name
	if s.flaw == nameIsPath {
		key, _, _ = strings.Cut(name, "/")
	}
	l := s.locks[key]
	if l == nil {
		l = &lock{key: key}
		s.locks[key] = l
	}
	return l
}

// serve ends what is over, and keeps a free lock for the first in the queue.
func (s *store) serve(l *lock) {
	now := time.Now()
	if l.holder != nil && !now.Before(l.expires) && s.flaw != neverExpires {
		s.free(l, "expired")
	}
	if l.claim != nil && !now.Before(l.until) && s.flaw != deadStalls {
		l.drop(l.claim)
	}
	if s.flaw != deadStalls && s.flaw != placeKept {
		l.queue = slices.DeleteFunc(l.queue, func(p *place) bool { return now.Sub(p.seen) >= deadFor })
	}
	if l.claim != nil && !slices.ContainsFunc(l.queue, func(p *place) bool { return p.a == l.claim }) {
		l.claim = nil
	}
	if l.holder == nil && l.claim == nil && len(l.queue) > 0 {
		first := l.queue[0]
		if s.flaw == lifo {
			first = l.queue[len(l.queue)-1]
		}
		l.claim, l.until = first.a, now.Add(claimed)
		s.w.wake(first.a)
	}
}

// acquire grants the lock, keeps a place in the queue, or refuses.
func (s *store) acquire(a *acq) reply {
	if a.name == common {
		return s.group.acquire(a)
	}
	l := s.lock(a.name)
	s.serve(l)
	if how := s.past[a.nonce]; how == released ||
		how == abandoned && s.flaw != abandonForgotten && (s.flaw != hungForgets || !s.late) {
		return reply{err: backend.ErrLost}
	}
	if s.flaw == tokenEarly && s.early[a.nonce] == 0 {
		s.early[a.nonce] = s.next(l, a)
	}
	switch {
	case l.holder == a && s.flaw == resentIsTaken:
		return reply{err: backend.ErrLocked, in: lookAll}
	case l.holder == a:
		if s.flaw == resentNewToken {
			l.token = s.next(l, a)
		}
		return s.extend(l)
	case s.flaw == deadForTry && !a.r.Wait && s.w.everHeld[l.key] && s.w.lastEnd[l.key] == "expired":
		return reply{err: backend.ErrLocked}
	case l.holder == nil && (l.claim == a || l.claim == nil), l.holder == nil && s.flaw == overtaking && !a.r.Wait:
		return s.give(l, a)
	case l.holder != nil && s.flaw == sessionShares && l.holder.c == a.c:
		return s.give(l, a)
	}
	if a.r.Wait {
		l.join(a)
		s.serve(l)
	}
	return reply{err: backend.ErrLocked, in: s.look(l)}
}

// look says when a waiter has to look again.
func (s *store) look(l *lock) time.Duration {
	in := lookAll
	switch {
	case l.holder != nil:
		in = min(in, time.Until(l.expires))
	case l.claim != nil:
		in = min(in, time.Until(l.until))
	}
	return max(in, 50*time.Millisecond)
}

func (s *store) next(l *lock, a *acq) backend.Token {
	last := s.counter
	t := max(s.counter+1, time.Now().UnixMicro(), a.r.Floor+1)
	s.counter = t
	switch s.flaw {
	case counterPlain:
		if s.w.wipes == 0 {
			return t
		}
		return 1 + a.r.Floor + backend.Token(len(s.past))
	case reserveAgain:
		if s.counter = max(last, a.r.Floor) + 1; last > 0 {
			return s.counter
		}
		s.counter = t
	case tokenConstant:
		return 1e15
	case tokenRandom:
		return 1e15 + backend.Token(s.w.fate("token", a.id).Int64N(1e12))
	case tokenSeconds:
		return time.Now().Unix() / 100
	case tokenNanos:
		return time.Now().UnixNano()
	case counterPerLock:
		if l.token == 0 {
			return a.r.Floor + 1
		}
		return l.token + 1
	case floorIgnored:
		return max(t-a.r.Floor-1, 1)
	}
	return t
}

// give makes a the holder.
func (s *store) give(l *lock, a *acq) reply {
	s.w.granting(l, a)
	l.drop(a)
	l.holder, a.ended = a, ""
	if s.flaw == tokenEarly {
		l.token = s.early[a.nonce]
	} else {
		l.token = s.next(l, a)
	}
	s.reserve(l, a)
	r := s.extend(l)
	s.w.granted(l, a)
	return r
}

// reserve reserves tokens after that of the grant, some of those that were asked for.
func (s *store) reserve(l *lock, a *acq) {
	most := []int{0, 1, 3, a.r.Reserve}[s.w.fate("reserve", a.id).IntN(4)]
	a.reserved = min(most, backend.Reserve(a.r, l.token, time.Now()))
	if s.flaw != reserveAgain {
		s.counter = max(s.counter, l.token+backend.Token(a.reserved))
	}
}

// extend sets the expiry of the holder.
func (s *store) extend(l *lock) reply {
	a := l.holder
	a.applied, a.token = time.Now(), l.token
	span := a.r.TTL + a.r.Grace
	switch s.flaw {
	case expiresEarly:
		span = a.r.TTL * 8 / 10
	case expiresLate:
		span += 3 * time.Second
	case graceIgnored:
		span = a.r.TTL
	}
	l.expires = time.Now().Add(span)
	return reply{token: l.token, spare: a.reserved}
}

// free ends the hold; why: "expired", released, abandoned, "broken", "wiped".
func (s *store) free(l *lock, why string) {
	s.w.ended(l, why)
	l.holder = nil
	if s.flaw == counterPerLock && why != "expired" {
		l.token = 0
	}
}

// mine reports whether a holds the lock.
func (l *lock) mine(a *acq) bool { return l.holder == a && time.Now().Before(l.expires) }

func (l *lock) join(a *acq) {
	for _, p := range l.queue {
		if p.a == a {
			p.seen = time.Now()
			return
		}
	}
	l.queue = append(l.queue, &place{a, time.Now(), time.Now()})
}

func (l *lock) drop(a *acq) {
	l.queue = slices.DeleteFunc(l.queue, func(p *place) bool { return p.a == a })
	if l.claim == a {
		l.claim = nil
	}
}

// renew is one renewal.
func (s *store) renew(a *acq) error {
	if a.name == common {
		return s.group.renew(a, true)
	}
	l := s.lock(a.name)
	s.serve(l)
	switch {
	case l.mine(a):
		if s.flaw == heartbeatOfWait && a.waitEnd {
			return nil // it is not the lock's any more
		}
		if s.flaw == renewNewToken {
			l.token = s.next(l, a)
		}
		s.extend(l)
	case s.flaw == renewAnybody && l.holder != nil:
		l.expires = time.Now().Add(a.r.TTL)
	case (s.flaw == renewCreates || s.flaw == renewsOn) && l.holder == nil:
		l.drop(a)
		l.holder, l.token = a, a.token
		s.extend(l)
	case s.flaw == renewResurrects && l.holder != a:
		l.drop(a)
		if l.holder != nil {
			s.free(l, "overwritten")
		}
		l.holder, l.token = a, a.token
		s.extend(l)
	case s.flaw == renewSaysYes:
	default:
		return backend.ErrLost
	}
	return nil
}

// check is one look at a hold.
func (s *store) check(a *acq) error {
	if a.name == common {
		return s.group.renew(a, false)
	}
	if !s.lock(a.name).mine(a) {
		return backend.ErrLost
	}
	return nil
}

// leaveBare is leave of a store that refuses a late copy only where there may be one: whether there is
// the engine says. A release that is repeated finds that it was done.
func (s *store) leaveBare(a *acq, how string, unsure bool) error {
	was := s.past[a.nonce]
	err := s.leave(a, how)
	if now := s.past[a.nonce]; now != was && (!unsure || s.flaw == unsureForgotten) {
		s.past[a.nonce] = freed
	}
	return err
}

// leave ends an acquisition: released or abandoned.
func (s *store) leave(a *acq, how string) error {
	if a.name == common {
		return s.group.leave(a, how)
	}
	l := s.lock(a.name)
	s.serve(l)
	mine, was := l.mine(a), s.past[a.nonce]
	switch {
	case l.holder != nil && !mine && how == released && s.flaw == releaseAnybody,
		l.holder != nil && !mine && how == abandoned && s.flaw == abandonAnybody,
		l.holder != nil && !mine && how == released && s.flaw == releaseByOwner && l.holder.c == a.c:
		s.free(l, "freed by another")
		s.serve(l)
		return nil
	case mine && how == abandoned && s.flaw == ghost:
	case mine:
		s.free(l, how)
	}
	if s.flaw != placeKept {
		l.drop(a)
	}
	s.serve(l)
	switch {
	case mine || how == abandoned:
		if was == "" {
			s.past[a.nonce] = how
		}
		return nil
	case (was == released || was == freed) && s.flaw != releasedTwiceLost, how == released && s.flaw == releaseSaysYes:
		return nil
	}
	return backend.ErrLost
}

// breakLock frees the lock whoever holds it.
func (s *store) breakLock(name string) {
	if name == common {
		s.group.clear("broken")
		return
	}
	l := s.lock(name)
	s.serve(l)
	a := l.holder
	if a == nil {
		return
	}
	a.excused = "broken"
	s.free(l, "broken")
	s.serve(l)
	if s.flaw == breakSilent {
		return
	}
	s.w.tell(a)
	if s.flaw == tellsAll {
		for _, other := range s.locks {
			if other.holder != nil && other.holder != a {
				s.w.tell(other.holder)
			}
		}
	}
}

// restart loses what a restart loses.
func (s *store) restart(wiped bool) {
	if wiped {
		for _, a := range s.w.acqs {
			a.excused = "wiped"
		}
		for _, l := range s.locks {
			if l.holder != nil {
				s.free(l, "wiped")
			}
		}
		s.reset()
		s.w.wipes++
		return
	}
	if s.flaw == restartForgets {
		for _, l := range s.locks {
			if l.holder != nil {
				s.free(l, "forgotten")
			}
		}
	}
	if s.flaw == counterPlain {
		s.w.wipes++
	}
}

// write is an access to the guarded resource.
func (s *store) write(name string, t backend.Token) error {
	if t < s.guards[name] && s.flaw != guardIgnores {
		return &backend.StaleError{Max: s.guards[name]}
	}
	s.guards[name] = max(t, s.guards[name])
	return nil
}

func (s *store) inspect(name string) backend.Info {
	if name == common {
		return s.group.inspect()
	}
	l := s.lock(name)
	s.serve(l)
	info := backend.Info{Name: name, Waiters: len(l.queue)}
	if l.holder != nil {
		info.Held, info.Owner, info.Token, info.ExpiresIn = true, l.holder.owner, l.token, time.Until(l.expires)
	}
	return info
}
