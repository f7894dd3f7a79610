package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

// The scheme "opening" opens in the way that its key how= says.
func init() {
	backend.Register("opening", func(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		how := q.String("how", "")
		if err := q.Err(); err != nil {
			return nil, err
		}
		d, err := openings[how](ctx)
		if err != nil {
			return nil, err
		}
		return counted{d}, nil
	})
}

// counted counts the drivers that were opened and are not closed.
type counted struct{ backend.Driver }

var opened atomic.Int64

func (d counted) Close() error {
	opened.Add(-1)
	return d.Driver.Close()
}

var openings = map[string]func(context.Context) (backend.Driver, error){
	"": func(context.Context) (backend.Driver, error) {
		opened.Add(1)
		return memory.New()
	},
	"refused": func(context.Context) (backend.Driver, error) { return nil, errStore },
	"rights":  func(context.Context) (backend.Driver, error) { return nil, backend.Invalid("no right to write") },
	"hang": func(ctx context.Context) (backend.Driver, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	},
}

func TestOpen(t *testing.T) {
	bubble(t, func(t *testing.T, _ *fake) {
		l, err := fencelock.Open(t.Context(), "memory://?ttl=15s&prefix=p:", fencelock.WithManualRenew())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		le := lock(t, l.Mutex("n"))
		if got, want := le.Deadline().Sub(start), 14700*time.Millisecond; got != want {
			t.Errorf("deadline with ttl=15s: got %v, want %v", got, want)
		}
		if got := l.Traits().Name; got != "memory" {
			t.Errorf("backend: got %q, want memory", got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestOptionsWinOverTheURL(t *testing.T) {
	bubble(t, func(t *testing.T, _ *fake) {
		l, err := fencelock.Open(t.Context(), "memory://?ttl=15s", fencelock.WithTTL(ttl), fencelock.WithManualRenew())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if got := lock(t, l.Mutex("n")).Deadline().Sub(start); got != trusted {
			t.Errorf("deadline: got %v, want %v, as the option says", got, trusted)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestEachOpenOfMemoryIsAStore(t *testing.T) {
	for range 2 {
		l, err := fencelock.Open(t.Context(), "memory://")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if _, err := l.Mutex("n").TryLock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	tests := map[string]struct {
		url  string
		want error
		says []string
	}{
		"no scheme": {"localhost:6379", fencelock.ErrInvalid, []string{"no scheme"}},
		"empty":     {"", fencelock.ErrInvalid, []string{"no scheme"}},
		"unknown scheme": {
			"mongodb://localhost", fencelock.ErrInvalid,
			[]string{"mongodb", "registered are", "memory", "opening"},
		},
		"not imported": {
			"redis://localhost", fencelock.ErrInvalid,
			[]string{"redis", "memory", `import _ "github.com/fencelock/fencelock/redis"`},
		},
		"unknown key": {
			"memory://?colour=red&ttl=1s", fencelock.ErrInvalid,
			[]string{`"colour"`, "known are", "prefix", "ttl"},
		},
		"unknown keys":       {"opening://?b=1&a=2", fencelock.ErrInvalid, []string{`"a", "b"`, "how", "ttl"}},
		"key twice":          {"memory://?ttl=1s&ttl=2s", fencelock.ErrInvalid, []string{"ttl", "2 times"}},
		"bad ttl":            {"memory://?ttl=soon", fencelock.ErrInvalid, []string{"ttl", "soon", "15s"}},
		"negative ttl":       {"memory://?ttl=-1s", fencelock.ErrInvalid, []string{"ttl", "positive"}},
		"empty ttl":          {"memory://?ttl=", fencelock.ErrInvalid, []string{"ttl"}},
		"short ttl":          {"memory://?ttl=1ms", fencelock.ErrInvalid, []string{"50ms"}},
		"bad prefix":         {"memory://?prefix=%00", fencelock.ErrInvalid, []string{"prefix", "NUL"}},
		"host":               {"memory://here", fencelock.ErrInvalid, []string{"memory"}},
		"fragment":           {"memory://#x", fencelock.ErrInvalid, []string{"fragment"}},
		"broken query":       {"memory://?a=%zz", fencelock.ErrInvalid, []string{"query"}},
		"refused":            {"opening://?how=refused", fencelock.ErrUnavailable, []string{"opening"}},
		"the store's answer": {"opening://?how=rights", fencelock.ErrInvalid, []string{"no right to write"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := fencelock.Open(t.Context(), tt.url)
			if l != nil {
				t.Error("got a Locker beside the error")
			}
			wantErr(t, "open", err, tt.want)
			for _, s := range tt.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("got %v, want it to say %q", err, s)
				}
			}
			var op *fencelock.OpError
			if !errors.As(err, &op) || op.Op != "open" || opErrors(err) != 1 {
				t.Errorf("got %#v, want one OpError of open", err)
			}
		})
	}
	_, err := fencelock.Open(t.Context(), "opening://?how=refused")
	wantErr(t, "the cause", err, errStore)
}

func TestOpenClosesWhatItRefuses(t *testing.T) {
	before := opened.Load()
	for _, opts := range [][]fencelock.Option{
		{fencelock.WithTTL(-1)}, {fencelock.Require(fencelock.Need{Transactional: true})},
	} {
		_, err := fencelock.Open(t.Context(), "opening://", opts...)
		if err == nil {
			t.Error("no error")
		}
	}
	l, err := fencelock.Open(t.Context(), "opening://")
	if err != nil || opened.Load() != before+1 {
		t.Errorf("got %d drivers more than before (%v), want the one that was not refused", opened.Load()-before, err)
	}
	if err := l.Close(); err != nil || opened.Load() != before {
		t.Errorf("got %d drivers more than before (%v), want none after Close", opened.Load()-before, err)
	}
}

func TestOpenIsBounded(t *testing.T) {
	cause := errors.New("the cause")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := fencelock.Open(t.Context(), "opening://?how=hang")
		wantErr(t, "open", err, fencelock.ErrUnavailable)
		wantTook(t, "open", start, 5*time.Second, 5*time.Second)

		start = time.Now()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		_, err = fencelock.Open(ctx, "opening://?how=hang")
		wantErr(t, "open with a ctx", err, fencelock.ErrUnavailable, context.DeadlineExceeded, cause)
		wantTook(t, "open with a ctx", start, time.Second, time.Second)

		_, err = fencelock.Open(ctx, "memory://")
		wantErr(t, "open with a done ctx", err, context.DeadlineExceeded, cause)
	})
}

func TestPasswordsAreNotShown(t *testing.T) {
	const secret = "hunter2"
	urls := []string{
		"redis://user:hunter2@localhost:6379/0",
		"redis://:hunter2@localhost",
		"redis://user:hunter2@[::1/0",
		"redis://user:hunter2@host:port/0",
		"redis://user:hunter2@ho st/0",
		"redis://user:hunter2%zz@localhost",
		"redis://user:%zzhunter2@localhost",
		"redis://us er:hunter2@localhost",
		"redis://user:hunter2@localhost/%zz",
		"redis://user:hunter2@localhost?a=%zz",
		"redis://user:hunter2@localhost?unknown=1",
		"redis://user:hunter2@localhost#fragment",
		"redis://user:pass#hunter2@localhost",
		"redis://user:pass/hunter2@localhost",
		"redis://user:pass?hunter2@localhost",
		"redis://user:123#hunter2@localhost",
		"redis://user:123/hunter2@localhost",
		"redis://user:123?hunter2@localhost",
		"redis://user:123?hunter2@localhost:6379/0?ttl=1s",
		"redis:/user:hunter2@localhost",
		"redis:user:hunter2@localhost",
		"user:hunter2@localhost",
		"user:hunter2@redis://localhost",
		"redis//user:hunter2@localhost://x",
		"user:hunter2://localhost",
		"redis://user:hunter2@a,b:x,c",
		"redis://a,user:hunter2@b,c:x",
		"redis://user:hunter2\x00@localhost",
		"redis://user:hunter2\x7f@localhost",
		" redis://user:hunter2@localhost",
		"redis ://user:hunter2@localhost",
		"1redis://user:hunter2@localhost",
		"redis://user:hunter2@localhost\n",
		"REDIS://user:hunter2@localhost:1:2",
	}
	for _, scheme := range []string{"redis", "memory", "opening"} { // not imported, refuses a user, takes one
		for _, u := range urls {
			u = strings.Replace(u, "redis", scheme, 1)
			_, err := fencelock.Open(t.Context(), u, fencelock.WithTTL(-1)) // so that none succeeds
			if err == nil {
				t.Errorf("%q: no error", u)
				continue
			}
			if all := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(all, secret) {
				t.Errorf("the error of %q shows the password: %v", u, err)
			}
		}
	}
}

// The table of the promises. They are fixed from below, so that no suite is
// passed by promising less. A cell "may" leaves it to the backend.
const promises = `
	backend        | fencing  | FIFO | clock-free | survives a node | transactional | grace
	memory         | anchored | yes  | no         | no              | no            | yes
	file           | anchored | may  | no         | no              | no            | yes
	redis          | anchored | yes  | no         | no              | no            | yes
	redlock        | anchored | may  | no         | yes             | no            | yes
	etcd           | durable  | yes  | yes        | yes             | no            | yes
	zookeeper      | durable  | yes  | yes        | yes             | no            | yes
	postgres-row   | durable  | yes  | yes        | no              | yes           | yes
	postgres-advisory | durable  | yes  | yes     | no              | yes           | yes
	postgres-lease | durable  | yes  | no         | no              | no            | yes`

func TestCatalogKeepsThePromises(t *testing.T) {
	want := map[string][]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(promises), "\n") {
		var cells []string
		for cell := range strings.SplitSeq(line, "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		want[cells[0]] = cells[1:]
	}
	yes := map[bool][]string{true: {"yes", "may"}, false: {"no", "may"}}
	seen := map[string]bool{}
	for _, e := range backend.Catalog() {
		tr := e.Traits
		seen[tr.Name] = true
		row := want[tr.Name]
		if row == nil {
			t.Errorf("%s: the table has no row", tr.Name)
			continue
		}
		if got := tr.Fencing.String(); got != row[0] {
			t.Errorf("%s: fencing: got %s, want %s", tr.Name, got, row[0])
		}
		for i, got := range []bool{tr.FIFO, tr.ClockFree, tr.SurvivesNode, tr.Transactional, tr.Grace} {
			if !slices.Contains(yes[got], row[i+1]) {
				t.Errorf("%s: %s: got %v, want %s", tr.Name, want["backend"][i+1], got, row[i+1])
			}
		}
		if tr.DeadWaiter < 0 || tr.DeadWaiter.Seconds() > 5 || tr.MinTTL <= 0 || tr.Resolution <= 0 || tr.Revoked <= 0 {
			t.Errorf("%s: got %+v, want a dead waiter of at most 5 s, "+
				"and a shortest TTL, resolution and Revoked", tr.Name, tr)
		}
	}
	for _, name := range []string{"memory", "file", "redis"} {
		if !seen[name] {
			t.Errorf("%s is not in the catalog", name)
		}
	}
}

func TestRevokedOfTheTable(t *testing.T) {
	want := map[string]float64{"memory": 0.1, "redis": 1, "etcd": 1, "zookeeper": 1, "postgres-row": 1}
	for _, e := range backend.Catalog() {
		if most, ok := want[e.Traits.Name]; ok && e.Traits.Revoked.Seconds() > most {
			t.Errorf("%s: a holder learns of Break within %v, want %v s", e.Traits.Name, e.Traits.Revoked, most)
		}
	}
}

// The Traits of a driver are the catalog's: it calls backend.TraitsOf, names
// its entry, and builds no Traits of its own.
func TestDriversTakeTheirTraitsFromTheCatalog(t *testing.T) {
	for _, e := range backend.Catalog() {
		in := look(t, e)
		if in.calls["backend.TraitsOf"] == 0 || !in.strings[e.Traits.Name] || in.built["backend.Traits"] > 0 {
			t.Errorf("%s: got %d calls of TraitsOf and %d Traits built, want the catalog's %q",
				e.Import, in.calls["backend.TraitsOf"], in.built["backend.Traits"], e.Traits.Name)
		}
	}
	d := newFake(t).store
	if got, want := d.Traits(), backend.TraitsOf("memory"); got != want {
		t.Errorf("memory: got %+v, want the catalog's %+v", got, want)
	}
}

// Each scheme of the catalog is registered by the package that the catalog names.
func TestSchemesAreWhereTheCatalogSays(t *testing.T) {
	for _, e := range backend.Catalog() {
		in := look(t, e)
		for _, s := range e.Schemes {
			if in.calls["backend.Register"] == 0 || !in.strings[s] {
				t.Errorf("%s does not register the scheme %q", e.Import, s)
			}
		}
	}
}

// seen is what a package's source has, by qualified name and by value.
type seen struct {
	calls, built map[string]int
	strings      map[string]bool
}

func look(t *testing.T, e backend.Entry) seen {
	t.Helper()
	in := seen{map[string]int{}, map[string]int{}, map[string]bool{}}
	for _, f := range sources(t, strings.TrimPrefix(e.Import, module+"/")) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				in.calls[qualified(n.Fun)]++
			case *ast.CompositeLit:
				in.built[qualified(n.Type)]++
			case *ast.BasicLit:
				in.strings[text(n)] = true
			}
			return true
		})
	}
	return in
}

// qualified returns the qualified name of an expression such as backend.Traits.
func qualified(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, _ := s.X.(*ast.Ident)
	if x == nil {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// text returns the value of a string literal.
func text(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}
