package model

// Where a switch is.
const (
	chosen   uint8 = iota + 1 // it has read the epoch of the gate that it opens
	closing                   // and that of the other, and chosen a greater one for it
	draining                  // it has closed the other
	sourcing                  // nobody holds there alone
	raising                   // it has read the other's source
	opening                   // it has raised
)

// switcher is what switch j can do.
func (m *fleet) switcher(s *state, j int) {
	w := &s.switchers[j]
	p, q := int(w.opens), int(1-w.opens)
	t := *s
	u := &t.switchers[j]
	switch w.at {
	case 0:
		m.start(s, j)
		return
	case chosen:
		m.epochs(s, q, s.stores[q].epoch, func(t *state, epoch uint8) {
			t.switchers[j].at, t.switchers[j].epoch = closing, epoch
			m.add(*t, "", "%s reads the gate of %s", m.switchName(s, j), side(q))
		})
	case closing:
		m.shut(s, j, q)
	case draining:
		h := &s.stores[q]
		if m.NoDrain || h.holder == 0 || h.both {
			if u.at = sourcing; m.EarlySource {
				u.at = raising
			}
			m.add(t, "", "%s sees that nobody holds in %s alone", m.switchName(s, j), side(q))
		}
	case sourcing:
		u.at, u.value = raising, s.stores[q].source
		m.add(t, "", "%s reads the source of %s: %d", m.switchName(s, j), side(q), u.value)
	case raising:
		if !m.NoSwitchRaise {
			t.stores[p].source = max(s.stores[p].source, w.value)
		}
		u.at, u.value = opening, 0
		m.add(t, "", "%s raises %s", m.switchName(s, j), side(p))
	case opening:
		m.open(s, j, p)
	}
	t = *s
	t.switchers[j] = switcher{}
	m.add(t, "", "%s dies", m.switchName(s, j))
}

// start reads the gate that is to be opened.
func (m *fleet) start(s *state, j int) {
	if m.Switches >= 0 && int(s.starts) >= m.Switches {
		return
	}
	for p := range s.stores {
		if g := s.stores[p].gate; g == open || g == absent && !m.NoPrepare {
			continue
		}
		t := *s
		if m.Switches >= 0 {
			t.starts++
		}
		t.switchers[j] = switcher{at: chosen, opens: uint8(p), was: s.stores[p].epoch}
		if m.EarlySource {
			t.switchers[j].value = s.stores[1-p].source
		}
		m.add(t, "", "%s begins: it reads the gate of %s", m.switchName(&t, j), side(p))
	}
}

// epochs gives do every epoch that may follow one of store k's gate. A lost store is why they are moments: then
// a new one is above all that anybody remembers.
func (m *fleet) epochs(s *state, k int, after uint8, do func(t *state, epoch uint8)) {
	t := *s
	t.setEpochs(k, double)
	highest := s.epochs(k).top()
	least := 2*after + 1
	if m.losses() {
		least = highest + 1
	}
	for epoch := least; epoch <= highest+1; epoch++ {
		u := t
		do(&u, epoch)
	}
}

// shut closes store q, unless its gate is not below the new epoch any more.
func (m *fleet) shut(s *state, j, q int) {
	t := *s
	w, g := &t.switchers[j], &t.stores[q]
	w.at = draining
	epoch := w.epoch
	w.epoch = 0
	switch {
	case g.epoch == epoch && g.gate == shut, m.NoBump && g.gate == shut:
	case g.epoch >= epoch:
		*w = switcher{}
		m.add(t, "", "%s finds that somebody has changed the gate of %s", m.switchName(s, j), side(q))
		return
	default:
		g.gate, g.epoch = shut, epoch
	}
	m.add(t, "", "%s closes %s", m.switchName(s, j), side(q))
}

// open opens store p, unless its gate has changed since the switch began.
func (m *fleet) open(s *state, j, p int) {
	w := &s.switchers[j]
	if s.stores[p].epoch != w.was && !m.NoCAS {
		t := *s
		t.switchers[j] = switcher{}
		m.add(t, "", "%s finds that somebody has changed the gate of %s", m.switchName(s, j), side(p))
		return
	}
	after := w.was
	if m.NoCAS {
		after = max(after, s.stores[p].epoch)
	}
	m.epochs(s, p, after, func(t *state, epoch uint8) {
		t.switchers[j] = switcher{}
		t.stores[p].gate, t.stores[p].epoch = open, epoch
		m.add(*t, "", "%s OPENS %s", m.switchName(s, j), side(p))
	})
}

func (m *fleet) switchName(s *state, j int) string {
	return [...]string{"the switch back", "the switch there"}[s.switchers[j].opens] + [...]string{"", " (2)"}[j]
}

// store is what happens to store k by itself.
func (m *fleet) store(s *state, k int) {
	h := &s.stores[k]
	if i := int(h.holder) - 1; h.holder == ghost || h.holder != 0 && s.clients[i].trust>>k&1 == 0 {
		t := *s
		t.stores[k].holder = 0
		m.add(t, "", "%s expires a lock", side(k))
	}
	if int(h.lost) < m.Lose[k] && (!m.Spare || s.stores[1-k].gate == open && h.holder == 0) {
		t := *s
		lost := store{lost: h.lost + 1}
		if m.Clock {
			lost.source = s.tokens().top() / 2
		}
		t.stores[k] = lost
		m.add(t, "", "%s LOSES ITS DATA", side(k))
	}
	m.mend(s, k)
}

// mend is what a client does that starts, or is granted a lock without a gate.
func (m *fleet) mend(s *state, k int) {
	if s.stores[k].gate != absent || m.NoGates {
		return
	}
	gate := shut
	if k == old && s.stores[new].gate != open {
		gate = open
	}
	m.epochs(s, k, 0, func(t *state, epoch uint8) {
		t.stores[k].gate, t.stores[k].epoch = gate, epoch
		m.add(*t, "", "somebody finds no gate in %s and sets one, %s", side(k), [...]string{"", "open", "closed"}[gate])
	})
}
