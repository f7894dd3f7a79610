package zookeeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/explore"
)

// tokens is the base's nodes, and what each of the processes knows of them and is about to do.
type tokens struct {
	zxid    int64
	clock   int64
	now     written
	newest  backend.Token // the greatest number that was granted, reserved or raised to
	backup  ensemble
	left    budget
	names   int8 // of the second node
	far     bool // a token may be far ahead of the clock: something left before an election, and came after it
	process [2]process
}

// ensemble is what comes back with a copy of the data.
type ensemble struct {
	zxid int64
	now  written
}

// budget is how often each may still be done.
type budget struct{ grants, floors, elections, strays, copies, losses, wipes, waits, restarts int8 }

type process struct {
	phase  int8
	origin origin
	asks   origin // what it knew when it began to ask
	clock  int64  // of its touch
	read   written
	floor  backend.Token
	raised bool
}

const (
	resting int8 = iota
	touched      // it knows a zxid
	found        // it has read the nodes
	sending      // a grant
	raising
)

// tokenMachine is the machine. The steps of a process are those of base.find, flight.fly and base.raise.
type tokenMachine struct {
	tells bool
	out   []explore.Step[tokens]
}

func (*tokenMachine) Holds(s *tokens) bool { return s.newest > 0 }

func (m *tokenMachine) add(s tokens, broken, format string, args ...any) {
	if p := &s.process; p[1].order() < p[0].order() { // they are alike
		p[0], p[1] = p[1], p[0]
	}
	st := explore.Step[tokens]{Next: s, Broken: broken}
	if m.tells {
		st.Action = fmt.Sprintf(format, args...)
	}
	m.out = append(m.out, st)
}

// is reports whether a base is the one that is written.
func (w written) is(o origin) bool { return w.version == o.version && w.last == o.last }

func (p *process) order() int64 {
	return int64(p.phase)<<40 + int64(p.origin.version)<<30 + int64(p.read.version)<<20 + p.origin.seen + p.asks.seen
}

// change is a transaction of the servers.
func (s *tokens) change() {
	s.zxid++
	s.clock += 1000
}

// knows calls do with what a process knows.
func (p *process) knows(do func(*base)) {
	b := base{now: p.origin}
	do(&b)
	p.origin = b.now
}

func (m *tokenMachine) Steps(s *tokens) []explore.Step[tokens] {
	m.out = m.out[:0]
	for i := range s.process {
		m.step(*s, i)
	}
	m.world(*s)
	return m.out
}

func (m *tokenMachine) step(s tokens, i int) {
	p := &s.process[i]
	switch p.phase {
	case resting:
		if p.origin.known {
			m.begin(s, i)
			return
		}
		if p.phase, p.asks, p.clock = touched, p.origin, 0; p.origin.seen == 0 {
			s.change()
			p.asks.seen, p.clock = s.zxid, s.clock
		}
		m.add(s, "", "%d touches: %x", i, p.asks.seen)
	case touched:
		p.phase, p.read = found, s.now // if the base changed before the other node is read it is not set
		m.add(s, "", "%d reads the base %d", i, p.read.version)
	case found:
		m.anchor(s, i)
	case sending:
		m.grant(s, i)
	case raising:
		o := p.asks
		if p.phase, p.asks = resting, (origin{}); !s.now.is(o) {
			p.knows(func(b *base) { b.outdated(o) })
			m.add(s, "", "%d raises nothing", i)
			return
		}
		s.change()
		s.now.newest, s.now.granted = s.zxid, s.now.granted+1
		if p.raised {
			s.set(o.add)
		}
		s.newest = max(s.newest, p.floor)
		p.knows(func(b *base) { b.saw(o, 0, p.raised, p.floor) })
		m.add(s, "", "%d raises to %d", i, p.floor)
	}
}

func (s *tokens) set(add backend.Token) {
	s.now.add, s.now.version, s.now.at, s.now.time = add, s.now.version+1, s.zxid, s.clock
}

func (m *tokenMachine) anchor(s tokens, i int) {
	p := &s.process[i]
	o, w := p.asks, p.read
	p.asks = origin{}
	add, guard := w.anchor(o, p.clock)
	o.add, o.version, o.last = add, w.version, w.last
	switch {
	case w.last == "" && p.clock == 0:
		p.phase, p.read = resting, written{}
		p.knows((*base).forget)
		m.add(s, "", "%d finds nothing", i)
	case add == w.add && w.last != "":
		p.phase, p.read, p.clock = resting, written{}, 0
		p.knows(func(b *base) { b.learn(o) })
		m.add(s, "", "%d knows the base %d", i, o.version)
	case !s.now.is(o), guard && s.now.granted != w.granted:
		p.phase, p.read, p.clock = resting, written{}, 0
		m.add(s, "", "%d anchors nothing", i)
	default:
		s.change()
		s.far = s.far || o.since != p.origin.since
		if s.set(add); s.now.last == "" {
			s.names++
			s.now.last, s.now.newest, s.now.granted = strings.Repeat("l", int(s.names)), s.zxid, 0
		}
		o.version++
		o.last = s.now.last
		p.phase, p.read, p.clock = resting, written{}, 0
		p.knows(func(b *base) { b.learn(o) })
		m.add(s, "", "%d anchors the base: version %d, for %x", i, o.version, s.zxid)
	}
}

// begin is a flight that leaves with what is known, or a raise.
func (m *tokenMachine) begin(s tokens, i int) {
	far := max(s.newest, s.clock) + 5_000_000
	for _, floor := range []backend.Token{0, far, -1, -2} {
		n := s
		p := &n.process[i]
		if floor != 0 {
			if n.left.floors == 0 {
				continue
			}
			n.left.floors--
		}
		if p.phase = sending; floor < 0 {
			if p.phase = raising; floor == -1 {
				floor = far
			} else {
				floor = p.origin.token(p.origin.seen+1) - 1 // which needs no raise
			}
		} else if n.left.grants == 0 {
			continue
		} else {
			n.left.grants--
		}
		p.asks = p.origin
		raised, err := p.asks.exceed(floor, p.phase == raising, n.clock)
		if err != nil {
			m.add(n, err.Error(), "%d", i)
			continue
		}
		p.floor, p.raised = floor, raised
		m.add(n, "", "%d sends: floor %d, raising %v", i, floor, raised || p.phase == raising)
	}
}

func (m *tokenMachine) grant(s tokens, i int) {
	p := &s.process[i]
	o := p.asks
	p.phase, p.asks = resting, origin{}
	if !s.now.is(o) {
		p.knows(func(b *base) { b.outdated(o) })
		m.add(s, "", "%d is refused", i)
		return
	}
	s.change()
	s.now.newest, s.now.granted = s.zxid, s.now.granted+1
	if p.raised {
		s.set(o.add)
	}
	p.knows(func(b *base) { b.saw(o, s.zxid, p.raised, o.token(s.zxid)+stride-1) })
	token, broken := o.token(s.zxid), ""
	switch {
	case token <= s.newest:
		broken = fmt.Sprintf("TOKEN: %d after %d", token, s.newest)
	case token <= p.floor:
		broken = fmt.Sprintf("FLOOR: %d, with a floor of %d", token, p.floor)
	case !s.far && token > max(s.clock, s.newest, p.floor)+1_000_000:
		broken = fmt.Sprintf("FAR: %d after %d, at %d", token, s.newest, s.clock)
	}
	s.newest = token + stride - 1
	p.floor, p.raised = 0, false
	m.add(s, broken, "%d is granted %d, by %x", i, token, s.zxid)
}

// world is what happens to the servers and processes.
func (m *tokenMachine) world(s tokens) {
	l := s.left
	if l.elections > 0 {
		s.left.elections--
		n := s
		n.zxid = (epoch(s.zxid) + 1) << 32
		m.cut(n, l.strays > 0, "an election")
		s.left = l
	}
	if l.waits > 0 {
		s.left.waits--
		n := s
		n.clock += 2_000_000
		n.zxid += 100
		m.add(n, "", "a while, in which others write")
		s.left = l
	}
	if l.copies > 0 {
		n := s
		n.left.copies--
		n.backup = ensemble{s.zxid, s.now}
		m.add(n, "", "a copy")
	}
	if l.losses > 0 && s.clock > s.newest { // otherwise nothing is promised
		n := s
		n.left.losses--
		n.zxid, n.now = s.backup.zxid+1, s.backup.now
		n.clock += 2_000_000
		m.cut(n, false, "the data are those of the copy")
	}
	finds := func(p process) bool { return p.phase == touched || p.phase == found }
	if l.wipes > 0 && s.clock > s.newest && !slices.ContainsFunc(s.process[:], finds) { // nor in a moment
		n := s
		n.left.wipes--
		n.now = written{}
		n.change()
		m.add(n, "", "somebody deletes the nodes")
	}
	for i := range s.process {
		if l.restarts > 0 {
			n := s
			n.left.restarts--
			n.process[i] = process{}
			m.add(n, "", "%d starts anew", i)
		}
	}
}

// cut breaks all connections. What a process was about to send before it heard of that may leave after it.
func (m *tokenMachine) cut(s tokens, strays bool, what string) {
	n := s
	for i := range n.process {
		p := &n.process[i]
		p.knows((*base).forget)
		*p = process{origin: p.origin}
	}
	m.add(n, "", "%s", what)
	for i := range n.process {
		if p := s.process[i]; strays && (p.phase == sending || p.phase == found) {
			o := n
			o.left.strays--
			o.process[i] = p
			o.process[i].origin = n.process[i].origin
			o.far = o.far || p.phase == sending
			m.add(o, "", "%s, while %d sends", what, i)
		}
	}
}

// In every order in which two processes and the servers do their steps, tokens rise, through elections, floors, the
// loss of data, and the coming back of an old copy, and exceed their floors.
func TestEveryStateOfTheTokens(t *testing.T) {
	t.Parallel()
	for what, left := range map[string]budget{
		"floors":           {grants: 2, floors: 1, waits: 1, restarts: 1},
		"elections":        {grants: 3, elections: 2},
		"floors, election": {grants: 1, floors: 2, elections: 1, waits: 1},
		"stray":            {grants: 3, elections: 2, strays: 1},
		"loss":             {grants: 3, losses: 2, waits: 1},
		"loss, election":   {grants: 2, losses: 1, elections: 1, copies: 1},
		"deleted":          {grants: 3, wipes: 2},
		"copy":             {grants: 2, copies: 1, losses: 1, restarts: 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			first := tokens{zxid: 1, clock: 1_000_000_000, now: written{}, left: left}
			first.backup = ensemble{0, first.now}
			start := func(tells bool) explore.Machine[tokens] { return &tokenMachine{tells: tells} }
			res := explore.Search(first, start, 3_000_000)
			t.Logf("%d states, %d steps deep, %v", res.States, res.Depth, res.Took.Round(1e6))
			if res.Broken != "" || !res.Whole || res.Grants == 0 {
				t.Errorf("whole: %v; %v", res.Whole, res)
			}
		})
	}
}

// The version of the base's node never becomes -1, with which a compare would compare nothing.
func TestVersionsWrap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, after int32
		ops            []int32 // the versions they compare with
	}{
		{7, 8, []int32{7}},
		{1<<31 - 1, -1 << 31, []int32{1<<31 - 1}},
		{-3, -2, []int32{-3}},
		{-2, 0, []int32{-2, -1}},
		{0, 1, []int32{0}},
	} {
		var got []int32
		for _, op := range (origin{version: tt.version}).set(places{}) {
			got = append(got, op.(*zk.SetDataRequest).Version)
		}
		if !slices.Equal(got, tt.ops) || following(tt.version) != tt.after {
			t.Errorf("version %d: got compares with %v and %d after that, want %v and %d",
				tt.version, got, following(tt.version), tt.ops, tt.after)
		}
	}
}
