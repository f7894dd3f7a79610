// Package heirs is how the next one in a queue in etcd holds the lock without a transaction, as a machine of small
// states, and a search of all of them. Each of three clients makes one acquisition, alone in its entry. An heir, by its
// entry, holds the lock as soon as no entry is in front of its own, and learns that from the deletions that its watch
// tells. Its token is the base as of the put of its entry, plus its create revision.
//
// Transactions, their answers and the watch of each client take any time. The base is raised by grants, by clocks and
// by a holder; entries end; a holder's renewal writes its token; a waiter looks; and somebody writes the first gate,
// waits until nobody holds the lock, and may stop at any step of that. The search is exhaustive within these bounds;
// it is no proof beyond them.
//
// Left out are copies of requests and shared holds, which package etcd has, and leases: that a holder trusts its hold
// no longer than its lease lasts is a matter of clocks.
package heirs

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
)

const clients, eventsMost = 3, 6

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Raises   int8 // of the base, by grants and clocks
	Ends     int8 // of entries
	Looks    int8 // of waiters who have heard nothing
	Renews   int8
	Floors   int8  // raised by holders
	Gate     bool  // somebody writes one
	Reserved bool  // a grant that raises the base has a number more than its token
	Turns    uint8 // the clients that take their turn by a transaction, whatever the gates: 1 is A, 2 is B
	Omitted
}

// Omitted are the safeguards left out.
type Omitted struct {
	NoDoubt      bool // a grant in front of an heir since does not matter to it
	LastUnread   bool // … unless its entry says its token, whichever
	BaseNotSame  bool // an heir that makes sure does not compare the base
	EarlyTrusted bool // … unless that is told before the list
	GoneUnread   bool // an entry that is missing in a list was not granted since
	OwnUnread    bool // the deletion of the own entry is not noticed
	FloorAlone   bool // a holder that raises the base leaves the heirs behind it
	SweepBlind   bool // heirs are taken out whichever entry is in front of them
	NoSweep      bool // the first gate is written beside heirs
	NoEmptyList  bool // … after they were taken out, and others may have joined
	HeirsOnly    bool // a drain waits for holders that were granted the lock by a transaction only
}

// The phases of a client.
const (
	idle int8 = iota
	asking
	waiting
	turning
	looking
	holding
	raised // has raised the base
	listed // and has seen who is behind
	gone
)

// The kinds of entries.
const (
	none int8 = iota
	wait
	next
	held
)

type entry struct{ kind, create, mod, last, token int8 }

// event is the deletion of an entry.
type event struct{ who, at, wrote, last int8 }

type answer struct {
	there      bool
	granted    bool
	token      int8
	front      uint8
	rev, heir  int8
	create     int8
	fresh, own bool // the entry was put just now; it is there
}

func granted(token, create int8) answer {
	return answer{there: true, granted: true, token: token, create: create, own: true}
}

type client struct {
	phase, create, token, heir, listed, pos int8
	front, behind                           uint8
	doubted, again, broken                  bool
	early                                   [clients]event
	in                                      answer
}

type state struct {
	entries                             [clients]entry
	clients                             [clients]client
	log                                 [eventsMost]event
	n, rev, base, top                   int8
	raises, ends, looks, renews, floors int8
	gates, setter                       int8
	sweep                               uint8
	first, create                       int8
	drained                             bool
}

// machine makes the steps from a state. tells: with their actions in words.
type machine struct {
	Config
	tells bool
	fault string
	out   []explore.Step[state]
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	start := func(tells bool) explore.Machine[state] { return &machine{Config: c, tells: tells} }
	return explore.Search(state{}, start, most)
}

// Holds reports whether a client was told that it holds.
func (*machine) Holds(s *state) bool { return s.trusting() > 0 }

func (c *client) trusts() bool {
	return !c.broken && (c.phase == holding || c.phase == raised || c.phase == listed)
}

func (s *state) trusting() (n int) {
	for i := range s.clients {
		if s.clients[i].trusts() {
			n++
		}
	}
	return n
}

func (m *machine) fail(format string, args ...any) {
	if m.fault == "" {
		m.fault = fmt.Sprintf(format, args...)
	}
}

func (m *machine) add(s state, format string, args ...any) {
	if s.trusting() > 1 {
		m.fault = "EXCLUSION: two hold at once"
	}
	for i := range s.clients {
		c := &s.clients[i]
		switch e := s.entries[i]; {
		case c.trusts() && (e.create != c.create || s.front(i) != 0):
			m.fail("GONE: %c holds, and the store does not say so", 'A'+i)
		case c.trusts() && s.drained:
			m.fail("GATE: %c holds after the drain", 'A'+i)
		case s.gates == 2 && e.kind == next && s.front(i) != 0:
			m.fail("GATE: there is a gate, and %c is an heir behind another", 'A'+i)
		}
		if c.phase == idle || c.phase >= holding { // it does not listen
			c.pos = s.n
			c.early, c.front, c.doubted, c.listed = [clients]event{}, 0, false, 0
		}
	}
	action := ""
	if m.tells {
		action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, explore.Step[state]{Next: s, Action: action, Broken: m.fault})
	m.fault = ""
}

// front are the entries in front of one.
func (s *state) front(i int) (mask uint8) {
	for j, e := range s.entries {
		if j != i && e.kind != none && (s.entries[i].kind == none || e.create < s.entries[i].create) {
			mask |= 1 << j
		}
	}
	return mask
}

// remove deletes an entry; false: there is no room for another event.
func (s *state) remove(i int) bool {
	if s.entries[i].kind == none {
		return true
	}
	if s.n == eventsMost {
		return false
	}
	s.rev++
	e := s.entries[i]
	ev := event{int8(i), s.rev, e.mod, e.last}
	if e.kind == next {
		ev.wrote = 0
	}
	s.log[s.n], s.entries[i] = ev, entry{}
	s.n++
	return true
}

// grant: a token is above all before it. number is the last of those that belong to it.
func (m *machine) grant(s *state, i int, token, number int8) {
	if token <= s.top {
		m.fail("TOKEN: %c has token %d, after %d", 'A'+i, token, s.top)
	}
	s.top = max(s.top, number)
}

// Steps returns everything that can happen in s.
func (m *machine) Steps(s *state) []explore.Step[state] {
	m.out = m.out[:0]
	if s.raises < m.Raises {
		t := *s
		t.raises++
		t.rev++
		t.base++
		m.add(t, "a grant of another name raises the base to %d", t.base)
	}
	for i := range s.clients {
		m.client(s, i)
		m.answered(*s, i)
		m.told(*s, i)
	}
	if m.Gate {
		m.set(*s)
	}
	return m.out
}

// raising calls do with a state in which the base is as it is, and, if it may be raised, with one in which it is more.
func (m *machine) raising(s state, do func(s state, by int8)) {
	do(s, 0)
	if s.raises < m.Raises {
		s.raises++
		s.base++
		do(s, 1)
	}
}

// client makes the steps of client i, and of the store for it.
func (m *machine) client(s *state, i int) {
	c, e, name := &s.clients[i], s.entries[i], 'A'+i
	if e.kind != none && e.kind != held && c.phase != idle && s.ends < m.Ends && !c.trusts() {
		t := *s
		t.ends++
		if t.front(i) == 0 && e.kind == next { // its lease lasts: an operator ends a hold of which it may not know
			t.clients[i].broken = true
			t.top = max(t.top, e.token)
		}
		if t.remove(i) {
			m.add(t, "the entry of %c ENDS", name)
		}
	}
	switch c.phase {
	case idle:
		m.join(*s, i)
	case waiting:
		switch {
		case c.front == 1<<i:
			m.ask(*s, i, looking, "%c, whose entry has gone, looks")
		case c.front == 0 && c.heir > 0 && !c.doubted:
			t := *s
			if t.clients[i].phase, t.clients[i].token = holding, c.heir; !c.broken {
				m.grant(&t, i, c.heir, c.heir)
			}
			m.add(t, "%c INHERITS with token %d", name, c.heir)
		case c.front == 0:
			m.turn(*s, i)
		}
		if s.looks < m.Looks {
			t := *s
			t.looks++
			m.ask(t, i, looking, "%c looks")
		}
	case holding:
		m.holder(*s, i)
	case raised:
		t := *s
		d := &t.clients[i]
		d.phase = listed
		for j, o := range t.entries {
			if j != i && o.kind == next {
				d.behind |= 1 << j
			}
		}
		m.add(t, "%c sees who is behind", name)
	case listed:
		t := *s
		d := &t.clients[i]
		there := t.entries[i].create == c.create
		ok := true
		for j := range t.entries {
			if there && d.behind>>j&1 != 0 && t.entries[j].kind == next {
				ok = ok && t.remove(j)
			}
		}
		if d.phase, d.behind = holding, 0; there {
			t.top = max(t.top, c.token+1)
		}
		if ok {
			m.add(t, "%c takes the heirs behind it out: %v", name, there)
		}
	}
}

// join is the first transaction of a client.
func (m *machine) join(s state, i int) {
	if s.gates == 2 {
		s.clients[i].phase = gone
		m.add(s, "%c is refused by the gate", 'A'+i)
		return
	}
	m.raising(s, func(t state, by int8) {
		t.rev++
		c := &t.clients[i]
		c.phase = asking
		front := t.front(i)
		c.in = answer{there: true, rev: t.rev, create: t.rev, front: front, fresh: true, own: true}
		e := entry{kind: next, create: t.rev, mod: t.rev}
		switch {
		case front == 0:
			e.kind = held
			c.in.granted, c.in.token = true, t.base+t.rev
			if m.Reserved {
				c.in.token -= by
			}
			m.grant(&t, i, c.in.token, t.base+t.rev)
		case t.gates != 0 || m.Turns>>i&1 != 0:
			e.kind = wait
		default:
			c.in.heir = t.base + t.rev
			e.token = c.in.heir
		}
		t.entries[i] = e
		m.add(t, "the store has the entry of %c at %d, with the base %d: %v", 'A'+i, t.rev, t.base, e.kind)
	})
}

// ask reads the queue.
func (m *machine) ask(t state, i int, phase int8, action string) {
	c := &t.clients[i]
	c.phase = phase
	e := t.entries[i]
	c.in = answer{there: true, rev: t.rev, front: t.front(i), own: e.kind != none, create: e.create}
	m.add(t, action, 'A'+i)
}

// turn is the transaction by which the first in the queue takes the lock.
func (m *machine) turn(s state, i int) {
	c := s.clients[i]
	if e := s.entries[i]; e.kind == none || e.create != c.create || s.front(i) != 0 {
		m.ask(s, i, looking, "%c asks for its turn, in vain")
		return
	}
	if s.gates == 2 {
		s.clients[i].phase = gone
		if s.remove(i) {
			m.add(s, "%c is refused by the gate, and leaves", 'A'+i)
		}
		return
	}
	if c.heir > 0 && (s.base == c.heir-c.create || m.BaseNotSame) {
		m.grant(&s, i, c.heir, c.heir)
		d := &s.clients[i]
		d.phase, d.in = turning, granted(c.heir, c.create)
		m.add(s, "the store tells %c that the base is what it was", 'A'+i)
		return
	}
	m.raising(s, func(t state, by int8) {
		t.rev++
		e, d := &t.entries[i], &t.clients[i]
		e.kind, e.mod = held, t.rev
		token := t.base + e.create
		if m.Reserved {
			token -= by
		}
		m.grant(&t, i, token, t.base+e.create)
		d.phase, d.in = turning, granted(token, e.create)
		m.add(t, "the store GRANTS %c its turn: token %d", 'A'+i, token)
	})
}

// answered is an answer that a client gets.
func (m *machine) answered(t state, i int) {
	c := &t.clients[i]
	a := c.in
	if !a.there {
		return
	}
	c.in = answer{}
	switch {
	case a.granted:
		c.phase, c.token, c.create = holding, a.token, a.create
		if t.entries[i].create != a.create { // ended meanwhile
			c.broken = true
		}
		m.add(t, "%c hears that it holds, with token %d", 'A'+i, a.token)
	case !a.own && c.again:
		c.phase = gone
		m.add(t, "%c, whose entry has gone again, gives up", 'A'+i)
	case !a.own:
		c.phase, c.again, c.broken, c.create, c.heir = idle, true, false, 0, 0
		m.add(t, "%c joins once more", 'A'+i)
	default:
		c.phase = waiting
		if c.create = a.create; a.fresh {
			c.heir = a.heir
		}
		m.list(c, i, a)
		m.add(t, "%c hears who is in front, as of %d", 'A'+i, a.rev)
	}
}

// list takes in a list of the queue.
func (m *machine) list(c *client, i int, a answer) {
	was, fresh := c.front, a.rev == c.create
	c.front, c.doubted = 0, c.doubted && !fresh
	for j := range c.early {
		if a.front>>j&1 == 0 {
			continue
		}
		was &^= 1 << j
		if ev := c.early[j]; ev.at > a.rev {
			c.doubted = c.doubted || m.doubts(c, ev) && !m.EarlyTrusted
			continue
		}
		c.front |= 1 << j
	}
	if was&^(1<<i) != 0 && !fresh && !m.GoneUnread {
		c.doubted = true
	}
	if c.early[i].at > a.rev {
		c.front = 1 << i
	}
	c.listed, c.early = a.rev, [clients]event{}
}

func (m *machine) doubts(c *client, ev event) bool {
	switch {
	case m.NoDoubt || ev.wrote <= c.create:
		return false
	case m.LastUnread:
		return ev.last == 0
	}
	return ev.last == 0 || ev.last >= c.heir
}

// told is the next deletion that the watch of a client tells.
func (m *machine) told(t state, i int) {
	c := &t.clients[i]
	if c.pos == t.n || c.phase == idle || c.phase >= holding {
		return
	}
	ev := t.log[c.pos]
	c.pos++
	if ev.at > c.listed {
		c.early[ev.who] = ev
		if c.front>>ev.who&1 != 0 && int(ev.who) != i {
			c.doubted = c.doubted || m.doubts(c, ev)
			c.front &^= 1 << ev.who
		}
		if int(ev.who) == i && c.listed > 0 && !m.OwnUnread {
			c.front = 1 << i
		}
	}
	m.add(t, "%c hears that the entry of %c went at %d", 'A'+i, 'A'+ev.who, ev.at)
}

// holder makes the steps of a holder.
func (m *machine) holder(s state, i int) {
	c := s.clients[i]
	there := s.entries[i].kind != none && s.entries[i].create == c.create
	t := s
	t.clients[i].phase = gone
	if !there || t.remove(i) {
		m.add(t, "%c releases", 'A'+i)
	}
	if !there {
		return
	}
	if s.renews < m.Renews {
		t := s
		t.renews++
		t.rev++
		e := &t.entries[i]
		e.kind, e.mod, e.last = held, t.rev, max(e.last, c.token)
		if m.Reserved && s.entries[i].kind == held && e.last == c.token {
			e.last++ // what it may have in reserve
		}
		m.add(t, "%c renews, and writes token %d", 'A'+i, e.last)
	}
	if s.floors < m.Floors {
		t := s
		t.floors++
		t.rev++
		t.base = max(t.base, c.token+2-c.create)
		if t.clients[i].phase = raised; m.FloorAlone {
			t.clients[i].phase, t.top = holding, max(t.top, c.token+1)
		}
		m.add(t, "%c raises the floor to %d", 'A'+i, c.token+1)
	}
}

// set makes the next step of the client that writes the first gate: an empty list, a look for heirs behind others,
// their removal as long as the first entry is there, the gate, and the drain.
func (m *machine) set(t state) {
	switch t.setter {
	case 0:
		t.setter = 1
		if t.gates = 1; m.NoEmptyList {
			t.gates = 0
		}
		t.rev++
		m.add(t, "there is an empty list of gates")
	case 1:
		t.sweep, t.first = 0, -1
		for j, e := range t.entries {
			if e.kind == none {
				continue
			}
			if t.front(j) == 0 {
				t.first, t.create = int8(j), e.create
			} else if e.kind == next {
				t.sweep |= 1 << j
			}
		}
		if t.setter = 2; t.sweep == 0 || m.NoSweep {
			t.setter, t.first, t.create = 3, 0, 0
		}
		m.add(t, "the setter looks for heirs")
	case 2:
		ok := true
		there := t.entries[t.first].create == t.create || m.SweepBlind
		for j := range t.entries {
			if there && t.sweep>>j&1 != 0 && t.entries[j].kind == next {
				ok = ok && t.remove(j)
			}
		}
		if t.setter, t.sweep, t.first, t.create = 1, 0, 0, 0; ok {
			m.add(t, "the setter takes heirs out: %v", there)
		}
	case 3:
		t.setter, t.gates = 4, 2
		t.rev++
		m.add(t, "the GATE is closed")
	case 4:
		for _, e := range t.entries {
			if e.kind == held || e.kind == next && !m.HeirsOnly {
				return
			}
		}
		t.setter, t.drained = 5, true
		m.add(t, "nobody holds the lock: the drain is over")
	}
}
