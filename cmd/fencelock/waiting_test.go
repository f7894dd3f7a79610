package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// heldBy locks a name as another program would, until the test ends.
func heldBy(t *testing.T, url, name, owner string) {
	t.Helper()
	l := client(t, url)
	if _, err := l.Mutex(name, fencelock.WithOwner(owner)).TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Whoever waits in vain learns who had the lock, and with which code run exits is the caller's choice.
func TestNotObtainedNamesTheHolder(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	heldBy(t, url, "backup", "db-7:4711")
	for _, tt := range []struct {
		flags string
		code  int
		want  string
	}{
		{"--wait 0", 75, "backup was not obtained: held by db-7:4711 (for "},
		{"--wait 100ms", 75, "backup was not obtained within 100ms: held by db-7:4711 (for "},
		{"--wait 0 --conflict-exit-code 3", 3, "held by db-7:4711"},
		{"--wait 100ms -E 0", 0, "held by db-7:4711"},
		{"--wait 0 -E 256", 64, "want 0 to 255"},
		{"--wait 0 -E -1", 64, "want 0 to 255"},
	} {
		args := append(append([]string{"run"}, strings.Fields(tt.flags)...), "backup", "--", "true")
		if got := invoke(t, on(url), args...); got.code != tt.code || !strings.Contains(got.err, tt.want) {
			t.Errorf("%s: got %+v, want code %d and %q", tt.flags, got, tt.code, tt.want)
		}
	}
}

// A wait is told with --verbose, and otherwise on a terminal only.
func TestWaitingIsTold(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	heldBy(t, url, "backup", "db-7:4711")
	const asURL = "redis://u:s3cret@h:6379/0" // a URL in the wrong place
	heldBy(t, url, asURL, "")
	if got := invoke(t, on(url), "run", "-v", "--wait", "1s", asURL, "--", "true"); got.code != 75 ||
		!strings.Contains(got.err, "waiting for") || strings.Contains(got.err, "s3cret") {
		t.Errorf("got %+v, want code 75 and no password", got)
	}
	for _, flags := range []string{"--wait 800ms", "--json --wait 800ms"} {
		args := append(append([]string{"run"}, strings.Fields(flags)...), "backup", "--", "true")
		if got := invoke(t, on(url), args...); strings.Contains(got.err, "waiting") || got.code != 75 {
			t.Errorf("%s: got %+v, want code 75 and nothing of the wait", flags, got)
		}
	}
	for flags, want := range map[string]string{
		"--verbose": "waiting for backup, which is held by db-7:4711",
		"-v --json": `"event":"waiting","name":"backup","token":`,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		f := newFeed()
		a := &cli.App{Out: f, Err: f, Lookup: func(string) (string, bool) { return url, true }}
		args := append(append([]string{"run"}, strings.Fields(flags)...), "backup", "--", "true")
		ended := make(chan int, 1)
		go func() { ended <- a.Execute(ctx, root(a), args) }()
		if line := f.next(t); !strings.Contains(line, want) {
			t.Errorf("%s: got %q, want %q", flags, line, want)
		}
		cancel()
		if code := <-ended; code != 130 {
			t.Errorf("%s: got code %d, want 130", flags, code)
		}
	}
}

func TestRunWithoutAName(t *testing.T) {
	t.Parallel()
	got := invoke(t, on(fileStore(t)), "run", "--", "true")
	if got.code != 64 || !strings.Contains(got.err, "no NAME before the --") {
		t.Errorf("got %+v, want code 64 and that the NAME is missing", got)
	}
}

// The shell is offered the names that are held, for what takes one, and nothing for what does not.
func TestCompletionOffersNames(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	for _, name := range []string{"jobs/a", "jobs/b", "other"} {
		heldBy(t, url, name, "me")
	}
	for line, want := range map[string]string{
		"run jobs/":         "jobs/a jobs/b",
		"inspect jobs/a":    "jobs/a",
		"break jo":          "jobs/a jobs/b",
		"ls ":               "jobs/a jobs/b other",
		"watch ot":          "other",
		"inspect jobs/a jo": "",
	} {
		got := invoke(t, on(url), append([]string{"__complete"}, strings.Split(line, " ")...)...)
		var names []string
		for l := range strings.Lines(got.out) {
			if l = strings.TrimSpace(l); !strings.HasPrefix(l, ":") {
				names = append(names, l)
			}
		}
		for _, w := range strings.Fields(want) {
			if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+w+" ") {
				t.Errorf("%q: got %q, want %q", line, names, want)
			}
		}
		if len(names) != len(strings.Fields(want)) {
			t.Errorf("%q: got %q, want %q", line, names, want)
		}
	}
}

// A store that is down is named by its address, and a slip of the pen is recognised.
func TestErrorsOfURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"etcd://127.0.0.1:1":          "127.0.0.1:1",
		"postgres://x@127.0.0.1:1/db": "127.0.0.1:1",
		"reddis://h":                  "did you mean redis://?",
		"ecd://h":                     "did you mean etcd://?",
		"zookeepre://h":               "did you mean zookeeper://?",
		"redis:/x":                    "no scheme with // behind it: want one such as redis://host",
		"redis:x":                     "no scheme with // behind it: want one such as redis://host",
	} {
		began := time.Now()
		got := invoke(t, on(url), "run", "--wait", "0", "n", "--", "true")
		if !strings.Contains(got.err, want) ||
			strings.Count(got.err, want) > 1 && strings.Contains(url, "postgres") &&
				strings.Count(got.err, "dial error") > 1 {
			t.Errorf("%s: got %+v after %v, want %q", url, got, time.Since(began), want)
		}
	}
}
