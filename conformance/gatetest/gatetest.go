// Package gatetest holds a driver to the part of the contract that migrations rest on: backend.Gater. What the suite
// of package conformance checks through a Locker is not checked again.
package gatetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	ttl     = 20 * time.Second
	patient = 15 * time.Second // bounds every wait of a rule
)

// Driver is what a rule needs.
type Driver interface {
	backend.Driver
	backend.Gater
}

// Run runs every rule as a subtest. open returns a client of one and the same store and keyspace; it is
// called several times for each rule, and the driver is closed by the rule's end.
func Run(t *testing.T, open func(t *testing.T) backend.Driver) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			e := &env{T: t, open: open, move: "m" + random()[:8]}
			e.scope = backend.Scope{{Match: e.name("stays/*"), Stays: true}, {Match: e.name("*")}}
			e.d = e.client()
			r.check(e)
		})
	}
}

type env struct {
	*testing.T
	open  func(t *testing.T) backend.Driver
	d     Driver
	move  string
	scope backend.Scope
}

// name is a name of this rule alone; all of them are in the rule's scope but stays/….
func (e *env) name(s string) string { return e.move + "/" + s }

func (e *env) client() Driver {
	e.Helper()
	raw := e.open(e.T)
	d, ok := raw.(Driver)
	if !ok {
		e.Fatalf("%T is no backend.Gater", raw)
	}
	e.Cleanup(func() {
		if err := d.Close(); err != nil {
			e.Errorf("closing the driver: %v", err)
		}
	})
	return d
}

func random() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// request is a try by a client of this migration in this phase; by a plain one if phase is empty.
func (e *env) request(name string, phase backend.Phase) *backend.Request {
	r := &backend.Request{Name: name, Nonce: random(), Owner: "gatetest", TTL: ttl, Phase: phase, Lost: func(error) {}}
	if phase != "" {
		r.Move = e.move
	}
	return r
}

func (e *env) acquire(d Driver, r *backend.Request) (*backend.Hold, error) {
	ctx, cancel := context.WithTimeout(e.Context(), patient)
	defer cancel()
	g, err := d.Acquire(ctx, r)
	if err != nil {
		if !errors.Is(err, backend.ErrLocked) || r.Wait {
			_ = d.Abandon(ctx, r) // as the engine does
		}
		return nil, err
	}
	return &backend.Hold{Request: r, Grant: g}, nil
}

// held is a request that must be granted; it is released with the test.
func (e *env) held(d Driver, r *backend.Request) *backend.Hold {
	e.Helper()
	h, err := e.acquire(d, r)
	if err != nil {
		e.Fatalf("acquire %q in phase %q: got %v, want a grant", r.Name, r.Phase, err)
	}
	return h
}

func (e *env) release(d Driver, h *backend.Hold) {
	e.Helper()
	if err := d.Release(e.Context(), h); err != nil {
		e.Fatalf("release %q: %v", h.Name, err)
	}
}

// passes acquires and releases.
func (e *env) passes(name string, phase backend.Phase) backend.Grant {
	e.Helper()
	h := e.held(e.d, e.request(name, phase))
	e.release(e.d, h)
	return h.Grant
}

// refused expects a gate's refusal.
func (e *env) refused(r *backend.Request, epoch int64) {
	e.Helper()
	_, err := e.acquire(e.d, r)
	e.wantGate(err, epoch)
}

func (e *env) wantGate(err error, epoch int64) {
	e.Helper()
	var refusal *backend.GateError
	if !errors.As(err, &refusal) {
		e.Fatalf("got %v, want a *backend.GateError", err)
	}
	if refusal.Move != e.move || refusal.Epoch != epoch {
		e.Errorf("refusal: got %+v, want Move %q and Epoch %d", refusal, e.move, epoch)
	}
}

// set writes the rule's gate, which must be possible.
func (e *env) set(state backend.GateState, was int64) backend.Gate {
	e.Helper()
	g := backend.Gate{Move: e.move, Scope: e.scope, State: state, Epoch: max(time.Now().UnixMicro(), was+1)}
	if err := e.d.SetGate(e.Context(), g, was); err != nil {
		e.Fatalf("SetGate %s: %v", state, err)
	}
	return g
}

func (e *env) gate(d Driver) (backend.Gate, bool) {
	e.Helper()
	gates, err := d.Gates(e.Context())
	if err != nil {
		e.Fatalf("Gates: %v", err)
	}
	for _, g := range gates {
		if g.Move == e.move {
			return g, true
		}
	}
	return backend.Gate{}, false
}

func (e *env) undrained(g backend.Gate) []string {
	e.Helper()
	infos, err := e.d.Undrained(e.Context(), g)
	if err != nil {
		e.Fatalf("Undrained: %v", err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var rules = []struct {
	name  string
	check func(e *env)
}{
	{"NoGate", noGate},
	{"Closed", closed},
	{"Open", opened},
	{"NamesThatStay", stays},
	{"WaiterIsRefused", waiterIsRefused},
	{"WaiterInBothPasses", waiterInBothPasses},
	{"SentAgain", sentAgain},
	{"RenewAndRelease", renewAndRelease},
	{"SetGate", setGate},
	{"SetGateRace", setGateRace},
	{"Undrained", undrained},
	{"UndrainedRace", undrainedRace},
	{"Raise", raise},
	{"RaiseHeld", raiseHeld},
	{"Clients", clients},
}

func noGate(e *env) {
	if g := e.passes(e.name("a"), ""); g.Ungated {
		e.Error("a plain grant is marked Ungated")
	}
	for _, p := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth} {
		if g := e.passes(e.name("a"), p); !g.Ungated {
			e.Errorf("phase %s: the grant is not marked Ungated", p)
		}
	}
	e.refused(e.request(e.name("a"), backend.PhaseTo), 0)
	if _, ok := e.gate(e.d); ok {
		e.Error("there is a gate that nobody set")
	}
}

func closed(e *env) {
	g := e.set(backend.GateBoth, 0)
	other := e.request(e.name("a"), backend.PhaseBoth)
	other.Move = "another"
	for _, r := range []*backend.Request{e.request(e.name("a"), ""), e.request(e.name("a"), backend.PhaseFrom), e.request(e.name("a"), backend.PhaseTo), other} {
		e.refused(r, g.Epoch)
		again := *r
		again.Nonce, again.Wait = random(), true
		e.refused(&again, g.Epoch)
	}
	if g := e.passes(e.name("a"), backend.PhaseBoth); g.Ungated {
		e.Error("the grant is marked Ungated")
	}
	// A client that was there before the gate, and one that comes after it.
	if got, ok := e.gate(e.client()); !ok || got.State != g.State || got.Epoch != g.Epoch || got.Scope.String() != g.Scope.String() || got.Torn {
		e.Errorf("Gates: got %+v, want %+v", got, g)
	}
}

func opened(e *env) {
	e.set(backend.GateOpen, 0)
	for _, p := range []backend.Phase{"", backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
		if g := e.passes(e.name("a"), p); g.Ungated {
			e.Errorf("phase %q: the grant is marked Ungated", p)
		}
	}
}

func stays(e *env) {
	before := e.passes(e.name("stays/a"), "").Token
	e.set(backend.GateBoth, 0)
	if after := e.passes(e.name("stays/a"), "").Token; after <= before {
		e.Errorf("tokens %d, then %d", before, after)
	}
	e.passes("x"+e.name("a"), "")
	e.passes(e.move, "") // the name before the slash
}

// waiting starts a request that waits, and returns once it is in the queue.
func (e *env) waiting(d Driver, r *backend.Request) <-chan error {
	e.Helper()
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		h, err := e.acquire(d, r)
		if err == nil {
			err = d.Release(e.Context(), h)
		}
		done <- err
	}()
	e.until("the waiter is in the queue", func() bool {
		info, err := e.d.Inspect(e.Context(), r.Name)
		return err == nil && info.Waiters != 0
	})
	return done
}

// until looks until ok or for too long.
func (e *env) until(what string, ok func() bool) {
	e.Helper()
	end := time.Now().Add(patient)
	for !ok() {
		if time.Now().After(end) {
			e.Fatalf("not within %v: %s", patient, what)
		}
		time.Sleep(5 * time.Millisecond) // the pause of a bounded poll
	}
}

func (e *env) answer(what string, c <-chan error) error {
	e.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patient):
		e.Fatalf("no answer within %v: %s", patient, what)
		return nil
	}
}

func waiterIsRefused(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	done := e.waiting(e.client(), e.request(e.name("a"), backend.PhaseFrom))
	g := e.set(backend.GateBoth, 0)
	e.release(e.d, h)
	e.wantGate(e.answer("the waiter", done), g.Epoch)
	both := e.request(e.name("a"), backend.PhaseBoth)
	both.Wait = true
	e.release(e.d, e.held(e.d, both))
}

func waiterInBothPasses(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	done := e.waiting(e.client(), e.request(e.name("a"), backend.PhaseBoth))
	e.set(backend.GateBoth, 0)
	e.release(e.d, h)
	if err := e.answer("the waiter", done); err != nil {
		e.Errorf("got %v, want the lock", err)
	}
}

func sentAgain(e *env) {
	r := e.request(e.name("a"), backend.PhaseFrom)
	h := e.held(e.d, r)
	e.set(backend.GateBoth, 0)
	again := e.held(e.d, r)
	if again.Token != h.Token {
		e.Errorf("sent again: token %d, want %d", again.Token, h.Token)
	}
	e.release(e.d, again)
}

func renewAndRelease(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	g := e.set(backend.GateBoth, 0)
	if err := e.d.Renew(e.Context(), []*backend.Hold{h})[0]; err != nil {
		e.Errorf("renew: %v", err)
	}
	e.release(e.d, h)
	if left := e.undrained(g); len(left) > 0 {
		e.Errorf("undrained after the release: %v", left)
	}
}

func setGate(e *env) {
	g := e.set(backend.GateBoth, 0)
	next := g
	next.State, next.Epoch = backend.GateOpen, g.Epoch+1
	for _, c := range []struct {
		what string
		g    backend.Gate
		was  int64
		want error
	}{
		{"the same again", g, 0, nil},
		{"expecting none", next, 0, backend.ErrGateMoved},
		{"expecting another", next, g.Epoch - 1, backend.ErrGateMoved},
		{"expecting it", next, g.Epoch, nil},
		{"expecting it, sent again", next, g.Epoch, nil},
		{"the old one, late", g, 0, backend.ErrGateMoved},
		{"lower, but it is not", g, backend.Lower, backend.ErrGateMoved},
		{"lower, of its own epoch", backend.Gate{Move: g.Move, Scope: g.Scope, State: backend.GateBoth, Epoch: next.Epoch}, backend.Lower, backend.ErrGateMoved},
		{"lower", backend.Gate{Move: g.Move, Scope: g.Scope, State: backend.GateBoth, Epoch: next.Epoch + 5}, backend.Lower, nil},
	} {
		if err := e.d.SetGate(e.Context(), c.g, c.was); !errors.Is(err, c.want) {
			e.Errorf("%s: got %v, want %v", c.what, err, c.want)
		}
	}
	if got, _ := e.gate(e.client()); got.State != backend.GateBoth || got.Epoch != next.Epoch+5 {
		e.Errorf("at the end: %+v", got)
	}
	for _, bad := range []backend.Gate{
		{Move: e.move, Scope: e.scope, State: "ajar", Epoch: 1}, {Move: e.move, State: backend.GateBoth, Epoch: 1}, {Move: "", Scope: e.scope, State: backend.GateBoth, Epoch: 1},
	} {
		if err := e.d.SetGate(e.Context(), bad, backend.Lower); !errors.Is(err, backend.ErrInvalid) {
			e.Errorf("%+v: got %v, want ErrInvalid", bad, err)
		}
	}
}

func setGateRace(e *env) {
	first := e.set(backend.GateBoth, 0)
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 6 {
		d := e.d
		if i%2 == 1 {
			d = e.client()
		}
		wg.Go(func() {
			g := first
			g.State, g.Epoch = backend.GateOpen, first.Epoch+1+int64(i)
			switch err := d.SetGate(e.Context(), g, first.Epoch); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, backend.ErrGateMoved):
				e.Errorf("got %v, want nil or ErrGateMoved", err)
			}
		})
	}
	wg.Wait()
	if n := won.Load(); n != 1 {
		e.Errorf("%d of 6 changed the same gate, want 1", n)
	}
}

func undrained(e *env) {
	plain := e.held(e.d, e.request(e.name("plain"), ""))
	from := e.held(e.client(), e.request(e.name("from"), backend.PhaseFrom))
	both := e.held(e.d, e.request(e.name("both"), backend.PhaseBoth))
	alien := e.request(e.name("alien"), backend.PhaseBoth)
	alien.Move = "another"
	other := e.held(e.d, alien)
	stays := e.held(e.d, e.request(e.name("stays/a"), ""))
	g := e.set(backend.GateBoth, 0)
	late := e.held(e.d, e.request(e.name("late"), backend.PhaseBoth))
	if got, want := e.undrained(g), []string{e.name("alien"), e.name("from"), e.name("plain")}; !slices.Equal(got, want) {
		e.Errorf("got %v, want %v", got, want)
	}
	infos, err := e.d.Undrained(e.Context(), g)
	if err != nil {
		e.Fatal(err)
	}
	for _, i := range infos {
		if !i.Held || i.Owner != "gatetest" {
			e.Errorf("got %+v, want Held and its owner", i)
		}
	}
	for _, h := range []*backend.Hold{plain, from, other} {
		if err := e.d.Break(e.Context(), h.Name); err != nil {
			e.Fatal(err)
		}
	}
	e.until("the single-phase holders are gone", func() bool { return len(e.undrained(g)) == 0 })
	for _, h := range []*backend.Hold{both, stays, late} {
		e.release(e.d, h)
	}
}

// undrainedRace closes the gate while clients come and go: when the store says that it is drained, none of them holds.
func undrainedRace(e *env) {
	var holding, grants atomic.Int32
	ctx, cancel := context.WithCancel(e.Context())
	var wg sync.WaitGroup
	busy := make(chan struct{}, 64)
	for i := range 4 {
		d := e.client()
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := e.request(e.name(fmt.Sprint(i, "-", n%3)), []backend.Phase{"", backend.PhaseFrom}[n%2])
				h, err := e.acquire(d, r)
				if err != nil {
					return // refused by the gate, or the end
				}
				holding.Add(1)
				if grants.Add(1) == 40 {
					close(busy)
				}
				holding.Add(-1)
				if err := d.Release(e.Context(), h); err != nil {
					e.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	select {
	case <-busy:
	case <-time.After(patient):
		e.Errorf("only %d grants within %v", grants.Load(), patient)
	}
	g := e.set(backend.GateBoth, 0)
	e.until("drained", func() bool { return len(e.undrained(g)) == 0 })
	before := grants.Load()
	if n := holding.Load(); n != 0 {
		e.Errorf("%d clients hold a lock after the store said that it is drained", n)
	}
	both := e.request(e.name("0-0"), backend.PhaseBoth)
	both.Wait = true // a try of another phase may be on its way to its refusal
	e.release(e.d, e.held(e.d, both))
	cancel()
	wg.Wait()
	if after := grants.Load(); after != before {
		e.Errorf("%d grants after the store said that it is drained", after-before)
	}
}

func raise(e *env) {
	source := func() backend.Token {
		e.Helper()
		s, err := e.d.Source(e.Context())
		if err != nil {
			e.Fatalf("Source: %v", err)
		}
		return s
	}
	first := e.passes(e.name("a"), "").Token
	if s := source(); s < first {
		e.Errorf("source %d after token %d", s, first)
	}
	floor := first + 1e9 // some 17 minutes ahead of the clock
	if err := e.d.Raise(e.Context(), floor); err != nil {
		e.Fatalf("Raise: %v", err)
	}
	if s := source(); s < floor {
		e.Errorf("source %d after a raise to %d", s, floor)
	}
	if err := e.d.Raise(e.Context(), first); err != nil {
		e.Fatalf("a lower Raise: %v", err)
	}
	d := e.client()
	for _, name := range []string{"a", "b", "c"} {
		h := e.held(d, e.request(e.name(name), ""))
		if h.Token <= floor {
			e.Errorf("name %s: token %d after a raise to %d", name, h.Token, floor)
		}
		if s := source(); s < h.Token {
			e.Errorf("source %d after token %d", s, h.Token)
		}
		e.release(d, h)
	}
}

func raiseHeld(e *env) {
	h := e.held(e.d, e.request(e.name("a"), backend.PhaseBoth))
	floor := h.Token + 2e9
	if err := e.d.RaiseHeld(e.Context(), h, floor); err != nil {
		e.Fatalf("RaiseHeld: %v", err)
	}
	if err := e.d.RaiseHeld(e.Context(), h, floor); err != nil {
		e.Fatalf("RaiseHeld again: %v", err)
	}
	e.release(e.d, h)
	other := e.client()
	next := e.held(other, e.request(e.name("a"), backend.PhaseBoth))
	if next.Token <= floor {
		e.Errorf("token %d after a raise to %d", next.Token, floor)
	}
	// The old holder is not the holder any more.
	if err := e.d.RaiseHeld(e.Context(), h, next.Token+5e9); !errors.Is(err, backend.ErrLost) {
		e.Errorf("RaiseHeld by the one before: got %v, want ErrLost", err)
	}
	e.release(other, next)
	if third := e.passes(e.name("a"), backend.PhaseBoth).Token; third <= next.Token || third > next.Token+5e9 {
		e.Errorf("token %d after %d: want more, and not what the refused raise asked for", third, next.Token)
	}
	if err := other.RaiseHeld(e.Context(), next, 1); !errors.Is(err, backend.ErrLost) {
		e.Errorf("RaiseHeld of a free lock: got %v, want ErrLost", err)
	}
}

func clients(e *env) {
	c := backend.Client{
		ID: random(), Move: e.move, Phase: backend.PhaseFrom, Host: "höst", PID: 42, MaxTTL: 30 * time.Second,
		Since: time.Now().Add(-time.Minute).Truncate(time.Millisecond).UTC(), Reported: time.Now().Truncate(time.Millisecond).UTC(),
	}
	brief := c
	brief.ID, brief.Phase = random(), backend.PhaseBoth
	report := func(c backend.Client, keep time.Duration) {
		e.Helper()
		if err := e.d.Report(e.Context(), c, keep); err != nil {
			e.Fatalf("Report: %v", err)
		}
	}
	reader := e.client()
	list := func() map[string]backend.Client {
		e.Helper()
		cs, err := reader.Clients(e.Context(), e.move)
		if err != nil {
			e.Fatalf("Clients: %v", err)
		}
		m := map[string]backend.Client{}
		for _, c := range cs {
			m[c.ID] = c
		}
		return m
	}
	if got := list(); len(got) != 0 {
		e.Errorf("before any report: %v", got)
	}
	report(c, time.Minute)
	report(brief, 2*time.Second)
	if got := list(); got[c.ID] != c || got[brief.ID] != brief || len(got) != 2 {
		e.Errorf("got %+v, want %+v and %+v", got, c, brief)
	}
	c.Phase = backend.PhaseBoth
	report(c, time.Minute)
	e.until("the brief report is forgotten", func() bool { return len(list()) == 1 })
	if got := list(); got[c.ID] != c {
		e.Errorf("got %+v, want %+v", got, c)
	}
	if others, err := e.d.Clients(e.Context(), e.move+"x"); err != nil || len(others) != 0 {
		e.Errorf("of another migration: got %v, %v", others, err)
	}
	for range 2 {
		if err := e.d.Withdraw(e.Context(), c); err != nil {
			e.Fatalf("Withdraw: %v", err)
		}
	}
	if got := list(); len(got) != 0 {
		e.Errorf("after Withdraw: %v", got)
	}
}
