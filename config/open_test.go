package config_test

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

// folder is the URL of a file backend of its own.
func folder(t *testing.T) string {
	t.Helper()
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(t.TempDir())}).String()
}

// open opens a file's text until the end of the test.
func open(t *testing.T, text string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := mustLoad(t, text).Open(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// at opens one store by its URL, as a program without a configuration does.
func at(t *testing.T, url string) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func lock(t *testing.T, l *fencelock.Locker, name string) *fencelock.Lease {
	t.Helper()
	le, err := l.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatalf("lock of %s: %v", name, err)
	}
	return le
}

func held(t *testing.T, l *fencelock.Locker, name string) bool {
	t.Helper()
	info, err := l.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Held
}

func names(t *testing.T, l *fencelock.Locker, prefix string) string {
	t.Helper()
	var all []string
	for info, err := range l.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// record keeps events.
type record struct {
	mu  sync.Mutex
	all []fencelock.Event
}

func (r *record) Observe(_ context.Context, e fencelock.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *record) backends(kind fencelock.EventKind) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := map[string]string{}
	for _, e := range r.all {
		if e.Kind == kind {
			m[e.Name] = e.Backend
		}
	}
	return m
}

// One Locker over two folders and another store: every name is where its rule says, and nowhere else.
func TestOpenRoutes(t *testing.T) {
	t.Parallel()
	first, second, third := folder(t), folder(t), "counted://"+fresh()
	var seen record
	l := open(t,
		"backends:\n  one: {url: \""+first+"\", ttl: 5s}\n  two: {url: \""+second+
			"\"}\n  red: {url: \""+third+"\"}\n"+`locks:
  - {match: "one/keep", scenario: inventory, backend: two}
  - {match: "one/*", scenario: general, backend: one}
  - {match: "red/*", scenario: deduplication, backend: red}
  - {match: "two", scenario: inventory, backend: two}
`, fencelock.WithObserver(&seen))
	stores := map[string]*fencelock.Locker{"one": at(t, first), "two": at(t, second), "red": at(t, third)}
	if got := l.Traits(); got.Name != "file+counted" || !got.FIFO || got.ClockFree || got.DeadWaiter != 3*time.Second {
		t.Errorf("traits: got %+v, want the weakest of file and counted", got)
	}
	where := map[string]string{"one/a": "one", "one/keep": "two", "one/keeper": "one", "red/a": "red", "two": "two"}
	leases := map[string]*fencelock.Lease{}
	for name, store := range where {
		leases[name] = lock(t, l, name)
		for s, locks := range stores {
			if got := held(t, locks, name); got != (s == store) {
				t.Errorf("%s: held in %s is %v, want it in %s only", name, s, got, store)
			}
		}
	}
	if got := time.Until(leases["one/a"].Deadline()); got > 5*time.Second || got < time.Second {
		t.Errorf("one/a is trusted for %v, want the backend's ttl of 5s", got)
	}
	// Names that lie in a store, and that the rules send elsewhere or nowhere, are not this Locker's.
	lock(t, stores["two"], "one/stray")
	lock(t, stores["red"], "two")
	lock(t, stores["red"], "other")
	if got, want := names(t, l, ""), "one/a one/keep one/keeper red/a two"; got != want {
		t.Errorf("list: got %s, want %s", got, want)
	}
	if got, want := names(t, l, "one/k"), "one/keep one/keeper"; got != want {
		t.Errorf("list of a prefix: got %s, want %s", got, want)
	}
	if err := l.Break(t.Context(), "red/a"); err != nil || held(t, stores["red"], "red/a") ||
		leases["red/a"].Err() == nil {
		t.Errorf("break: got %v, lease %v, want it free there", err, leases["red/a"].Err())
	}
	if !held(t, l, "one/a") || held(t, l, "red/a") {
		t.Error("inspect does not ask the name's store")
	}
	// General has re-entrancy, the others do not.
	for name, want := range map[string]error{"one/a": nil, "two": fencelock.ErrDeadlock} {
		ctx, cancel := leases[name].Context(t.Context())
		if _, err := l.Mutex(name).Lock(ctx); !errors.Is(err, want) {
			t.Errorf("%s again: got %v, want %v", name, err, want)
		}
		cancel()
	}
	for what, err := range map[string]error{
		"lock":    func() error { _, err := l.Mutex("other").Lock(t.Context()); return err }(),
		"inspect": func() error { _, err := l.Inspect(t.Context(), "other"); return err }(),
		"break":   l.Break(t.Context(), "other"),
	} {
		if !errors.Is(err, fencelock.ErrInvalid) || !strings.Contains(err.Error(), `"one/*"`) {
			t.Errorf("%s of a name without a rule: got %v, want ErrInvalid with the rules", what, err)
		}
	}
	kinds := map[string]string{"one": "file", "two": "file", "red": "counted"}
	for name, b := range seen.backends(fencelock.Acquired) {
		if want := kinds[where[name]]; b != want {
			t.Errorf("event of %s: got backend %s, want %s", name, b, want)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for name, store := range where {
		if name != "one/a" && held(t, stores[store], name) != (name == "two" && store == "red") {
			t.Errorf("%s is held after Close", name)
		}
	}
	if _, err := l.Mutex("one/a").TryLock(t.Context()); !errors.Is(err, fencelock.ErrClosed) {
		t.Errorf("after Close: got %v, want ErrClosed", err)
	}
}

// A store is opened once and closed once, whoever uses it: several rules, and a migration.
func TestSharedStoresAreOpenedOnce(t *testing.T) {
	t.Parallel()
	run := fresh()
	text := strings.ReplaceAll(`
backends:
  a: {url: "counted://shared-a"}
  b: {url: "counted://shared-b?ttl=10s"}
  spare: {url: "counted://shared-spare"}
  m: {migrate: {from: a, to: b, phase: both}}
locks:
  - {match: "a/*", scenario: general, backend: a}
  - {match: "also", scenario: inventory, backend: a}
  - {match: "m/*", scenario: inventory, backend: m}
  - {match: "b/*", scenario: deduplication, backend: b}
`, "shared", run)
	l := open(t, text)
	for _, name := range []string{"a/1", "also", "m/1", "b/1"} {
		lock(t, l, name)
	}
	if got, want := names(t, l, ""), "a/1 also b/1 m/1"; got != want {
		t.Errorf("list: got %s, want %s", got, want)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for host, want := range map[string]int{run + "-a": 1, run + "-b": 1, run + "-spare": 0} {
		if opens, closes := counts(host); opens != want || closes != want {
			t.Errorf("%s: opened %d times and closed %d times, want %d", host, opens, closes, want)
		}
	}
}

// A driver that is not in the catalog is held to the scenario once it can be asked. A program that does not start for
// that has switched no migration.
func TestScenariosAreCheckedAtOpen(t *testing.T) {
	t.Parallel()
	run := fresh()
	text := strings.ReplaceAll(`
backends:
  a: {url: "counted://run-a?fencing=none"}
  b: {url: "counted://run-b"}
  left: {url: "counted://run-left"}
  moving: {migrate: {from: left, to: b, phase: to}}
locks:
  - {match: "moving/*", scenario: inventory, backend: moving}
  - {match: "b", scenario: general, backend: b}
  - {match: "x/*", scenario: inventory, backend: a}
`, "run", run)
	c := mustLoad(t, text)
	if r := c.Rules()[2]; r.Backend.Known ||
		!strings.Contains(strings.Join(r.Explain().Not, "\n"), "without connecting") {
		t.Errorf("got %+v, want traits that are not known", r.Explain())
	}
	_, err := c.Open(t.Context())
	op, ok := errors.AsType[*fencelock.OpError](err)
	if !ok || op.Op != "open" || !errors.Is(err, fencelock.ErrUnsupported) {
		t.Fatalf("got %v, want an OpError that matches ErrUnsupported", err)
	}
	for _, says := range []string{`"x/*"`, "inventory", "Fencing anchored", "counted", `backend "a"`} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want it to say %s", err, says)
		}
	}
	for _, host := range []string{run + "-a", run + "-b"} {
		if opens, closes := counts(host); opens != 1 || closes != 1 {
			t.Errorf("%s: opened %d times and closed %d times after an error, want once", host, opens, closes)
		}
	}
	lock(t, at(t, "counted://"+run+"-left"), "moving/1")
}

// overdue is a context whose deadline has passed, and which does not end.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }
func (overdue) Done() <-chan struct{}       { return nil }
func (overdue) Err() error                  { return nil }

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	down := "counted://:" + secret + "@127.0.0.1:1"
	text := func(host, url string) string {
		return "backends: {up: {url: \"counted://" + host + "\"}, down: {url: \"" + url + "\"}}\nlocks:\n" +
			"  - {match: \"u\", scenario: general, backend: up}\n  - {match: \"*\", scenario: general, backend: down}\n"
	}
	gone, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("gone home")
	cancel(errGone)
	tests := map[string]struct {
		ctx  context.Context // nil: one that ends soon
		url  string
		opts []fencelock.Option
		want []error
		says string
	}{
		"down":      {t.Context(), down, nil, []error{fencelock.ErrUnavailable}, `backend "down"`},
		"a bad key": {t.Context(), down + "?colour=red", nil, []error{fencelock.ErrInvalid}, `"colour"`},
		"a short TTL": {
			t.Context(), "memory://",
			[]fencelock.Option{fencelock.WithTTL(time.Millisecond)},
			[]error{fencelock.ErrInvalid},
			`backend "up"`,
		},
		"a need": {
			t.Context(), "memory://",
			[]fencelock.Option{fencelock.Require(fencelock.Need{ClockFree: true})},
			[]error{fencelock.ErrUnsupported},
			"ClockFree",
		},
		"a dead ctx": {gone, "memory://", nil, []error{context.Canceled, errGone}, ""},
		"no answer": {
			nil, "counted://" + silent(t), nil,
			[]error{context.DeadlineExceeded, fencelock.ErrUnavailable},
			`backend "down"`,
		},
		"dead and bad": {gone, down, nil, []error{context.Canceled, errGone}, ""},
		"a ctx that never ends": {
			overdue{t.Context()}, down, nil, []error{fencelock.ErrUnavailable}, `backend "down"`,
		},
	}
	for name, tt := range tests {
		host := fresh()
		began := time.Now()
		if tt.ctx == nil {
			hang, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer stop()
			tt.ctx = hang
		}
		l, err := mustLoad(t, text(host, tt.url)).Open(tt.ctx, tt.opts...)
		for _, want := range tt.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		if _, ok := err.(*fencelock.OpError); !ok || l != nil ||
			!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v, %v, want one OpError that says %q", name, l, err, tt.says)
		}
		if opens, closes := counts(host); opens != closes {
			t.Errorf("%s: opened %d times and closed %d times", name, opens, closes)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("%s: took %v, want at most 5s", name, took)
		}
	}
}

// For opens what one name needs and nothing else, so that a store that is down elsewhere does not matter.
func TestForOneName(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "backends: {up: {url: \""+folder(t)+"\"}, down: {url: \"redis://127.0.0.1:1\"}}\nlocks:\n"+
		"  - {match: \"x/y\", scenario: general, backend: down}\n  - {match: \"x/*\", scenario: "+
		"inventory, backend: up}\n")
	one, err := c.For("x/a")
	if err != nil {
		t.Fatal(err)
	}
	l, err := one.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lock(t, l, "x/a")
	if got := l.Traits().Name; got != "file" {
		t.Errorf("got traits of %s, want those of the name's backend", got)
	}
	for _, other := range []string{"x/y", "x/b"} {
		if _, err := l.Mutex(other).TryLock(t.Context()); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", other, err)
		}
	}
	if got := names(t, l, ""); got != "x/a" {
		t.Errorf("list: got %s, want x/a", got)
	}
	for _, bad := range []string{"", "z", "x"} {
		if _, err := c.For(bad); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", bad, err)
		}
	}
}
