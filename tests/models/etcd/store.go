package etcd

import (
	"math"

	"github.com/fencelock/fencelock/backend"
)

// plan is the transaction of a grant that i makes of the queue as it is now.
func (m *machine) plan(s *state, i int) txn {
	c, mode := &s.claims[i], m.Requests[i].Mode
	g := txn{kind: grant, own: c.entry.mod, at: s.rev, base: s.base}
	used, count := 0, int8(0)
	for j := range s.claims {
		e := s.claims[j].entry
		if e.create == 0 || j == i {
			continue
		}
		if e.held {
			count++
			used |= 1 << e.slot
			if mode == backend.Reader && e.token > g.token && !m.EachToken {
				g.keeper, g.keeps, g.token = int8(j), e.create, e.token
			}
			continue
		}
		front := c.entry.create == 0 || e.create < c.entry.create
		if front && (g.firsts == 0 || e.create < g.firsts) {
			g.first, g.firsts = int8(j), e.create
		}
	}
	if mode == backend.Permit {
		for used>>g.slot&1 != 0 {
			g.slot++
		}
		if m.SlotCounts {
			g.slot = count
		}
	}
	return g
}

// store does what a transaction asks for, or answers with a list.
func (m *machine) store(s *state, i int, g txn) bool {
	c := &s.claims[i]
	switch g.kind {
	case look:
		return false
	case release:
		c.tomb = c.again
		mine := c.entry.create == g.own
		if mine || c.again && !m.CopyStays {
			s.rev++
			c.entry = entry{}
		}
		return mine
	case abandon:
		s.rev++
		c.tomb, c.entry = true, entry{}
		return true
	}
	if c.tomb && !m.NoTombstone {
		return false
	}
	if g.kind == queue {
		if c.entry.create == 0 {
			s.rev++
			c.entry = entry{create: s.rev, mod: s.rev}
		}
		return false
	}
	if m.Requests[i].Mode == backend.Exclusive {
		return m.alone(s, i, g)
	}
	return m.beside(s, i, g)
}

// alone grants an exclusive lock, as a Mutex always does: to whoever is first.
func (m *machine) alone(s *state, i int, g txn) bool {
	e := s.claims[i].entry
	if e.mod != g.own {
		return false
	}
	for j := range s.claims {
		o := s.claims[j].entry
		if j != i && o.create > 0 && (e.create == 0 || o.create < e.create) {
			return false
		}
	}
	m.put(s, i, func(create int8) int8 { return s.base + create }, 0)
	return true
}

// beside grants a lock to a reader or a permit, if what was chosen is right yet.
func (m *machine) beside(s *state, i int, g txn) bool {
	e := s.claims[i].entry
	switch {
	case g.own > 0 && e.mod != g.own && !m.NoOwn,
		g.own == 0 && e.create > 0 && !m.NoAbsent,
		g.keeps == 0 && s.base > g.base && !m.BaseLowered,
		g.keeps > 0 && s.claims[g.keeper].entry.create != g.keeps && !m.NoKeeper,
		g.keeps == 0 && g.firsts > 0 && s.claims[g.first].entry.create != g.firsts && !m.NoFirst:
		return false
	}
	for j := range s.claims {
		o := s.claims[j].entry
		if o.create == 0 || j == i {
			continue
		}
		mine := m.Requests[j].Mode == m.Requests[i].Mode
		switch {
		case g.keeps > 0:
			if g.own == 0 && !mine && !m.NoComers {
				return false
			}
		case o.create > g.at:
			if g.own == 0 && !m.NoComers || mine && o.held && !m.NoGrants {
				return false
			}
		case o.mod > g.at && mine && !m.NoGrants:
			return false
		}
	}
	if g.keeps > 0 {
		m.put(s, i, func(int8) int8 { return g.token }, 0)
		return true
	}
	m.put(s, i, func(create int8) int8 {
		if g.firsts > 0 && !m.OwnNumber {
			create = g.firsts
		}
		return g.base + create
	}, g.slot)
	if s.base = g.base; g.firsts > 0 && !m.NoRoom {
		s.base++
	}
	return true
}

// put makes the entry of i that of a holder; it stays where it is in the queue.
func (m *machine) put(s *state, i int, token func(create int8) int8, slot int8) {
	e := &s.claims[i].entry
	s.rev++
	if e.create == 0 {
		e.create = s.rev
	}
	e.mod, e.held, e.slot = s.rev, true, slot
	e.token = token(e.create)
	m.checkGrant(s, i)
}

// admits asks the library's rule of the entries in front of i, all where it has none.
func (m *machine) admits(s *state, i int) bool {
	return m.ask(s, i, !m.NoneWaits)
}

// admitted is admits with nothing left out.
func (m *machine) admitted(s *state, i int) bool { return m.ask(s, i, true) }

func (m *machine) ask(s *state, i int, waiters bool) bool {
	mine := s.claims[i].entry.create
	if mine == 0 {
		mine = math.MaxInt8
	}
	m.front = m.front[:0]
	for j := range s.claims {
		if e := s.claims[j].entry; e.create > 0 && e.create < mine && (e.held || waiters) {
			m.front = append(m.front, &m.Requests[j])
		}
	}
	return m.Requests[i].Admits(m.front)
}
