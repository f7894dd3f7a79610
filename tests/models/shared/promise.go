package shared

import (
	"fmt"

	"github.com/fencelock/fencelock/backend"
)

func (m *machine) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

// trusts: a client relies on its hold. One that has called Unlock has stopped.
func (s *state) trusts(i int) bool {
	c := &s.claims[i]
	return c.phase == holding && s.now < c.until && !c.broken
}

// Holds reports whether somebody was told that he holds.
func (*machine) Holds(s *state) bool { return s.trusts(0) || s.trusts(1) || s.trusts(2) }

// check looks at what is promised of every state.
func (m *machine) check(s *state) {
	if !m.together(s.trusts) {
		m.broken = "" // this says more
		m.fail("EXCLUSION: %s hold at once", m.names(s.trusts))
	}
	if m.Omitted == (Omitted{}) { // else what a client makes of it shows more
		m.checkStore(s)
	}
	for i := range s.claims {
		a := &s.claims[i]
		if a.phase == gone && m.has(s, i) {
			m.fail("GHOST: the store has a hold of %s, which has left", m.name[i])
		}
		for j := range i {
			b := &s.claims[j]
			if m.Requests[i].Mode != m.Requests[j].Mode || !s.trusts(i) || !s.trusts(j) {
				continue
			}
			if m.Requests[i].Mode == backend.Permit && a.slot == b.slot {
				m.fail("SLOT: %s and %s both have slot %d", m.name[j], m.name[i], a.slot)
			}
			if m.Requests[i].Mode == backend.Reader && a.token != b.token {
				m.fail("ERA: %s and %s hold at once, with tokens %d and %d", m.name[j], m.name[i], b.token, a.token)
			}
		}
	}
	m.checkStuck(s)
}

// checkStore: the store's holds keep the rule too, and a permit's slot is below its limit.
func (m *machine) checkStore(s *state) {
	live := func(i int) bool { return m.has(s, i) }
	if !m.together(live) {
		m.fail("STORE: it has holds of %s at once", m.names(live))
	}
	for i, r := range m.Requests {
		if slot := s.claims[i].hold.slot; r.Mode == backend.Permit && int(slot) >= r.Limit {
			m.fail("SLOT: %s has slot %d", m.name[i], slot)
		}
	}
}

// together: the rule lets those in a set hold at once.
func (m *machine) together(in func(int) bool) bool {
	m.there = m.there[:0]
	for i := range clients {
		if in(i) {
			m.there = append(m.there, &m.asks[i])
		}
	}
	return len(m.there) < 2 || m.there[0].Admits(m.there[1:])
}

func (m *machine) names(in func(int) bool) string {
	all := ""
	for i := range clients {
		if in(i) {
			all += ", " + m.name[i]
		}
	}
	return all[2:]
}

// checkStuck: a waiter that may hold has been woken, unless time has passed or a key was deleted since the
// last request: then the next one wakes it.
func (m *machine) checkStuck(s *state) {
	i := s.first()
	if i < 0 || s.claims[i].alive <= s.now || !s.group.there && s.breaks > 0 {
		return
	}
	t := *s
	for j := range t.claims {
		if m.has(s, j) && t.claims[j].hold.state == pending {
			return // whose confirmation wakes it
		}
	}
	if m.bury(&t); t == *s && m.admits(s, i) {
		m.fail("STUCK: %s may hold, is first in the queue, and nobody wakes it", m.name[i])
	}
}

// checkQueued is about a request that was told to wait.
func (m *machine) checkQueued(s *state, i int) {
	if m.has(s, i) {
		m.fail("SELF: %s waits for its own hold", m.name[i])
	}
	first := s.first()
	if s.claims[first].alive <= s.now {
		m.fail("DEADWAITER: %s waits behind %s, which is dead", m.name[i], m.name[first])
	}
	t := *s
	for j := range t.claims {
		if t.claims[j].hold.until <= s.now {
			t.claims[j].hold = hold{}
		}
	}
	if first == i && m.admits(&t, i) {
		m.fail("DEAD: %s waits for a hold whose time is over", m.name[i])
	}
}

// checkOrder: nobody is granted a hold before a live waiter in front of it.
func (m *machine) checkOrder(s *state, i int) {
	mine := s.claims[i].place
	for j := range s.claims {
		w := &s.claims[j]
		if w.place > 0 && (mine == 0 || w.place < mine) && w.alive > s.now {
			m.fail("FIFO: %s is granted before %s, which waits in front of it", m.name[i], m.name[j])
		}
	}
}

// checkToken: a client is given a greater token than every writer before it, a writer than everybody, and a
// permit than every one before it that had its slot.
func (m *machine) checkToken(s *state, i int) {
	c, mode := &s.claims[i], m.Requests[i].Mode
	if c.broken {
		return
	}
	if c.token <= s.topExclusive || mode == backend.Exclusive && c.token <= s.top {
		m.fail("TOKEN: %s has token %d after a writer with %d and others up to %d",
			m.name[i], c.token, s.topExclusive, s.top)
	}
	s.top = max(s.top, c.token)
	switch mode {
	case backend.Exclusive:
		s.topExclusive = c.token
	case backend.Permit:
		if c.token <= s.topSlot[c.slot] {
			m.fail("TOKEN: %s has token %d after one with %d and the same slot", m.name[i], c.token, s.topSlot[c.slot])
		}
		s.topSlot[c.slot] = c.token
	}
}
