// Package etcd is how readers and permits share a name in etcd, as a machine of small states, and a search of all
// of them. The queue of a name is its entries in the order of their create revisions; as many of them as
// the library's rule lets together (backend.Request.Admits) may hold, from its head. Those in front of an entry only
// vanish, so one that may hold may for good. What else a grant chooses, it chooses from a list that it has read before:
// the token of the readers that hold, a number of its own, a slot. Its transaction compares that this is still right.
//
// Each of three clients makes one acquisition. Any message takes any time. As often as given one is sent again while
// a copy is under way, or given up; a lease ends, of a waiter that goes on or of a client that dies; an operator ends
// all holds; the base of the tokens is raised, by a grant of another name or by a client's clock. The search is
// exhaustive within these bounds; it is no proof beyond them.
//
// Left out are tries, which do not queue, floors, gates, and the renewals, which write nothing into an entry.
package etcd

import (
	"fmt"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/explore"
)

const clients = 3

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Requests [clients]backend.Request // their Mode and Limit
	Faults   int8                     // requests sent again, or given up
	Ends     int8                     // of leases
	Breaks   int8                     // by an operator
	Raises   int8                     // of the base, by other names and by clocks
	Omitted
}

// Omitted are the safeguards left out.
type Omitted struct {
	NoneWaits   bool // a waiter in front that may hold does not count
	OldList     bool // a waiter that was woken goes by the list by which it waited
	NoComers    bool // a first ask does not compare that nobody came since the list
	NoGrants    bool // a grant does not compare that no other was made since the list
	NoOwn       bool // a waiter does not compare that its entry is there
	NoAbsent    bool // a first ask does not compare that it has no entry
	NoKeeper    bool // a reader does not compare that the one whose token it takes is there
	EachToken   bool // each reader draws a number
	OwnNumber   bool // a grant out of turn counts from its own entry, not from the first that has not had its turn
	NoFirst     bool // … and does not compare that this first one is there
	NoRoom      bool // … and leaves no number for it
	BaseLowered bool // a grant does not compare the base that it replaces
	SlotCounts  bool // a permit's slot is the number of those who hold
	NoTombstone bool // a request that comes after its abandon is granted
	CopyStays   bool // a release leaves the entry that a late copy has made after a break
}

// machine makes the steps from a state. tells: with their actions in words.
type machine struct {
	Config
	front  []*backend.Request
	broken string // what the step that is being made breaks
	tells  bool
	out    []explore.Step[state]
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	return explore.Search(state{}, func(tells bool) explore.Machine[state] {
		return &machine{Config: c, tells: tells}
	}, most)
}

func (m *machine) add(s state, format string, args ...any) {
	m.check(&s)
	m.tidy(&s)
	action := ""
	if m.tells {
		action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, explore.Step[state]{Next: s, Action: action, Broken: m.broken})
	m.broken = ""
}

// Steps returns everything that can happen in s.
func (m *machine) Steps(s *state) []explore.Step[state] {
	m.out = m.out[:0]
	if s.raises < m.Raises {
		t := *s
		t.raises++
		t.base++
		t.rev++
		m.add(t, "a grant of another name raises the base to %d", t.base)
	}
	m.operator(*s)
	for i := range s.claims {
		m.client(s, i)
		m.leases(*s, i)
		for k := range s.claims[i].out {
			m.deliver(*s, i, k)
		}
		m.reply(*s, i)
	}
	return m.out
}

// operator ends all holds.
func (m *machine) operator(t state) {
	if t.breaks == m.Breaks {
		return
	}
	t.breaks++
	t.rev++
	any := false
	for i := range t.claims {
		if c := &t.claims[i]; c.entry.held {
			c.entry, c.broken, any = entry{}, true, true
		}
	}
	if any {
		m.add(t, "an operator ENDS ALL HOLDS")
	}
}

// leases end: of a waiter that was stopped for a while, or of a client that has died or trusts its hold no more.
func (m *machine) leases(t state, i int) {
	c := &t.claims[i]
	if (c.phase == waiting || c.phase == asking) && c.entry.create > 0 && !c.entry.held && t.ends < m.Ends {
		u := t
		u.ends++
		u.rev++
		u.claims[i].entry = entry{}
		m.add(u, "the entry of %s, which is stopped, ENDS", m.name(i))
	}
	if t.ends < m.Ends && (c.phase == asking || c.phase == waiting || c.phase == holding) {
		u := t
		u.ends++
		u.claims[i].phase = dead
		m.add(u, "%s DIES", m.name(i))
	}
	if c.phase == dead && c.entry.create > 0 {
		c.entry = entry{}
		t.rev++
		m.add(t, "the entry of %s, which is dead, ENDS", m.name(i))
	}
}

// client makes the steps of client i by itself.
func (m *machine) client(s *state, i int) {
	c := &s.claims[i]
	post := func(phase int8, g txn, format string) {
		t := *s
		t.claims[i].phase = phase
		t.claims[i].post(g)
		m.add(t, format, m.name(i))
	}
	quiet := c.out[0].kind == none
	switch {
	case c.phase == idle:
		post(asking, txn{kind: grant}, "%s asks, as though the queue were empty")
	case c.phase == waiting && quiet && c.old.kind != none && m.admitted(s, i):
		post(asking, c.old, "%s, woken, sends its turn by its old list")
	case c.phase == waiting && quiet && (c.entry.create == 0 || m.admitted(s, i)):
		post(asking, txn{kind: look}, "%s, woken, looks")
	case c.phase == holding && quiet:
		post(releasing, txn{kind: release, own: c.create}, "%s releases")
	}
	if s.faults == m.Faults || c.out[1].kind != none {
		return
	}
	if c.phase == asking && (!quiet || c.in.kind == granted) {
		t := *s
		t.faults++
		t.claims[i].stopsWaiting()
		t.claims[i].post(txn{kind: look})
		m.add(t, "%s hears nothing, and looks", m.name(i))
	}
	if c.phase == asking || c.phase == waiting {
		t := *s
		t.faults++
		t.claims[i].stopsWaiting()
		t.claims[i].phase = quitting
		t.claims[i].post(txn{kind: abandon})
		m.add(t, "%s gives up", m.name(i))
	}
}

// deliver is a transaction that the store gets.
func (m *machine) deliver(t state, i, k int) {
	c := &t.claims[i]
	g := c.out[k]
	if g.kind == none {
		return
	}
	if c.out[k] = (txn{}); k == 0 {
		c.out[0], c.out[1] = c.out[1], txn{}
	}
	done := m.store(&t, i, g)
	if g.late || c.phase == dead {
		m.add(t, "the store has a late %s of %s: %v", verbs[g.kind], m.name(i), done)
		return
	}
	switch {
	case g.kind == release || g.kind == abandon:
		c.phase = gone
		m.add(t, "the store has the %s of %s: %v", verbs[g.kind], m.name(i), done)
	case g.kind == grant && done:
		c.in = reply{granted, c.entry.token, c.entry.slot, c.entry.create}
		m.add(t, "the store GRANTS %s: create revision %d, token %d, slot %d",
			m.name(i), c.entry.create, c.entry.token, c.entry.slot)
	default: // the answer is a list
		m.listed(t, i, verbs[g.kind])
	}
}

// listed is a client that has read the queue: what it sends next.
func (m *machine) listed(t state, i int, what string) {
	c := &t.claims[i]
	send := func(g txn, as string) {
		u := t
		u.raises += g.ahead
		u.claims[i].phase = asking
		u.claims[i].post(g)
		m.add(u, "the store has the %s of %s, which sees the queue at %d and sends: %s", what, m.name(i), t.rev, as)
	}
	switch {
	case c.entry.create == 0 && m.admits(&t, i):
		m.plans(t, i, send, "a grant")
		send(txn{kind: queue}, "an entry that waits")
	case c.entry.create == 0:
		send(txn{kind: queue}, "an entry that waits")
	case c.entry.held: // by a copy of its request
		c.in = reply{granted, c.entry.token, c.entry.slot, c.entry.create}
		m.add(t, "the store has the %s of %s, which sees that it holds", what, m.name(i))
	case m.admits(&t, i):
		m.plans(t, i, send, "its turn")
	default:
		if c.phase = waiting; m.OldList && m.Requests[i].Mode != backend.Exclusive {
			c.old = m.plan(&t, i)
		}
		m.add(t, "the store has the %s of %s, which waits", what, m.name(i))
	}
}

// plans are the transactions that i may send for a grant: by its clock the base is to be what it is, or more.
func (m *machine) plans(t state, i int, send func(txn, string), as string) {
	g := m.plan(&t, i)
	send(g, as)
	if t.raises < m.Raises && g.keeps == 0 && m.Requests[i].Mode != backend.Exclusive {
		g.base++
		g.ahead = 1
		send(g, as+", with a base that is greater by 1")
	}
}

// reply is a grant that is heard of.
func (m *machine) reply(t state, i int) {
	c := &t.claims[i]
	if c.in.kind == none {
		return
	}
	c.token, c.slot, c.create = c.in.token, c.in.slot, c.in.create
	c.phase, c.in = holding, reply{}
	m.add(t, "%s hears that it holds", m.name(i))
}

func (m *machine) name(i int) string {
	r := m.Requests[i]
	if r.Mode == backend.Permit {
		return fmt.Sprintf("%c (permit of %d)", 'A'+i, r.Limit)
	}
	return fmt.Sprintf("%c (%v)", 'A'+i, r.Mode)
}
