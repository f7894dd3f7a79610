package history_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

func freed(p string, t backend.Token, called, at history.Moment, r history.Result) history.Event {
	return history.Event{Kind: history.Freed, Process: p, Name: "x", Token: t, Called: called, At: at, Result: r}
}

func shown(p string, t backend.Token, at history.Moment, r history.Result) history.Event {
	return history.Event{Kind: history.Shown, Process: p, Name: "x", Token: t, Called: at, At: at + 1, Result: r}
}

func left(p string, t backend.Token, at history.Moment) history.Event {
	return history.Event{Kind: history.Left, Process: p, Name: "x", Token: t, Called: at, At: at + 1}
}

// used is a lease that was asked for, granted, used and given back in order.
func used(p string, t backend.Token, from, to history.Moment) []history.Event {
	return []history.Event{
		granted(p, t, from, from+100), shown(p, t, from+1, history.OK), shown(p, t, from+3, history.OK),
		ended(p, t, to, from+100), freed(p, t, to, to+1, history.OK),
	}
}

// twice is a lease of a whose Unlock was called twice, of which the first may have let b in, who asked at a moment.
func twice(asked history.Moment, first, second history.Result) []history.Event {
	return []history.Event{
		granted("a", 1, 10, 100), ended("a", 1, 12, 100),
		freed("a", 1, 13, 18, first), freed("a", 1, 20, 25, second),
		{Kind: history.Granted, Process: "b", Name: "x", Token: 2, Called: asked, At: asked + 4, Until: 115},
	}
}

// What is legal, among it what nobody knows.
func TestVerify(t *testing.T) {
	backwards := twice(15, history.Unclear, history.OK)
	slices.Reverse(backwards)
	for what, h := range map[string][]history.Event{
		"nothing":             nil,
		"one after the other": slices.Concat(used("a", 1, 10, 20), used("b", 2, 30, 40)),
		"never freed: taken over at the deadline": append([]history.Event{
			granted("a", 1, 10, 110),
		}, used("b", 2, 110, 120)...),
		"a renewed lease, taken over at its last deadline": append([]history.Event{
			granted("a", 1, 10, 110), ended("a", 1, 150, 190),
		}, used("b", 2, 190, 195)...),
		"killed while it gave the lock back": append([]history.Event{
			granted("a", 1, 10, 110), ended("a", 1, 20, 110),
		}, used("b", 2, 30, 40)...),
		"the reply to Unlock was lost": slices.Concat([]history.Event{
			granted("a", 1, 10, 110), ended("a", 1, 20, 110),
			freed("a", 1, 20, 90, history.Unclear),
		}, used("b", 2, 30, 40)),
		"Unlock was done, and its reply came too late to be believed": slices.Concat([]history.Event{
			granted("a", 1, 10, 110), ended("a", 1, 20, 110), freed("a", 1, 20, 120, history.Refused),
		}, used("b", 2, 30, 40)),
		"Unlock was done, its reply was lost, and it was called again": twice(15, history.Unclear, history.OK),
		"the same, by parts in any order":                              backwards,
		"by a store that does not remember it":                         twice(15, history.Unclear, history.Refused),
		"without a reply once more":                                    twice(15, history.Unclear, history.Unclear),
		"Unlock was called again after its reply":                      twice(15, history.OK, history.Unclear),
		"the second Unlock was the one that was done":                  twice(21, history.Unclear, history.OK),
		"lost, and told so": slices.Concat([]history.Event{granted("a", 1, 10, 110)},
			used("b", 2, 115, 120), []history.Event{freed("a", 1, 200, 201, history.Refused)}),
		"an overtaken holder is refused": slices.Concat([]history.Event{granted("a", 1, 10, 110)},
			used("b", 2, 115, 120), []history.Event{
				shown("a", 1, 130, history.Refused),
			}),
		"killed while it wrote: the write may have been made": slices.Concat([]history.Event{
			{Kind: history.Wanted, Process: "b", Name: "x", Token: 2, At: 115},
			granted("a", 1, 10, 110), granted("b", 2, 112, 212), shown("a", 1, 130, history.Refused),
			{Kind: history.Counted, Name: "x"},
		}),
		"the store says who has it": {granted("a", 1, 10, 110), left("a", 1, 50)},
		"and that it is free":       append(used("a", 1, 10, 20), left("", 0, 30)),
		"the reply to the grant was lost, and the store says that it was made": append(used("a", 1, 10, 20),
			history.Event{
				Kind: history.Asked, Process: "b.1", Name: "x", Called: 5, At: 40,
				Result: history.Unclear,
			}, left("b", 2, 50)),
	} {
		if err := errors.Join(history.Check(h), history.Verify(h, history.Options{})); err != nil {
			t.Errorf("%s: got %v, want none", what, err)
		}
	}
}

// died is a lease whose process was killed at a moment.
func died(p string, t backend.Token, from, until, at history.Moment) []history.Event {
	return []history.Event{granted(p, t, from, until), {Kind: history.Died, Process: p, At: at}}
}

// What a lock and a guard with one mistake do. Each is caught by the search; those that have
// culprits, by the sweeps too; those of acquisitions and releases, by the fenced mutex.
func TestMistakes(t *testing.T) {
	for _, m := range []struct {
		what  string
		sweep string // what Check says; empty: it cannot see it
		plain bool   // caught too where the lock need not exclude
		mutex string // what the fenced mutex says; empty: a lock workload has no operation for it
		h     []history.Event
	}{
		{"release without a look at the owner", "", false, "a#1 released or lost it, at 130ns", slices.Concat(
			[]history.Event{granted("a", 1, 10, 110), granted("b", 2, 120, 220)},
			[]history.Event{freed("a", 1, 130, 131, history.OK)},
		)},
		{"and the next one gets in", "held twice", false, "a#1 released or lost it, at 130ns", slices.Concat(
			[]history.Event{
				granted("a", 1, 10, 110), granted("b", 2, 120, 220),
				freed("a", 1, 130, 131, history.OK),
			}, used("c", 3, 140, 150),
		)},
		{"a guard that ignores tokens", "", true, "", slices.Concat(
			[]history.Event{granted("a", 1, 10, 110)}, used("b", 2, 120, 130),
			[]history.Event{shown("a", 1, 140, history.OK)},
		)},
		{"a guard that forgets reads", "", true, "", []history.Event{
			granted("a", 1, 10, 110), granted("b", 2, 120, 220), shown("b", 2, 130, history.OK),
			shown("a", 1, 140, history.OK),
		}},
		{
			"a guard that refuses the holder", "", true, "",
			append([]history.Event{granted("a", 1, 10, 110)}, shown("a", 1, 20, history.Refused)),
		},
		{
			"the token comes from a second round trip", "a lower token", true, "a#2 acquired it by 10ns",
			slices.Concat(used("a", 2, 10, 20), used("b", 1, 30, 40)),
		},
		{
			"the counter goes back on a restart", "one token twice", true, "c#1 acquired it",
			slices.Concat(used("a", 1, 10, 20), used("b", 2, 30, 40), used("c", 1, 50, 60)),
		},
		{
			"a restart loses the lock", "held twice", false, "a#1 released or lost it, at 110ns",
			append([]history.Event{granted("a", 1, 10, 110)}, used("b", 2, 30, 40)...),
		},
		{"a renewal brings a lease back", "held twice", false, "a#1 released or lost it, at 140ns", slices.Concat(
			[]history.Event{granted("a", 1, 10, 110)}, used("b", 2, 120, 130), []history.Event{ended("a", 1, 140, 230)},
		)},
		{"the deadline is counted from the reply", "held twice", false, "lost it, at 200ns", slices.Concat(
			[]history.Event{
				{
					Kind: history.Granted, Process: "a", Name: "x", Token: 1, Called: 10, At: 100,
					Until: 200,
				},
			}, used("b", 2, 112, 120),
		)},
		{
			"a takeover before an Unlock that was called twice", "", false, "a#1 released or lost it, at 13ns",
			twice(8, history.Unclear, history.OK),
		},
		{
			"a takeover after an Unlock that was refused, and called again", "", false,
			"a#1 released or lost it, at 100ns", twice(15, history.Refused, history.Unclear),
		},
		{"a false loss", "", false, "", []history.Event{
			granted("a", 1, 10, 110), freed("a", 1, 20, 21, history.Refused),
		}},
		{"the store keeps what was freed", "", false, "", append(used("a", 1, 10, 20), left("a", 1, 30))},
		{"the store forgets who has it", "", false, "", []history.Event{granted("a", 1, 10, 110), left("", 0, 30)}},
		{
			"a takeover before the deadline, behind a lease that was told late", "", false,
			"a#1 released or lost it, at 100ns", slices.Concat(died("a", 1, 2, 100, 20), []history.Event{
				{Kind: history.Granted, Process: "b", Name: "x", Token: 2, Called: 50, At: 120, Until: 60},
				{Kind: history.Granted, Process: "c", Name: "x", Token: 3, Called: 70, At: 90, Until: 300},
			}),
		},
	} {
		if err := history.Check(m.h); (err == nil) != (m.sweep == "") ||
			err != nil && !strings.Contains(err.Error(), m.sweep) {
			t.Errorf("%s: the sweeps say %v, want %q", m.what, err, m.sweep)
		}
		if err := history.Verify(m.h, history.Options{}); err == nil {
			t.Errorf("%s: the search finds nothing", m.what)
		}
		for _, v := range history.Judge(m.h, history.Options{}) {
			if v.Lease == nil || v.Disagree != nil || (v.Mutex == nil) != (m.mutex == "") ||
				v.Mutex != nil && !strings.Contains(v.Mutex.Error(), m.mutex) {
				t.Errorf("%s: the lease model says %v, the fenced mutex %v, want %q; %v",
					m.what, v.Lease, v.Mutex, m.mutex, v.Disagree)
			}
		}
		if err := history.Verify(m.h, history.Options{Plain: true}); (err != nil) != m.plain {
			t.Errorf("%s, of a lock that need not exclude: got %v, want an error: %v", m.what, err, m.plain)
		}
	}
}

// A grant must not be handed out when its time is over: a client that does not count the time that asking took does.
func TestLateGrants(t *testing.T) {
	const s = history.Moment(time.Second)
	late := history.Event{
		Kind: history.Granted, Process: "w1.0", Name: "x", Token: 1, Called: s, At: 5 * s,
		Until: 3 * s,
	}
	stop := history.Event{Kind: history.Stopped, Process: "w1.0", At: 2 * s}
	other := stop
	other.Process = "w2.0"
	for what, c := range map[string]struct {
		want bool
		h    []history.Event
	}{
		"late":                              {true, []history.Event{late}},
		"its process was stopped meanwhile": {false, []history.Event{late, stop}},
		"another was":                       {true, []history.Event{late, other}},
	} {
		if err := history.Check(c.h); (err != nil) != c.want {
			t.Errorf("%s: got %v, want an error: %v", what, err, c.want)
		}
	}
}

// A store that is down grants nothing; a process that has the lock already may pass it on to itself.
func TestGrantsOfAStoreThatIsDown(t *testing.T) {
	down := history.Event{Kind: history.Down, At: 25, Until: 60}
	at := func(p string, tok backend.Token, called, at history.Moment) history.Event {
		return history.Event{
			Kind: history.Granted, Process: p, Name: "x", Token: tok, Called: called, At: at,
			Until: at + 100,
		}
	}
	for what, c := range map[string]struct {
		want bool
		h    []history.Event
	}{
		"asked for before": {false, []history.Event{down, at("w1.0", 1, 20, 30)}},
		"granted after":    {false, []history.Event{down, at("w1.0", 1, 30, 61)}},
		"within":           {true, []history.Event{down, at("w1.0", 1, 30, 40)}},
		"passed on in the process": {
			false,
			[]history.Event{
				down, at("w1.0", 1, 10, 20), ended("w1.0", 1, 30, 120), at("w1.1", 2, 30, 40),
			},
		},
		"passed on by another": {
			true,
			[]history.Event{
				down, at("w1.0", 1, 10, 20), ended("w1.0", 1, 30, 120), at("w2.1", 2, 30, 40),
			},
		},
	} {
		if err := history.Check(c.h); (err != nil) != c.want {
			t.Errorf("%s: got %v, want an error: %v", what, err, c.want)
		}
	}
}

// A lease that ends with its connection may be over before its deadline, and the next holder come before its Unlock.
func TestVerifyBrittle(t *testing.T) {
	h := slices.Concat([]history.Event{granted("a", 1, 10, 110), ended("a", 1, 20, 110)},
		used("b", 2, 30, 40), []history.Event{freed("a", 1, 50, 51, history.Refused)})
	if err := history.Verify(h, history.Options{}); err == nil {
		t.Error("a lease that only time ends: got no error")
	}
	killed := append([]history.Event{granted("a", 1, 10, 110)}, used("b", 2, 30, 40)...)
	for _, h := range [][]history.Event{h, killed} {
		if err := history.Verify(h, history.Options{Brittle: true}); err != nil {
			t.Errorf("got %v, want none", err)
		}
	}
}

// A break is saved, with a page to look at.
func TestVerifySaves(t *testing.T) {
	dir := t.TempDir()
	h := append([]history.Event{granted("a", 1, 10, 110)}, used("b", 2, 30, 40)...)
	if err := history.Verify(h, history.Options{Save: dir}); err == nil {
		t.Fatal("got no error")
	}
	page, err := os.ReadFile(filepath.Join(dir, "x.html"))
	if err != nil || !strings.Contains(string(page), "acquire 2") {
		t.Errorf("got %d bytes, %v, want the page with its calls", len(page), err)
	}
	f, err := os.Open(filepath.Join(dir, "x.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if events, err := history.Read(f); err != nil || len(events) != len(h) {
		t.Errorf("got %d events, %v, want %d", len(events), err, len(h))
	}
}

// A search that does not end is no pass.
func TestVerifyGivesUp(t *testing.T) {
	var h []history.Event
	for i := range 40 { // every order of calls that nobody knows must be tried, and none helps
		tok := backend.Token(i + 1)
		h = append(h, history.Event{Kind: history.Wanted, Process: "a", Name: "x", Token: tok, At: 1},
			history.Event{Kind: history.Granted, Process: "a", Name: "x", Token: tok, Called: 1, At: 1000, Until: 2000})
	}
	h = append(h, shown("a", 50, 500, history.OK), shown("a", 3, 600, history.OK),
		granted("a", 50, 2, 300), left("b", 0, 400))
	err := history.Verify(h, history.Options{Timeout: 50 * time.Millisecond})
	if !errors.Is(err, history.ErrUnknown) {
		t.Errorf("got %v, want %v", err, history.ErrUnknown)
	}
}
