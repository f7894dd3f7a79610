package redlock

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/explore"
	driver "github.com/fencelock/fencelock/redlock"
)

// The model and the code are one: what the driver sends, what the nodes answer and what they have
// then is what some run of the model has. The runs are random. A run holds each call to a node until
// it delivers it, loses the reply, or breaks the connection and delivers the call later or never.
// Nodes lose their data, are set back and leave their quarantine, and locks expire, where the model
// says that this can be.
func TestTraces(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, c *cluster) {
		runs, steps, did := 300, 0, map[string]int{}
		switch {
		case testing.Short():
			runs = 60
		case raceDetector:
			runs = 200
		}
		for seed := range uint64(runs) {
			n, err := c.run(t, configOf(seed), seed, did)
			if steps += n; err != nil {
				t.Fatalf("seed %d, %v", seed, err)
			}
		}
		t.Logf("%d runs, %d steps: %v", runs, steps, did)
		for _, what := range strings.Fields("GRANTED writes renewed again expires JUMPS LOSES BACK again") {
			if did[what] == 0 {
				t.Errorf("no run has %q", what)
			}
		}
	})
}

// A model that lacks a safeguard is told apart from the code. Three safeguards are about time, which
// a run leaves to the model: when a quarantine may end, twice, and the deadline. That a write-back
// compares the number shows in too few runs: one in some ten thousands.
func TestTracesOfAnotherModel(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, c *cluster) {
		for what, without := range map[string]func(*Config){
			"NoWriteBack":    func(c *Config) { c.NoWriteBack = true },
			"WriteBackAny":   func(c *Config) { c.WriteBackAny = true },
			"NoQuarantine":   func(c *Config) { c.NoQuarantine = true },
			"NoAnchor":       func(c *Config) { c.NoAnchor = true },
			"NoTombstone":    func(c *Config) { c.NoTombstone = true },
			"OneID":          func(c *Config) { c.OneID = true },
			"NoCompare":      func(c *Config) { c.NoCompare = true },
			"NoFloor":        func(c *Config) { c.NoFloor = true },
			"AgainTakes":     func(c *Config) { c.AgainTakes = true },
			"NoCount":        func(c *Config) { c.NoCount = true },
			"NoCountOfBacks": func(c *Config) { c.NoCountOfBacks = true },
		} {
			var err error
			seed := uint64(0)
			for ; err == nil && seed < 400; seed++ {
				config := configOf(seed)
				without(&config)
				_, err = c.run(t, config, seed, map[string]int{})
			}
			t.Logf("%s: %d runs", what, seed)
			if !errors.Is(err, errStranger) {
				t.Errorf("%s: %d runs are those of the code; %v", what, seed, err)
			}
		}
	})
}

// errStranger: the code has done what the model does not.
var errStranger = errors.New("no run of the model has this")

// configOf is what may happen in a run. Of what the network does, anything may.
func configOf(seed uint64) Config {
	c := Config{Lost: 200, Jumps: 8, Renewals: 3, Counters: [nodes]uint8{0, 1, 3}, Named: true}
	if seed%4 == 1 {
		c.Floor = 6
	}
	if seed%3 > 0 {
		c.Restarts, c.Backs, c.Total = 2, 2, seed%6 == 5
	}
	return c
}

// party is one of the two clients.
type party struct {
	*driver.Driver
	claim  *backend.Claim
	nonces int
	rounds int    // how many attempts it has begun
	doing  string // which call is under way
	ended  chan error
	cancel func()
	asks   []bool         // its Asks: whether copies of an Ask before may be under way
	sent   map[string]int // which Ask each proposal is of
	gaveUp bool           // it waits for no answer to the last Ask
	held   bool
	leaves bool // it can do nothing else
}

// attempt is the last one.
func (p *party) attempt(i int) int { return 2*i + p.rounds - 1 }

// trace is one run: what is real, and the states of the model that it may be in.
type trace struct {
	*cluster
	m        *machine
	random   *rand.Rand
	hectic   int // how often something goes wrong
	name     string
	field    string // of the lock's counter
	states   map[state]bool
	parties  [2]party
	messages []*message
	ids      map[string]int  // attempts, by the driver's ids
	origins  []int64         // where each unit of the model's clock begins
	stamps   [attempts]int64 // proposals
	flight   [nodes][attempts]int
	released [nodes][attempts]bool
	touched  map[int]bool // nodes that may have changed since they were seen
	seen     [nodes]sight
	copies   [nodes][]dump
	told     []string
	did      map[string]int

	mu    sync.Mutex
	inbox []*message // that have come since the last step
	over  bool
}

// run makes random steps and follows them in the model.
func (c *cluster) run(t *testing.T, config Config, seed uint64, did map[string]int) (steps int, err error) {
	tr := &trace{
		cluster: c, m: &machine{Config: config, named: true}, random: rand.New(rand.NewPCG(seed, 1)),
		name: fmt.Sprint("trace-", seed), ids: map[string]int{}, did: did,
		touched: map[int]bool{0: true, 1: true, 2: true}, origins: make([]int64, 1),
	}
	tr.hectic = max(0, tr.random.IntN(6)-2)
	tr.field = fmt.Sprint("c", crc32.ChecksumIEEE([]byte(backend.DefaultPrefix+tr.name))%4096)
	tr.states = map[state]bool{tr.m.initial(): true}
	if err := c.outside(tr.begin); err != nil {
		t.Fatal(err)
	}
	defer tr.end(t)
	for i := range tr.parties {
		p := &tr.parties[i]
		p.ended, p.sent = make(chan error, 1), map[string]int{}
		if i == 1 && tr.random.IntN(2) == 0 { // calls of both go to a node together
			p.Driver = tr.parties[0].Driver
			continue
		}
		var wires []goredis.UniversalClient
		for n := range nodes {
			wires = append(wires, &wire{tr: tr, driver: i, node: n})
		}
		if p.Driver, err = driver.New(wires, nil); err != nil {
			t.Fatal(err)
		}
	}
	for ; steps < 120; steps++ {
		choices := tr.choices()
		if len(choices) == 0 {
			break
		}
		err := choices[tr.random.IntN(len(choices))]()
		if err == nil {
			err = tr.settled()
		}
		if err != nil {
			return steps, fmt.Errorf("%w after:\n\t%s", err, strings.Join(tr.told, "\n\t"))
		}
	}
	return steps, nil
}

// begin gives the nodes the counters that the model has, above all that they had before.
func (tr *trace) begin(ctx context.Context) (err error) {
	for n, node := range tr.nodes {
		base, bad := int64(0), node.FlushAll(ctx).Err()
		if bad == nil {
			base, bad = tr.settle(ctx, n)
		}
		tr.origins[0], err = max(tr.origins[0], base), errors.Join(err, bad)
	}
	for n, node := range tr.nodes {
		err = errors.Join(err, node.HSet(ctx, stateKey, tr.field, tr.origins[0]+int64(tr.m.Counters[n])).Err())
	}
	return err
}

// end ends what is under way, with errors.
func (tr *trace) end(t *testing.T) {
	tr.mu.Lock()
	tr.over = true
	tr.mu.Unlock()
	for _, m := range append(tr.messages, tr.inbox...) {
		if !m.lone {
			m.reply <- answer{err: errCut}
		}
	}
	for i, p := range tr.parties {
		if p.doing != "" {
			p.cancel()
			<-p.ended
		}
		if i == 0 || p.Driver != tr.parties[0].Driver {
			_ = p.Close()
		}
	}
}

// comes takes in a call. It is false when the run is over.
func (tr *trace) comes(m *message) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !tr.over {
		tr.inbox = append(tr.inbox, m)
	}
	return !tr.over
}

func (tr *trace) tell(format string, args ...any) {
	tr.told = append(tr.told, fmt.Sprintf(format, args...))
}

// choices is what can be done next; what is likelier is in it more than once.
func (tr *trace) choices() (all []func() error) {
	add := func(times int, f func() error) { all = append(all, slices.Repeat([]func() error{f}, times)...) }
	for i := range tr.parties {
		p := &tr.parties[i]
		switch {
		case p.doing == "ask" && len(p.sent) == len(p.asks):
			add(1+tr.hectic, func() error { return tr.giveUp(i) })
		case p.doing != "":
		case p.claim == nil && p.rounds < 2, p.claim != nil && p.rounds < 2 && !p.held && !p.leaves:
			add(3, func() error { return tr.ask(i) })
		case p.held && !p.leaves:
			add(3, func() error { return tr.renew(i) })
		}
		if p.claim != nil && p.doing == "" {
			add(1, func() error { return tr.leave(i) })
		}
	}
	busy := len(all) > 0
	for _, m := range tr.messages {
		busy = true
		if m.lone {
			add(3, func() error { return tr.deliver(m, false) })
			add(1, func() error { return tr.lose(m) })
			continue
		}
		soon := 8
		if k := m.ops[0].kind; k == "w" || k == "a" { // what must not be too late
			soon = 2
			add(2, func() error { return tr.happens(m.node) })
		}
		add(soon, func() error { return tr.deliver(m, true) })
		add(1, func() error { return tr.deliver(m, false) })
		add(1+tr.hectic, func() error { return tr.cut(m) })
		add(1, func() error { return errors.Join(tr.cut(m), tr.lose(m)) })
	}
	if busy {
		add(1+3*tr.hectic, func() error { return tr.happens(tr.random.IntN(nodes)) })
		add(1, func() error { return tr.sleep(21 * time.Millisecond) })  // a call is stuck after 20 ms
		add(1, func() error { return tr.sleep(250 * time.Millisecond) }) // what is owed is sent after 200 ms
	}
	return all
}

func (tr *trace) sleep(d time.Duration) error {
	tr.tell("%v pass", d)
	time.Sleep(d)
	return nil
}

// start begins a call of a client's driver.
func (tr *trace) start(i int, what string, call func(context.Context, *backend.Claim) error) {
	p := &tr.parties[i]
	tr.tell("%c: %s", 'A'+i, what)
	ctx, cancel := context.WithCancel(context.Background())
	p.doing, p.cancel = what, cancel
	c := p.claim
	go func() { p.ended <- call(ctx, c) }()
}

func (tr *trace) ask(i int) error {
	p := &tr.parties[i]
	if p.claim == nil {
		p.nonces++
		floor := int64(0)
		if f := tr.m.floor(2 * i); f > 0 && p.nonces == 1 {
			floor = tr.origins[0] + int64(f)
		}
		p.claim = claim(tr.name, strings.Repeat(fmt.Sprintf("%04x%04x", i+1, p.nonces), 4), floor)
	}
	p.asks = append(p.asks, p.gaveUp)
	p.gaveUp = false
	tr.start(i, "ask", func(ctx context.Context, c *backend.Claim) error {
		c.Err, c.Next = nil, 0
		p.Ask(ctx, []*backend.Claim{c})
		return c.Err
	})
	return nil
}

func (tr *trace) giveUp(i int) error {
	tr.tell("%c gives up", 'A'+i)
	tr.parties[i].gaveUp = true
	tr.parties[i].cancel()
	cuts := tr.random.IntN(2) == 0
	for _, m := range tr.messages {
		if cuts && !m.lone && m.ops[0].kind == "v" && tr.ids[m.ops[0].id] == tr.parties[i].attempt(i) {
			_ = tr.cut(m)
		}
	}
	return nil
}

func (tr *trace) renew(i int) error {
	p := &tr.parties[i]
	a := p.attempt(i)
	could := tr.states
	tr.follow(func(s *state) bool { return s.attempts[a].renews }, named(name(a)+" asks for a renewal"))
	if len(tr.states) == 0 { // the model makes no more of them
		tr.states = could
		return nil
	}
	tr.start(i, "keep", func(ctx context.Context, c *backend.Claim) error {
		return p.Keep(ctx, []*backend.Claim{c}, true)[0]
	})
	return nil
}

func (tr *trace) leave(i int) error {
	p := &tr.parties[i]
	if p.rounds > 0 {
		tr.finish(p.attempt(i), false)
	}
	tr.start(i, "leave", func(ctx context.Context, c *backend.Claim) error {
		p.Leave(ctx, []*backend.Claim{c})
		return c.Err
	})
	return nil
}

// settled waits until the drivers do, and follows what they have done. Then the nodes must have what
// the model has.
func (tr *trace) settled() error {
	synctest.Wait()
	tr.mu.Lock()
	inbox := tr.inbox
	tr.inbox = nil
	tr.mu.Unlock()
	writes := func(st *explore.Step[state]) bool {
		return strings.Contains(st.Action, "votes of a majority and writes")
	}
	tr.follow(func(*state) bool { return true }, writes)
	for i := range tr.parties {
		select {
		case err := <-tr.parties[i].ended:
			if err := tr.returned(i, err); err != nil {
				return err
			}
		default:
		}
	}
	slices.SortFunc(inbox, order)
	for _, m := range inbox {
		tr.messages = append(tr.messages, m)
		for i := range m.ops {
			if err := tr.sends(m, &m.ops[i]); err != nil {
				return err
			}
		}
	}
	err := tr.outside(func(ctx context.Context) (err error) {
		for n := range tr.touched {
			w, bad := tr.cluster.look(ctx, n, backend.DefaultPrefix+tr.name, tr.field, tr.ids)
			tr.seen[n], err = w, errors.Join(err, bad)
		}
		return err
	})
	clear(tr.touched)
	if err != nil {
		return err
	}
	all := len(tr.states)
	maps.DeleteFunc(tr.states, func(s state, _ bool) bool {
		for n := range nodes {
			if !tr.is(&s, n) {
				return true
			}
		}
		return false
	})
	tr.did["states"] = max(tr.did["states"], all)
	if len(tr.states) == 0 {
		tr.tell("    %+v, and the model has %d states before that", tr.seen, all)
		return errStranger
	}
	return nil
}

// returned is what a call of a client's driver says.
func (tr *trace) returned(i int, err error) error {
	p := &tr.parties[i]
	what, a := p.doing, p.attempt(i)
	tr.tell("%c: %s: %v", 'A'+i, what, err)
	p.cancel()
	p.doing = ""
	switch {
	case what == "leave":
		p.claim, p.held, p.leaves, p.gaveUp = nil, false, false, false
	case what == "keep" && err == nil:
		tr.follow(nil, named(name(a)+" is renewed"))
		tr.did["renewed"]++
	case what == "keep":
		p.leaves = errors.Is(err, backend.ErrLost)
	case err == nil:
		token, err := tr.small(p.claim.Token)
		if err != nil {
			return err
		}
		p.held, p.claim.Held = true, true
		tr.follow(nil, named(fmt.Sprintf("%s is GRANTED with token %d", name(a), token)))
		tr.did["GRANTED"]++
	default:
		tr.finish(a, true)           // the driver begins another ballot if this one has left anything
		p.leaves = p.claim.Floor > 0 // that other one has no floor in the model
	}
	return nil
}

// sends is an operation that is sent: a request for a vote tells of an Ask, and a write-back of votes
// that have come.
func (tr *trace) sends(m *message, o *op) error {
	switch o.kind {
	case "v":
		if err := tr.asks(o); err != nil {
			return err
		}
		m.args[o.at+1] = tr.stamps[tr.ids[o.id]]
	case "w":
		vote, err := tr.number(o.args[1])
		token, bad := tr.number(o.args[2])
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		a := tr.ids[o.id]
		tr.follow(func(s *state) bool {
			at := &s.attempts[a]
			return at.phase == ended ||
				at.phase > voting && at.token == token && s.nodes[m.node].cells[a].vote == vote
		}, named())
	}
	return nil
}

// asks is a request for a vote.
func (tr *trace) asks(o *op) error {
	i := int(o.id[3] - '1')
	p := &tr.parties[i]
	seen := false
	if o.ask, seen = p.sent[o.args[1]]; seen {
		return nil
	}
	o.ask = len(p.sent)
	p.sent[o.args[1]] = o.ask
	a, known := tr.ids[o.id]
	again := known && p.asks[o.ask]
	switch {
	case again:
		tr.tell("%s asks again", name(a))
		tr.did["asks again"]++
		tr.follow(nil, named(name(a)+" asks again"))
	case !known:
		p.rounds++
		a = p.attempt(i)
		if p.rounds > 2 {
			return fmt.Errorf("%s is one ballot more than were asked for", o.id)
		}
		tr.ids[o.id], tr.stamps[a] = a, tr.origins[len(tr.origins)-1]+1
		tr.tell("%s asks for votes", name(a))
		tr.follow(nil, func(st *explore.Step[state]) bool {
			return strings.HasPrefix(st.Action, name(a)+" asks for votes")
		})
	}
	for n := range nodes {
		tr.flight[n][a] = truth(again)*tr.flight[n][a] + 1
	}
	return nil
}

func (tr *trace) remove(m *message) {
	tr.messages = slices.DeleteFunc(tr.messages, func(o *message) bool { return o == m })
}

// cut breaks the connection over which a call goes, which may still be delivered.
func (tr *trace) cut(m *message) error {
	tr.tell("%s is cut", m)
	m.lone = true
	m.reply <- answer{err: errCut}
	return nil
}

// lose: a call is never delivered.
func (tr *trace) lose(m *message) error {
	tr.tell("%s is lost", m)
	tr.remove(m)
	for _, o := range m.ops {
		if a, known := tr.ids[o.id]; known && o.kind == "v" {
			tr.flight[m.node][a]--
		}
	}
	return nil
}

func (m *message) String() string {
	text := fmt.Sprintf("to node %d:", m.node)
	for _, o := range m.ops {
		text += " " + o.kind
		if a, known := m.tr.ids[o.id]; known {
			text += " " + name(a)
		}
	}
	return text
}

// deliver has a node do what it is asked, and follows it. heard: the driver gets the reply.
func (tr *trace) deliver(m *message, heard bool) (err error) {
	heard = heard && !m.lone
	tr.touched[m.node] = true
	var replies []any
	err = tr.outside(func(ctx context.Context) error {
		replies, err = tr.nodes[m.node].Do(ctx, m.args...).Slice()
		return err
	})
	if err == nil && len(replies) != len(m.ops) {
		err = fmt.Errorf("%d replies to %d operations", len(replies), len(m.ops))
	}
	if err != nil {
		return err
	}
	tr.tell("%s: %v, heard: %v", m, replies, heard)
	tr.remove(m)
	for i, o := range m.ops {
		if a, known := tr.ids[o.id]; known { // else nothing of it was sent
			if err := tr.reply(m.node, a, o, replies[i], heard); err != nil {
				return err
			}
			if o.kind == "v" && len(m.ops) > 2 {
				tr.skip(m.node, a)
			}
		}
	}
	switch {
	case heard:
		m.reply <- answer{replies: replies}
	case !m.lone:
		m.reply <- answer{err: errCut}
	}
	return nil
}

var faults = regexp.MustCompile("RESTARTS|GOES BACK|is copied|leaves|expires")

// happens makes something happen to a node that can, in whichever state the run is.
func (tr *trace) happens(n int) error {
	in := map[string]int{}
	for s := range tr.states {
		for _, st := range tr.m.Steps(&s) {
			if strings.HasPrefix(st.Action, fmt.Sprint("node ", n)) && faults.MatchString(st.Action) {
				in[st.Action]++
			}
		}
	}
	maps.DeleteFunc(in, func(_ string, n int) bool { return n < len(tr.states) })
	if len(in) == 0 {
		return nil
	}
	all := slices.Sorted(maps.Keys(in))
	what := all[tr.random.IntN(len(all))]
	lost, err := []int{}, error(nil)
	tr.touched[n] = true
	switch do := tr.outside; {
	case strings.Contains(what, "RESTARTS"):
		tr.did["LOSES"]++
		if lost = []int{n}; strings.Contains(what, "all others") {
			lost = []int{0, 1, 2}
		}
		for _, n := range lost {
			err = errors.Join(err, do(func(ctx context.Context) error { return tr.nodes[n].FlushAll(ctx).Err() }))
		}
	case strings.Contains(what, "is copied"):
		err = do(func(ctx context.Context) (err error) {
			tr.copies[n], err = tr.save(ctx, n)
			return err
		})
	case strings.Contains(what, "GOES BACK"):
		tr.did["BACK"]++
		lost = []int{n}
		err = do(func(ctx context.Context) error { return tr.restore(ctx, n, tr.copies[n]) })
	case strings.Contains(what, "leaves"):
		err = do(func(ctx context.Context) error {
			base, err := tr.settle(ctx, n)
			tr.origins = append(tr.origins, base)
			return err
		})
	case strings.Contains(what, "expires"):
		tr.did["expires"]++
		tr.did["JUMPS"] += strings.Count(what, "JUMPS")
		err = do(func(ctx context.Context) error { return tr.nodes[n].Del(ctx, backend.DefaultPrefix+tr.name).Err() })
	}
	for _, n := range lost {
		tr.forget(n)
		tr.touched[n] = true
	}
	tr.tell("%s", what)
	tr.follow(nil, named(what))
	return err
}

// forget: with its data a node has lost its tombstones. A run delivers nothing of what they refused:
// the model has none of it, for a lock that is over only refuses others.
func (tr *trace) forget(n int) {
	for _, m := range slices.Clone(tr.messages) {
		if m.node == n && slices.ContainsFunc(m.ops, func(o op) bool {
			a, known := tr.ids[o.id]
			return known && (o.kind == "v" || o.kind == "a") && tr.released[n][a]
		}) {
			if !m.lone {
				_ = tr.cut(m)
			}
			_ = tr.lose(m)
		}
	}
}
