// Package shared is the protocol of holds that share a name (readers, permits, and the exclusive hold
// that excludes them) as a machine of small states, and a search of all of them. Each of three clients
// makes one acquisition, which it renews once. Any message takes any time. As often as given, one is
// lost, sent twice or given up, a client dies, or an operator deletes the key; the clock of all goes in
// units, as often as given. The search is exhaustive within these bounds; it is no proof beyond them.
//
// The store does no more than it must. It has no timers: the next request ends the holds whose time is
// over. It wakes one waiter in a step, for whom it keeps the name for a unit, and each confirmation wakes
// the next. What stands for the group of holds, such as a key that others respect, has an expiry of its
// own and may vanish alone. The rule of admission is that of the library, backend.Request.Admits.
//
// Left out are tries that do not wait, floors, reserved tokens and gates, which only refuse or raise, and
// readers of one process that share a hold. A push that is late or lost is a woken waiter that asks late.
package shared

import (
	"fmt"
	"hash/maphash"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/explore"
)

// The bounds of the machine, in units of its clock.
const (
	clients = 3
	claimed = 1 // that a name is kept for a waiter who was woken
	waits   = 2 // that a waiter counts as alive after it has asked
)

// Request is what a client asks for.
type Request struct {
	Mode  backend.Mode
	Limit int
	TTL   int8
}

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Requests [clients]Request
	Ticks    int8 // how often the clock goes on
	Faults   int8 // messages lost or sent twice, and requests given up
	Deaths   int8 // of clients that wait or hold
	Breaks   int8 // how often an operator deletes the key
	Early    bool // a waiter that is woken is given its token then, and not when it asks
	Named    bool // clients keep their names, for traces: more states
	Omitted
}

// Omitted are the safeguards left out.
type Omitted struct {
	NoOwnLimit    bool // a request minds the limits of those who hold, and not its own
	NoTheirLimits bool // … its own, and not theirs
	NoModes       bool // those of different modes hold at once
	NoClaims      bool // the claim of a waiter that was woken counts for nothing
	NoQueue       bool // a newcomer goes before those who wait
	NoNonce       bool // a request does not find its own hold
	RenewCreates  bool // a renewal makes a hold that is not there
	NoServeBury   bool // whoever ends dead holds wakes nobody
	NoServeLeave  bool // a waiter that leaves wakes nobody
	NoServeOn     bool // whoever is granted a hold wakes nobody
	OneExpiry     bool // holds end with their group, not each by itself
	KeyShrinks    bool // the group lasts as long as the hold that was set last
	NoTombstone   bool // a request that comes after its abandon is granted
	NoReleased    bool // a release that is sent again is told of a loss
	DeadStay      bool // a dead waiter stays in the queue until its turn
	NoEra         bool // each reader has a token of its own
	EraStays      bool // the next readers have the token of those before
	SlotCounts    bool // a permit's slot is the number of those who hold
	NoClear       bool // the founder of a group leaves what is there of the one before
	FromReply     bool // a deadline counts from the reply
	PushGrants    bool // a waiter that was woken holds
}

// machine makes the steps from a state. tells: with their actions in words.
type machine struct {
	Config
	seed   maphash.Seed // of the order of clients with the same request
	name   [clients]string
	asks   [clients]backend.Request
	beside [clients][clients]backend.Request // what each takes a holder for
	there  []*backend.Request
	broken string // what the step that is being made breaks
	tells  bool
	out    []explore.Step[state]
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	seed := maphash.MakeSeed()
	return explore.Search(state{}, func(tells bool) explore.Machine[state] {
		m := &machine{Config: c, seed: seed, tells: tells}
		for i, r := range c.Requests {
			m.name[i], m.asks[i] = name(i, r), backend.Request{Mode: r.Mode, Limit: r.Limit}
		}
		for i := range m.beside {
			m.beside[i] = m.asks
			for j := range m.beside[i] {
				h := &m.beside[i][j]
				if c.NoModes {
					h.Mode = m.asks[i].Mode
				}
				if c.NoTheirLimits {
					h.Limit = backend.MostPermits
				}
			}
		}
		return m
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
	if s.now < m.Ticks {
		m.tick(*s)
	}
	if s.breaks < m.Breaks && s.group.there {
		t := *s
		t.breaks++
		t.group.there = false
		for i := range t.claims {
			c := &t.claims[i]
			c.hold.broken = c.hold.state == held
			c.broken = c.broken || c.hold.broken
		}
		m.add(t, "an operator DELETES THE KEY")
	}
	for i := range s.claims {
		m.client(s, i)
		for k := range s.claims[i].out {
			m.deliver(*s, i, k)
		}
		m.reply(*s, i)
	}
	return m.out
}

// tick is a unit of time. A client whose deadline passes knows that.
func (m *machine) tick(t state) {
	t.now++
	for i := range t.claims {
		c := &t.claims[i]
		c.looked = false
		if c.phase == holding && t.now >= c.until {
			c.phase = over
		}
	}
	m.add(t, "time %d", t.now)
}

// deliver is a message that the store gets, or never. A reply that grants nothing comes at once, or never.
func (m *machine) deliver(t state, i, k int) {
	c := &t.claims[i]
	g := c.out[k]
	if g.kind == none || k == 1 && c.out[0] == g {
		return
	}
	if c.out[k] = (message{}); k == 0 {
		c.out[0], c.out[1] = c.out[1], message{}
	}
	if t.faults < m.Faults {
		l := t
		l.faults++
		m.add(l, "%s of %s is lost", verbs[g.kind], m.name[i])
	}
	r := m.store(&t, i, g)
	if c.phase != dead {
		c.in = r
	}
	broken := m.broken
	if r.kind != granted && r.kind != renewed && c.phase != dead {
		if t.faults < m.Faults {
			l := t
			l.faults++
			l.claims[i].in = reply{}
			m.add(l, "the store has %s of %s: %s, and the reply is lost", verbs[g.kind], m.name[i], verbs[r.kind])
		}
		m.broken = broken
		m.hear(&t, i)
	}
	m.add(t, "the store has %s of %s, sent at %d: %s", verbs[g.kind], m.name[i], g.sent, verbs[r.kind])
}

// reply is a reply that comes, or never.
func (m *machine) reply(t state, i int) {
	r := t.claims[i].in
	if r.kind == none {
		return
	}
	if t.faults < m.Faults {
		l := t
		l.faults++
		l.claims[i].in = reply{}
		m.add(l, "the reply to %s, %s, is lost", m.name[i], verbs[r.kind])
	}
	m.hear(&t, i)
	m.add(t, "%s hears: %s", m.name[i], verbs[r.kind])
}

// name tells the client i by its request.
func name(i int, r Request) string {
	if r.Mode == backend.Permit {
		return fmt.Sprintf("%c (permit of %d)", 'A'+i, r.Limit)
	}
	return fmt.Sprintf("%c (%v)", 'A'+i, r.Mode)
}
