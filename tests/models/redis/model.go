// Package redis is the hand-over by push of package redis as a machine of small states, and a search
// of all of them: a release grants the lock to the first waiter for as long as a claim lasts, the
// push tells it so, and the waiter counts its deadline from the sending of an ask that the server had
// answered before. Three clients make one acquisition each. Any message takes any time; a given
// number of asks is given up by their client, and come late or never; the clock of all goes in units,
// as often as given. The search is exhaustive within these bounds; it is no proof beyond them.
//
// Left out is what only shortens a hold (dead waiters are dropped, Break), what package core promises
// (one request of a claim at a time), and the order of a queue, which no deadline depends on: here
// any waiter may be the first. A hold's TTL is as long as a claim, which is the dangerous case.
//
// TestTraces holds the scripts to it: random runs on a real server have to be runs of the machine.
package redis

import (
	"cmp"
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
)

const (
	clients = 3
	claim   = 3 // units of the clock that a grant lasts
	fresh   = 1 // how old an ask may be by which a push grants
)

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Ticks  uint8 // how often the clock goes on
	Asks   uint8 // how many a client sends; 0: two
	GiveUp uint8 // how many asks are given up by their client
	Gate   bool  // the gates change once, and a migration waits for the holders that were judged before

	// The safeguards left out.
	AnyAsk   bool // a push counts whatever ask it names
	FromPush bool // the deadline is counted from when the push came
	FromSent bool // … from the last ask that was sent, answered or not
	NoGates  bool // the grant by release compares no gates
}

// What a client does.
const (
	asking uint8 = iota
	holding
	over
)

// A message: an ask or its answer, a push, a renewal or its answer, a release.
type message struct {
	there  bool
	answer bool
	yes    bool  // of an answer: granted, or renewed
	ask    uint8 // its number
	age    uint8 // units since the request was sent
	judged uint8 // the gates' version that an ask was sent with
}

type client struct {
	phase    uint8
	asks     uint8 // how many it has sent
	answered uint8 // the one whose "queued" came last; 0: none
	since    uint8 // units since that was sent
	sent     uint8 // units since the last one was sent
	left     uint8 // until its deadline
	judged   uint8 // the version it knows
	held     uint8 // the version by which it holds
	waits    bool  // for the answer of its last ask
	asked    message
	late     message // an ask that it has given up
	pushed   message
	renewal  message
	release  bool
}

type state struct {
	clients [clients]client
	queued  [clients]uint8 // the number of the ask, 0: not in the queue
	by      [clients]uint8 // its version
	holder  int8           // of the lock; -1: free
	sure    bool           // no claim
	kept    uint8          // units until the key expires
	kind    uint8          // the version by which it was granted
	version uint8          // of the gates
	drained bool           // the gates have changed, and no holder of before was there then
	ticks   uint8
	gaveUp  uint8
}

type machine struct {
	Config
	named bool
	out   []explore.Step[state]
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	return explore.Search(first(),
		func(tells bool) explore.Machine[state] { return &machine{Config: c, named: tells} }, most)
}

// first is the state in which one client holds the lock.
func first() state {
	s := state{holder: 0, sure: true, kept: claim}
	s.clients[0] = client{phase: holding, left: claim}
	return s
}

func (m *machine) add(s state, format string, args ...any) {
	for i := range s.clients {
		s.clients[i].tidy()
	}
	if s.version == 1 && (s.holder < 0 || !s.sure || s.kind == 1) {
		s.drained = true
	}
	broken, held := "", 0
	for i := range s.clients {
		if s.clients[i].phase != holding {
			continue
		}
		if held++; held > 1 {
			broken = "two hold"
		}
		if s.drained && s.clients[i].held == 0 {
			broken = "a migration has gone on beside a holder"
		}
	}
	action := ""
	if m.named {
		action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, explore.Step[state]{Next: s, Action: action, Broken: broken})
}

// tidy forgets what does not matter any more, which makes states fewer.
func (c *client) tidy() {
	if c.phase != asking {
		c.asks, c.answered, c.since, c.sent, c.judged, c.waits, c.pushed = 0, 0, 0, 0, 0, false, message{}
		if c.asked.answer {
			c.asked = message{}
		}
	}
	if c.phase != holding {
		c.left, c.held = 0, 0
		if c.renewal.answer {
			c.renewal = message{}
		}
	}
	if c.answered == 0 {
		c.since = 0
	}
	if c.asks == 0 {
		c.sent = 0
	}
}

// Holds reports whether somebody holds.
func (*machine) Holds(s *state) bool {
	for i := range s.clients {
		if s.clients[i].phase == holding {
			return true
		}
	}
	return false
}

// Steps returns everything that can happen in s.
func (m *machine) Steps(s *state) []explore.Step[state] {
	m.out = m.out[:0]
	for i := range s.clients {
		m.client(*s, i)
		m.server(*s, i)
	}
	if m.Gate && s.version == 0 {
		next := *s
		next.version = 1
		m.add(next, "the gates change")
	}
	if s.ticks < m.Ticks {
		m.tick(*s)
	}
	return m.out
}

// tick is a unit of time.
func (m *machine) tick(s state) {
	s.ticks++
	for i := range s.clients {
		c := &s.clients[i]
		for _, age := range []*uint8{&c.since, &c.sent, &c.asked.age, &c.late.age, &c.renewal.age} {
			*age = min(*age+1, claim+1)
		}
		if c.phase == holding {
			if c.left--; c.left == 0 {
				c.phase = over // it is told
			}
		}
	}
	if s.holder >= 0 {
		if s.kept--; s.kept == 0 {
			s.holder = -1
		}
	}
	m.add(s, "time goes on")
}

// client is what client i may do.
func (m *machine) client(s state, i int) {
	was := s.clients[i]
	c := &s.clients[i]
	step := func(format string, args ...any) {
		m.add(s, format, args...)
		*c = was
	}
	switch {
	case was.phase == asking && !was.waits && was.asks < cmp.Or(m.Asks, 2):
		c.asks++
		c.sent, c.waits = 0, true
		c.asked = message{there: true, ask: c.asks, judged: c.judged}
		step("%c asks, %d", 'A'+i, c.asks)
	case was.phase == asking && was.waits && s.gaveUp < m.GiveUp && !was.late.there:
		s.gaveUp++
		c.waits = false
		if !was.asked.answer {
			c.late = was.asked
		}
		c.asked = message{}
		step("%c gives its ask up", 'A'+i)
		s.gaveUp--
	}
	if was.phase == holding {
		if !was.renewal.there && was.left < claim {
			c.renewal = message{there: true}
			step("%c renews", 'A'+i)
		}
		c.phase, c.release = over, true
		step("%c unlocks", 'A'+i)
	}
	if was.asked.there && was.asked.answer && was.waits {
		c.waits, c.asked = false, message{}
		switch {
		case !was.asked.yes && was.asked.judged != was.judged: // refused: it has been shown the gates
			c.judged = was.asked.judged
		case !was.asked.yes:
			c.answered, c.since = was.asked.ask, was.asked.age
		default:
			m.take(c, was.asked.age, was.asked.judged)
		}
		step("%c has its answer", 'A'+i)
	}
	if p := was.pushed; p.there {
		c.pushed = message{}
		since := was.since
		if m.FromPush {
			since = 0
		}
		if m.FromSent {
			since = was.sent
		}
		if was.phase == asking && (!was.waits || m.FromSent) && since <= fresh &&
			was.answered > 0 && (m.AnyAsk || p.ask == was.answered) {
			m.take(c, since, p.judged)
		}
		step("%c hears a push", 'A'+i)
	}
	if r := was.renewal; r.there && r.answer {
		c.renewal = message{}
		if r.yes && was.phase == holding && r.age < claim {
			c.left = claim - r.age
		}
		step("%c has renewed", 'A'+i)
	}
}

// take makes c a holder, if there is time for it left.
func (m *machine) take(c *client, age, judged uint8) {
	if age < claim {
		c.phase, c.left, c.held = holding, claim-age, judged
	}
}

// server is what the server does about client i.
func (m *machine) server(s state, i int) {
	before := s
	c := &s.clients[i]
	step := func(format string, args ...any) {
		m.add(s, format, args...)
		s = before
	}
	if a := c.asked; a.there && !a.answer {
		m.ask(&s, i, a, func(yes bool, judged uint8) {
			c.asked = message{there: true, answer: true, yes: yes, ask: a.ask, age: a.age, judged: judged}
		}, func() { step("the server has %c's ask %d", 'A'+i, a.ask) })
	}
	if a := c.late; a.there {
		m.ask(&s, i, a, func(bool, uint8) { c.late = message{} },
			func() { step("the server has %c's late ask %d", 'A'+i, a.ask) })
		c.late = message{}
		step("%c's late ask is lost", 'A'+i)
	}
	if r := c.renewal; r.there && !r.answer {
		yes := s.holder == int8(i)
		if yes {
			s.kept = claim
		}
		c.renewal = message{there: true, answer: true, yes: yes, age: r.age}
		step("the server has %c's renewal", 'A'+i)
	}
	if c.release {
		c.release = false
		s.queued[i] = 0
		if s.holder != int8(i) {
			step("the server has %c's release", 'A'+i)
			return
		}
		s.holder = -1
		m.grant(&s, i, func() { step("%c's release", 'A'+i) })
	}
}

// ask is an ask of client i that the server takes in; each way to do so is made a step.
func (m *machine) ask(s *state, i int, a message, answer func(yes bool, judged uint8), step func()) {
	if s.holder == int8(i) && s.sure {
		s.kept = claim
		answer(true, s.kind)
		step()
		return
	}
	if a.judged != s.version {
		answer(false, s.version)
		step()
		return
	}
	if s.holder == int8(i) { // confirms its claim
		s.kept, s.sure, s.kind = claim, true, s.version
		answer(true, s.version)
		step()
		return
	}
	if s.holder < 0 {
		before := *s
		s.holder, s.kept, s.sure, s.kind, s.queued[i] = int8(i), claim, true, s.version, 0
		answer(true, s.version)
		step()
		*s = before
		m.grant(s, i, func() {
			if s.holder < 0 {
				return
			}
			s.queued[i], s.by[i] = a.ask, a.judged
			answer(false, a.judged)
			step()
		})
		return
	}
	s.queued[i], s.by[i] = a.ask, a.judged
	answer(false, a.judged)
	step()
}

// grant hands the free lock to the first waiter but client i, or to nobody.
func (m *machine) grant(s *state, i int, step func()) {
	before := *s
	for w := range s.queued {
		if w == i || s.queued[w] == 0 {
			continue
		}
		s.holder, s.kept, s.kind = int8(w), claim, s.by[w]
		s.sure = s.by[w] == s.version || m.NoGates
		if s.sure {
			s.clients[w].pushed = message{there: true, ask: s.queued[w], judged: s.by[w]}
		}
		s.queued[w] = 0
		step()
		*s = before
	}
	step()
}
