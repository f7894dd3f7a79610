package bench_test

import (
	"context"
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/internal/servers"
)

// A store is what is measured, and a look at what is left of it. What keeps tokens rising is left out.
type store struct {
	url  string
	left func() []string
}

func memoryStore(testing.TB) store {
	return store{"memory://", func() []string { return nil }}
}

func fileStore(tb testing.TB) store {
	dir := tb.TempDir()
	return store{(&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String(), func() []string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			tb.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			if e.IsDir() {
				left = append(left, e.Name())
			}
		}
		return left
	}}
}

func redisStore(tb testing.TB) store {
	s := servers.Redis(tb, servers.RedisOptions{})
	return store{s.URL(), func() []string {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
		defer c.Close()
		all, err := c.Keys(tb.Context(), "*").Result()
		if err != nil {
			tb.Fatal(err)
		}
		return slices.DeleteFunc(all, func(k string) bool { return strings.HasPrefix(k, "fl\x00") })
	}}
}

func etcdStore(tb testing.TB) store {
	s := servers.Etcd(tb, servers.EtcdOptions{})
	return store{s.URL() + "?prefix=a~", func() []string { // the driver writes a~~
		c, err := clientv3.New(clientv3.Config{Endpoints: s.Addrs(), Logger: zap.NewNop()})
		if err != nil {
			tb.Fatal(err)
		}
		defer c.Close()
		all, err := c.Get(tb.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
		if err != nil {
			tb.Fatal(err)
		}
		var left []string
		for _, kv := range all.Kvs {
			left = append(left, string(kv.Key))
		}
		return left
	}}
}

// named is a store that can be opened.
type named struct {
	name string // of the backend
	open func(testing.TB) store
}

var backends = []named{
	{"memory", memoryStore},
	{"file", fileStore},
	{"redis", redisStore},
	{"etcd", etcdStore},
}

// tiny is a whole run in a moment.
var tiny = bench.Options{Duration: 20 * time.Millisecond, Rounds: 2, Held: 40}

func TestRun(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := b.open(t)
			got, err := bench.Run(t.Context(), []bench.Target{{URL: s.url}}, tiny)
			if err != nil {
				t.Fatal(err)
			}
			want := 7
			if tr := backend.TraitsOf(b.name); tr.Readers && tr.Permits > 0 {
				want += 4
			}
			if len(got) != want {
				t.Errorf("got %d rows, want %d", len(got), want)
			}
			for _, r := range got {
				check(t, r)
				if r.Label != b.name || r.Backend != b.name || r.Partial || r.Rounds != tiny.Rounds {
					t.Errorf("%s: got %+v, want %d rounds of %s", r.Row, r, tiny.Rounds, b.name)
				}
				if tells := b.name == "redis" ||
					b.name == "etcd"; !handsOver(r.Op) && (r.CommandsPerOp != nil) != tells {
					t.Errorf("%s: got commands %v, want them told: %v", r.Row, r.CommandsPerOp, tells)
				}
			}
			if left := s.left(); len(left) > 0 {
				t.Errorf("got %q left in the store, want nothing", left)
			}
		})
	}
}

// handsOver reports whether two clients pass a name to and fro, at a cost that is mostly that of waiting.
func handsOver(op bench.Op) bool { return op == bench.Handover || op == bench.Turns }

// check holds a row to what every row is.
func check(t *testing.T, r bench.Result) {
	t.Helper()
	if r.Rate <= 0 || r.RateLow > r.Rate || r.Rate > r.RateHigh {
		t.Errorf("%s: got a rate of %v between %v and %v", r.Row, r.Rate, r.RateLow, r.RateHigh)
	}
	if r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Max {
		t.Errorf("%s: got p50 %v, p99 %v, max %v", r.Row, r.P50, r.P99, r.Max)
	}
	if r.Promises.Fencing == "" || r.Unit == "" {
		t.Errorf("%s: got promises %+v and unit %q", r.Row, r.Promises, r.Unit)
	}
	if (r.AllocsPerOp != nil) == handsOver(r.Op) || (r.Fairness != nil) != (r.Op == bench.Contended) {
		t.Errorf("%s: got allocations told: %v, fairness told: %v", r.Row, r.AllocsPerOp != nil, r.Fairness != nil)
	}
	if r.Fairness != nil && (*r.Fairness < 1/float64(r.Goroutines) || *r.Fairness > 1.000001) {
		t.Errorf("%s: got a fairness of %v, want one from 1/%d to 1", r.Row, *r.Fairness, r.Goroutines)
	}
	if r.Op == bench.Held {
		if r.RawRate != nil || r.Ratio != nil || len(r.Notes) == 0 || r.Leases == 0 {
			t.Errorf("%s: got %+v, want no raw side and a note", r.Row, r)
		}
		return
	}
	if r.RawRate == nil || *r.RawRate <= 0 || *r.RawP50 > *r.RawP99 || *r.RawP99 > *r.RawMax {
		t.Fatalf("%s: got %+v, want a raw side", r.Row, r)
	}
	if want := r.Rate / *r.RawRate; math.Abs(*r.Ratio-want) > 1e-9*want || *r.RatioLow > *r.Ratio ||
		*r.Ratio > *r.RatioHigh {
		t.Errorf("%s: got a ratio of %v between %v and %v, want %v", r.Row, *r.Ratio, *r.RatioLow, *r.RatioHigh, want)
	}
}

// ended is a short part of a run during which something happens before its second round.
func ended(ctx context.Context, s store, happens func()) ([]bench.Result, error) {
	o := tiny
	o.Only = []string{"contended/goroutines=16/section=0us", "cycle/goroutines=64"}
	o.Progress = func(p bench.Progress) {
		if p.Row == 2 && p.Round == 2 {
			happens()
		}
	}
	return bench.Run(ctx, []bench.Target{{URL: s.url}}, o)
}

func TestRunThatIsEnded(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := b.open(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got, err := ended(ctx, s, cancel)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want it to match %v", err, context.Canceled)
			}
			if len(got) != 2 || got[0].Partial || !got[1].Partial || got[1].Rounds != 1 {
				t.Fatalf("got %+v, want a whole row and a partial one", got)
			}
			check(t, got[1])
			if left := s.left(); len(left) > 0 {
				t.Errorf("got %q left in the store, want nothing", left)
			}
		})
	}
}

func TestServerThatDies(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Password: "s3cret"})
	got, err := ended(t.Context(), store{url: s.URL()}, func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, fencelock.ErrUnavailable) ||
		!strings.Contains(err.Error(), "redis: contended/goroutines=16/section=0us: ") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v, want one that matches %v and names the row", err, fencelock.ErrUnavailable)
	}
	if len(got) != 2 || !got[1].Partial {
		t.Errorf("got %+v, want what was measured before", got)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	memory := []bench.Target{{URL: "memory://"}}
	tests := []struct {
		what    string
		targets []bench.Target
		o       bench.Options
		want    string
	}{
		{"no target", nil, bench.Options{}, "no backend"},
		{"a duration below 0", memory, bench.Options{Duration: -1}, "want more than 0"},
		{"a long duration", memory, bench.Options{Duration: 2 * time.Hour}, "at most 1h"},
		{"rounds below 0", memory, bench.Options{Rounds: -1}, "1 to 1000"},
		{"leases below 0", memory, bench.Options{Held: -1}, "1 to 100000"},
		{"an unknown row", memory, bench.Options{Only: []string{"cycle/goroutines=3"}}, "cycle/goroutines=64"},
		{"an unknown scheme", []bench.Target{{URL: "nothing://x"}}, bench.Options{}, "nothing"},
		{"a bad URL of memory", []bench.Target{{URL: "memory://host"}}, bench.Options{}, "memory"},
		{
			"an unknown key",
			[]bench.Target{{Name: "cache", URL: "redis://127.0.0.1:1/?colour=red"}},
			bench.Options{},
			"cache: invalid: unknown key \"colour\"",
		},
	}
	for _, tt := range tests {
		got, err := bench.Run(t.Context(), tt.targets, tt.o)
		if !errors.Is(err, fencelock.ErrInvalid) || !strings.Contains(err.Error(), tt.want) || len(got) > 0 {
			t.Errorf("%s: got %v, want one that matches %v and has %q", tt.what, err, fencelock.ErrInvalid, tt.want)
		}
	}
}

// Two backends of one kind are told apart.
func TestLabels(t *testing.T) {
	t.Parallel()
	o := tiny
	o.Only = []string{"cycle/goroutines=1"}
	got, err := bench.Run(t.Context(),
		[]bench.Target{{URL: "memory://"}, {URL: "memory://"}, {Name: "mine", URL: "memory://"}}, o)
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, r := range got {
		labels = append(labels, r.Label)
	}
	if want := []string{"memory", "memory#2", "mine"}; !slices.Equal(labels, want) {
		t.Errorf("got %q, want %q", labels, want)
	}
	var out strings.Builder
	if err := bench.WriteTable(&out, got); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cycle/goroutines=1  cycles/s", " memory#2  ",
		"mine promises: anchored tokens, first come first served, grace\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got the table\n%s\nwant it to have %q", out.String(), want)
		}
	}
}
