package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/fencelock/fencelock/backend"
)

// drawn is a history of one lock as a sound store would make it, and then mostly not: moments, tokens and outcomes are
// changed at random.
func drawn(r *rand.Rand) []Event {
	var events []Event
	now := Moment(10)
	ttl := Moment(5 + r.IntN(10))
	around := func(m Moment) Moment { // often exactly so: calls that touch must count as overlapping
		if r.IntN(3) > 0 {
			return m
		}
		return max(1, m+Moment(r.IntN(9)-4))
	}
	for i := range 2 + r.IntN(4) {
		t := backend.Token(2*i + 2)
		switch r.IntN(12) {
		case 0:
			t--
		case 1:
			t -= 3
		case 2:
			t = backend.Token(2 + r.IntN(8))
		}
		p := fmt.Sprint("p", r.IntN(3))
		g := Event{Kind: Granted, Process: p, Name: "x", Token: max(1, t), At: around(now + 2)}
		g.Called = min(g.At, around(now))
		g.Until = max(g.Called, around(now+ttl))
		events = append(events, g)
		end, deadline := g.At+Moment(r.IntN(8)), g.Until
		if r.IntN(6) > 0 { // else it died
			e := Event{Kind: Ended, Process: p, Name: "x", Token: g.Token, At: end, Until: deadline}
			if r.IntN(4) == 0 {
				e.Until = max(deadline, around(end+ttl))
				deadline = e.Until
			}
			events = append(events, e)
			if r.IntN(6) > 0 { // else in Unlock
				f := Event{Kind: Freed, Process: p, Name: "x", Token: g.Token, Called: end, Result: OK}
				if f.At = end + Moment(r.IntN(4)); r.IntN(2) == 0 {
					f.Result = []Result{OK, Refused, Unclear}[r.IntN(3)]
				}
				if r.IntN(4) == 0 {
					f.At = max(f.Called, around(deadline))
				}
				end = f.At
				events = append(events, f)
				if f.Result == Unclear && r.IntN(2) == 0 { // it is called again, perhaps when others are there
					f.Called, f.Result = f.At+Moment(r.IntN(4)), []Result{OK, Refused, Unclear}[r.IntN(3)]
					f.At = f.Called + Moment(r.IntN(4))
					events = append(events, f)
				}
			}
		}
		if now = around(end); r.IntN(3) == 0 {
			now = around(deadline)
		}
	}
	switch r.IntN(10) {
	case 0:
		events = append(events, Event{Kind: Asked, Process: "p9.0", Name: "x", Called: Moment(r.IntN(30)), At: 40})
		fallthrough
	case 1: // which nobody learnt of
		events = append(events, Event{Kind: Left, Process: "p9", Name: "x", Token: 50, Called: now + 1, At: now + 2})
	}
	return events
}

// options are those that a history can be judged with.
var options = map[string]Options{"": {}, "brittle": {Brittle: true}, "plain": {Plain: true}}

// The judges agree about every history of acquisitions and releases, whether it is legal or not.
func TestJudgesAgree(t *testing.T) {
	n := 20000
	if testing.Short() {
		n = 2000
	}
	for what, o := range options {
		r := rand.New(rand.NewPCG(1, 2))
		legal := 0
		for range n {
			events := drawn(r)
			for _, v := range Judge(events, o) {
				if v.Mutex == nil {
					legal++
				}
				found := Sweep(events)
				sweeps := len(found.Tokens) > 0 || !o.Plain && len(found.Twice) > 0
				if sweeps && !o.Brittle && v.Mutex == nil {
					t.Fatalf("%s: the mutex accepts what the sweeps found: %v\n%v", what, Check(events), lines(events))
				}
				if v.Disagree != nil {
					t.Fatalf("%s: %v\n%v\nthe lease model: %v\nthe mutex: %v",
						what, v.Disagree, lines(events), v.Lease, v.Mutex)
				}
			}
		}
		t.Logf("%s: %d of %d histories are legal", what, legal, n)
		if legal < n/10 || legal > n*9/10 {
			t.Errorf("%s: %d of %d histories are legal: want some of both kinds", what, legal, n)
		}
	}
}

func lines(events []Event) (text string) {
	for _, e := range events {
		text += fmt.Sprintf("%+v\n", e)
	}
	return text
}

// call is an operation of a lock workload, for a search among all orders.
type call struct {
	release, unclear bool
	endpoint         string
	fence            backend.Token
}

// searched is the fenced mutex for porcupine. What may never have happened happens at the end and changes nothing.
var searched = porcupine.Model{
	Init: func() any { return mutex{} },
	Step: func(state, input, _ any) (bool, any) {
		m, c := state.(mutex), input.(call)
		if !c.release {
			err := m.acquire(c.endpoint, c.fence)
			return err == nil, m
		}
		err := m.release(c.endpoint)
		return err == nil || c.unclear, m
	},
}

// The one order that obeys looks at is as good as any: a search among all of them comes to the same verdict.
func TestTheFencesFixTheOrder(t *testing.T) {
	n := 20000
	if testing.Short() {
		n = 2000
	}
	for what, o := range options {
		r := rand.New(rand.NewPCG(3, 4))
		for range n {
			events := drawn(r)
			ts := tenures(events, o)["x"]
			var ops []porcupine.Operation
			for i, t := range ts {
				c := call{endpoint: t.endpoint(), fence: t.fence}
				if slices.ContainsFunc(ts[:i], func(u tenure) bool { return u.endpoint() == c.endpoint }) {
					c.endpoint += "'" // one token twice, in one process
				}
				add := func(w window) {
					ops = append(ops, porcupine.Operation{Input: c, Call: int64(w.from), Return: int64(w.to)})
				}
				add(t.acquire)
				c.release, c.unclear = true, t.release.to == forever
				add(t.release)
			}
			err := obeys("x", ts)
			if want := porcupine.CheckOperations(searched, ops); (err == nil) != want {
				t.Fatalf("%s: got %v, and the search finds an order: %v\n%s%+v", what, err, want, lines(events), ts)
			}
		}
	}
}

// A mapping or a model with a mistake is found by comparing the judges.
func TestDisagreement(t *testing.T) {
	g := func(p string, tok backend.Token, called, at, until Moment) Event {
		return Event{Kind: Granted, Process: p, Name: "x", Token: tok, Called: called, At: at, Until: until}
	}
	events := []Event{g("a", 1, 1, 2, 100), g("b", 2, 50, 60, 150)}
	early := tenures(events, Options{})["x"]
	if err := obeys("x", early); err == nil {
		t.Fatal("a second holder before the deadline: got no error")
	}
	early[0].release.from = 60 // a mapping that lets leases end before their deadline
	if err := obeys("x", early); err != nil {
		t.Fatalf("got %v, want the mapping's mistake to hide it", err)
	}
	v := compare("x", Verdict{Lease: Judge(events, Options{})[0].Lease}, operations(events, Options{})["x"], Options{})
	if !errors.Is(v.Disagree, ErrDisagree) {
		t.Errorf("only ours refuses: got %v, want %v", v.Disagree, ErrDisagree)
	}
	v = compare("x", Verdict{Mutex: errors.New("refused")}, nil, Options{})
	if !errors.Is(v.Disagree, ErrDisagree) || !errors.Is(v.Err(), ErrDisagree) {
		t.Errorf("only the mutex refuses: got %v, want %v", v.Disagree, ErrDisagree)
	}
}
