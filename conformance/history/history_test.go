package history_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// granted is a lease of process p that was asked for just before it was granted.
func granted(p string, t backend.Token, from, until history.Moment) history.Event {
	return history.Event{
		Kind: history.Granted, Process: p, Name: "x", Token: t, Called: from - 1, At: from,
		Until: until,
	}
}

func ended(p string, t backend.Token, at, until history.Moment) history.Event {
	return history.Event{Kind: history.Ended, Process: p, Name: "x", Token: t, At: at, Until: until}
}

func wanted(p string) history.Event {
	return history.Event{Kind: history.Wanted, Process: p, Name: "c", Token: 1}
}

func added(p string, t backend.Token, value int64) history.Event {
	return history.Event{Kind: history.Added, Process: p, Name: "c", Token: t, Value: value}
}

func counted(value int64) history.Event {
	return history.Event{Kind: history.Counted, Name: "c", Value: value}
}

func TestCheck(t *testing.T) {
	other := granted("b", 1, 15, 40)
	other.Name = "y"
	slow := granted("a", 1, 50, 20) // told when its time was over, after the next one
	slow.Called = 5
	tooSlow := slow
	tooSlow.Called = 45 // asked for after the next one was told
	for _, c := range []struct {
		what string
		want string // in the error; empty: none
		h    []history.Event
	}{
		{"nothing", "", nil},
		{
			"one after the other", "",
			[]history.Event{
				granted("a", 1, 10, 40), ended("a", 1, 20, 40), granted("b", 2, 20, 50),
			},
		},
		{
			"parts in any order", "",
			[]history.Event{
				granted("b", 2, 20, 50), ended("a", 1, 20, 40), granted("a", 1, 10, 40),
			},
		},
		{"another name", "", []history.Event{granted("a", 1, 10, 40), ended("a", 1, 20, 40), other}},
		{
			"two at once", `"x" was held twice for 1ns`,
			[]history.Event{
				granted("a", 1, 10, 40), ended("a", 1, 20, 40), granted("b", 2, 19, 50),
			},
		},
		{"two at once, with one between that is over", "held twice", []history.Event{
			granted("a", 1, 10, 90), granted("b", 2, 90, 95), granted("c", 3, 50, 60), ended("c", 3, 55, 60),
		}},
		{"without an end: until the deadline", "", []history.Event{granted("a", 1, 10, 40), granted("b", 2, 40, 50)}},
		{
			"before the deadline of one without an end", "held twice",
			[]history.Event{granted("a", 1, 10, 40), granted("b", 2, 39, 50)},
		},
		{
			"its process died before", "",
			[]history.Event{
				granted("a", 1, 10, 40),
				{Kind: history.Died, Process: "a", At: 15},
				granted("b", 2, 39, 50),
			},
		},
		{
			"another process died before", "held twice",
			[]history.Event{
				granted("a", 1, 10, 40),
				{Kind: history.Died, Process: "c", At: 15},
				granted("b", 2, 39, 50),
			},
		},
		{
			"the end was noticed late, the deadline had passed", "",
			[]history.Event{
				granted("a", 1, 10, 40), ended("a", 1, 70, 45), granted("b", 2, 45, 50),
			},
		},
		{
			"a renewed lease", "held twice",
			[]history.Event{
				granted("a", 1, 10, 40), ended("a", 1, 70, 80), granted("b", 2, 45, 50),
			},
		},
		{"the same token", "one token twice", []history.Event{granted("a", 1, 10, 20), granted("b", 1, 20, 50)}},
		{
			"a lower token", "a lower token after a greater one",
			[]history.Event{granted("a", 2, 10, 20), granted("b", 1, 20, 50)},
		},
		{
			"a lower token, not at once", "a lower token after a greater one",
			[]history.Event{
				granted("a", 5, 10, 20), granted("b", 7, 20, 30), granted("c", 6, 30, 50),
			},
		},
		{"a lower token that came too late to be trusted", "", []history.Event{granted("b", 2, 30, 40), slow}},
		{
			"a lower token that came too late to be trusted, but was asked for later",
			"a lower token",
			[]history.Event{granted("b", 2, 30, 40), tooSlow},
		},
		{
			"a lower token after one that came too late to be trusted", "a lower token after a greater one",
			[]history.Event{granted("a", 9, 50, 20), granted("b", 7, 60, 90)},
		},
		{
			"a lower token that was asked for before one that came too late to be trusted", "",
			[]history.Event{
				granted("a", 9, 50, 20),
				{
					Kind: history.Granted, Process: "b", Name: "x", Token: 7, Called: 45, At: 60,
					Until: 90,
				},
			},
		},
		{
			"a lower token that was on its way when the next one came", "which came in between",
			[]history.Event{
				granted("a", 5, 20, 30),
				{
					Kind: history.Granted, Process: "b", Name: "x", Token: 4, Called: 15, At: 40,
					Until: 50,
				},
			},
		},
		{"a counter", "", []history.Event{wanted("a"), added("a", 1, 1), wanted("b"), added("b", 2, 2), counted(2)}},
		{
			"an increment that may have been made", "",
			[]history.Event{wanted("a"), wanted("b"), added("b", 2, 2), counted(2)},
		},
		{"an increment that was not made", "", []history.Event{wanted("a"), wanted("b"), added("b", 2, 1), counted(1)}},
		{
			"an increment lost at the end", "it is 1; 2 increments were acknowledged",
			[]history.Event{
				wanted("a"), added("a", 1, 1), wanted("b"), added("b", 2, 2), counted(1),
			},
		},
		{
			"an increment overwritten", "both made it 1",
			[]history.Event{
				wanted("a"), added("a", 1, 1), wanted("b"), added("b", 2, 1), counted(2),
			},
		},
		{
			"an increment from nowhere", "it is 3; 2 increments were acknowledged, of 2",
			[]history.Event{
				wanted("a"), added("a", 1, 1), wanted("b"), added("b", 2, 3), counted(3),
			},
		},
		{
			"an overtaken holder's write", "with token 1 after",
			[]history.Event{
				wanted("a"), added("a", 2, 1), wanted("b"), added("b", 1, 2), counted(2),
			},
		},
		{
			"the last increment lost, and one that nobody acknowledged made",
			"it is 2; c was told that it had made it 3",
			[]history.Event{
				wanted("a"), wanted("b"), added("b", 2, 2), wanted("c"), added("c", 3, 3), counted(2),
			},
		},
		{"not counted", "nobody has counted it", []history.Event{wanted("a")}},
	} {
		err := history.Check(c.h)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}
}

func TestCheckIsBrief(t *testing.T) {
	var h []history.Event
	for i := range 100 {
		h = append(h, granted("a", 1, history.Moment(10*i), history.Moment(10*i+5)))
	}
	if err := history.Check(h); err == nil || strings.Count(err.Error(), "\n") != 20 ||
		!strings.Contains(err.Error(), "and 79 more") {
		t.Errorf("got %v, want twenty errors and how many more there are", err)
	}
}

// lease is a lease that the test ends.
type lease struct {
	token    backend.Token
	deadline time.Time
	done     chan struct{}
}

func (l *lease) Mode() backend.Mode    { return backend.Exclusive }
func (l *lease) Slot() int             { return 0 }
func (l *lease) Name() string          { return "x" }
func (l *lease) Token() backend.Token  { return l.token }
func (l *lease) Deadline() time.Time   { return l.deadline }
func (l *lease) Done() <-chan struct{} { return l.done }

func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := history.NewLog(&out, "p", "both")
	before := history.Now()
	released := &lease{1, time.Now().Add(time.Hour), make(chan struct{})}
	h := log.Hold(released, before)
	log.Wanted("c", 1)
	log.Added("c", 1, 1)
	h.End()
	h.End()
	after := history.Now()
	lost := &lease{2, time.Now().Add(-time.Millisecond), make(chan struct{})} // noticed late
	h = log.HoldAbove(lost, after, 1)
	close(lost.done)
	h.End()
	if err := log.Err(); err != nil {
		t.Fatal(err)
	}
	whole := out.String()
	events, err := history.Read(strings.NewReader(whole + `{"kind":"gra`)) // its process was killed
	if err != nil {
		t.Fatal(err)
	}
	var kinds []history.Kind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
		if e.Process != "p" || e.Phase != "both" {
			t.Errorf("got %+v, want the log's process and phase", e)
		}
	}
	if want := []history.Kind{
		history.Granted, history.Wanted, history.Added, history.Ended, history.Granted,
		history.Ended,
	}; !slices.Equal(kinds, want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
	grants := history.Grants(events)
	if len(grants) != 2 {
		t.Fatalf("got %v, want two grants", grants)
	}
	if g := grants[0]; g.Token != 1 || g.Called != before || g.From < before || g.To <= g.From || g.To > after {
		t.Errorf("released: got %v, want trust between %v and %v", g, before, after)
	}
	if g := grants[1]; g.Token != 2 || g.To > g.From || g.Floor != 1 {
		t.Errorf("lost before: got %v, want no trust, and the floor 1", g)
	}
	counted := history.Event{Kind: history.Counted, Name: "c", Value: 1}
	if err := history.Check(append(events[:4:4], counted)); err != nil { // of the first lease
		t.Error(err)
	}
	if _, err := history.Read(strings.NewReader("{}\nnonsense\n")); err == nil ||
		!strings.Contains(err.Error(), "line 2") {
		t.Errorf("nonsense: got %v, want its line", err)
	}
}

// The deadline of a lease that was not renewed is the same at its end, to the nanosecond: Verify reads a later one as a
// renewal. Here that would have come when others had the lock, for the process was stopped as the grant reached it.
func TestLeaseThatWasNotRenewed(t *testing.T) {
	var out bytes.Buffer
	late := &lease{1, time.Now().Add(-time.Second), make(chan struct{})}
	asked := history.Now().After(-2 * time.Second)
	next := history.Event{
		Kind: history.Granted, Process: "q", Name: "x", Token: 2, Called: asked,
		At: history.Now(), Until: history.Now().After(time.Second),
	}
	log := history.NewLog(&out, "p", "")
	for range 100 {
		out.Reset()
		log.Hold(late, asked).End()
		events, err := history.Read(&out)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != 2 || events[0].Until != events[1].Until {
			t.Fatalf("got %+v, want two events with one deadline", events)
		}
		if err := history.Verify(append(events, next), history.Options{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLogKeepsItsError(t *testing.T) {
	full := errors.New("disk full")
	log := history.NewLog(writer(func([]byte) (int, error) { return 0, full }), "p", "")
	log.Wanted("c", 1)
	log.Wanted("c", 2)
	if err := log.Err(); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestNow: moments go forward at the speed of time, as other processes see it too.
func TestNow(t *testing.T) {
	outer := time.Now()
	a := history.Now()
	inner := time.Now()
	for time.Since(inner) < 5*time.Millisecond {
	}
	least := time.Since(inner)
	b := history.Now()
	most := time.Since(outer)
	const apart = time.Millisecond // of the two clocks
	if d := time.Duration(b - a); d < least-apart || d > most+apart {
		t.Errorf("got %v between two moments that are %v to %v apart", d, least, most)
	}
	if fmt.Sprint(time.Duration(a.After(time.Second)-a)) != "1s" {
		t.Error("After is not after")
	}
}

func TestCheckShared(t *testing.T) {
	of := func(mode backend.Mode, slot int, e history.Event) history.Event {
		e.Mode, e.Slot, e.Limit = mode, slot, 2
		return e
	}
	reads := func(p string, token backend.Token, from, until history.Moment) history.Event {
		return of(backend.Reader, 0, granted(p, token, from, until))
	}
	permit := func(p string, slot int, token backend.Token, from, until history.Moment) history.Event {
		return of(backend.Permit, slot, granted(p, token, from, until))
	}
	ofThree := permit("c", 2, 3, 20, 40)
	ofThree.Limit = 3
	above := func(floor backend.Token, e history.Event) history.Event {
		e.Floor = floor
		return e
	}
	for _, c := range []struct {
		what string
		want string // in the error; empty: none
		h    []history.Event
	}{
		{"readers at once", "", []history.Event{
			reads("a", 1, 10, 40), reads("b", 1, 15, 30), reads("c", 1, 35, 50), granted("w", 2, 50, 60),
			reads("a", 3, 60, 70),
		}},
		{"a writer beside a reader", "held twice", []history.Event{reads("a", 1, 10, 40), granted("w", 2, 39, 60)}},
		{"a reader beside a writer", "held twice", []history.Event{granted("w", 1, 10, 40), reads("a", 2, 39, 60)}},
		{"two writers beside readers that are gone", "held twice", []history.Event{
			reads("a", 1, 10, 20), granted("v", 2, 20, 40), granted("w", 3, 39, 60),
		}},
		{"different tokens at once", "different tokens", []history.Event{reads("a", 1, 10, 40), reads("b", 2, 15, 30)}},
		{"a reader with a floor, and who joins it", "", []history.Event{
			reads("a", 1, 10, 40), above(1, reads("b", 2, 15, 30)), reads("c", 2, 20, 50),
			above(7, reads("d", 8, 35, 45)),
		}},
		{"a reader that another's floor tells nothing of", "different tokens", []history.Event{
			reads("a", 1, 10, 40), above(1, reads("b", 2, 15, 30)), reads("c", 3, 20, 50),
		}},
		{"a floor below the readers' token", "different tokens", []history.Event{
			reads("a", 5, 10, 40), above(4, reads("b", 6, 15, 30)),
		}},
		{"the era goes on over a writer", "not greater", []history.Event{
			reads("a", 1, 10, 20), granted("w", 2, 22, 30), reads("b", 1, 32, 40),
		}},
		{"a writer with the readers' token", "not greater", []history.Event{
			reads("a", 1, 10, 20), granted("w", 1, 22, 30),
		}},
		{"a reader with the writer's token", "not greater", []history.Event{
			granted("w", 1, 10, 20), reads("a", 1, 22, 30),
		}},
		{"two permits of two", "", []history.Event{
			permit("a", 0, 1, 10, 40), permit("b", 1, 2, 15, 30), permit("c", 1, 3, 32, 50),
		}},
		{"three of two", "3 permits were out, of 2", []history.Event{
			permit("a", 0, 1, 10, 40), permit("b", 1, 2, 15, 30), ofThree,
		}},
		{"one slot twice", "slot 0 was out twice", []history.Event{
			permit("a", 0, 1, 10, 40), permit("b", 0, 2, 15, 30),
		}},
		{"a reader beside a permit", "held twice", []history.Event{permit("a", 0, 1, 10, 40), reads("b", 2, 15, 30)}},
		{"a permit's token that falls", "not greater", []history.Event{
			permit("a", 0, 5, 10, 20), permit("b", 1, 4, 22, 30),
		}},
	} {
		err := history.Check(c.h)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
		if err := history.Verify(c.h, history.Options{}); err != nil {
			t.Errorf("%s: the judges of locks with one holder look at it: %v", c.what, err)
		}
	}
}

// A long history of readers takes no longer than one of holders alone: looking at each pair of them would take minutes.
func TestManyReaders(t *testing.T) {
	var h []history.Event
	for i := range 100_000 {
		e := granted("r", 1, history.Moment(10*i), history.Moment(10*i+5))
		e.Mode = backend.Reader
		h = append(h, e)
	}
	began := time.Now()
	if err := history.Check(h); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a history of %d readers took %v", len(h), took)
	}
}
