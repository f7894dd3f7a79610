// Package model is the vote protocol of package redlock as a machine of small states, and a search of all of them. Each of
// two clients makes two acquisitions, and may be at any point of one; a given number of messages is lost, sent twice or later
// than the acquisition that sent it; a node restarts without its data, or its clock jumps. The search is exhaustive within
// these bounds; it is no proof beyond them.
//
// Three things keep the machine small, and hide no way to break a promise. A node may refuse anybody at any time, so
// that a lock which is over (released, or its deadline has passed) can be taken as freed at once wherever nothing of it is
// under way: a node that keeps it longer only refuses others. A refused request and one that was never delivered are the same.
// The clock goes on when a node leaves its quarantine; proposals that were made before are lower, which is the dangerous
// case. Left out are renewal, which creates nothing and changes no number, and waiting, which only refuses.
package model

import (
	"fmt"
	"slices"
)

// The bounds of the machine.
const (
	nodes    = 3
	attempts = 4 // 0 and 1 are the first client's, 2 and 3 the second's
	quorum   = nodes/2 + 1
	tick     = 16 // numbers in one unit of the clock: more than can be drawn in it
)

// client returns whose an attempt is.
func client(a int) int { return a / 2 }

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Lost     int  // how many messages are lost, sent twice, or late: still under way when their acquisition is over
	Restarts int  // of one node, without its data
	Total    bool // a restart is of all nodes at once
	Jumps    int  // a node's clock jumps and a lock of it expires early
	Counters [nodes]uint8
	Floor    uint8 // of the second client's first acquisition
	Named    bool  // clients and nodes keep their names, for traces: many more states

	// The safeguards left out.
	NoWriteBack    bool // a quorum of votes with different numbers is enough
	WriteBackAny   bool // a write-back counts wherever it arrives
	WriteBackOwner bool // … where the lock is ours, whatever its number
	NoQuarantine   bool
	NoAnchor       bool // a node leaves its quarantine with no number
	BlankIsFresh   bool // a majority of blank nodes takes itself for a fresh cluster
	NoDeadline     bool // the deadline is not looked at after the last reply
	NoTombstone    bool
	OneID          bool // both rounds of a client have the same id
	NoCompare      bool // a release frees whoever holds
	NoFloor        bool
}

// phases of an attempt.
const (
	idle uint8 = iota
	voting
	raising
	granted
	ended // released, given up or lost
)

// cell is what one node and the network have of one attempt.
type cell struct {
	requests uint8 // vote requests under way
	vote     uint8 // the number that the client was given
	flags    uint8
}

const (
	acked    uint8 = 1 << iota // the node has the token, as the client knows
	released                   // the node has seen the release, and keeps no tombstone
)

type node struct {
	holder  uint8 // attempt + 1
	number  uint8
	counter uint8
	base    uint8
	quar    bool
	before  uint8 // attempts that were under way when the quarantine began
	cells   [attempts]cell
}

type attempt struct {
	phase   uint8
	stamp   uint8
	token   uint8
	over    bool // its deadline has passed, and its client does not look
	wrote   bool // its write-back was sent
	granted bool
	before  uint8 // attempts granted before it began
}

type state struct {
	nodes                      [nodes]node
	attempts                   [attempts]attempt
	top                        uint8 // the greatest token of all grants
	now, lost, restarts, jumps uint8
}

// step is a state that follows, what was done, and the property that it breaks, if any.
type step struct {
	next   state
	action string
	broken string
}

// machine makes the steps from a state. Named: with their actions in words.
type machine struct {
	Config
	named bool
	out   []step
}

func (m *machine) initial() state {
	var s state
	for i := range s.nodes {
		s.nodes[i].counter = m.Counters[i]
	}
	return s
}

func (m *machine) add(s state, broken, format string, args ...any) {
	action := ""
	if m.named {
		action = fmt.Sprintf(format, args...)
	}
	m.tidy(&s)
	m.out = append(m.out, step{s, action, broken})
}

// tidy makes states that differ in nothing that matters the same: nodes in one order, and forgotten what can have no effect.
func (m *machine) tidy(s *state) {
	for a := range s.attempts {
		if s.attempts[a].phase == ended {
			m.forget(s, a)
		}
	}
	if m.Named {
		return
	}
	if m.Floor == 0 && greater(s.attempts[:2], s.attempts[2:]) {
		swap(s)
	}
	slices.SortFunc(s.nodes[:], compare)
}

// greater orders the two clients.
func greater(a, b []attempt) bool {
	for i := range a {
		x, y := a[i], b[i]
		for _, d := range []int{
			int(x.phase) - int(y.phase), int(x.stamp) - int(y.stamp), int(x.token) - int(y.token), int(x.before) - int(y.before),
			truth(x.over) - truth(y.over), truth(x.wrote) - truth(y.wrote), truth(x.granted) - truth(y.granted),
		} {
			if d != 0 {
				return d > 0
			}
		}
	}
	return false
}

// swap gives each client the other's name.
func swap(s *state) {
	bits := func(b uint8) uint8 { return b>>2 | b<<2&0xf }
	a := &s.attempts
	a[0], a[1], a[2], a[3] = a[2], a[3], a[0], a[1]
	for i := range a {
		a[i].before = bits(a[i].before)
	}
	for n := range s.nodes {
		no := &s.nodes[n]
		c := &no.cells
		c[0], c[1], c[2], c[3] = c[2], c[3], c[0], c[1]
		no.before = bits(no.before)
		if no.holder > 0 {
			no.holder = (no.holder+1)%attempts + 1
		}
	}
}

// forget removes what is of no more use of an attempt that is over.
func (m *machine) forget(s *state, a int) {
	at := &s.attempts[a]
	under := false
	for n := range s.nodes {
		no := &s.nodes[n]
		c := &no.cells[a]
		if c.flags &^= acked; !m.WriteBackAny || !at.wrote {
			c.vote = 0
		}
		under = under || c.requests > 0 || c.vote != 0 || c.flags != 0
		no.before &^= 1 << a // a quarantine that does not wait for more is only shorter
	}
	at.over = false
	if !under {
		at.stamp, at.wrote = 0, false
	}
	if m.Jumps == 0 { // top knows enough
		at.before, at.granted = 0, false
		if !at.wrote {
			at.token = 0
		}
	}
}

func compare(a, b node) int {
	for _, d := range []int{
		int(a.holder) - int(b.holder), int(a.number) - int(b.number), int(a.counter) - int(b.counter),
		int(a.base) - int(b.base), int(a.before) - int(b.before), truth(a.quar) - truth(b.quar),
	} {
		if d != 0 {
			return d
		}
	}
	for i := range a.cells {
		x, y := a.cells[i], b.cells[i]
		if d := (int(x.requests)-int(y.requests))<<16 + (int(x.vote)-int(y.vote))<<8 + int(x.flags) - int(y.flags); d != 0 {
			return d
		}
	}
	return 0
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// steps returns everything that can happen in s.
func (m *machine) steps(s *state) []step {
	m.out = m.out[:0]
	for a := range s.attempts {
		m.client(s, a)
	}
	for n := range s.nodes {
		if n > 0 && s.nodes[n] == s.nodes[n-1] && !m.Named {
			continue // the same as what its twin does
		}
		for a := range s.attempts {
			m.deliver(s, n, a)
		}
		m.own(s, n)
	}
	return m.out
}

func name(a int) string { return fmt.Sprintf("%c%d", 'A'+client(a), a%2+1) }

// client is what an acquisition's client can do.
func (m *machine) client(s *state, a int) {
	at := &s.attempts[a]
	if at.phase == idle {
		if a%2 == 1 && s.attempts[a-1].phase != ended {
			return // one after the other
		}
		t := *s
		b := &t.attempts[a]
		b.phase, b.stamp = voting, t.now*tick+1
		for i := range t.attempts {
			if t.attempts[i].granted && m.Jumps > 0 {
				b.before |= 1 << i
			}
		}
		for n := range t.nodes {
			t.nodes[n].cells[a].requests = 1
		}
		m.add(t, "", "%s asks for votes, and proposes %d", name(a), b.stamp)
		return
	}
	if at.phase == ended {
		return
	}
	m.end(*s, a)
	if m.NoDeadline && !at.over {
		t := *s
		t.attempts[a].over = true
		m.add(t, "", "%s's deadline passes", name(a))
	}
	switch at.phase {
	case voting:
		m.count(s, a)
		if int(s.lost) < m.Lost && m.Jumps > 0 { // without a jump, one that comes while its client votes changes nothing
			for n := range s.nodes {
				if s.nodes[n].cells[a].requests == 1 && (n == 0 || s.nodes[n] != s.nodes[n-1]) {
					t := *s
					t.lost++
					t.nodes[n].cells[a].requests++
					m.add(t, "", "%s's request to node %d is sent twice", name(a), n)
				}
			}
		}
	case raising:
		acks := 0
		for n := range s.nodes {
			acks += truth(s.nodes[n].cells[a].flags&acked != 0)
		}
		if acks >= quorum {
			m.grant(*s, a)
		}
	}
}

// end is a release, a request that was given up, or a deadline that passed. To each node a request may still be under way,
// the only one or a second: each that will arrive counts as lost.
func (m *machine) end(s state, a int) {
	s.attempts[a].phase = ended
	for n := range s.nodes {
		no := &s.nodes[n]
		if no.holder == uint8(a+1) || m.NoCompare && no.holder > 0 {
			no.holder, no.number = 0, 0
		}
	}
	for late := uint8(1<<nodes - 1); ; late-- { // every set of nodes
		t := s
		for n := range t.nodes {
			t.nodes[n].cells[a].requests = late >> n & 1
			t.lost += late >> n & 1
		}
		if int(t.lost) <= m.Lost {
			m.add(t, "", "%s is over%s", name(a), map[bool]string{true: ", with requests under way"}[late != 0])
		}
		if late == 0 {
			return
		}
	}
}

// count looks at the votes that have come.
func (m *machine) count(s *state, a int) {
	votes, agree, token := 0, 0, uint8(0)
	for n := range s.nodes {
		v := s.nodes[n].cells[a].vote
		if v == 0 {
			continue
		}
		votes++
		switch {
		case v > token:
			token, agree = v, 1
		case v == token:
			agree++
		}
	}
	if votes < quorum {
		return
	}
	t := *s
	t.attempts[a].token = token
	if agree >= quorum || m.NoWriteBack {
		m.grant(t, a)
		return
	}
	t.attempts[a].phase, t.attempts[a].wrote = raising, true
	for n := range t.nodes {
		if t.nodes[n].cells[a].vote == token {
			t.nodes[n].cells[a].flags |= acked
		}
	}
	m.add(t, "", "%s has votes of a majority and writes %d back", name(a), token)
}

// grant hands out the lock, and looks at what is promised.
func (m *machine) grant(t state, a int) {
	at := &t.attempts[a]
	at.phase, at.granted = granted, true
	broken := ""
	if m.Jumps == 0 && at.token == t.top {
		broken = fmt.Sprintf("UNIQUE: %s has token %d, as one before it", name(a), at.token)
	} else if m.Jumps == 0 && at.token < t.top {
		broken = fmt.Sprintf("ORDER: %s has token %d after one with %d", name(a), at.token, t.top)
	}
	t.top = max(t.top, at.token)
	for i, o := range t.attempts {
		if i == a || !o.granted {
			continue
		}
		switch {
		case o.phase == granted && !o.over && m.Jumps == 0:
			broken = fmt.Sprintf("EXCLUSION: %s is granted while %s holds", name(a), name(i))
		case m.Jumps > 0 && o.token == at.token:
			broken = fmt.Sprintf("UNIQUE: %s and %s have token %d", name(a), name(i), at.token)
		case m.Jumps > 0 && o.token > at.token && at.before&(1<<i) != 0:
			broken = fmt.Sprintf("ORDER: %s has token %d after %s with %d", name(a), at.token, name(i), o.token)
		}
	}
	if m.floor(a) >= at.token && m.floor(a) > 0 {
		broken = fmt.Sprintf("FLOOR: %s has token %d, and its floor is %d", name(a), at.token, m.floor(a))
	}
	at.before = 0
	token := at.token
	if m.Jumps == 0 && !m.WriteBackAny { // of no more use
		at.token, at.wrote = 0, false
		for n := range t.nodes {
			no := &t.nodes[n]
			no.cells[a].vote = 0
			no.cells[a].flags &^= acked
			if no.holder == uint8(a+1) {
				no.number = 0
			}
		}
	}
	m.add(t, broken, "%s is GRANTED with token %d", name(a), token)
}

func (m *machine) floor(a int) uint8 {
	if a == 2 {
		return m.Floor
	}
	return 0
}

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
		if at := s.attempts[who]; at.over || at.phase == ended {
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
}

// lose takes a node's data. What was under way to it may still arrive.
func (m *machine) lose(t *state, n int) {
	u := &t.nodes[n]
	u.holder, u.number, u.counter, u.base = 0, 0, 0, 0
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
	if !m.NoAnchor {
		u.base = t.now * tick
	}
	m.add(t, "", "node %d leaves its quarantine with %d", n, u.base)
}
