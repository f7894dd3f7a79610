package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	code "github.com/fencelock/fencelock/backend/migrate"
)

// The model and the code are one: what Lockers in all phases, processes that start and operators do by package
// backend/migrate, over two stores in memory, is what some run of the model does. Every call of a store waits for its
// turn, which random steps give, in virtual time; after each of them the answer and what the stores have are compared.
// A yes has to be a step that the model has, and a no one that it has not.
func TestTraces(t *testing.T) {
	const many = 300
	runs, sum := many, tally{}
	if raceDetector || testing.Short() {
		runs = 60
	}
	defer func() { t.Logf("%d runs: %v", runs, sum) }()
	for seed := range runs {
		if err := replay(t, whole(seed), uint64(seed), sum); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, what := range []string{"grant", "late raise", "opened", "undone", "gate moved", "ended"} {
		if runs == many && sum[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
}

// whole is the model of all that the code does. In each third run nobody has prepared the stores.
func whole(seed int) Config {
	c := Config{
		Clients: 2, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 2, Undo: true, Ends: true,
		Named: true, Numbered: true,
	}
	if seed%3 == 2 {
		c.Gates, c.Ends = untouched, false
	}
	return c
}

// A model without a safeguard is told apart from the code. What a trace cannot tell is one that may do all that the
// code does, and more: without the floor, with a gate looked at in a step of its own, with a cancel that is blind.
func TestTracesOfAnotherModel(t *testing.T) {
	if raceDetector || testing.Short() {
		t.Skip("it takes some seconds, and a minute with the race detector")
	}
	for _, tt := range []struct {
		safeguard string
		without   func(*Config)
	}{
		{"C1: the switch raises the source", func(c *Config) { c.NoSwitchRaise = true }},
		{"C2: the switch waits for single-phase holders", func(c *Config) { c.NoDrain = true }},
		{"C3: the gate is opened only if its epoch is that from before", func(c *Config) { c.NoCAS = true }},
		{"C3: closing gives a new epoch", func(c *Config) { c.NoBump = true }},
		{"C4: gates", func(c *Config) { c.NoGates = true }},
		{"C5: a grant of both raises the old store's source", func(c *Config) { c.NoRaise = true }},
		{"C5: … before it is returned", func(c *Config) { c.RaiseAfter = true }},
		{"C6: the old store's deadline ends a lease of both", func(c *Config) { c.Trust = "new" }},
		{"C6: the new store's deadline ends a lease of both", func(c *Config) { c.Trust = "old" }},
		{"C6: the earlier deadline ends a lease of both", func(c *Config) { c.Trust = "any" }},
		{"C8: the raise looks whether the leg is still ours", func(c *Config) { c.RaiseAny = true }},
		{"C9: the raise does not depend on the gate", func(c *Config) { c.RaiseIfOpen = true }},
		{"C10: the deadlines are looked at after the raise", func(c *Config) { c.NoRecheck = true }},
		{"the source is read after the gate is closed", func(c *Config) { c.EarlySource = true }},
		{"an undo is a switch the other way", func(c *Config) { c.UndoAlone = true }},
		{"an undo waits for single-phase holders", func(c *Config) { c.UndoBlind = true }},
		{"a start looks whether the migration is finished", func(c *Config) { c.NoSeal = true }},
		{"a gate is closed only as it was looked at", func(c *Config) { c.SealLower = true }},
		{"a cancel keeps the epochs", func(c *Config) { c.CancelDelete = true }},
	} {
		var err error
		seed, sum := 0, tally{}
		for ; err == nil && seed < 1000; seed++ {
			c := whole(seed)
			tt.without(&c)
			err = replay(t, c, uint64(seed), sum)
		}
		if !errors.Is(err, errStranger) {
			t.Errorf("without %s: %d runs are those of the code; %v", tt.safeguard, seed, err)
			continue
		}
		t.Logf("without %s: told apart by run %d, step %d", tt.safeguard, seed-1, sum["step"])
	}
}

// errStranger: the code has done what the model does not.
var errStranger = errors.New("no run of the model has this")

// tally counts what the runs have seen.
type tally map[string]int

const (
	lease  = 10 * time.Second
	margin = lease / 50
)

var (
	phases = [...]backend.Phase{from: backend.PhaseFrom, both: backend.PhaseBoth, to: backend.PhaseTo}
	moving = backend.Scope{{Match: "*"}}
)

// trace is one run, and the states of the model in which it may be.
type trace struct {
	*testing.T
	*rig
	m        *fleet
	random   *rand.Rand
	states   map[state]bool
	programs []*program // the clients, then the operators
	switches [switchers]*program
	seen     sight
	epochs   [2]int64
	sources  [2]fencelock.Token
	kept     [2]bool // the lock is for who has waited
	top      fencelock.Token
	late     *op // a raise whose client is dead
	did      []string
	sum      tally
}

// program is a client, or an operator.
type program struct {
	slot  int // which client it is; -1: none
	j     int // which switch it makes; -1: none
	dead  bool
	locks [len(phases)]*fencelock.Locker
	doing *call

	phase uint8
	nonce string // of what it has in the stores, or may have; empty: nothing
	asked [2]time.Time
	token [2]fencelock.Token
	lease *fencelock.Lease

	goal   int // the store that it opens
	looked bool
	read   [2]int64 // the epochs that it has seen
	wrote  int64
	source fencelock.Token
}

func (p *program) String() string {
	if p.slot < 0 {
		return "an operator"
	}
	return string('A' + rune(p.slot))
}

// does reports whether the program is in such a call.
func (p *program) does(whats ...string) bool {
	return p.doing != nil && slices.Contains(whats, p.doing.what)
}

// stopped reports whether the call may be about to give up, by itself or because it was told to.
func (c *call) stopped() bool {
	return c.cancelled || c.what == "starts" && time.Since(c.began) > 3*time.Second
}

// replay makes a random run and follows it in the model.
func replay(t *testing.T, c Config, seed uint64, sum tally) (err error) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		tr := &trace{
			T: t, rig: newRig(), m: &fleet{Config: c, tells: true}, random: rand.New(rand.NewPCG(seed, 1)), sum: sum,
		}
		defer tr.end()
		tr.begin()
		for range 80 {
			sum["step"]++
			if tr.step(); len(tr.states) == 0 {
				err = fmt.Errorf("%w after:\n\t%s", errStranger, strings.Join(tr.did, "\n\t"))
				return
			}
			time.Sleep(time.Microsecond) // epochs are moments
		}
	})
	return err
}

// begin starts a Locker in each phase for each client, and leaves the gates as the run is to find them.
func (tr *trace) begin() {
	for i := range tr.m.Clients {
		tr.programs = append(tr.programs, &program{slot: i, j: -1})
	}
	var errs []error
	for _, phase := range []uint8{to, from, both} {
		for _, p := range tr.programs {
			errs = append(errs, tr.start(tr.Context(), p, phase))
		}
	}
	s := tr.m.initial()
	if tr.m.Gates == untouched {
		for _, store := range tr.stores {
			gate := backend.Record{Key: backend.GateKey + "m", Version: backend.AnyVersion}
			errs = append(errs, store.Swap(tr.Context(), []backend.Record{gate}, 0))
		}
	}
	if k := tr.random.IntN(3); k < 2 { // its tokens are ahead of the clock
		s.stores[k].source = 1
		ahead := time.Now().UnixMicro() + tr.random.Int64N(1e9)
		errs = append(errs, tr.stores[k].Raise(tr.Context(), ahead, nil))
	}
	if err := errors.Join(errs...); err != nil {
		tr.Fatal(err)
	}
	tr.wait, tr.states = true, map[state]bool{s: true}
	tr.look()
}

// step makes one step of the run, and those of the model that belong to it.
func (tr *trace) step() {
	did, ready := "", tr.ready(tr.late)
	var o *op
	switch n := tr.random.IntN(20); {
	case n < 4:
		did = tr.pass()
	case n == 4:
		did = tr.operate()
	case n == 5:
		did = tr.kill(tr.programs[tr.random.IntN(len(tr.programs))])
	case n < 10 || len(ready) == 0:
		did = tr.act(tr.programs[tr.random.IntN(len(tr.programs))])
	}
	switch {
	case did != "":
	case len(ready) > 0:
		o = ready[tr.random.IntN(len(ready))]
		tr.let(o)
		did = o.String()
		tr.follow(o)
	default:
		did = tr.pass()
	}
	synctest.Wait()
	tr.did = append(tr.did, did)
	for _, p := range slices.Clone(tr.programs) {
		if !p.dead {
			tr.heed(p, o)
		}
	}
	tr.look()
	tr.each(func(s state) []state {
		if tr.is(&s) {
			return []state{s}
		}
		return nil
	})
}

// pass lets time pass, often until a deadline is just over.
func (tr *trace) pass() string {
	pause := []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second}[tr.random.IntN(3)]
	for _, p := range tr.programs {
		for _, asked := range p.asked {
			if left := time.Until(asked.Add(lease - margin/2)); left > 0 && tr.random.IntN(3) == 0 {
				pause = left
			}
		}
	}
	time.Sleep(pause)
	synctest.Wait()
	tr.look()
	for _, p := range tr.programs {
		if p.lease != nil {
			tr.deadlines(p)
			continue
		}
		for k, h := range tr.seen.holder { // nobody has told it of a lease: what counts is what the store has
			if h != uint8(p.slot+1) && !p.asked[k].IsZero() {
				tr.can(deadline(p, k))
			}
		}
	}
	for k := range tr.stores {
		tr.may(says(side(k) + " expires a lock"))
	}
	return fmt.Sprintf("%v pass", pause)
}

// act lets a program do something, or not.
func (tr *trace) act(p *program) string {
	phase := uint8(tr.random.IntN(len(phases)))
	dice := tr.random.IntN(12)
	switch {
	case p.dead:
		if next := (&program{slot: p.slot, j: -1}); tr.starts(next, phase) {
			tr.programs[p.slot] = next
			return fmt.Sprintf("%v starts again in phase %s", p, phases[phase])
		}
	case p.doing != nil && !p.doing.cancelled && dice < 2:
		p.doing.cancelled = true
		p.doing.cancel()
		return fmt.Sprintf("what %v does is cancelled", p)
	case p.doing != nil:
	case p.lease != nil && dice == 0:
		p.doing = tr.call("renews", 0, func(ctx context.Context, _ *call) error { return p.lease.Renew(ctx) })
	case p.lease != nil && dice < 3:
		p.doing = tr.call("unlocks", 0, func(ctx context.Context, _ *call) error { return p.lease.Unlock(ctx) })
	case p.lease != nil:
	case dice < 2 && tr.starts(p, phase):
	case p.locks[phase] != nil:
		m := p.locks[phase].Mutex("x")
		what, take := "tries", m.TryLock
		if dice < 5 {
			what, take = "locks", m.Lock
		}
		p.phase = phase
		p.doing = tr.call(what, phase, func(ctx context.Context, c *call) (err error) {
			c.lease, err = take(ctx)
			return err
		})
	}
	if p.doing == nil || p.doing.began != time.Now() {
		return ""
	}
	return fmt.Sprintf("%v %s in phase %s", p, p.doing.what, phases[p.doing.phase])
}

// starts starts a process of p, unless it might be one switch too many.
func (tr *trace) starts(p *program, phase uint8) bool {
	if phase != both && !tr.switching(p, phase) {
		return false
	}
	p.doing = tr.call("starts", phase, func(ctx context.Context, _ *call) error { return tr.start(ctx, p, phase) })
	return true
}

func (tr *trace) switching(p *program, phase uint8) bool {
	j := slices.Index(tr.switches[:], nil)
	if j < 0 {
		return false
	}
	p.j, p.goal, p.looked, tr.switches[j] = j, new, p.slot < 0, p
	if phase == from {
		p.goal = old
	}
	return true
}

// operate lets an operator come, of whom one at a time ends the migration or begins it.
func (tr *trace) operate() string {
	p := &program{slot: -1, j: -1}
	pair, err := code.PairOf("m", moving, tr.door(p, old), tr.door(p, new))
	if err != nil {
		tr.Fatal(err)
	}
	phase := []uint8{from, to}[tr.random.IntN(2)]
	do, what := func(ctx context.Context) error { return pair.OpenAgainst(ctx, phases[phase]) }, "opens"
	ends := func(p *program) bool { return p.does("finishes", "cancels", "prepares") }
	switch n := tr.random.IntN(6); {
	case n > 2 || !tr.m.Ends:
		if !tr.switching(p, phase) {
			return ""
		}
	case slices.ContainsFunc(tr.programs, ends):
		return ""
	default:
		do = []func(context.Context) error{pair.Finish, pair.Cancel, pair.Prepare}[n]
		what = []string{"finishes", "cancels", "prepares"}[n]
	}
	p.doing = tr.call(what, phase, func(ctx context.Context, _ *call) error { return do(ctx) })
	tr.programs = append(tr.programs, p)
	return fmt.Sprintf("an operator %s to phase %s", what, phases[phase])
}

// kill lets a program die: what it has asked comes to no store any more, but a raise may.
func (tr *trace) kill(p *program) string {
	if p.dead {
		return ""
	}
	p.dead = true
	tr.settle(p, context.Canceled)
	for _, o := range tr.waiting {
		if o.by == p && o.what == "raises its" && o.nonce == p.nonce && tr.late == nil {
			tr.late = o
			tr.must(clientSays(p, "crashes, its raise"))
		}
	}
	tr.quit(p)
	return fmt.Sprintf("%v dies", p)
}

// heed hears what the calls of a program have come to. o is what was let just before.
func (tr *trace) heed(p *program, o *op) {
	if c := p.doing; c != nil && c.done {
		tr.did = append(tr.did, fmt.Sprintf("    %v %s: %v", p, c.what, c.err))
		switch c.what {
		case "tries", "locks":
			if p.lease = c.lease; c.err == nil {
				tr.sum["grant"]++
				tr.top = max(tr.top, c.lease.Token())
				tr.deadlines(p)
				tr.must(clientSays(p, "is GRANTED"))
				break
			}
			if errors.Is(c.err, backend.ErrUnsupported) && o != nil && o.what == "asks" {
				tr.mustNot(clientSays(p, "takes "+side((&client{phase: p.phase}).home())))
			}
			tr.giveUp(p)
		case "renews":
			if c.err == nil && p.lease != nil {
				p.asked = [2]time.Time{c.began, c.began}
			}
		case "unlocks":
		default:
			tr.settle(p, c.err)
		}
		p.doing = nil
	}
	if p.lease != nil && p.lease.Err() != nil {
		if p.nonce = ""; p.does("unlocks") {
			tr.quit(p) // the deadline may pass while one leg is back already
		} else {
			p.lease = nil
		}
	}
}

// settle ends what is no client's: a switch too. One that was refused has done nothing, one that is done has nothing
// left to do.
func (tr *trace) settle(p *program, err error) {
	if p.slot < 0 {
		tr.programs = slices.DeleteFunc(tr.programs, func(o *program) bool { return o == p })
	}
	if p.j < 0 {
		return
	}
	tr.each(func(s state) []state {
		switch at := s.switchers[p.j].at; {
		case at == 0:
			return []state{s}
		case at == chosen, err != nil && !errors.Is(err, backend.ErrInvalid):
			return tr.after(s, switchSays(p.j, "dies"))
		}
		return nil
	})
	tr.switches[p.j], p.j = nil, -1
}
