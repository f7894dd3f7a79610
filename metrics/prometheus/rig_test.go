package prometheus_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

func TestMain(m *testing.M) { leaks.Main(m, 4, 5*time.Second) }

const ttl = 10 * time.Second

var errStore = errors.New("connection reset by peer")

// store is the memory backend with answers that a test chooses.
type store struct {
	core.Composite
	memory *memory.Driver
	down   atomic.Bool                    // nothing is answered
	leaked atomic.Pointer[[]backend.Info] // listed besides
	lose   atomic.Pointer[error]          // what the next holder hears
}

func (s *store) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if s.down.Load() {
		return backend.Grant{}, errStore
	}
	g, err := s.Caller.Acquire(ctx, r)
	if lose := s.lose.Swap(nil); err == nil && lose != nil {
		time.AfterFunc(time.Second, func() { r.Lost(*lose) })
	}
	return g, err
}

func (s *store) Renew(ctx context.Context, hs []*core.Hold) []error {
	if !s.down.Load() {
		return s.Caller.Renew(ctx, hs)
	}
	errs := make([]error, len(hs))
	for i := range errs {
		errs[i] = errStore
	}
	return errs
}

func (s *store) Release(ctx context.Context, h *core.Hold) error {
	if s.down.Load() {
		return errStore
	}
	return s.Caller.Release(ctx, h)
}

func (s *store) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		if s.down.Load() {
			yield(backend.Info{}, errStore)
			return
		}
		for info, err := range s.Caller.List(ctx, prefix) {
			if !yield(info, err) {
				return
			}
		}
		if more := s.leaked.Load(); more != nil {
			for _, info := range *more {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// bubble runs fn in virtual time, with a Locker that a Collector observes.
func bubble(t *testing.T, fn func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		s, c := &store{Composite: core.Composite{Caller: core.Of(d)}, memory: d}, prometheus.New(nil)
		l, err := fencelock.New(s, fencelock.WithTTL(ttl), fencelock.WithObserver(c))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		fn(t, s, l, c)
	})
}

// numbers are the values of a scrape, as `name{backend,resource,…}` without the prefix of the name, with the mode last
// unless it is exclusive; a histogram is its count and its sum.
type numbers map[string]float64

func scrape(t testing.TB, c client.Collector) numbers {
	t.Helper()
	r := client.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ns := numbers{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			by := map[string]string{}
			for _, l := range m.GetLabel() {
				by[l.GetName()] = l.GetValue()
			}
			var labels []string
			for _, l := range []string{"backend", "resource", "reason", "result", "direction"} {
				if v, ok := by[l]; ok {
					labels = append(labels, v)
				}
			}
			if mode := by["mode"]; mode != "" && mode != "exclusive" {
				labels = append(labels, mode)
			}
			name := strings.TrimPrefix(f.GetName(), "distributed_lock_")
			in := "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.GetHistogram() != nil:
				ns[name+"_count"+in] = float64(m.GetHistogram().GetSampleCount())
				ns[name+"_sum"+in] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				ns[name+in] = m.GetCounter().GetValue()
			default:
				ns[name+in] = m.GetGauge().GetValue()
			}
		}
	}
	return ns
}

// want checks that a scrape has exactly these values besides zeros.
func want(t *testing.T, what string, c client.Collector, want numbers) {
	t.Helper()
	got := scrape(t, c)
	var wrong []string
	for k, v := range got {
		if d := v - want[k]; d > 1e-9 || d < -1e-9 {
			wrong = append(wrong, fmt.Sprintf("%s = %v, want %v", k, v, want[k]))
		}
	}
	for k, v := range want {
		if _, ok := got[k]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s is missing, want %v", k, v))
		}
	}
	sort.Strings(wrong)
	if len(wrong) > 0 {
		t.Errorf("%s:\n\t%s", what, strings.Join(wrong, "\n\t"))
	}
}

func lock(t *testing.T, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	le, err := m.Lock(t.Context())
	if err != nil {
		t.Fatalf("lock of %q: %v", m.Name(), err)
	}
	return le
}

func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(t.Context()); err != nil {
		t.Errorf("unlock of %q: %v", le.Name(), err)
	}
}
