package main

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// turns are leases of one lock that were unlocked one after the other.
func turns(name string, from history.Moment, ps ...string) (events []history.Event) {
	for i, p := range ps {
		tok, at := backend.Token(i+1), from+history.Moment(10*i)
		events = append(
			events,
			history.Event{
				Kind: history.Granted, Process: p, Name: name, Token: tok, Called: at, At: at + 1, Until: at + 100,
			},
			history.Event{Kind: history.Ended, Process: p, Name: name, Token: tok, At: at + 5, Until: at + 100},
			history.Event{
				Kind: history.Freed, Process: p, Name: name, Token: tok, Called: at + 5, At: at + 6, Result: history.OK,
			},
		)
	}
	return events
}

// recorded writes a history, compressed if its name says so.
func recorded(t *testing.T, name string, events []history.Event, opts history.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := history.Save(path, events, opts); err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".gz") {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		z := gzip.NewWriter(f)
		if _, err := z.Write(raw); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

type checkLock struct {
	Lock                        string
	Leases, Holders, Operations int
	First                       int64  `json:"first_token"`
	Last                        int64  `json:"last_token"`
	Lease                       string `json:"lease_model"`
	Mutex                       string `json:"fenced_mutex"`
}

type checkSums struct {
	Events, Processes, Locks int
	Verdict                  string
	Violations, Undecided    []string
}

func TestCheckGoodHistory(t *testing.T) {
	t.Parallel()
	h := slices.Concat(turns("jobs/a", 10, "w1", "w2", "w1"), turns("b", 15, "w2"))
	for _, name := range []string{"h.jsonl", "h.jsonl.gz"} {
		path := recorded(t, name, h, history.Options{})
		got := invoke(t, nil, "check", path)
		if got.code != 0 || got.err != "" ||
			!strings.Contains(got.out, "jobs/a: 3 leases of 2 holders, tokens 1 to 3\n"+
				"  lease model   kept, by a search over 6 operations\n  fenced mutex  kept\n") ||
			!strings.Contains(got.out, "\nkept: 12 events of 2 processes, 2 locks\n") {
			t.Errorf("%s: got %+v", name, got)
		}
		got = invoke(t, nil, "check", "--json", path)
		lines := strings.Split(strings.TrimSpace(got.out), "\n")
		if got.code != 0 || len(lines) != 3 {
			t.Fatalf("%s: got %+v, want an object for each lock and one with the sums", name, got)
		}
		want := checkLock{"jobs/a", 3, 2, 6, 1, 3, "kept", "kept"}
		if l := decode[checkLock](t, lines[1]); l != want {
			t.Errorf("%s: got %+v, want %+v", name, l, want)
		}
		if s := decode[checkSums](t, lines[2]); s.Verdict != "kept" || s.Locks != 2 || s.Violations == nil ||
			len(s.Violations) != 0 {
			t.Errorf("%s: got %+v", name, s)
		}
	}
}

func TestCheckViolation(t *testing.T) {
	t.Parallel()
	h := append(turns("x", 10, "w1", "w2"), history.Event{ // while w2 had it, until its deadline
		Kind: history.Granted, Process: "w3", Name: "x", Token: 3, Called: 21, At: 22, Until: 90,
	})
	path := recorded(t, "h.jsonl", h, history.Options{})
	got := invoke(t, nil, "check", path)
	for _, want := range []string{
		"x: 3 leases of 3 holders, tokens 1 to 3\n  lease model   broken", "fenced mutex  broken", "\nbroken: 7 events",
		`"x" was held twice for 3ns: by w2 with token 2`, `"x": no order of its 5 calls is legal`,
		"w3#3 acquired it by 22ns, and before that w2#2 released or lost it, at 25ns at the earliest",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	if got.code != 1 {
		t.Errorf("got code %d, want 1", got.code)
	}
	lines := strings.Split(strings.TrimSpace(invoke(t, nil, "check", "--json", path).out), "\n")
	if s := decode[checkSums](t, lines[len(lines)-1]); s.Verdict != "broken" || len(s.Violations) != 3 {
		t.Errorf("got %+v, want what the sweeps, the lease model and the mutex say", s)
	}
	if got := invoke(t, nil, "check", "--plain", path); got.code != 0 {
		t.Errorf("of a lock that need not exclude: got %+v", got)
	}
	path = recorded(t, "h.jsonl", h, history.Options{Plain: true})
	if got := invoke(t, nil, "check", path); got.code != 0 {
		t.Errorf("whose file says so: got %+v", got)
	}
}

// A search that takes too long is no verdict.
func TestCheckUndecided(t *testing.T) {
	t.Parallel()
	var h []history.Event
	for i := range 60 { // every order of writes that may have been made must be tried, and none helps
		p, tok := "w"+string(rune('A'+i)), backend.Token(i+1)
		h = append(h, history.Event{Kind: history.Wanted, Process: p, Name: "x", Token: tok, At: 1},
			history.Event{
				Kind: history.Granted, Process: p, Name: "x", Token: tok, Called: 1, At: 1000, Until: 1000,
			})
	}
	h = append(h, history.Event{Kind: history.Counted, Name: "x"}, history.Event{
		Kind: history.Shown, Process: "wA", Name: "x", Token: 1, Called: 1001, At: 1001, Result: history.OK,
	}, history.Event{
		Kind: history.Shown, Process: "wA", Name: "x", Token: 1, Called: 999, At: 999, Result: history.Refused,
	}, history.Event{
		Kind: history.Shown, Process: "wA", Name: "x", Token: 1, Called: 998, At: 998, Result: history.OK,
	})
	began := time.Now()
	got := invoke(t, nil, "check", "--timeout", "50ms", recorded(t, "h.jsonl", h, history.Options{}))
	if got.code != 75 || !strings.Contains(got.out, "\nundecided: ") ||
		!strings.Contains(got.out, "lease model   undecided") {
		t.Errorf("got %+v after %v, want code 75", got, time.Since(began))
	}
}

func TestCheckBadFile(t *testing.T) {
	t.Parallel()
	path := recorded(t, "h.jsonl", turns("x", 10, "w1"), history.Options{})
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw[:len(raw)-9], 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("name: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{path, "h.jsonl:3: the file is cut off in this line"},
		{other, "other:1: it is no event of a history"},
		{filepath.Join(t.TempDir(), "none"), "no such file"},
	} {
		got := invoke(t, nil, "check", c.path)
		if got.code != 64 || got.out != "" || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: got %+v, want code 64 and %q", c.path, got, c.want)
		}
	}
	got := invoke(t, nil, "check", "--timeout", "0s", path)
	if got.code != 64 || !strings.Contains(got.err, "--timeout") {
		t.Errorf("no time: got %+v", got)
	}
}

func TestCheckEDN(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "jepsen")
	h := slices.Concat(turns("jobs/a", 10, "w1", "w2"), turns("jobs-a", 10, "w1"))
	path := recorded(t, "h.jsonl", h, history.Options{})
	if got := invoke(t, nil, "check", "--edn", dir, path); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	for name, lines := range map[string]int{"jobs%2Fa.edn": 8, "jobs-a.edn": 4} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.Count(string(text), "\n") != lines ||
			!strings.HasPrefix(string(text), "{:index 0, :time 0, :process 0, :type :invoke, :f :acquire, ") {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
	}
	if got := invoke(t, nil, "check", "--edn", path, path); got.code != 64 || !strings.Contains(got.err, "--edn") {
		t.Errorf("into a file: got %+v", got)
	}
}
