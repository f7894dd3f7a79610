// Package migrate is the protocol of package migrate as a machine of small states, and a search of
// all of them. Clients lock one name in any phase, and start again in any other one whenever they
// like; they crash, pause and lose either of their two legs; up to two switches of the gates run at
// once, in either direction, stop anywhere and start over; a raise arrives after its client has
// died; a store loses its data.
//
// Tokens and epochs are kept as ranks, for nothing but their order matters. A new one lies anywhere
// above what it must exceed: equal to one that is there, between two, or above all, wherever the
// clocks of the stores and of the clients may put it. So the machine is finite without a bound on
// grants, and nothing rests on a clock but where [Config] says so.
//
// Left out are waiting, which grants nothing; renewal, which is a deadline that does not pass; a
// gate that is kept in several places, for which the argument holds place by place; and clients
// that know of no migration, which the old store's gate treats as those of phase from.
package migrate

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/explore"
)

// The bounds of the machine.
const (
	clients   = 3
	switchers = 2
)

// The two stores, and the phases of clients.
const (
	old = 0
	new = 1

	from uint8 = 0
	both uint8 = 1
	to   uint8 = 2
)

// Config is what may happen, and which safeguards are left out.
type Config struct {
	Clients   int     // that lock the name, at most 3
	Phases    []uint8 // that clients may be in
	Gates     [2]uint8
	Switches  int    // how many may be started; as many as one likes if it is negative
	Switchers int    // how many of them run at once, at most 2
	Lose      [2]int // how often each store loses its data
	Clock     bool   // a store that lost its data goes on above every token that anybody has, by its clock
	Spare     bool   // … but only while the other one is open, and nobody holds in it
	NoTokens  bool   // look at exclusion alone
	NoHolders bool   // look at tokens alone: where a loss of data costs exclusion
	Undo      bool   // a switch that fails opens again what it has closed, by a switch the other way
	Ends      bool   // operators finish and cancel the migration, switch by hand, and begin again
	Named     bool   // clients keep their names, for traces: many more states
	Numbered  bool   // switches keep their numbers, for replays

	// The safeguards left out.
	NoSwitchRaise bool // C1: the switch does not raise the source of the store that it opens
	NoDrain       bool // C2: the switch does not wait for single-phase holders
	NoCAS         bool // C3: the gate is opened whatever its epoch is
	NoBump        bool // a gate that is closed already keeps its epoch when it is closed again
	EarlySource   bool // the switch reads the source before it has closed the gate
	NoPrepare     bool // C3: a store without a gate is opened as one of epoch 0
	NoGates       bool // C4
	GateApart     bool // the gate is looked at in a step of its own before the grant
	NoRaise       bool // C5: a grant of both does not raise the old store's source
	RaiseAfter    bool // C5: … or only after it was returned
	// C6: "new", "old", "any": which leg's deadline ends a lease of both; otherwise the earlier one
	Trust        string
	RaiseAny     bool // C8: the raise does not look whether the old store's leg is still ours
	RaiseIfOpen  bool // C9: no raise if the old store's gate was closed when its leg was taken
	NoRecheck    bool // C10: the deadlines are not looked at after the raise
	NoFloor      bool // C11: the new store does not get the old one's token as a floor
	UndoAlone    bool // an undo opens its store at once, not by a switch
	UndoBlind    bool // … or by one that never waits for single-phase holders
	NoSeal       bool // a start does not look whether the migration is finished
	SealLower    bool // a gate is closed by a greater epoch, not by the one that was looked at
	CancelBlind  bool // a cancel writes whatever the old store's gate has become since it was looked at
	CancelDelete bool // a cancel deletes the gates, epochs and all
}

// Search visits every state of a fleet.
func Search(c Config, most int) explore.Result {
	first := fleet{Config: c}
	return explore.Search(first.initial(),
		func(tells bool) explore.Machine[state] { return &fleet{Config: c, tells: tells} }, most)
}

// fleet is the machine. tells: with its actions in words.
type fleet struct {
	Config
	tells bool
	out   []explore.Step[state]
}

// initial is a fleet that stands still.
func (m *fleet) initial() state {
	var s state
	for k, g := range m.Gates {
		s.stores[k].gate = g
		if g != absent {
			s.stores[k].epoch = 1
		}
	}
	m.tidy(&s)
	return s
}

func (m *fleet) Holds(s *state) bool {
	for i := range s.clients {
		if s.clients[i].at == held {
			return true
		}
	}
	return false
}

func (m *fleet) add(s state, broken, format string, args ...any) {
	if broken == "" && !m.NoHolders {
		holders := 0
		for i := range m.Clients {
			if s.clients[i].at == held && m.trusts(&s.clients[i]) {
				holders++
			}
		}
		if holders > 1 {
			broken = "EXCLUSION: two trust their lease"
		}
	}
	action := ""
	if m.tells {
		action = fmt.Sprintf(format, args...)
	}
	m.tidy(&s)
	m.out = append(m.out, explore.Step[state]{Next: s, Action: action, Broken: broken})
}

// steps returns everything that can happen in s.
func (m *fleet) Steps(s *state) []explore.Step[state] {
	m.out = m.out[:0]
	for i := range m.Clients {
		m.client(s, i)
	}
	for j := range m.Switchers {
		if j > 0 && !m.Numbered && s.switchers[j] == s.switchers[j-1] {
			continue
		}
		m.switcher(s, j)
	}
	for k := range s.stores {
		m.store(s, k)
	}
	if m.Ends {
		m.operator(s)
	}
	if s.late != 0 {
		t := *s
		t.stores[old].source = max(s.stores[old].source, s.late)
		t.late = 0
		m.add(t, "", "the raise of the dead one arrives")
	}
	return m.out
}

func side(k int) string { return [...]string{"the old store", "the new store"}[k] }

func (m *fleet) who(s *state, i int) string {
	return fmt.Sprintf("%c (%s)", 'A'+i, [...]string{"from", "both", "to"}[s.clients[i].phase])
}
