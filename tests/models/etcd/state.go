package etcd

import (
	"fmt"

	"github.com/fencelock/fencelock/backend"
)

// The phases of a client.
const (
	idle int8 = iota
	asking
	waiting
	holding
	releasing
	quitting
	gone // its release or abandon was answered
	dead
)

// The kinds of transactions, and of replies.
const (
	none int8 = iota
	look
	queue
	grant
	release
	abandon
	granted
)

var verbs = [...]string{
	look: "look", queue: "place in the queue", grant: "request for a grant", release: "release", abandon: "abandon",
}

// txn is a transaction under way.
type txn struct {
	kind int8
	late bool // nobody waits for its answer
	own  int8 // the mod revision of the own entry, the create revision in a release; 0: there is none
	at   int8 // the revision of the list; 0: there was no list
	base int8 // that the base is to be, and is no greater than
	slot int8

	ahead int8 // by how much the sender's clock is ahead of the base

	keeper, keeps, token int8 // the reader whose token it takes, and its create revision
	first, firsts        int8 // the first in front that has not had its turn, and its create revision
}

type reply struct{ kind, token, slot, create int8 }

// entry is a key of the queue.
type entry struct {
	create, mod int8 // 0: there is none
	held        bool
	token, slot int8
}

// claim is one client's acquisition.
type claim struct {
	phase               int8
	token, slot, create int8
	again               bool // a copy of a request may be under way
	broken              bool // an operator has ended its hold

	out [2]txn
	old txn // of a waiter that goes by an old list
	in  reply

	entry entry
	tomb  bool
}

func (c *claim) post(g txn) {
	k := 0
	if c.out[0].kind != none {
		k = 1
	}
	c.out[k] = g
}

// stopsWaiting: the client waits for no answer to what it has sent.
func (c *claim) stopsWaiting() {
	c.in, c.again = reply{}, true
	for k := range c.out {
		c.out[k].late = c.out[k].kind != none
	}
}

type state struct {
	claims                       [clients]claim
	rev, base                    int8
	top, topOther                int8 // the greatest token granted, and of those that no reader has
	faults, ends, breaks, raises int8
}

// tidy makes states that differ in nothing that matters the same.
func (m *machine) tidy(s *state) {
	for i := range s.claims {
		c := &s.claims[i]
		if c.phase == gone || c.phase == dead {
			c.token, c.slot, c.create, c.again, c.broken, c.in = 0, 0, 0, false, false, reply{}
		}
		for k := range c.out {
			if g := &c.out[k]; g.late && (g.kind == look || g.kind == queue && c.phase == gone && c.tomb) {
				*g = txn{}
			}
		}
		if c.out[0].kind == none {
			c.out[0], c.out[1] = c.out[1], txn{}
		}
	}
}

func (m *machine) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

func (s *state) trusts(i int) bool { return s.claims[i].phase == holding && !s.claims[i].broken }

// Holds reports whether a client was told that it holds.
func (*machine) Holds(s *state) bool { return s.trusts(0) || s.trusts(1) || s.trusts(2) }

// check checks the promises about a state.
func (m *machine) check(s *state) {
	m.front = m.front[:0]
	for i := range s.claims {
		if s.trusts(i) {
			m.front = append(m.front, &m.Requests[i])
		}
	}
	if len(m.front) > 1 && !m.front[0].Admits(m.front[1:]) {
		m.broken = "EXCLUSION: those hold at once who must not" // this says more
	}
	for i := range s.claims {
		a := &s.claims[i]
		if a.phase == gone && a.entry.create > 0 {
			m.fail("GHOST: %s has left, and has an entry", m.name(i))
		}
		if !s.trusts(i) {
			continue
		}
		if e := a.entry; !e.held || e.create != a.create || e.token != a.token || e.slot != a.slot {
			m.fail("GONE: %s holds create revision %d, token %d, slot %d, and the store has %+v",
				m.name(i), a.create, a.token, a.slot, e)
		}
		if r := m.Requests[i]; r.Mode == backend.Permit && int(a.slot) >= r.Limit {
			m.fail("SLOT: %s has slot %d", m.name(i), a.slot)
		}
		for j := range i {
			b := &s.claims[j]
			if !s.trusts(j) || m.Requests[i].Mode != m.Requests[j].Mode {
				continue
			}
			if m.Requests[i].Mode == backend.Permit && a.slot == b.slot {
				m.fail("SLOT: %s and %s both have slot %d", m.name(j), m.name(i), a.slot)
			}
			if m.Requests[i].Mode == backend.Reader && a.token != b.token {
				m.fail("ERA: %s and %s hold at once, with tokens %d and %d", m.name(j), m.name(i), b.token, a.token)
			}
		}
	}
}

// checkGrant: nobody goes before others in the queue, and a token is greater than all before it; one of a reader
// than all but those of readers, and not lower than those.
func (m *machine) checkGrant(s *state, i int) {
	e := s.claims[i].entry
	if !m.admitted(s, i) {
		m.fail("FIFO: %s is granted behind those in front of it", m.name(i))
	}
	if m.Requests[i].Mode == backend.Reader {
		if e.token <= s.topOther || e.token < s.top {
			m.fail("TOKEN: %s has token %d, after others up to %d and readers up to %d",
				m.name(i), e.token, s.topOther, s.top)
		}
	} else {
		if e.token <= s.top {
			m.fail("TOKEN: %s has token %d after %d", m.name(i), e.token, s.top)
		}
		s.topOther = max(s.topOther, e.token)
	}
	s.top = max(s.top, e.token)
}
