package shared

// client is what client i can do by itself.
func (m *machine) client(s *state, i int) {
	c := &s.claims[i]
	switch c.phase {
	case idle:
		m.send(*s, i, asking, ask, "%s asks")
	case asking:
		if !c.again && c.in.kind == none && s.faults < m.Faults && c.out[1].kind == none {
			t := *s
			t.faults++
			t.claims[i].again = true
			m.send(t, i, asking, ask, "%s asks again")
		}
	case waiting: // it looks, or it was woken
		if c.out[0].kind == none && (!c.looked || c.hold.state == pending) {
			m.send(*s, i, asking, ask, "%s asks for its turn")
		}
	case holding:
		if !c.renewed && c.out[0].kind == none && c.in.kind == none {
			t := *s
			t.claims[i].renewed = true
			m.send(t, i, holding, renew, "%s renews")
		}
		if k := c.out[0].kind; (k == none || k == renew) && c.out[1].kind == none {
			t := *s
			t.claims[i].in = reply{}
			m.send(t, i, releasing, release, "%s releases")
		}
	case releasing:
		if !c.again && c.out[0].kind == none && s.faults > 0 {
			t := *s
			t.claims[i].again = true
			m.send(t, i, releasing, release, "%s releases again")
		}
	}
	if (c.phase == asking || c.phase == waiting) && c.out[1].kind == none && s.faults < m.Faults {
		t := *s
		t.faults++
		t.claims[i].in = reply{}
		m.send(t, i, quitting, abandon, "%s gives up")
	}
	if s.deaths < m.Deaths && (c.phase == asking || c.phase == waiting || c.phase == holding) {
		t := *s
		t.deaths++
		t.claims[i].phase = dead
		m.add(t, "%s DIES", m.name[i])
	}
}

// send sends a message, and goes into a phase.
func (m *machine) send(t state, i int, phase, kind int8, format string) {
	c := &t.claims[i]
	c.phase, c.looked = phase, true
	c.post(message{kind, t.now})
	m.add(t, format, m.name[i])
}

func (c *claim) post(g message) {
	k := 0
	if c.out[0].kind != none {
		k = 1
	}
	c.out[k] = g
}

// hear is a client that gets a reply.
func (m *machine) hear(s *state, i int) {
	c := &s.claims[i]
	r := c.in
	c.in = reply{}
	until := r.sent + m.Requests[i].TTL
	if m.FromReply || r.kind == pushed {
		until = s.now + m.Requests[i].TTL
	}
	switch {
	case c.phase == asking && r.kind == queued:
		c.phase = waiting
	case c.phase == asking && r.kind == refused, c.phase == holding && r.kind == lost:
		c.phase = over
	case c.phase == asking && r.kind == granted && until <= s.now: // too late: it is given back
		c.phase = quitting
		c.post(message{abandon, s.now})
	case c.phase == asking && r.kind == granted, c.phase == waiting && r.kind == pushed:
		c.phase, c.until, c.token, c.slot = holding, until, r.token, r.slot
		m.checkToken(s, i)
	case c.phase == holding && (r.kind == granted || r.kind == renewed):
		c.until = max(c.until, until)
	case (c.phase == releasing || c.phase == quitting) && (r.kind == left || r.kind == unheld):
		c.phase = gone
	}
}
