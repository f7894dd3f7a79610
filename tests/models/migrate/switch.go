package migrate

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
		g := &s.stores[q]
		switch {
		case p == old && g.sealed && !w.hand && !m.NoSeal, p == new && g.gate == void:
			t.switchers[j] = switcher{}
			m.add(t, "", "%s finds that the migration is over", m.switchName(s, j))
		default:
			if u.at, u.epoch, u.quick = closing, g.epoch, false; w.quick && (g.epoch == w.epoch || m.UndoBlind) {
				u.at, u.epoch = opening, 0 // nobody holds there alone, and nobody is about to open it
			}
			m.add(t, "", "%s reads the gate of %s", m.switchName(s, j), side(q))
		}
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
	if w.at >= draining && w.wrote != 0 {
		m.undo(s, j, q)
	}
	t = *s
	t.switchers[j] = switcher{}
	m.add(t, "", "%s dies", m.switchName(s, j))
}

// undo opens again what switch j has closed.
func (m *fleet) undo(s *state, j, q int) {
	w := &s.switchers[j]
	t := *s
	if !m.UndoAlone {
		u := &t.switchers[j]
		*u = switcher{at: chosen, opens: uint8(q), was: w.wrote, hand: w.hand, seals: w.seals}
		if w.quick || m.UndoBlind { // the other one has been closed ever since, if its epoch is what it was
			u.quick, u.epoch = true, w.was
		}
		m.add(t, "", "%s fails, and goes back", m.switchName(s, j))
		return
	}
	t.switchers[j] = switcher{}
	if s.stores[q].epoch == w.wrote {
		m.change(&t, q, open, "%s fails, and OPENS %s again", m.switchName(s, j), side(q))
	}
}

// change gives a store's gate another state, and a new epoch.
func (m *fleet) change(s *state, k int, gate uint8, format string, args ...any) {
	m.epochs(s, k, s.stores[k].epoch, func(t *state, epoch uint8) {
		t.stores[k].gate, t.stores[k].epoch = gate, epoch
		m.add(*t, "", format, args...)
	})
}

// operator is what ends a migration, and begins it again. Each is one step, for it is conditional on the gate's epoch.
func (m *fleet) operator(s *state) {
	o, n := &s.stores[old], &s.stores[new]
	if n.gate == open && !n.sealed && o.gate == shut {
		t := *s
		t.stores[new].sealed = true
		m.change(&t, new, open, "an operator finishes: he seals the new store")
	}
	if o.gate == shut && !o.sealed && (n.sealed || m.Numbered) { // a way back may have unsealed the new one since
		t := *s
		t.stores[old].sealed = true
		m.change(&t, old, shut, "an operator finishes: he seals the old store")
	}
	gone := uint8(void)
	if m.CancelDelete {
		gone = absent
	}
	cancel := func(k int) {
		t := *s
		t.looked, t.stores[k].sealed = false, false
		if m.CancelDelete {
			t.stores[k].gate, t.stores[k].epoch = absent, 0
			m.add(t, "", "an operator cancels: %s", side(k))
			return
		}
		m.change(&t, k, gone, "an operator cancels: %s", side(k))
	}
	switch {
	case m.CancelBlind && s.looked:
		cancel(old)
	case m.CancelBlind && o.gate == open:
		t := *s
		t.looked = true
		m.add(t, "", "an operator sees that the old store is open")
	case o.gate == open:
		cancel(old)
	}
	if o.gate == gone && n.gate == shut {
		cancel(new)
	}
	if n.gate == void {
		t := *s
		m.change(&t, new, shut, "an operator begins again: the new store")
	} else if o.gate == void {
		t := *s
		m.change(&t, old, open, "an operator begins again: the old store")
	}
}

// start reads the gate that is to be opened.
func (m *fleet) start(s *state, j int) {
	if m.Switches >= 0 && int(s.starts) >= m.Switches {
		return
	}
	for p := range s.stores {
		if g := s.stores[p].gate; g == open || g == void || g == absent && !m.NoPrepare {
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
		if m.Ends {
			u := t
			u.switchers[j].hand = true
			m.add(u, "", "%s begins by hand: it reads the gate of %s", m.switchName(&u, j), side(p))
		}
		if p == new || !s.stores[old].sealed || m.NoSeal {
			m.add(t, "", "%s begins: it reads the gate of %s", m.switchName(&t, j), side(p))
		}
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

// shut closes store q, unless its gate has changed since it was looked at.
func (m *fleet) shut(s *state, j, q int) {
	g := &s.stores[q]
	if g.epoch != s.switchers[j].epoch && !m.SealLower {
		t := *s
		t.switchers[j] = switcher{}
		m.add(t, "", "%s finds that somebody has changed the gate of %s", m.switchName(s, j), side(q))
		return
	}
	closed := func(t *state, epoch uint8) {
		w, g := &t.switchers[j], &t.stores[q]
		w.at, w.epoch, w.quick = draining, 0, m.Undo && g.gate == open
		broken := ""
		if q == new && g.sealed {
			if !w.hand {
				broken = "SEAL: a start closes the store of a fleet whose migration is finished"
			}
			w.seals, g.sealed = m.Undo, false
		}
		if g.gate != void {
			g.gate = shut
		}
		g.epoch = epoch
		if m.Undo {
			w.wrote = epoch
		}
		m.add(*t, broken, "%s closes %s", m.switchName(s, j), side(q))
	}
	if m.NoBump && g.gate == shut {
		t := *s
		closed(&t, g.epoch)
		return
	}
	m.epochs(s, q, g.epoch, closed)
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
		t.stores[p].sealed = p == new && (t.stores[p].sealed || t.switchers[j].seals)
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
	if o := &s.stores[1-k]; s.stores[k].gate != absent || m.NoGates || o.gate == void || k == new && o.sealed {
		return
	}
	set := func(gate uint8, how string) {
		m.epochs(s, k, 0, func(t *state, epoch uint8) {
			t.stores[k].gate, t.stores[k].epoch, t.stores[k].sealed = gate, epoch, k == old && t.stores[new].sealed
			m.add(*t, "", "somebody finds no gate in %s and sets one, %s", side(k), how)
		})
	}
	set(shut, "closed") // in the old store so does the switch that opens it, before it begins
	if k == old && s.stores[new].gate != open {
		set(open, "open")
	}
}
