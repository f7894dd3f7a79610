package redlock

import "slices"

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
	renewed                    // the client knows that the node has set the expiry of the term that it asks for
	stale                      // what the node has expires before the term does
	again                      // the node is being asked for its vote again
)

// data is what a node keeps, and may lose.
type data struct {
	holder  uint8 // attempt + 1
	number  uint8
	counter uint8
	base    uint8
}

// copied is older data, which may come back.
type copied struct {
	data
	is    bool
	since bool // something was counted since
}

type node struct {
	data
	older  copied
	quar   bool
	before uint8 // attempts that were under way when the quarantine began
	cells  [attempts]cell
}

type attempt struct {
	phase   uint8
	stamp   uint8
	token   uint8
	over    bool // its deadline has passed, and its client does not look
	wrote   bool // its write-back was sent
	granted bool
	renews  bool  // a renewal is under way
	before  uint8 // attempts granted before it began
}

type state struct {
	nodes                      [nodes]node
	attempts                   [attempts]attempt
	top                        uint8 // the greatest token of all grants
	now, lost, restarts, jumps uint8
	copies, renewals           uint8
}

// tidy makes states that differ in nothing that matters the same: nodes in one order, and forgotten
// what can have no effect.
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
			int(x.phase) - int(y.phase), int(x.stamp) - int(y.stamp), int(x.token) - int(y.token),
			int(x.before) - int(y.before),
			truth(x.over) - truth(y.over), truth(x.wrote) - truth(y.wrote), truth(x.granted) - truth(y.granted),
			truth(x.renews) - truth(y.renews),
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
		for _, holder := range []*uint8{&no.holder, &no.older.holder} {
			if *holder > 0 {
				*holder = (*holder+1)%attempts + 1
			}
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
		if c.flags &^= acked | renewed | stale | again; !m.WriteBackAny || !at.wrote {
			c.vote = 0
		}
		under = under || c.requests > 0 || c.vote != 0 || c.flags != 0
		no.before &^= 1 << a // a quarantine that does not wait for more is only shorter
	}
	at.over, at.renews = false, false
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
		int(a.older.holder) - int(b.older.holder), int(a.older.number) - int(b.older.number),
		int(a.older.counter) - int(b.older.counter), int(a.older.base) - int(b.older.base),
		truth(a.older.is) - truth(b.older.is), truth(a.older.since) - truth(b.older.since),
	} {
		if d != 0 {
			return d
		}
	}
	for i := range a.cells {
		x, y := a.cells[i], b.cells[i]
		if d := (int(x.requests)-int(y.requests))<<16 + (int(x.vote)-int(y.vote))<<8 +
			int(x.flags) - int(y.flags); d != 0 {
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
