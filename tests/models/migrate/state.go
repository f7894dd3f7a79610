package migrate

import "math/bits"

// Where a client is.
const (
	idle    uint8 = iota
	passed        // GateApart: it has seen that it may lock
	oneLeg        // it has a leg in the first store of its phase
	twoLegs       // both: and in the second one
	raised        // both: and has raised the old store's source
	held          // it was told that it has the lock
	leaving       // both: it has given back one leg
)

// States of a gate.
const (
	absent uint8 = iota
	open
	shut // to all but phase both
	void // of a migration that was cancelled: it moves no name
)

// ghost holds a lock of a client that is no more. (Of one in phase both, if the store's flag says so.)
const ghost uint8 = 200

type client struct {
	phase, at uint8 // an idle one has no phase: it begins in any
	trust     uint8 // bit k: the deadline of the leg in store k has not passed
	open      bool  // RaiseIfOpen: the old store's gate was open
	t1, t2    uint8 // what the old and the new store gave
	issued    uint8 // the greatest token granted when its first leg was asked for; only with losses
}

type store struct {
	source uint8 // the greatest token that it knows
	holder uint8 // client + 1, or ghost
	both   bool  // the holder is in phase both
	gate   uint8
	epoch  uint8
	lost   uint8
	sealed bool // the migration is finished: only an operator changes the gate
}

// switcher is a switch under way.
type switcher struct {
	at    uint8 // 0: none
	opens uint8 // which store
	was   uint8 // epoch of the gate that it opens, as it was before anything was done
	epoch uint8 // of the other gate, which it is about to close; quick: as it was before what is undone
	wrote uint8 // Undo: the epoch that it gave that one
	value uint8 // the other store's source
	hand  bool  // Ends: it is an operator's
	seals bool  // Undo: it opens what was sealed
	quick bool  // Undo: it has closed an open store; or is the undo of such a switch
}

type state struct {
	clients   [clients]client
	stores    [2]store
	switchers [switchers]switcher
	top       uint8 // the greatest token of all grants
	before    uint8 // another one of them, the latest but top; only with losses
	late      uint8 // a raise that is under way although its client has died
	starts    uint8
	looked    bool // CancelBlind: an operator has seen that the old store is open
}

// tidy makes states that differ in nothing that matters the same.
func (m *fleet) tidy(s *state) {
	for i := range m.Clients {
		if c := &s.clients[i]; c.at == held && !m.trusts(c) && !m.RaiseAfter {
			m.leave(s, i) // the lease is over: what is left of it, the stores expire
		}
	}
	for k := range s.stores {
		if s.stores[k].holder == 0 {
			s.stores[k].both = false
		}
	}
	if m.NoTokens {
		m.dropTokens(s)
	} else {
		s.setTokens(s.tokens().of)
	}
	for k := range s.stores {
		s.setEpochs(k, s.epochs(k).of)
	}
	if m.Named {
		return
	}
	for i := 1; i < m.Clients; i++ {
		for j := i; j > 0 && s.key(j) < s.key(j-1); j-- {
			s.swap(j)
		}
	}
	if w := &s.switchers; w[0].key() < w[1].key() { // a switcher that rests comes last
		w[0], w[1] = w[1], w[0]
	}
}

// leave ends client i's acquisition or lease; its legs stay behind.
func (m *fleet) leave(s *state, i int) {
	for k := range s.stores {
		if s.stores[k].holder == uint8(i+1) {
			s.stores[k].holder = ghost
		}
	}
	s.clients[i] = client{}
}

func (m *fleet) dropTokens(s *state) {
	for i := range s.clients {
		c := &s.clients[i]
		c.t1, c.t2, c.issued = 0, 0, 0
	}
	for j := range s.switchers {
		s.switchers[j].value = 0
	}
	s.stores[old].source, s.stores[new].source, s.top, s.before, s.late = 0, 0, 0, 0, 0
}

// ranking turns numbers into their ranks. Zero stays zero.
type ranking uint64

func (r *ranking) see(numbers ...uint8) {
	for _, v := range numbers {
		*r |= 1 << v
	}
}

func (r ranking) of(v uint8) uint8 { return uint8(bits.OnesCount64(uint64(r) &^ 1 & (2<<v - 1))) }

// tokens returns the tokens of s, dead ones as zero.
func (s *state) tokens() (r ranking) {
	for i := range s.clients {
		c := &s.clients[i]
		r.see(c.t1, c.t2, c.issued)
	}
	r.see(s.switchers[0].value, s.switchers[1].value, s.stores[old].source, s.stores[new].source,
		s.top, s.before, s.late)
	return r
}

// setTokens replaces every token of s.
func (s *state) setTokens(by func(uint8) uint8) {
	for i := range s.clients {
		c := &s.clients[i]
		c.t1, c.t2, c.issued = by(c.t1), by(c.t2), by(c.issued)
	}
	for j := range s.switchers {
		s.switchers[j].value = by(s.switchers[j].value)
	}
	for k := range s.stores {
		s.stores[k].source = by(s.stores[k].source)
	}
	s.top, s.before, s.late = by(s.top), by(s.before), by(s.late)
}

// epochs returns the epochs of store k's gate.
func (s *state) epochs(k int) (r ranking) {
	r.see(s.stores[k].epoch)
	for j := range s.switchers {
		if w := &s.switchers[j]; int(w.opens) == k {
			r.see(w.was)
		} else {
			r.see(w.epoch, w.wrote)
		}
	}
	return r
}

func (s *state) setEpochs(k int, by func(uint8) uint8) {
	s.stores[k].epoch = by(s.stores[k].epoch)
	for j := range s.switchers {
		if w := &s.switchers[j]; int(w.opens) == k {
			w.was = by(w.was)
		} else {
			w.epoch, w.wrote = by(w.epoch), by(w.wrote)
		}
	}
}

// double makes room between ranks, and top is the greatest number then.
func double(v uint8) uint8 { return 2 * v }

func (r ranking) top() uint8 { return 2 * uint8(bits.OnesCount64(uint64(r)&^1)) }

// key orders clients.
func (s *state) key(i int) uint64 {
	c := &s.clients[i]
	k := uint64(c.phase) | uint64(c.at)<<8 | uint64(c.t1)<<16 | uint64(c.t2)<<24 |
		uint64(c.trust)<<32 | uint64(c.issued)<<40
	for b := range s.stores {
		if s.stores[b].holder == uint8(i+1) {
			k |= 1 << (48 + b)
		}
	}
	if c.open {
		k |= 1 << 50
	}
	return k
}

// swap gives clients i and i-1 each other's name.
func (s *state) swap(i int) {
	s.clients[i], s.clients[i-1] = s.clients[i-1], s.clients[i]
	for k := range s.stores {
		switch h := &s.stores[k].holder; *h {
		case uint8(i):
			*h = uint8(i + 1)
		case uint8(i + 1):
			*h = uint8(i)
		}
	}
}

func (w switcher) key() uint64 {
	k := uint64(w.at) | uint64(w.opens)<<8 | uint64(w.was)<<16 | uint64(w.epoch)<<24 |
		uint64(w.value)<<32 | uint64(w.wrote)<<40
	if w.hand {
		k |= 1 << 48
	}
	if w.seals {
		k |= 1 << 49
	}
	if w.quick {
		k |= 1 << 50
	}
	return k
}
