package migrate

import "fmt"

// client is what client i can do.
func (m *fleet) client(s *state, i int) {
	c := &s.clients[i]
	switch c.at {
	case idle:
		for _, p := range m.Phases {
			t := *s
			t.clients[i].phase = p
			m.begin(&t, i)
		}
		return
	case passed:
		m.first(s, i)
	case oneLeg:
		if c.phase == both {
			m.second(s, i)
		} else {
			m.grant(*s, i)
		}
	case twoLegs:
		m.tie(s, i)
	case raised:
		m.grant(*s, i)
	case held, leaving:
		m.release(s, i)
	}
	for k := range s.stores {
		if c.trust>>k&1 == 1 {
			t := *s
			t.clients[i].trust &^= 1 << k
			m.add(t, "", "the deadline of %s in %s passes", m.who(s, i), side(k))
		}
	}
	t := *s
	m.leave(&t, i)
	m.add(t, "", "%s crashes", m.who(s, i))
	if c.at == twoLegs && s.late == 0 && !m.NoRaise && !m.RaiseAfter && !m.NoTokens {
		t.late = c.t2
		m.add(t, "", "%s crashes, its raise to %d still under way", m.who(s, i), c.t2)
	}
}

// admits reports whether client i may lock in store k.
func (m *fleet) admits(s *state, i, k int) bool {
	switch g := s.stores[k].gate; s.clients[i].phase {
	case from:
		return m.NoGates || g != shut
	case to:
		return m.NoGates || g == open
	}
	return true
}

// home is the store that a client locks first.
func (c *client) home() int {
	if c.phase == to {
		return new
	}
	return old
}

func (m *fleet) begin(s *state, i int) {
	if !m.admits(s, i, s.clients[i].home()) {
		return
	}
	if !m.GateApart {
		m.first(s, i)
		return
	}
	t := *s
	t.clients[i].at = passed
	m.add(t, "", "%s sees that the gate of %s lets it in", m.who(s, i), side(s.clients[i].home()))
}

// first takes the lock in the first store, or the only one.
func (m *fleet) first(s *state, i int) {
	c := &s.clients[i]
	k := c.home()
	if s.stores[k].holder != 0 {
		return
	}
	m.issue(s, k, 0, func(t *state, token uint8) {
		u := &t.clients[i]
		u.at, u.trust = oneLeg, 1<<k
		u.open = m.RaiseIfOpen && s.stores[old].gate == open
		if m.losses() {
			u.issued = t.top
		}
		if k == old {
			u.t1 = token
		} else {
			u.t2 = token
		}
		m.take(t, i, k)
	}, "%s takes %s", m.who(s, i), side(k))
}

// second takes the lock in the new store, with no token below the old one's.
func (m *fleet) second(s *state, i int) {
	if s.stores[new].holder != 0 {
		return
	}
	floor := s.clients[i].t1
	if m.NoFloor {
		floor = 0
	}
	m.issue(s, new, floor, func(t *state, token uint8) {
		u := &t.clients[i]
		u.at, u.t1, u.t2 = twoLegs, 0, token
		u.trust |= 1 << new
		m.take(t, i, new)
	}, "%s takes %s with a floor of %d", m.who(s, i), side(new), floor)
}

func (m *fleet) take(t *state, i, k int) {
	t.stores[k].holder, t.stores[k].both = uint8(i+1), t.clients[i].phase == both
}

// issue draws a token in store k: any number above its source and not below the floor.
func (m *fleet) issue(s *state, k int, floor uint8, give func(t *state, token uint8), format string, args ...any) {
	if m.NoTokens {
		t := *s
		give(&t, 0)
		m.add(t, "", format, args...)
		return
	}
	t := *s
	t.setTokens(double)
	highest := s.tokens().top()
	for token := max(2*s.stores[k].source+1, 2*floor); token <= highest+1; token++ {
		u := t
		u.stores[k].source = token
		give(&u, token)
		m.add(u, "", format+": token %s", append(args, place(token))...)
	}
}

// place says where a number lies among the ranks of the state before.
func place(n uint8) string {
	if n%2 == 0 {
		return fmt.Sprint(n / 2)
	}
	return fmt.Sprintf("above %d", n/2)
}

// tie raises the old store's source to the new store's token.
func (m *fleet) tie(s *state, i int) {
	c := &s.clients[i]
	ours := s.stores[old].holder == uint8(i+1)
	if ours && c.trust&1 == 0 {
		t := *s
		t.clients[i].trust |= 1
		m.add(t, "", "%s renews its leg in %s", m.who(s, i), side(old))
	}
	if m.NoRaise || m.RaiseAfter || m.RaiseIfOpen && !c.open {
		m.grant(*s, i)
		return
	}
	if !ours && !m.RaiseAny {
		return // refused: it gives up
	}
	t := *s
	t.stores[old].source = max(s.stores[old].source, c.t2)
	t.clients[i].at = raised
	m.add(t, "", "%s raises %s to %d", m.who(s, i), side(old), c.t2)
}

// trusts reports whether c's lease, were it one, is not over.
func (m *fleet) trusts(c *client) bool {
	inOld, inNew := c.trust&1 != 0, c.trust&2 != 0
	switch {
	case c.phase == from:
		return inOld
	case c.phase == to:
		return inNew
	case m.Trust == "old":
		return inOld
	case m.Trust == "new":
		return inNew
	case m.Trust == "any":
		return inOld || inNew
	}
	return inOld && inNew
}

// grant tells client i that it has the lock, unless a deadline has passed meanwhile, and looks at
// what is promised of tokens.
func (m *fleet) grant(t state, i int) {
	c := &t.clients[i]
	switch {
	case m.NoRecheck && c.at == raised:
		c.trust = 3 // it has not heard of a deadline that passed
	case !m.trusts(c):
		return
	}
	who, token := m.who(&t, i), max(c.t1, c.t2)
	if c.phase == both {
		token = c.t2
	}
	broken := ""
	switch {
	case m.NoTokens:
	case !m.losses() && token <= t.top, token <= c.issued && c.issued > 0:
		broken = fmt.Sprintf("ORDER: %s has token %d after one with %d", who, token, max(t.top, c.issued))
	case token == t.top || token == t.before:
		broken = fmt.Sprintf("UNIQUE: %s has token %d, as one before it", who, token)
	}
	if m.losses() {
		t.before = min(token, t.top)
	}
	t.top = max(t.top, token)
	c.at, c.t1, c.issued, c.open = held, 0, 0, false
	if !m.RaiseAfter {
		c.t2 = 0
	}
	m.add(t, broken, "%s is GRANTED with token %d", who, token)
}

// release gives the lock back: one store's leg, then the other's. Both are asked at once, so either may be the first.
func (m *fleet) release(s *state, i int) {
	c := &s.clients[i]
	if m.RaiseAfter && c.phase == both && c.at == held && s.stores[old].source < c.t2 {
		t := *s
		t.stores[old].source = c.t2
		m.add(t, "", "%s raises %s to %d", m.who(s, i), side(old), c.t2)
	}
	drop := func(t *state, k int) {
		if t.stores[k].holder == uint8(i+1) {
			t.stores[k].holder = 0
		}
	}
	if c.phase == both && c.at == held {
		for k := range s.stores {
			t := *s
			drop(&t, k)
			t.clients[i].at, t.clients[i].t2 = leaving, 0
			t.clients[i].trust &^= 1 << k
			m.add(t, "", "%s releases %s", m.who(s, i), side(k))
		}
		return
	}
	t := *s
	drop(&t, old)
	drop(&t, new)
	t.clients[i] = client{}
	m.add(t, "", "%s releases", m.who(s, i))
}

func (m *fleet) losses() bool { return m.Lose[old]+m.Lose[new] > 0 }
