package main

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// feed is an output whose lines can be waited for.
type feed struct {
	lines chan string
	mu    sync.Mutex
	rest  string
}

func newFeed() *feed { return &feed{lines: make(chan string, 1000)} }

func (f *feed) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest += string(p)
	for {
		line, rest, ok := strings.Cut(f.rest, "\n")
		if !ok {
			return len(p), nil
		}
		f.lines <- line
		f.rest = rest
	}
}

func (f *feed) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-f.lines:
		return line
	case <-time.After(patience):
		t.Fatalf("no line after %v", patience)
		return ""
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"frobnicate"},
		{"--nope"},
		{"ls", "--nope"},
		{"ls", "a", "b"},
		{"version", "x"},
		{"config", "chekc"},
		{"completion"},
		{"completion", "bahs"},
		{"help", "rnu"},
		{"help", "migrate", "strat"},
		{"migrate"},
		{"migrate", "finsh"},
		{"migrate", "advance", "--phase", "to", "--wait", "0"},
		{"conform", "--parallel", "0"},
		{"--url", "", "ls"},
		{"--url"},
	} {
		got := invoke(t, on("memory://"), args...)
		if got.code != cli.ExitUsage || !strings.HasPrefix(got.err, "fencelock: ") ||
			!strings.Contains(got.err, "\nusage: fencelock") || got.out != "" {
			t.Errorf("%q: got %+v, want code 64 and the usage on stderr", args, got)
		}
	}
	got := invoke(t, on(""), "run", "n", "--", "true")
	if got.code != cli.ExitUsage || !strings.Contains(got.err, "FENCELOCK_URL is empty") {
		t.Errorf("an empty variable: got %+v, want code 64, and no lock elsewhere", got)
	}
	if got := invoke(t, nil); got.code != 0 || !strings.Contains(got.out, "Available Commands:") {
		t.Errorf("without arguments: got %+v, want the help", got)
	}
}

func TestErrorsAsJSON(t *testing.T) {
	t.Parallel()
	got := invoke(t, on("nosuch://x"), "ls", "--json")
	e := decode[struct {
		Error string
		Code  int
	}](t, got.err)
	if got.code != 64 || e.Code != 64 || !strings.Contains(e.Error, `"nosuch"`) ||
		strings.Contains(e.Error, "fencelock: ") {
		t.Errorf("got %+v", got)
	}
	// Also where a bad flag stands before it; behind -- it is COMMAND's.
	if got := invoke(t, nil, "run", "--nosuch", "--json", "n", "--", "true"); got.code != 64 ||
		!strings.HasPrefix(got.err, `{"error":`) {
		t.Errorf("a bad flag before --json: got %+v", got)
	}
	if got := invoke(t, nil, "run", "--nosuch", "n", "--", "true", "--json"); got.code != 64 ||
		strings.HasPrefix(got.err, "{") {
		t.Errorf("COMMAND's --json: got %+v", got)
	}
}

func TestNoPassword(t *testing.T) {
	t.Parallel()
	const url = "redis://user:s3cr@t@127.0.0.1:1/0"
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"--url", url, "ls"}, 69},
		{[]string{"--url", url + "?nope=1", "ls"}, 64},
		{[]string{"--url", "redis://user:s3cr%t@h/", "ls"}, 64},
		{[]string{"--url", "redis:/user:s3cr@t", "ls"}, 64},
		{[]string{"--url", "s3cr@t://h", "ls"}, 64},
		{[]string{"--url", url + "\n", "ls"}, 64},
		{[]string{url}, 64},
		{[]string{"--" + url}, 64},
		{[]string{"ls", "--" + url}, 64},
		{[]string{"ls", "a", url}, 64},
		{[]string{"run", "--wait", url, "n", "true"}, 64},
		{[]string{"run", "n", url}, 127},
	} {
		got := invoke(t, map[string]string{"FENCELOCK_URL": "memory://"}, c.args...)
		if got.code != c.code || strings.Contains(got.out+got.err, "s3cr") {
			t.Errorf("%q: got %+v, want code %d and no password", c.args, got, c.code)
		}
	}
	if got := invoke(t, nil, "--url", "host", "ls"); !strings.Contains(got.err, "scheme://[user:password@]host") {
		t.Errorf("got %+v, want the form of a URL", got)
	}
}

func TestFlagWins(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	hold(t, url, "n")
	got := invoke(t, on("nosuch://x"), "--url", url, "ls")
	if got.code != 0 || !strings.Contains(got.out, "n ") {
		t.Errorf("got %+v, want the store of --url", got)
	}
}
