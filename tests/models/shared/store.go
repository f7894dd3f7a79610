package shared

import "github.com/fencelock/fencelock/backend"

// store does what a message asks for, in one step.
func (m *machine) store(s *state, i int, g message) reply {
	r := reply{sent: g.sent}
	switch g.kind {
	case ask:
		r.kind = m.ask(s, i)
	case renew:
		r.kind = m.renew(s, i)
	default:
		r.kind = m.leave(s, i, g.kind)
	}
	if r.kind == granted {
		r.token, r.slot = s.claims[i].hold.token, s.claims[i].hold.slot
	}
	return r
}

// ask grants a hold to i, confirms the one that it has, or gives it a place in the queue.
func (m *machine) ask(s *state, i int) int8 {
	c := &s.claims[i]
	if c.past != none && !m.NoTombstone { // looked at before anything changes
		return refused
	}
	m.bury(s)
	if m.has(s, i) && !m.NoNonce {
		m.hold(s, i, held, m.Requests[i].TTL)
		if !m.NoServeOn {
			m.serve(s, -1)
		}
		return granted
	}
	m.serve(s, i)
	if first := s.first(); (first < 0 || first == i || m.NoQueue) && m.admits(s, i) {
		m.put(s, i, held, m.Requests[i].TTL)
		if !m.NoServeOn {
			m.serve(s, -1)
		}
		return granted
	}
	if c.place == 0 {
		for j := range s.claims {
			c.place = max(c.place, s.claims[j].place)
		}
		c.place++
	}
	c.alive = s.now + waits
	m.checkQueued(s, i)
	return queued
}

// renew makes a hold last longer, and makes none.
func (m *machine) renew(s *state, i int) int8 {
	c := &s.claims[i]
	switch {
	case m.has(s, i) && c.hold.state == held:
		if c.hold.broken {
			m.fail("BREAK: %s renews a hold whose key was deleted", m.name[i])
		}
		m.hold(s, i, held, m.Requests[i].TTL)
		return renewed
	case m.RenewCreates && (!s.group.there || s.group.mode == m.Requests[i].Mode):
		m.put(s, i, held, m.Requests[i].TTL)
		return renewed
	}
	return lost
}

// leave ends what i has, by a release or an abandon.
func (m *machine) leave(s *state, i int, how int8) int8 {
	c := &s.claims[i]
	m.bury(s)
	waited, mine, repeated := c.place > 0, m.has(s, i), c.past == release
	s.drop(i)
	if mine {
		c.hold = hold{}
		m.bury(s)
	}
	if mine || how == abandon {
		c.past = how
	}
	if mine || waited && !m.NoServeLeave || !waited && !m.NoServeBury {
		m.serve(s, -1)
	}
	if how == release && !mine && (!repeated || m.NoReleased) {
		if repeated {
			m.fail("REPEAT: %s is told that it had lost what it released", m.name[i])
		}
		return unheld
	}
	return left
}

// bury ends the holds whose time is over.
func (m *machine) bury(s *state) {
	if s.group.until <= s.now {
		s.group.there = false
	}
	if !s.group.there {
		return
	}
	s.group.there = false
	for i := range s.claims {
		h := &s.claims[i].hold
		if h.until <= s.now && (!m.OneExpiry || s.group.mode == backend.Exclusive) {
			*h = hold{}
		}
		s.group.there = s.group.there || h.state != none
	}
}

// serve wakes the first waiter that may hold, but for self, and drops the dead in front of it.
func (m *machine) serve(s *state, self int) {
	for given := false; ; {
		i := s.first()
		switch {
		case i < 0 || i == self:
			return
		case s.claims[i].alive <= s.now && !m.DeadStay:
			s.drop(i)
		case given || !m.admits(s, i):
			return
		default:
			given = true
			m.put(s, i, pending, claimed)
			if c := &s.claims[i]; m.PushGrants && c.in.kind == none {
				c.in = reply{kind: pushed, token: c.hold.token, slot: c.hold.slot}
			}
		}
	}
}

// admits asks the library's rule.
func (m *machine) admits(s *state, i int) bool {
	if !s.group.there {
		return true
	}
	m.there = m.there[:0]
	for j := range s.claims {
		if h := s.claims[j].hold.state; h == held || h == pending && !m.NoClaims {
			m.there = append(m.there, &m.beside[i][j])
		}
	}
	r := &m.asks[i]
	if m.NoOwnLimit && r.Mode == backend.Permit {
		r = &backend.Request{Mode: backend.Permit, Limit: backend.MostPermits}
	}
	return r.Admits(m.there)
}

// put gives i a hold that it has not.
func (m *machine) put(s *state, i int, how, ttl int8) {
	m.checkOrder(s, i)
	s.drop(i)
	if !s.group.there {
		for j := range s.claims {
			if !m.NoClear {
				s.claims[j].hold = hold{}
			}
		}
		s.group = group{there: true, mode: m.Requests[i].Mode, era: s.group.era}
		if !m.EraStays {
			s.group.era = 0
		}
	}
	s.claims[i].hold = hold{}
	m.hold(s, i, how, ttl)
}

// hold sets what i holds, how and for how long, and its token once that is certain.
func (m *machine) hold(s *state, i int, how, ttl int8) {
	h := &s.claims[i].hold
	h.state, h.until = how, s.now+ttl
	if m.KeyShrinks || s.group.until < h.until {
		s.group.until = h.until
	}
	if h.token == 0 && (how == held || m.Early || m.PushGrants) {
		m.number(s, i)
	}
}

// number gives a hold its token, and a permit its slot.
func (m *machine) number(s *state, i int) {
	h, mode := &s.claims[i].hold, m.Requests[i].Mode
	if mode == backend.Permit {
		used, count := uint8(0), int8(0)
		for j := range s.claims {
			if o := s.claims[j].hold; o.token > 0 {
				used |= 1 << o.slot
				count++
			}
		}
		for used>>h.slot&1 != 0 {
			h.slot++
		}
		if m.SlotCounts {
			h.slot = count
		}
	}
	if mode == backend.Reader && s.group.era > 0 && !m.NoEra {
		h.token = s.group.era
		return
	}
	s.counter++
	if h.token = s.counter; mode == backend.Reader {
		s.group.era = h.token
	}
}

// has: i has a hold in the group that is there.
func (m *machine) has(s *state, i int) bool {
	h, g := s.claims[i].hold, s.group
	return g.there && g.mode == m.Requests[i].Mode && g.until > s.now && h.state != none && h.until > s.now
}

// first is whose turn it is, or -1.
func (s *state) first() int {
	for i := range s.claims {
		if s.claims[i].place == 1 {
			return i
		}
	}
	return -1
}

// drop takes i out of the queue.
func (s *state) drop(i int) {
	p := s.claims[i].place
	if p == 0 {
		return
	}
	s.claims[i].place = 0
	for j := range s.claims {
		if s.claims[j].place > p {
			s.claims[j].place--
		}
	}
}
