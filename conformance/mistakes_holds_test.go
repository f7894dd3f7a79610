package conformance

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// key says which lock a name is.
func (s *toy) key(o *order) string {
	prefix, name := o.Prefix, o.Name
	switch s.flaw {
	case nameFolded:
		name = strings.ToLower(name)
	case nameCut:
		name = name[:min(len(name), 255)]
	case nameIsPath:
		name, _, _ = strings.Cut(name, "/")
	case nameNormal:
		name = strings.ReplaceAll(name, "e\u0301", "é")
	case nameTagged:
		if _, rest, ok := strings.Cut(name, "{"); ok {
			if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
				name = "{" + tag + "}"
			}
		}
	case nameTrimmed:
		name = strings.TrimSpace(name)
	case prefixCut:
		prefix, _, _ = strings.Cut(prefix, ":")
	case databasesMeet:
		if i := strings.IndexByte(prefix, '/'); i == 1 {
			prefix = prefix[2:]
		}
	}
	return prefix + "\x00" + name
}

// nonce is what the end of an order's nonce is remembered by.
func (s *toy) nonce(o *order) string {
	if s.flaw == noncesMeet {
		return o.Nonce
	}
	return o.Prefix + o.Nonce
}

// next makes the token of a grant.
func (s *toy) next(l *toyLock, w *toyWaiter) backend.Token {
	mine, at := w.order.Client+w.order.Name, l.prefix
	floor := w.order.Floor + 1
	if s.flaw == floorIgnored {
		floor = 0
	}
	s.counter[at] = max(s.counter[at]+1, floor)
	switch s.flaw {
	case counterPerLock:
		return max(l.token+1, floor)
	case counterPlain:
		return s.counter[at]
	case anchorsMissing:
		if s.counter[at] > floor {
			return s.counter[at]
		}
	case tokenSeconds:
		return max(time.Now().Unix(), floor)
	case tokenNanos:
		s.counter[at] = max(s.counter[at], time.Now().UnixNano()*8)
		return s.counter[at]
	case tokenConstant:
		return floor
	case blockFreed:
		if s.counter[at] == floor { // the first
			s.counter[at] = max(floor, time.Now().UnixMicro())
		}
		token := s.counter[at]
		s.counter[at] += backend.Token(w.order.Reserve)
		return token
	case tokenRandom:
		return floor + rand.Int64N(1<<49)
	case tokenEarly:
		if t := s.cached[mine]; t > 0 {
			delete(s.cached, mine)
			return max(t, floor)
		}
	}
	s.counter[at] = max(s.counter[at], time.Now().UnixMicro())
	return s.counter[at]
}

func (s *toy) renew(o *order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key(o)
	l := s.locks[key]
	now := time.Now()
	switch {
	case s.mine(l, o.Nonce):
	case s.flaw == renewRevives && l != nil && l.order != nil && l.order.Nonce == o.Nonce:
	case s.flaw == renewCreates && l == nil:
		l = &toyLock{prefix: o.Prefix, name: o.Name, order: o, lost: func(error) {}, token: s.counter[o.Prefix]}
		s.locks[key] = l
	case s.flaw == renewAnybody && l != nil && l.order != nil && now.Before(l.expires):
	case s.flaw == renewSaysYes:
		return nil
	default:
		if s.flaw == renewSetsExpiry && l != nil && l.order != nil && l.order.Nonce != o.Nonce {
			l.expires = now.Add(s.span(o))
		}
		return backend.ErrLost
	}
	switch {
	case s.flaw == renewNoManual && !o.Auto, s.flaw == heartbeatOfWait && l.waited:
		return nil
	case s.flaw == renewTooSoon && now.Sub(l.began) < 100*time.Millisecond && l.releasing:
		return backend.Invalid("renewed a moment ago")
	case s.flaw == renewTooSoon:
		l.began, l.releasing = now, true
	case s.flaw == lifetime && now.Add(o.TTL).After(l.began.Add(o.TTL*7/2)):
		return nil
	case s.flaw == renewNewToken:
		l.token = s.next(l, &toyWaiter{order: o})
	}
	l.before, l.renewed = l.expires, now
	l.expires = now.Add(s.span(o))
	s.serve(key, l) // the timer
	return nil
}

func (s *toy) release(o *order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key(o)
	l := s.locks[key]
	switch {
	case s.flaw == noncesMeet && s.ended[s.nonce(o)] == wasReleased:
		return nil
	case s.mine(l, o.Nonce):
		if s.flaw != releasedTwiceLost {
			s.ended[s.nonce(o)] = wasReleased
		}
		if s.past = append(s.past, s.nonce(o)); s.flaw == fewRemembered && len(s.past) > 50 {
			delete(s.ended, s.past[0])
			s.past = s.past[1:]
		}
		s.free(key, l, o)
		return nil
	case s.flaw == releaseAnybody:
		s.ended[s.nonce(o)] = wasReleased
		s.free(key, l, o)
		return nil
	case s.flaw == releaseByPrefix && l != nil && l.order != nil && l.order.Name == o.Name && l.order.Owner == o.Owner:
		s.free(key, l, o)
		return nil
	case s.ended[s.nonce(o)] == wasReleased, s.flaw == releaseSaysYes:
		return nil
	}
	return backend.ErrLost
}

// free ends a hold as its holder asked.
func (s *toy) free(key string, l *toyLock, o *order) {
	if l == nil {
		return
	}
	switch {
	case s.flaw == graceAtRelease && o.Grace > 0:
		l.expires = time.Now().Add(o.Grace)
		return
	case s.flaw == releaseLater && len(l.queue) == 0:
		l.expires = time.Now().Add(20 * time.Millisecond)
		l.order = &order{Nonce: "", Name: o.Name, Prefix: o.Prefix}
		s.hidden(key, l)
		return
	case s.flaw == rowPerName:
		s.rows[o.Prefix+"counter of "+o.Name] = true
	case s.flaw == overtaking && len(l.queue) > 0:
		l.order = nil
		s.serveLater(10*time.Millisecond, key, l)
		return
	}
	l.order = nil
	s.serve(key, l)
}

// serveLater is serve when the waiters look again.
func (s *toy) serveLater(in time.Duration, key string, l *toyLock) {
	time.AfterFunc(in, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.serve(key, l)
	})
}

// hidden lets the sweeper of releaseLater free the lock, or the next who wants it.
func (s *toy) hidden(key string, l *toyLock) {
	delete(s.locks, key)
	ghost := *l
	s.locks[key+"\x00swept later"] = &ghost
}

func (s *toy) abandon(o *order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key(o)
	l := s.locks[key]
	s.ended[s.nonce(o)] = wasAbandoned
	if l == nil {
		return nil
	}
	if s.flaw != placeKept {
		l.drop(o.Nonce)
	}
	if s.mine(l, o.Nonce) && s.flaw != ghost || s.flaw == abandonAnybody && !s.broken[o.Nonce] {
		l.order = nil
	}
	s.serve(key, l)
	return nil
}

func (s *toy) breakLock(o *order) {
	s.mu.Lock()
	key := s.key(o)
	l := s.locks[key]
	tell := []func(error){}
	if l != nil && l.order != nil {
		client := l.order.Client
		tell = append(tell, l.lost)
		s.broken[l.order.Nonce] = true
		if s.flaw == blockFreed {
			s.counter[l.prefix] = l.token
		}
		if s.flaw == breakLeavesRow {
			s.rows[o.Prefix+"broken "+l.order.Nonce] = true
		}
		l.order = nil
		if s.flaw == tellsAll {
			for _, other := range s.locks {
				if other.order != nil && other.order.Client == client {
					tell = append(tell, other.lost)
				}
			}
		}
		if s.flaw == breakWakesNone && len(l.queue) > 0 {
			s.serveLater(4*time.Second, key, l)
		} else {
			s.serve(key, l)
		}
	}
	s.mu.Unlock()
	for _, lost := range tell {
		if lost != nil && s.flaw != breakSilent {
			lost(backend.ErrLost)
		}
	}
}

// check reports whether the nonce holds.
func (s *toy) check(o *order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mine(s.locks[s.key(o)], o.Nonce) {
		return backend.ErrLost
	}
	return nil
}

// restarted is what a restart does: with its data lost, everything.
func (s *toy) restarted(wiped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wiped || s.flaw == forgetsLocks {
		s.locks = map[string]*toyLock{}
	}
	if wiped {
		s.counter, s.ended = map[string]backend.Token{}, map[string]flaw{}
	}
}
