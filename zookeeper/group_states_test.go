package zookeeper

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/explore"
)

// many is how many claims there are, each of a client of its own.
const many = 4

// world is the nodes under one lock, and what each of the claims knows of them. It decides by the code of the
// driver, over names as the servers have them; what a list shows may be old when the next request is done.
type world struct {
	there   bool // the lock's node
	next    int8 // its next number
	era     int8 // in its data
	version int8 // of them
	drawn   int8 // the last token
	ends    int8 // how many places may still be lost, and holders die
	told    int8 // the greatest token of a holder, and
	writer  int8 // of a writer
	claims  [many]claimant
}

type claimant struct {
	phase int8
	place int8 // 1 and the number of its node in the queue
	token int8 // of its hold
	slot  int8
	watch int8 // whom it watches: 1 and the claim, and many more if that is to be a holder; or all

	beside, besideToken, version, era, toSlot int8 // its turn
}

const (
	coming int8 = iota
	queued
	ready // it knows that it is its turn
	inside
	over
)

const all = 100

// group is the machine.
type group struct {
	places [many]place
	tells  bool
	out    []explore.Step[world]
}

func newGroup(requests [many]backend.Request, tells bool) *group {
	g := &group{tells: tells}
	for i, r := range requests {
		r.Nonce = strings.Repeat(fmt.Sprint(i), nonceLen)
		g.places[i] = place{r: &r}
	}
	return g
}

func (g *group) waiter(w *world, i int) string {
	return g.places[i].waiter() + fmt.Sprintf("%010d", w.claims[i].place-1)
}

func (g *group) holder(i int, slot int8) string {
	return strings.TrimPrefix(g.places[i].holder(int(slot)), "/")
}

// list is what a client reads.
func (g *group) list(w *world) line {
	var nodes []string
	for i, c := range w.claims {
		if c.place > 0 {
			nodes = append(nodes, g.waiter(w, i))
		}
		if c.token > 0 {
			nodes = append(nodes, g.holder(i, c.slot))
		}
	}
	l := readLine(nodes)
	l.stat.Version = int32(w.version)
	return l
}

// Holds reports whether anybody holds.
func (*group) Holds(w *world) bool {
	for _, c := range w.claims {
		if c.token > 0 {
			return true
		}
	}
	return false
}

// Steps makes the steps from a state.
func (g *group) Steps(w *world) []explore.Step[world] {
	g.out = g.out[:0]
	for i := range many {
		c := &w.claims[i]
		switch {
		case c.phase == coming:
			g.come(*w, i)
		case c.phase == queued && c.watch == 0:
			g.look(*w, i)
		case c.phase == ready:
			g.grant(*w, i)
		case c.phase == inside:
			g.end(*w, i, "releases")
		}
		if w.ends > 0 && c.place > 0 {
			n := *w
			n.ends--
			n.claims[i].place = 0
			g.add(w, n, i, "loses its place")
		}
		if w.ends > 0 && c.phase == inside {
			n := *w
			n.ends--
			g.end(n, i, "dies")
		}
	}
	return g.out
}

func (g *group) come(w world, i int) {
	n := w
	c := &n.claims[i]
	if l := g.list(&w); !w.there || len(l.holds)+len(l.waiters) == 0 {
		n.there, n.next, n.era, n.version = true, 0, 0, 0
		n.drawn++
		g.held(&w, n, i, n.drawn, 0)
		return
	}
	c.phase, c.place, c.watch = queued, n.next+1, 0
	n.next++
	g.add(&w, n, i, "stands in the queue")
}

func (g *group) look(w world, i int) {
	l, n := g.list(&w), w
	c, r := &n.claims[i], g.places[i].r
	if c.place == 0 {
		c.phase = coming
		g.add(&w, n, i, "has no place any more")
		return
	}
	at := l.at(g.waiter(&w, i))
	t := l.turn(r, at)
	if t == nil {
		c.watch = all
		front := l.front(r, at)
		for j, o := range w.claims {
			switch {
			case o.place > 0 && front == g.waiter(&w, j):
				c.watch = int8(1 + j)
			case o.token > 0 && front == g.holder(j, o.slot):
				c.watch = int8(1 + j + many)
			}
		}
		g.add(&w, n, i, "waits for "+front)
		return
	}
	c.phase, c.beside, c.besideToken, c.version, c.toSlot = ready, 0, 0, int8(t.version), int8(t.slot)
	for j, o := range w.claims {
		if o.token > 0 && t.beside == g.holder(j, o.slot) {
			c.beside, c.besideToken = int8(j+1), o.token
			t.joins(r, backend.Token(o.token), backend.Token(w.era))
		}
	}
	c.era = int8(t.era)
	g.add(&w, n, i, "sees its turn, beside "+t.beside)
}

// grant is the multi of a claim whose turn it was when it looked.
func (g *group) grant(w world, i int) {
	n := w
	c := &n.claims[i]
	switch {
	case c.place == 0:
		c.phase = coming
		g.add(&w, n, i, "has no place any more")
		return
	case c.beside > 0 && (w.claims[c.beside-1].token != c.besideToken || w.version != c.version):
		c.phase = queued
		g.add(&w, n, i, "joins nobody: that one has left, or another one has a later token")
		return
	}
	token := c.era
	if token == 0 {
		n.drawn++
		if token = n.drawn; c.beside > 0 {
			n.era = token
			n.version++
		}
	}
	for j, o := range w.claims {
		shared := g.places[i].r.Mode == backend.Reader && g.places[j].r.Mode == backend.Reader
		if o.place > 0 && o.place < c.place && !shared {
			g.out = append(g.out, explore.Step[world]{Next: n, Broken: fmt.Sprintf("FIFO: %d before %d", i, j)})
			return
		}
	}
	g.held(&w, n, i, token, c.toSlot)
}

func (g *group) held(was *world, n world, i int, token, slot int8) {
	c := &n.claims[i]
	mode := g.places[i].r.Mode
	*c = claimant{phase: inside, token: token, slot: slot}
	if token < was.told || token == was.told && mode != backend.Reader || token <= was.writer {
		g.out = append(g.out, explore.Step[world]{Next: n, Broken: fmt.Sprintf("TOKEN: %d after %d", token, was.told)})
		return
	}
	n.told = max(n.told, token)
	if mode == backend.Exclusive {
		n.writer = max(n.writer, token)
	}
	g.add(was, n, i, fmt.Sprint("holds, with token ", token))
}

func (g *group) end(w world, i int, how string) {
	n := w
	n.claims[i] = claimant{phase: over}
	switch l := g.list(&n); {
	case how == "dies":
	case len(l.holds)+len(l.waiters) == 0:
		n.there, n.era, n.version = false, 0, 0
	case g.places[i].r.Mode == backend.Exclusive:
		n.era = 0
		n.version++
	}
	g.add(&w, n, i, how)
}

// add wakes those who watch what has changed, and looks at what is promised.
func (g *group) add(was *world, n world, i int, what string) {
	for j := range n.claims {
		c := &n.claims[j]
		switch at := c.watch - 1; {
		case at < 0:
		case at == all-1:
			for k, o := range n.claims {
				if o.place != was.claims[k].place || o.token != was.claims[k].token {
					c.watch = 0
				}
			}
		case at >= many && n.claims[at-many].token != was.claims[at-many].token,
			at < many && n.claims[at].place != was.claims[at].place:
			c.watch = 0
		}
		if c.phase == queued && c.place == 0 {
			c.watch = 0 // its session, or its next look, tells it
		}
	}
	st := explore.Step[world]{Next: n, Broken: g.broken(&n)}
	if g.tells {
		st.Action = fmt.Sprintf("%d %s", i, what)
	}
	g.out = append(g.out, st)
}

func (g *group) broken(w *world) string {
	l := g.list(w)
	token := func(h entry) int8 { return w.claims[h.nonce[0]-'0'].token }
	for i, h := range l.holds {
		var others []*backend.Request
		for j, o := range l.holds {
			if i == j {
				continue
			}
			others = append(others, o.ask)
			switch {
			case h.ask.Mode == backend.Permit && h.slot == o.slot:
				return fmt.Sprintf("SLOT: %d twice", h.slot)
			case h.ask.Mode == backend.Reader && token(h) != token(o) && !g.floors():
				return fmt.Sprintf("ERA: %d and %d", token(h), token(o))
			}
		}
		if !h.ask.Admits(others) {
			return fmt.Sprintf("EXCLUSION: %d holders", len(l.holds))
		}
	}
	for i, c := range w.claims {
		if c.phase == queued && c.watch != 0 && c.place > 0 {
			if l.turn(g.places[i].r, l.at(g.waiter(w, i))) != nil {
				return fmt.Sprintf("ASLEEP: %d may hold, and nobody wakes it", i)
			}
		}
	}
	return ""
}

func (g *group) floors() bool {
	for i := range g.places {
		if g.places[i].r.Floor > 0 {
			return true
		}
	}
	return false
}

// In every order in which the requests of four claims are done: nobody holds beside whom he must not, readers that
// hold at once have one token, tokens rise, no slot is twice, nobody is overtaken, and whoever may hold is woken.
func TestEveryStateOfAGroup(t *testing.T) {
	t.Parallel()
	w, r := backend.Request{}, backend.Request{Mode: backend.Reader}
	f := backend.Request{Mode: backend.Reader, Floor: 50} // above all tokens: it draws
	p2, p3 := backend.Request{Mode: backend.Permit, Limit: 2}, backend.Request{Mode: backend.Permit, Limit: 3}
	for what, requests := range map[string][many]backend.Request{
		"readers and a writer":      {r, r, r, w},
		"readers and writers":       {r, r, w, w},
		"permits":                   {p2, p2, p2, p2},
		"permits of 2 and of 3":     {p3, p2, p3, p2},
		"permits and a writer":      {p2, p3, p2, w},
		"readers and permits":       {r, r, p2, p2},
		"readers, one with a floor": {r, f, r, r},
		"all":                       {r, f, p2, w},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			start := func(tells bool) explore.Machine[world] { return newGroup(requests, tells) }
			res := explore.Search(world{ends: 1}, start, 1_000_000)
			t.Logf("%d states, %d steps deep, %v", res.States, res.Depth, res.Took.Round(1e6))
			if res.Broken != "" || !res.Whole || res.Grants == 0 {
				t.Errorf("whole: %v; %v", res.Whole, res)
			}
		})
	}
}
