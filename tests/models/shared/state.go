package shared

import (
	"hash/maphash"
	"math/bits"

	"github.com/fencelock/fencelock/backend"
)

// The phases of a client.
const (
	idle int8 = iota
	asking
	waiting
	holding
	releasing
	quitting // it has sent an abandon
	gone     // its release or abandon was confirmed
	over     // its lease is lost
	dead
)

// The kinds of messages, and of replies.
const (
	none int8 = iota
	ask
	renew
	release
	abandon
	queued
	granted
	refused
	renewed
	lost
	left
	unheld // a release found nothing
	pushed
)

var verbs = [...]string{
	ask: "the ask", renew: "the renewal", release: "the release", abandon: "the abandon",
	queued: "queued", granted: "granted", refused: "refused", renewed: "renewed", lost: "lost", left: "left",
	unheld: "lost before", pushed: "woken",
}

// What the store has of a hold.
const (
	pending int8 = iota + 1 // kept for a waiter who was woken
	held
)

type message struct{ kind, sent int8 }

type reply struct{ kind, sent, token, slot int8 }

type hold struct {
	state, until, token, slot int8
	broken                    bool // its key was deleted
}

// claim is one client's acquisition.
type claim struct {
	// what its client has
	phase, until, token, slot int8
	looked                    bool // it has asked in this unit
	again                     bool // it has sent its ask or release twice
	renewed                   bool
	broken                    bool // its key was deleted: it is to learn that, and promised nothing more

	// what is under way
	out [2]message
	in  reply

	// what the store has
	place int8 // in the queue, from 1; 0: none
	alive int8 // until when it counts as a live waiter
	hold  hold
	past  int8 // release, abandon or none: how it has left
}

// group is what stands for the holds.
type group struct {
	there bool
	mode  backend.Mode
	until int8
	era   int8 // the token of its readers; 0: none has read yet
}

type state struct {
	claims                      [clients]claim
	group                       group
	counter                     int8
	top, topExclusive           int8          // the greatest token that a client was given, and that a writer was
	topSlot                     [clients]int8 // … that a permit of each slot was
	now, faults, deaths, breaks int8
}

// tidy makes states that differ in nothing that matters the same.
func (m *machine) tidy(s *state) {
	if !s.group.there {
		s.group = group{era: s.group.era}
	}
	if s.group.mode != backend.Reader && !m.EraStays {
		s.group.era = 0
	}
	for i := range s.claims {
		c := &s.claims[i]
		m.forget(c)
		if c.place == 0 {
			c.alive = 0
		}
		if !s.group.there && !m.NoClear {
			c.hold = hold{}
		}
	}
	s.rank()
	if m.Named {
		return
	}
	for i := range clients {
		for j := range i {
			a, b := &s.claims[j], &s.claims[i]
			if m.Requests[i] == m.Requests[j] && maphash.Comparable(m.seed, *a) > maphash.Comparable(m.seed, *b) {
				*a, *b = *b, *a
			}
		}
	}
}

// forget removes what its client has no more use for.
func (m *machine) forget(c *claim) {
	switch c.phase {
	case asking, waiting:
		c.until, c.token, c.slot, c.renewed = 0, 0, 0, false
	case holding:
		c.looked, c.again = false, false
	case releasing, quitting:
		c.until, c.token, c.slot, c.looked, c.renewed = 0, 0, 0, false, false
		c.in = reply{}
	case gone, over, dead:
		c.until, c.token, c.slot, c.looked, c.again, c.renewed = 0, 0, 0, false, false, false
		c.in = reply{}
		for k := range c.out {
			if c.out[k].sent = 0; c.out[k].kind == renew && c.hold.state == none && !m.RenewCreates {
				c.out[k] = message{} // it can do nothing any more
			}
		}
		if c.out[0].kind == none {
			c.out[0], c.out[1] = c.out[1], message{}
		}
	}
}

// rank makes tokens small: only their order counts.
func (s *state) rank() {
	tokens := [...]*int8{
		&s.counter, &s.top, &s.topExclusive, &s.group.era, &s.topSlot[0], &s.topSlot[1], &s.topSlot[2],
		&s.claims[0].token, &s.claims[0].hold.token, &s.claims[0].in.token,
		&s.claims[1].token, &s.claims[1].hold.token, &s.claims[1].in.token,
		&s.claims[2].token, &s.claims[2].hold.token, &s.claims[2].in.token,
	}
	used := uint32(0)
	for _, t := range tokens {
		used |= 1 << *t
	}
	for _, t := range tokens {
		*t = int8(bits.OnesCount32(used & (2<<*t - 2)))
	}
}
