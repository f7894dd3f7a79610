package migrate

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
)

// Queue is the token of a lock whose store numbers the entries of its queue, as etcd's create
// revisions and ZooKeeper's counter do: the token is the entry's own number and a base that all
// share. A holder whom another store has given a greater token raises the base, so that later
// tokens exceed that one. Its numbers add up, so the machine is bounded by how many entries there
// are.
type Queue struct {
	Clients int   // at most 3
	Entries uint8 // that are ever made
	Ahead   uint8 // how far another store's token may exceed one's own

	// The safeguards left out, all of C12.
	BaseAtEntry bool // the base is read as the entry is made
	BaseCached  bool // … or some time before
	FromNow     bool // the raise counts from the newest entry, not from one's own
	Blind       bool // the raise is a read and a write, whatever happened in between
	RaiseAfter  bool // the raise comes after the grant
}

// Where an entry's owner is.
const (
	away    uint8 = iota
	queued        // its entry is in the queue
	first         // it has seen that its entry is the first one
	above         // another store has given it a greater token
	writing       // Blind: it has read the base
	tied          // it has raised the base
	holding
	late // RaiseAfter: it holds, and has not raised the base yet
)

type entry struct {
	at     uint8
	number uint8
	lost   bool  // the entry is gone, and its owner does not know
	base   uint8 // as it was read
	other  uint8 // the other store's token
	cached uint8
}

type line struct {
	entries [clients]entry
	made    uint8 // the newest number
	base    uint8
	top     uint8 // the greatest token of all grants
}

// SearchQueue visits every state of a queue.
func SearchQueue(c Queue, most int) explore.Result {
	return explore.Search(line{},
		func(tells bool) explore.Machine[line] { return &queue{Queue: c, tells: tells} }, most)
}

type queue struct {
	Queue
	tells bool
	out   []explore.Step[line]
}

func (m *queue) Holds(s *line) bool {
	for i := range s.entries {
		if at := s.entries[i].at; at == holding || at == late {
			return true
		}
	}
	return false
}

func (m *queue) add(s line, broken, format string, args ...any) {
	action := ""
	if m.tells {
		action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, explore.Step[line]{Next: s, Action: action, Broken: broken})
}

func (m *queue) Steps(s *line) []explore.Step[line] {
	m.out = m.out[:0]
	for i := range m.Clients {
		m.entry(s, i)
	}
	return m.out
}

// entry is what client i can do.
func (m *queue) entry(s *line, i int) {
	e, who := &s.entries[i], 'A'+i
	t := *s
	u := &t.entries[i]
	switch e.at {
	case away:
		m.enter(s, i)
		return
	case queued:
		if s.isFirst(i) {
			u.at = first
			if !m.BaseAtEntry && !m.BaseCached {
				u.base = s.base
			}
			m.add(t, "", "%c is the first, with base %d", who, u.base)
		}
	case first:
		m.decide(s, i)
	case above, late:
		m.raise(s, i)
	case writing:
		t.base = m.wanted(s, e)
		u.at = tied
		m.add(t, "", "%c writes base %d", who, t.base)
	case tied:
		if !e.lost {
			m.grant(t, i, e.other, holding)
		}
	}
	if e.at == holding || e.lost {
		t = *s
		t.entries[i] = entry{cached: e.cached}
		m.add(t, "", "%c %s", who, map[bool]string{true: "gives up", false: "releases"}[e.lost])
	}
	if !e.lost {
		t = *s
		t.entries[i].lost = true
		m.add(t, "", "%c's entry expires", who)
	}
}

func (m *queue) enter(s *line, i int) {
	e := &s.entries[i]
	if m.BaseCached && e.cached != s.base {
		t := *s
		t.entries[i].cached = s.base
		m.add(t, "", "%c reads base %d, for later", 'A'+i, s.base)
	}
	if s.made >= m.Entries {
		return
	}
	t := *s
	t.made++
	u := &t.entries[i]
	u.at, u.number = queued, t.made
	switch {
	case m.BaseAtEntry:
		u.base = s.base
	case m.BaseCached:
		u.base = e.cached
	}
	m.add(t, "", "%c enters the queue with number %d", 'A'+i, u.number)
}

func (s *line) isFirst(i int) bool {
	if s.entries[i].lost {
		return false
	}
	for j := range s.entries {
		if o := &s.entries[j]; o.at != away && !o.lost && o.number < s.entries[i].number {
			return false
		}
	}
	return true
}

// decide grants the token of this store alone, or hears of a greater one from the other.
func (m *queue) decide(s *line, i int) {
	e := &s.entries[i]
	own := e.base + e.number
	if !e.lost {
		m.grant(*s, i, own, holding)
	}
	for other := own + 1; other <= own+m.Ahead; other++ {
		t := *s
		t.entries[i].at, t.entries[i].other = above, other
		if !m.RaiseAfter {
			m.add(t, "", "the other store gives %c token %d", 'A'+i, other)
		} else if !e.lost {
			m.grant(t, i, other, late)
		}
	}
}

// wanted is the base that makes every later token exceed e.other.
func (m *queue) wanted(s *line, e *entry) uint8 {
	number := e.number
	if m.FromNow {
		number = s.made
	}
	if e.other < number {
		return 0
	}
	return e.other - number
}

// raise raises the base if the entry is still there, in one step.
func (m *queue) raise(s *line, i int) {
	e := &s.entries[i]
	t := *s
	u := &t.entries[i]
	if m.Blind {
		u.at = writing
		m.add(t, "", "%c reads base %d", 'A'+i, s.base)
		return
	}
	if e.lost {
		return
	}
	t.base = max(s.base, m.wanted(s, e))
	u.at = tied
	if e.at == late {
		u.at = holding
	}
	m.add(t, "", "%c raises the base to %d", 'A'+i, t.base)
}

func (m *queue) grant(t line, i int, token, at uint8) {
	broken := ""
	if token <= t.top {
		broken = fmt.Sprintf("ORDER: %c has token %d after one with %d", 'A'+i, token, t.top)
	}
	t.top = max(t.top, token)
	t.entries[i].at = at
	m.add(t, broken, "%c is GRANTED with token %d", 'A'+i, token)
}
