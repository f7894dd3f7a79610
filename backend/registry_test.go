package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

var errStore = errors.New("connection reset by peer")

// stone is a driver that only counts its Close.
type stone struct {
	backend.Driver
	u      *url.URL
	closed *int
}

func (stone) Traits() backend.Traits { return backend.Traits{Name: "stone"} }
func (s stone) Close() error         { *s.closed++; return nil }

// The scheme "stone" is registered once, for all runs of the tests.
func init() {
	backend.Register("stone", func(_ context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		q.Prefix()
		if q.Bool("fail", false) {
			return nil, errStore
		}
		return stone{u: u, closed: new(int)}, nil
	})
	backend.Register("file", func(context.Context, *url.URL, *backend.Query) (backend.Driver, error) {
		return stone{closed: new(int)}, nil
	})
	backend.Register("lazy", func(_ context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		return stone{u: u, closed: lazilyClosed}, nil // it leaves the keys to Open
	})
}

var lazilyClosed = new(int)

func TestRegisterPanics(t *testing.T) {
	open := func(context.Context, *url.URL, *backend.Query) (backend.Driver, error) { return nil, errStore }
	tests := map[string]struct {
		scheme string
		open   backend.Opener
		says   string
	}{
		"twice":     {"stone", open, "twice for scheme stone"},
		"no opener": {"nothing", nil, "nothing without an opener"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, tt.says) {
					t.Errorf("got panic %q, want one that says %q", got, tt.says)
				}
			}()
			backend.Register(tt.scheme, tt.open)
		})
	}
	if got := backend.Schemes(); !slices.Contains(got, "stone") ||
		slices.Contains(got, "nothing") || !slices.IsSorted(got) {
		t.Errorf("schemes: got %v", got)
	}
}

func TestOpen(t *testing.T) {
	d, err := backend.Open(t.Context(), "STONE://h1:1,h2:2/db?prefix=p&ttl=3s", func(q *backend.Query) {
		if got := q.Duration("ttl", time.Hour); got != 3*time.Second {
			t.Errorf("the engine's key: got %v, want 3s", got)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	u := d.(stone).u
	if u.Scheme != "stone" || u.Host != "h1:1,h2:2" || u.Path != "/db" || u.RawQuery != "" {
		t.Errorf("got %#v, want scheme, hosts and path without the query", u)
	}
	if _, err := backend.Open(t.Context(), "stone://", nil); err != nil {
		t.Errorf("without keys of the engine: %v", err)
	}
	if _, err := backend.Open(t.Context(), "stone://?fail=1", nil); !errors.Is(err, errStore) {
		t.Errorf("got %v, want the opener's error", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	ttl := func(q *backend.Query) { q.Duration("ttl", 0) }
	tests := map[string]struct {
		url  string
		says []string
	}{
		"unknown key":    {"stone://?colour=red", []string{`unknown key "colour"`, `known are fail, prefix, ttl`}},
		"unknown keys":   {"stone://?b=1&a=1&prefix=x", []string{`"a", "b"`}},
		"engine's key":   {"stone://?ttl=never", []string{"ttl", `"never"`, "15s"}},
		"key twice":      {"stone://?prefix=a&prefix=b", []string{"prefix", "2 times"}},
		"bad bool":       {"stone://?fail=maybe", []string{"fail", "maybe", "true or false"}},
		"bad prefix":     {"stone://?prefix=%ff", []string{"prefix", "UTF-8"}},
		"unknown scheme": {"pebble://", []string{"pebble", "registered are file, lazy, stone", "redis by import"}},
		"of the catalog": {
			"memory://",
			[]string{`import _ "github.com/fencelock/fencelock/backend/memory"`, "registered are"},
		},
		"cluster":         {"redis+cluster://", []string{`import _ "github.com/fencelock/fencelock/redis"`}},
		"lazy: what Open": {"lazy://?colour=red", []string{`unknown key "colour"`}},
	}
	for name, tt := range tests {
		d, err := backend.Open(t.Context(), tt.url, ttl)
		if d != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: got %v, %v, want ErrInvalid", name, d, err)
			continue
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: got %v, want it to say %q", name, err, s)
			}
		}
	}
	if *lazilyClosed == 0 {
		t.Error("a driver whose URL was refused afterwards was not closed")
	}
}

// A scheme that is one slip away from one that is registered is taken for it in the error.
func TestUnknownScheme(t *testing.T) {
	for give, like := range map[string]string{
		"ston": "stone", "stoone": "stone", "stine": "stone", "sotne": "stone", "laz": "lazy", "zlay": "",
		"stoen": "stone", "st": "", "pebble": "",
	} {
		_, err := backend.Open(t.Context(), give+"://h", nil)
		_, rest, _ := strings.Cut(fmt.Sprint(err), "did you mean ")
		meant, _, _ := strings.Cut(rest, "://")
		if !errors.Is(err, backend.ErrInvalid) || meant != like {
			t.Errorf("%s: got %v, want ErrInvalid that means %q", give, err, like)
		}
	}
}

func TestCatalogIsTheCallers(t *testing.T) {
	c := backend.Catalog()
	c[0].Traits.Name, c[0].Schemes[0] = "changed", "changed"
	if again := backend.Catalog(); again[0].Traits.Name == "changed" || again[0].Schemes[0] == "changed" {
		t.Error("the catalog can be changed")
	}
	names, chosen := map[string]bool{}, map[string]bool{} // by name, by import
	for _, e := range backend.Catalog() {
		chosen[e.Import] = chosen[e.Import] || len(e.Schemes) > 0
		if names[e.Traits.Name] || !chosen[e.Import] || e.Import == "" {
			t.Errorf("entry %+v is doubled or not whole", e)
		}
		names[e.Traits.Name] = true
		if d := e.Traits.DeadWaiter; d > 5*time.Second || d < time.Second && e.Traits.Name != "memory" {
			t.Errorf("%s: a dead waiter delays the others by %v, want 1 to 5 s", e.Traits.Name, d)
		}
		if backend.TraitsOf(e.Traits.Name) != e.Traits {
			t.Errorf("TraitsOf(%q) is not the entry's", e.Traits.Name)
		}
	}
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "pebble") {
			t.Errorf("TraitsOf of an unknown name: got panic %q, want one that names it", got)
		}
	}()
	backend.TraitsOf("pebble")
}
