// Package redlock is the vote protocol of package redlock as a machine of small states, and a search
// of all of them. Each of two clients makes two acquisitions, and may be at any point of one; a
// given number of messages is lost, sent twice or later than the acquisition that sent it; a node
// restarts without its data, its data goes back while it runs, or its clock jumps. The search is
// exhaustive within these bounds; it is no proof beyond them.
//
// Three things keep the machine small, and hide no way to break a promise. A node may refuse
// anybody at any time, so that a lock which is over (released, or its deadline has passed) can be
// taken as freed at once wherever nothing of it is under way: a node that keeps it longer only
// refuses others. A refused request and one that was never delivered are the same. The clock goes
// on when a node leaves its quarantine; proposals that were made before are lower, which is the
// dangerous case. Left out is waiting, which only refuses.
package redlock

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
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
	Renewals int  // of leases, each of which asks the nodes that have not got the lock for their vote again
	Backs    int  // a node's data goes back while its process lives: 1, or none
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
	NoCompare      bool // a release frees any holder's lock
	NoFloor        bool
	// a quarantine ends with the terms that ran when it began, also if they were renewed by the
	// node before
	QuarantineOnce bool
	AgainTakes     bool // a vote that is asked for again takes the lock from another holder
	NoCount        bool // a node whose data went back votes on
	NoCountOfBacks bool // … if nothing but write-backs is gone
}

// machine makes the steps from a state. Named: with their actions in words.
type machine struct {
	Config
	named bool
	out   []explore.Step[state]
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
	m.out = append(m.out, explore.Step[state]{Next: s, Action: action, Broken: broken})
}

// Steps returns everything that can happen in s.
func (m *machine) Steps(s *state) []explore.Step[state] {
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

// Holds reports whether somebody was told that he holds.
func (*machine) Holds(s *state) bool {
	for i := range s.attempts {
		if s.attempts[i].phase == granted {
			return true
		}
	}
	return false
}

// Search visits every state that can be reached, nearest first, until there are more than most.
func Search(c Config, most int) explore.Result {
	m := &machine{Config: c}
	first := m.initial()
	m.tidy(&first)
	return explore.Search(first,
		func(tells bool) explore.Machine[state] { return &machine{Config: c, named: tells} }, most)
}

func name(a int) string { return fmt.Sprintf("%c%d", 'A'+client(a), a%2+1) }
