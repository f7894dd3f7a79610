package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// watching starts a watch in this process and returns its output, and what ends it and returns its exit code.
func watching(t *testing.T, url string, args ...string) (*feed, func() int) {
	t.Helper()
	lines := newFeed()
	a := &app{in: strings.NewReader(""), out: lines, err: lines, tempDir: t.TempDir, lookup: func(k string) (string, bool) { v, ok := on(url)[k]; return v, ok }}
	done := make(chan int, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	t.Cleanup(interrupt)
	go func() { done <- a.execute(ctx, append([]string{"watch", "--interval", "10ms"}, args...)) }()
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
	next := func(event, name string, token fencelock.Token, older bool) changeJSON {
		t.Helper()
		got := decode[changeJSON](t, lines.next(t))
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
	if want := `^\S+  held      a/2  owner \S+  token \d+\n$`; !regexp.MustCompile(want).MatchString(got.out) || got.code != 0 {
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

func TestChangeOf(t *testing.T) {
	t.Parallel()
	one, two := fencelock.Info{Owner: "o", Token: 1}, fencelock.Info{Owner: "o", Token: 2}
	for _, c := range []struct {
		first, was, is bool
		old, info      fencelock.Info
		want           string
	}{
		{true, false, true, fencelock.Info{}, one, "held"},
		{true, false, false, fencelock.Info{}, fencelock.Info{}, ""},
		{false, false, true, fencelock.Info{}, one, "acquired"},
		{false, true, false, one, fencelock.Info{}, "released"},
		{false, true, true, one, two, "changed"},
		{false, true, true, one, one, ""},
	} {
		if got := changeOf(c.first, c.was, c.is, c.old, c.info); got != c.want {
			t.Errorf("changeOf(%+v) = %q", c, got)
		}
	}
}

// taking feeds a view with looks a second apart; nil is an outage.
func taking(v *view, start time.Time, looks ...[]fencelock.Info) (changes []change, now time.Time) {
	for i, infos := range looks {
		now = start.Add(time.Duration(i) * time.Second)
		l := look{at: now, infos: infos}
		if infos == nil {
			l.err = errors.New("down")
		}
		changes = append(changes, v.take(l)...)
	}
	return changes, now
}

func TestViewSince(t *testing.T) {
	t.Parallel()
	a := fencelock.Info{Name: "a", Held: true, Token: 1}
	a2 := fencelock.Info{Name: "a", Held: true, Token: 2}
	b := fencelock.Info{Name: "b", Held: true, Token: 3}
	waited := fencelock.Info{Name: "a", Waiters: 1}
	infos := func(i ...fencelock.Info) []fencelock.Info { return append([]fencelock.Info{}, i...) }
	for _, c := range []struct {
		name   string
		looks  [][]fencelock.Info
		events []string
		shown  []string // of the rows, at the last look
		out    bool
	}{
		{"there at first", [][]fencelock.Info{infos(a), infos(a), infos(a)}, []string{"held a"}, []string{">2s"}, false},
		{"begins later", [][]fencelock.Info{infos(), infos(a), infos(a)}, []string{"acquired a"}, []string{"1s"}, false},
		{"changes", [][]fencelock.Info{infos(a), infos(a2), infos(a2)}, []string{"held a", "changed a"}, []string{"1s"}, false},
		{"ends", [][]fencelock.Info{infos(a, b), infos(b)}, []string{"held a", "held b", "released a"}, []string{">1s"}, false},
		{"is waited for", [][]fencelock.Info{infos(waited), infos(a), infos(waited)}, []string{"acquired a", "released a"}, []string{"-"}, false},
		{"outage", [][]fencelock.Info{infos(a), nil, nil}, []string{"held a"}, []string{">2s"}, true},
		{"the same after an outage", [][]fencelock.Info{infos(), infos(a), nil, infos(a)}, []string{"acquired a"}, []string{"2s"}, false},
		{"another after an outage", [][]fencelock.Info{infos(), infos(a), nil, infos(a2), infos(a2)}, []string{"acquired a", "changed a"}, []string{">1s"}, false},
	} {
		v := &view{every: time.Second}
		changes, now := taking(v, time.Unix(1000, 0), c.looks...)
		var events, shown []string
		for _, ch := range changes {
			events = append(events, ch.event+" "+ch.Name)
		}
		for _, r := range v.rows {
			shown = append(shown, r.seenFor(now))
		}
		if !slices.Equal(events, c.events) || !slices.Equal(shown, c.shown) || (v.outage != nil) != c.out {
			t.Errorf("%s: got events %q, seen %q, outage %v; want %q, %q, %v", c.name, events, shown, v.outage, c.events, c.shown, c.out)
		}
	}
}

func TestViewCountsDown(t *testing.T) {
	t.Parallel()
	v := &view{every: time.Second}
	_, now := taking(v, time.Unix(1000, 0), []fencelock.Info{
		{Name: "a", Held: true, ExpiresIn: 10 * time.Second, Waiters: 2},
		{Name: "b", Held: true, Leaked: true, Waiters: 1},
	})
	for _, c := range []struct {
		row   int
		after time.Duration
		want  string
	}{
		{0, 0, "10s"},
		{0, 2500 * time.Millisecond, "8s"},
		{0, 9999 * time.Millisecond, "1s"},
		{0, 20 * time.Second, "0s"}, // the store has the word, at the next look
		{1, 20 * time.Second, "never"},
	} {
		if got := expiryBrief(v, v.rows[c.row], now.Add(c.after)); got != c.want {
			t.Errorf("row %d after %v: got %q, want %q", c.row, c.after, got, c.want)
		}
	}
	if holds, waiting := v.counts(); holds != 2 || waiting != 3 {
		t.Errorf("counts: got %d, %d, want 2, 3", holds, waiting)
	}
	v.rows[0].Waiters = -1
	if _, waiting := v.counts(); waiting != -1 {
		t.Errorf("waiting: got %d, want -1: unknown", waiting)
	}
}

// A store that hangs is an outage, not a watch that stands still.
func TestLookIsBounded(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	locks := client(t, s.URL())
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Resume() })
	if l := lookOnce(t.Context(), locks, "", 50*time.Millisecond); !errors.Is(l.err, fencelock.ErrUnavailable) || !strings.Contains(l.err.Error(), "50ms") {
		t.Errorf("got %v, want ErrUnavailable that names the time", l.err)
	}
}

func TestBrief(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                                "0s",
		59*time.Second + 999e6:           "59s",
		time.Minute:                      "1m0s",
		3*time.Minute + 20*time.Second:   "3m20s",
		5*time.Hour + 4*time.Minute + 59: "5h4m",
		291 * time.Hour:                  "12d3h",
	} {
		if got := brief(d); got != want {
			t.Errorf("brief(%v): got %q, want %q", d, got, want)
		}
	}
}
