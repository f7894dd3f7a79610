package redlock

import "fmt"

// deliver is what of an attempt can reach a node.
func (m *machine) deliver(s *state, n, a int) {
	at, no := &s.attempts[a], &s.nodes[n]
	c := no.cells[a]
	mine := no.holder == uint8(a+1) || m.OneID && no.holder > 0 && client(int(no.holder)-1) == client(a)
	if c.requests > 0 && !no.quar && (no.holder == 0 || mine) {
		m.vote(s, n, a)
	}
	if at.wrote && c.flags&acked == 0 && (c.vote != 0 || m.WriteBackAny) && !no.quar {
		m.writeBack(s, n, a, mine)
	}
	if at.phase == granted && at.renews && mine && !no.quar && c.flags&renewed == 0 {
		t := *s
		u := &t.nodes[n]
		u.older.since = u.older.is
		u.cells[a].flags = u.cells[a].flags&^stale | renewed
		m.add(t, "", "node %d renews %s's lock", n, name(a))
	}
	if at.phase == granted && c.flags&again != 0 && (no.holder == 0 || m.AgainTakes) && !no.quar {
		t := *s
		u := &t.nodes[n]
		u.older.since = u.older.is
		u.holder, u.number, u.counter = uint8(a+1), at.token, max(u.counter, at.token)
		u.cells[a].flags &^= stale // a copy of the request may come
		m.add(t, "", "node %d votes again for %s", n, name(a))
	}
	if at.phase == ended && (mine || c.requests > 0 && c.flags&released == 0) {
		// The release of one that is over comes after its late vote, or before it, and then leaves a tombstone.
		t := *s
		u := &t.nodes[n]
		if mine {
			u.holder, u.number = 0, 0
		}
		if u.cells[a].requests > 0 && m.NoTombstone {
			u.cells[a].flags |= released
		} else {
			u.cells[a].requests = 0
		}
		m.add(t, "", "node %d gets %s's release", n, name(a))
	}
}

// vote delivers a request; the answer comes, or is lost, or comes when nobody waits for it.
func (m *machine) vote(s *state, n, a int) {
	t := *s
	u, at := &t.nodes[n], &t.attempts[a]
	c := &u.cells[a]
	c.requests--
	u.older.since = u.older.is
	broken := ""
	if u.holder == 0 {
		u.number = max(u.counter+1, at.stamp, u.base+1)
		if f := m.floor(a); !m.NoFloor {
			u.number = max(u.number, f+1)
		}
		u.counter, u.holder = u.number, uint8(a+1)
		if at.phase == ended && c.flags&released != 0 {
			broken = fmt.Sprintf("GHOST: node %d holds a lock for %s, which has released it there", n, name(a))
		}
	}
	if at.phase != voting {
		number := u.number
		if m.Jumps == 0 && at.phase != raising && !m.WriteBackAny {
			u.number = 0 // of no use
		}
		m.add(t, broken, "node %d gets a late request and votes %d for %s", n, number, name(a))
		return
	}
	if int(t.lost) < m.Lost {
		l := t
		l.lost++
		m.add(l, "", "node %d votes %d for %s, and the reply is lost", n, u.number, name(a))
	}
	if c.vote == 0 {
		c.vote = u.number
	}
	m.add(t, "", "node %d votes %d for %s", n, u.number, name(a))
}

// writeBack delivers the token to a node that gave another number.
func (m *machine) writeBack(s *state, n, a int, mine bool) {
	no, at := &s.nodes[n], &s.attempts[a]
	ours := mine && (no.number == no.cells[a].vote || no.number == at.token)
	switch {
	case m.WriteBackAny:
		ours = true
	case m.WriteBackOwner:
		ours = mine
	}
	if !ours {
		return
	}
	t := *s
	u := &t.nodes[n]
	u.older.since = u.older.since || u.older.is && u.counter < at.token && !m.NoCountOfBacks
	u.counter = max(u.counter, at.token)
	if mine {
		u.number = at.token
	}
	if at.phase == raising {
		u.cells[a].flags |= acked
	}
	if t != *s {
		m.add(t, "", "node %d takes %d of %s", n, at.token, name(a))
	}
}

// own is what a node does by itself: a lock expires, the node restarts, its quarantine ends.
func (m *machine) own(s *state, n int) {
	no := &s.nodes[n]
	if no.holder > 0 {
		t := *s
		t.nodes[n].holder, t.nodes[n].number = 0, 0
		who := int(no.holder) - 1
		if at := s.attempts[who]; at.over || at.phase == ended || no.cells[who].flags&stale != 0 {
			m.add(t, "", "node %d expires %s's lock", n, name(who))
		} else if int(s.jumps) < m.Jumps {
			t.jumps++
			m.add(t, "", "node %d's CLOCK JUMPS and expires %s's lock", n, name(who))
		}
	}
	if int(s.restarts) < m.Restarts && (!m.Total || n == 0) {
		t := *s
		t.restarts++
		for i := range t.nodes {
			if i == n || m.Total {
				m.lose(&t, i)
			}
		}
		m.add(t, "", "node %d RESTARTS WITHOUT ITS DATA%s", n, map[bool]string{true: ", and all others"}[m.Total])
	}
	if no.quar {
		m.leave(s, n)
	}
	switch {
	case no.older.is:
		t := *s
		m.back(&t, n)
		m.add(t, "", "node %d's DATA GOES BACK", n)
	case int(s.copies) < m.Backs && !no.quar:
		t := *s
		t.copies++
		t.nodes[n].older = copied{data: no.data, is: true}
		m.add(t, "", "node %d's data is copied", n)
	}
}

// back gives a node its older data. It knows by its count that something is gone, and begins a quarantine.
func (m *machine) back(t *state, n int) {
	u := &t.nodes[n]
	older := u.older
	if older.since && !m.NoCount {
		m.lose(t, n)
	}
	u.data, u.older = older.data, copied{}
	for a := range u.cells {
		u.cells[a].flags &^= released
	}
}

// lose takes a node's data. What was under way to it may still arrive.
func (m *machine) lose(t *state, n int) {
	u := &t.nodes[n]
	u.data, u.older = data{}, copied{}
	for a := range u.cells {
		u.cells[a].flags &^= released
	}
	if m.NoQuarantine {
		return
	}
	u.quar, u.before = true, 0
	for a := range t.attempts {
		if p := t.attempts[a].phase; p != idle && p != ended {
			u.before |= 1 << a
		}
	}
}

// leave ends a quarantine: not before every lease that was under way when it began has ended, which the clock is to
// guarantee, and with the clock as the node's least number.
func (m *machine) leave(s *state, n int) {
	blank := 0
	for i := range s.nodes {
		blank += truth(s.nodes[i].quar)
	}
	if !m.BlankIsFresh || blank < quorum {
		if s.nodes[n].before != 0 {
			return
		}
	}
	t := *s
	u := &t.nodes[n]
	u.quar, u.before = false, 0
	t.now = 1
	if m.Restarts+m.Backs > 1 { // of several, the later ones
		t.now = s.now + 1
	}
	if !m.NoAnchor {
		u.base = t.now * tick
	}
	m.add(t, "", "node %d leaves its quarantine with %d", n, u.base)
}
