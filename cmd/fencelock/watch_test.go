package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// watching starts a watch in this process and returns its output, and what ends it and returns its exit code.
func watching(t *testing.T, url string, args ...string) (*feed, func() int) {
	t.Helper()
	lines := newFeed()
	a := &cli.App{
		In: strings.NewReader(""), Out: lines, Err: lines, TempDir: t.TempDir,
		Lookup: func(k string) (string, bool) { v, ok := on(url)[k]; return v, ok },
	}
	done := make(chan int, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	t.Cleanup(interrupt)
	go func() { done <- a.Execute(ctx, root(a), append([]string{"watch", "--interval", "10ms"}, args...)) }()
	return lines, func() int {
		interrupt()
		return <-done
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	first := hold(t, url, "a/1")
	hold(t, url, "b/1")
	lines, end := watching(t, url, "--json", "a/")
	next := func(event, name string, token fencelock.Token, older bool) view.ChangeJSON {
		t.Helper()
		got := decode[view.ChangeJSON](t, lines.next(t))
		if got.Event != event || got.Name != name || got.Token != token || got.Older != older {
			t.Errorf("got %+v, want %s of %s with token %d, older %v", got, event, name, token, older)
		}
		return got
	}
	began := next("held", "a/1", first.Token(), true)
	second := hold(t, url, "a/2")
	next("acquired", "a/2", second.Token(), false)
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := next("released", "a/1", first.Token(), true)
	if want := ended.At.Sub(began.At).Milliseconds(); ended.Seen < want-1 || ended.Seen > want+1 || ended.Held {
		t.Errorf("released: got %+v, want seen for %d ms and not held", ended, want)
	}
	if code := end(); code != 0 {
		t.Errorf("code %d, want 0", code)
	}
	got := invoke(t, on(url), "watch", "--count", "1", "a/")
	want := `^\S+  held      a/2  owner \S+  token \d+\n$`
	if !regexp.MustCompile(want).MatchString(got.out) || got.code != 0 {
		t.Errorf("got %+v, want %s", got, want)
	}
	for _, args := range [][]string{{"--count", "-1"}, {"--interval", "0"}, {"a", "b"}} {
		if got := invoke(t, on(url), append([]string{"watch"}, args...)...); got.code != 64 {
			t.Errorf("watch %q: got %+v, want code 64", args, got)
		}
	}
}

func TestWatchOutage(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	lease := hold(t, s.URL(), "n")
	lines, end := watching(t, s.URL())
	if got := lines.next(t); !strings.Contains(got, "held") {
		t.Errorf("got %q, want held", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := lines.next(t); !strings.HasPrefix(got, "fencelock: ") {
		t.Errorf("got %q, want the error", got)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	// The data were lost with the server: the next thing that is said is that, not the error again.
	if got := lines.next(t); !strings.Contains(got, "released  n") || !strings.Contains(got, "seen ") {
		t.Errorf("got %q, want released; lease %v", got, lease)
	}
	if code := end(); code != 0 {
		t.Errorf("code %d, want 0", code)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, on(s.URL()), "watch", "--count", "1"); got.code != 69 {
		t.Errorf("no server at the start: got %+v, want code 69", got)
	}
}
