package redlock

import "fmt"

// client is what an acquisition's client can do.
func (m *machine) client(s *state, a int) {
	at := &s.attempts[a]
	if at.phase == idle {
		if a%2 == 1 && s.attempts[a-1].phase != ended {
			return // one after the other
		}
		t := *s
		b := &t.attempts[a]
		b.phase, b.stamp = voting, t.now*tick+1
		for i := range t.attempts {
			if t.attempts[i].granted && m.Jumps > 0 {
				b.before |= 1 << i
			}
		}
		for n := range t.nodes {
			t.nodes[n].cells[a].requests = 1
		}
		m.add(t, "", "%s asks for votes, and proposes %d", name(a), b.stamp)
		return
	}
	if at.phase == ended {
		return
	}
	m.end(*s, a)
	if m.NoDeadline && !at.over {
		t := *s
		t.attempts[a].over = true
		m.add(t, "", "%s's deadline passes", name(a))
	}
	switch at.phase {
	case granted:
		m.renew(s, a)
	case voting:
		m.count(s, a)
		if int(s.lost)+nodes <= m.Lost && m.Jumps > 0 { // as below
			t := *s
			t.lost += nodes
			for n := range t.nodes {
				t.nodes[n].cells[a].requests++
				t.nodes[n].cells[a].vote = 0
			}
			m.add(t, "", "%s asks again", name(a))
		}
		// without a jump, one that comes while its client votes changes nothing
		if int(s.lost) < m.Lost && m.Jumps > 0 {
			for n := range s.nodes {
				if s.nodes[n].cells[a].requests == 1 && (n == 0 || s.nodes[n] != s.nodes[n-1]) {
					t := *s
					t.lost++
					t.nodes[n].cells[a].requests++
					m.add(t, "", "%s's request to node %d is sent twice", name(a), n)
				}
			}
		}
	case raising:
		acks := 0
		for n := range s.nodes {
			acks += truth(s.nodes[n].cells[a].flags&acked != 0)
		}
		if acks >= quorum {
			m.grant(*s, a)
		}
	}
}

// end is a release, a request that was given up, or a deadline that passed. To each node a request
// may still be under way, the only one or a second: each that will arrive counts as lost.
func (m *machine) end(s state, a int) {
	s.attempts[a].phase = ended
	for n := range s.nodes {
		no := &s.nodes[n]
		if no.holder == uint8(a+1) || m.NoCompare && no.holder > 0 {
			no.holder, no.number = 0, 0
		}
	}
	for late := uint8(1<<nodes - 1); ; late-- { // every set of nodes
		t := s
		for n := range t.nodes {
			c, under := &t.nodes[n].cells[a], late>>n&1
			c.requests = under * max(c.requests, 1)
			t.lost += under
		}
		if int(t.lost) <= m.Lost {
			m.add(t, "", "%s is over%s", name(a), map[bool]string{true: ", with requests under way"}[late != 0])
		}
		if late == 0 {
			return
		}
	}
}

// count looks at the votes that have come.
func (m *machine) count(s *state, a int) {
	votes, agree, token := 0, 0, uint8(0)
	for n := range s.nodes {
		v := s.nodes[n].cells[a].vote
		if v == 0 {
			continue
		}
		votes++
		switch {
		case v > token:
			token, agree = v, 1
		case v == token:
			agree++
		}
	}
	if votes < quorum {
		return
	}
	t := *s
	t.attempts[a].token = token
	if agree >= quorum || m.NoWriteBack {
		m.grant(t, a)
		return
	}
	t.attempts[a].phase, t.attempts[a].wrote = raising, true
	for n := range t.nodes {
		if t.nodes[n].cells[a].vote == token {
			t.nodes[n].cells[a].flags |= acked
		}
	}
	m.add(t, "", "%s has votes of a majority and writes %d back", name(a), token)
}

// grant hands out the lock, and looks at what is promised.
func (m *machine) grant(t state, a int) {
	at := &t.attempts[a]
	at.phase, at.granted = granted, true
	broken := ""
	if m.Jumps == 0 && at.token == t.top {
		broken = fmt.Sprintf("UNIQUE: %s has token %d, as one before it", name(a), at.token)
	} else if m.Jumps == 0 && at.token < t.top {
		broken = fmt.Sprintf("ORDER: %s has token %d after one with %d", name(a), at.token, t.top)
	}
	t.top = max(t.top, at.token)
	for i, o := range t.attempts {
		if i == a || !o.granted {
			continue
		}
		switch {
		case o.phase == granted && !o.over && m.Jumps == 0:
			broken = fmt.Sprintf("EXCLUSION: %s is granted while %s holds", name(a), name(i))
		case m.Jumps > 0 && o.token == at.token:
			broken = fmt.Sprintf("UNIQUE: %s and %s have token %d", name(a), name(i), at.token)
		case m.Jumps > 0 && o.token > at.token && at.before&(1<<i) != 0:
			broken = fmt.Sprintf("ORDER: %s has token %d after %s with %d", name(a), at.token, name(i), o.token)
		}
	}
	if m.floor(a) >= at.token && m.floor(a) > 0 {
		broken = fmt.Sprintf("FLOOR: %s has token %d, and its floor is %d", name(a), at.token, m.floor(a))
	}
	at.before = 0
	token := at.token
	if m.Jumps == 0 && !m.WriteBackAny { // of no more use
		at.token, at.wrote = 0, false
		for n := range t.nodes {
			no := &t.nodes[n]
			no.cells[a].vote = 0
			no.cells[a].flags &^= acked
			if no.holder == uint8(a+1) {
				no.number = 0
			}
		}
	}
	m.add(t, broken, "%s is GRANTED with token %d", name(a), token)
}

// renew begins the next term of a lease, and ends with a majority that has set its expiry. Then the
// locks of the other nodes may expire before the term does. Those nodes are asked for their vote
// again, and so may be one that has answered twice: first that it has not got the lock.
func (m *machine) renew(s *state, a int) {
	t := *s
	if !s.attempts[a].renews {
		if int(s.renewals) < m.Renewals {
			t.renewals++
			t.attempts[a].renews = true
			m.add(t, "", "%s asks for a renewal", name(a))
		}
		return
	}
	acks := 0
	for n := range s.nodes {
		acks += truth(s.nodes[n].cells[a].flags&renewed != 0)
	}
	if acks < quorum {
		return
	}
	t.attempts[a].renews = false
	for n := range t.nodes {
		no := &t.nodes[n]
		c := &no.cells[a]
		if c.flags |= again; c.flags&renewed == 0 {
			c.flags |= stale
		}
		if c.flags&renewed == 0 || m.QuarantineOnce {
			no.before &^= 1 << a // its quarantine began after the term that it may have voted for
		}
		c.flags &^= renewed
	}
	m.add(t, "", "%s is renewed", name(a))
}

func (m *machine) floor(a int) uint8 {
	if a == 2 {
		return m.Floor
	}
	return 0
}
