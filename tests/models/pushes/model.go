// Package pushes is how a release in mode lease of PostgreSQL gives the lock to the next waiter by the push alone, as
// a machine of small states, and a search of all of them. Other releases commit without waiting for the disk, so a
// crash can take them back: any prefix of the log survives, and no waiter. A release whose answer is lost is sent
// again.
//
// One client holds the lock at first, and three others make one acquisition each. Requests, answers and pushes take
// any time, or never come. Time goes in steps, of which the TTL has three and a claim two; all clocks agree. What is
// old or over is not told apart by how long it is, so time may go on for ever. The search is exhaustive within these
// bounds; it is no proof beyond them.
//
// Left out are tokens, gates, standbys, readers and permits, and copies of what is no release.
package pushes

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
)

const (
	clients     = 4
	ttl, claim  = 3, 2
	pendingMost = 3 // transactions that are not flushed; one more flushes the first
)

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Crashes int8
	Renews  int8
	Looks   int8 // of waiters, by themselves or since a push is of no use
	Copies  int8 // of releases
	Omitted
}

// Omitted are the safeguards left out.
type Omitted struct {
	PushesLazily bool // a push grants before the release is flushed
	AgeUnread    bool // a push is trusted from its arrival on, not from the request by which it grants
	NumberUnread bool // … from the last request on, whichever it grants by
	RenewsLazily bool // a renewal is answered before it is flushed
}

// The phases of a client.
const (
	idle int8 = iota
	asking
	waiting // it has been answered that it is in the queue
	holding
	leaving
	gone
)

// lease is the row of the lock: of nobody, or of the client who-1, for so long yet.
type lease struct{ who, left int8 }

// age is how long ago a request was sent, plus 1; 0: there is none.
type age int8

// sent is the age of what is sent now, and old that of what nobody may rely on any more.
const sent, old age = 1, 1 + ttl

// after is for how much of lasts one may yet rely on a request of that age.
func (a age) after(lasts int8) int8 { return max(lasts-int8(a-sent), 0) }

// push is one that is under way: it grants by that request, or tells of a claim.
type push struct {
	there, grants bool
	ask           age
}

// client has what it knows, and what is under way to and from it: requests, and the answers to those.
type client struct {
	phase, trusts        int8 // its hold, for so long yet
	asked                age
	ask, granted, queued age
	renew, renewed       age
	push                 push
}

type state struct {
	crashes, renews, looks int8
	copies                 int8
	durable                lease
	pending                [pendingMost]lease // what was committed since
	n                      int8
	queue                  [clients]int8 // who+1, first in front
	asks                   [clients]age  // each one's request in the queue
	clients                [clients]client
}

// machine makes the steps from a state. tells: with their actions in words.
type machine struct {
	Config
	tells bool
	out   []explore.Step[state]
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	first := state{durable: lease{1, ttl}}
	first.clients[0] = client{phase: holding, trusts: ttl}
	start := func(tells bool) explore.Machine[state] { return &machine{Config: c, tells: tells} }
	return explore.Search(first, start, most)
}

// Holds reports whether a client was told that it holds by a push or an answer.
func (*machine) Holds(s *state) bool {
	return s.clients[1].trusts > 0 || s.clients[2].trusts > 0 || s.clients[3].trusts > 0
}

// pass lets a step of time go by.
func (s *state) pass() {
	lasts := func(l *int8) { *l = max(*l-1, 0) }
	lasts(&s.durable.left)
	for i := range s.n {
		lasts(&s.pending[i].left)
	}
	for i := range s.clients {
		c := &s.clients[i]
		for _, a := range []*age{
			&s.asks[i], &c.asked, &c.ask, &c.granted, &c.queued, &c.renew, &c.renewed, &c.push.ask,
		} {
			if *a > 0 {
				*a = min(*a+1, old)
			}
		}
		lasts(&c.trusts)
	}
}

// add notes a step.
func (m *machine) add(s state, format string, args ...any) {
	step, trusting := explore.Step[state]{Next: s}, 0
	for i := range s.clients {
		if s.clients[i].trusts > 0 {
			trusting++
		}
	}
	if trusting > 1 {
		step.Broken = "EXCLUSION: two trust their hold"
	}
	if m.tells {
		step.Action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, step)
}

// Steps implements explore.Machine.
func (m *machine) Steps(s *state) []explore.Step[state] {
	m.out = m.out[:0]
	later := *s
	later.pass()
	m.add(later, "time goes on")
	for survive := int8(0); s.crashes < m.Crashes && survive <= s.n; survive++ {
		n := *s
		n.crashes++
		if survive > 0 {
			n.durable = n.pending[survive-1]
		}
		n.pending, n.n, n.queue, n.asks = [pendingMost]lease{}, 0, [clients]int8{}, [clients]age{}
		m.add(n, "the server crashes; of %d transactions %d survive", s.n, survive)
	}
	for c := range clients {
		m.client(*s, c)
		m.server(*s, c)
	}
	return m.out
}

// client makes the steps of one client.
func (m *machine) client(s state, c int) {
	name, was := 'A'+c, s.clients[c]
	step := func(what string, change func(*client)) {
		n := s
		change(&n.clients[c])
		m.add(n, "%c %s", name, what)
	}
	waits := was.phase == asking || was.phase == waiting
	if was.phase == idle && s.clients[c-1].phase != idle { // one is as good as another
		step("asks", func(p *client) { p.phase, p.asked, p.ask = asking, sent, sent })
	}
	if waits || was.phase == holding {
		step("leaves", func(p *client) { *p = client{phase: leaving} })
	}
	if was.granted > 0 {
		step("is answered: granted", func(p *client) { p.hold(was.granted.after(ttl)) })
	}
	if was.queued > 0 {
		step("is answered: queued", func(p *client) { p.queued, p.phase = 0, waiting })
	}
	if was.push.there {
		m.push(s, c)
	}
	if was.phase == waiting {
		m.look(s, c, "looks by itself")
	}
	if was.phase == holding && was.renew == 0 && was.renewed == 0 && s.renews < m.Renews {
		n := s
		n.renews++
		n.clients[c].renew = sent
		m.add(n, "%c renews", name)
	}
	if was.renewed > 0 {
		step("is answered: renewed", func(p *client) {
			p.renewed, p.trusts = 0, max(p.trusts, was.renewed.after(ttl))
		})
	}
}

// hold lets a client hold the lock, for so long. No answer to a request says anything to it any more.
func (c *client) hold(lasts int8) { *c = client{phase: holding, trusts: lasts, ask: c.ask} }

// push is the arrival of a push, which gives the lock if it is of the last request, and young.
func (m *machine) push(s state, c int) {
	p := &s.clients[c]
	got, from := p.push, p.asked
	p.push = push{}
	if m.AgeUnread {
		from = sent
	}
	lasts := from.after(claim)
	if got.grants && 3*(claim-lasts) <= claim && (m.NumberUnread || got.ask == p.asked) {
		p.hold(lasts)
		m.add(s, "%c is given the lock by a push", 'A'+c)
		return
	}
	if p.phase != waiting || !m.look(s, c, "is told to look, and looks") {
		m.add(s, "a push reaches %c in vain", 'A'+c)
	}
}

// look sends a request of one who waits again, under a new number, unless one is under way.
func (m *machine) look(s state, c int, what string) bool {
	p := &s.clients[c]
	if s.looks == m.Looks || p.ask > 0 || p.granted > 0 || p.queued > 0 {
		return false
	}
	s.looks++
	p.asked, p.ask = sent, sent
	m.add(s, "%c %s", 'A'+c, what)
	return true
}

// row is the lease as all see it.
func (s *state) row() lease {
	if s.n > 0 {
		return s.pending[s.n-1]
	}
	return s.durable
}

// commit writes the lease, flushed with all before it or not.
func (s *state) commit(l lease, flushed bool) {
	if flushed {
		s.durable, s.pending, s.n = l, [pendingMost]lease{}, 0
		return
	}
	if s.n == pendingMost {
		s.durable = s.pending[0]
		copy(s.pending[:], s.pending[1:])
		s.n--
	}
	s.pending[s.n] = l
	s.n++
}

// unqueue takes a client out of the queue.
func (s *state) unqueue(c int) {
	for i := 0; i < clients && s.queue[i] > 0; i++ {
		if s.queue[i] == int8(c)+1 {
			copy(s.queue[i:], s.queue[i+1:])
			copy(s.asks[i:], s.asks[i+1:])
			s.queue[clients-1], s.asks[clients-1] = 0, 0
			return
		}
	}
}

// enqueue puts a client into the queue, or notes its new request.
func (s *state) enqueue(c int, ask age) {
	i := 0
	for s.queue[i] > 0 && s.queue[i] != int8(c)+1 {
		i++
	}
	s.queue[i], s.asks[i] = int8(c)+1, ask
}

// server does what the server does with the requests of one client.
func (m *machine) server(s state, c int) {
	if s.clients[c].ask > 0 {
		m.acquire(s, c)
	}
	if renew := s.clients[c].renew; renew > 0 {
		n := s
		n.clients[c].renew = 0
		if l := n.row(); l.who == int8(c)+1 && l.left > 0 {
			l.left = ttl
			n.commit(l, !m.RenewsLazily)
			n.clients[c].renewed = renew
		}
		m.add(n, "the renewal of %c arrives", 'A'+c)
	}
	if s.clients[c].phase == leaving {
		n := s
		n.unqueue(c)
		if n.row().who == int8(c)+1 {
			n.grant(true, m.Omitted)
		}
		if s.copies < m.Copies {
			again := n
			again.copies++
			m.add(again, "the release of %c arrives, and its answer is lost: %+v", 'A'+c, n.row())
		}
		n.clients[c].phase = gone
		m.add(n, "the release of %c arrives: %+v", 'A'+c, n.row())
	}
}

// acquire is the arrival of a request.
func (m *machine) acquire(s state, c int) {
	self, l, p := int8(c)+1, s.row(), &s.clients[c]
	ask, free := p.ask, l.who == 0 || l.left == 0
	var granted, queued age
	if l.who == self && !free || free && (s.queue[0] == 0 || s.queue[0] == self) {
		s.unqueue(c)
		s.commit(lease{self, ttl}, true)
		granted = ask
	} else {
		if free {
			s.grant(false, m.Omitted)
			s.commit(s.row(), true)
		}
		s.enqueue(c, ask)
		queued = ask
	}
	if p.ask = 0; p.phase != holding {
		p.granted, p.queued = granted, queued
	}
	m.add(s, "the request of %c arrives: %+v", 'A'+c, s.row())
}

// grant hands the lock to the first waiter, if there is one: by the push alone if that may be and its request is new,
// or as a claim.
func (s *state) grant(pushed bool, o Omitted) {
	first, ask := s.queue[0], s.asks[0]
	if first == 0 {
		s.commit(lease{}, false)
		return
	}
	s.unqueue(int(first) - 1)
	pushed = pushed && (ask-sent)*3 <= claim
	s.commit(lease{first, claim}, pushed && !o.PushesLazily)
	if p := &s.clients[first-1]; p.phase == asking || p.phase == waiting {
		p.push = push{there: true, grants: pushed, ask: ask}
	}
}
