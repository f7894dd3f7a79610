package otel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/metrics/otel"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

func TestMain(m *testing.M) { leaks.Main(m, 4, 5*time.Second) }

const ttl = 10 * time.Second

var errStore = errors.New("connection reset by peer")

// store is the memory backend, which may answer nothing.
type store struct {
	core.Composite
	down atomic.Bool
}

func (s *store) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if s.down.Load() {
		return backend.Grant{}, errStore
	}
	return s.Caller.Acquire(ctx, r)
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

// rig is a Locker that is observed through OpenTelemetry and by a Collector.
type rig struct {
	*fencelock.Locker
	store  *store
	otel   *otel.Observer
	prom   *prometheus.Collector
	spans  *tracetest.SpanRecorder
	tracer *trace.TracerProvider
	reader *sdkmetric.ManualReader
}

// bubble runs fn in virtual time.
func bubble(t *testing.T, fn func(t *testing.T, r *rig), options ...trace.TracerProviderOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{
			store: &store{Composite: core.Composite{Caller: core.Of(d)}}, spans: tracetest.NewSpanRecorder(),
			reader: sdkmetric.NewManualReader(), prom: prometheus.New(nil),
		}
		r.tracer = trace.NewTracerProvider(append(options, trace.WithSpanProcessor(r.spans))...)
		r.otel, err = otel.New(&otel.Options{
			TracerProvider: r.tracer, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader)),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Locker, err = fencelock.New(r.store, fencelock.WithTTL(ttl), fencelock.WithOwner("me"),
			fencelock.WithObserver(r.otel), fencelock.WithObserver(r.prom))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = r.Close()
			if err := r.otel.Close(); err != nil {
				t.Error(err)
			}
		})
		fn(t, r)
	})
}

// ended returns the spans that have ended, by name; all of them must have begun and ended.
func (r *rig) ended(t *testing.T) map[string][]trace.ReadOnlySpan {
	t.Helper()
	if begun, ended := len(r.spans.Started()), len(r.spans.Ended()); begun != ended {
		t.Errorf("%d spans have begun and %d have ended", begun, ended)
	}
	by := map[string][]trace.ReadOnlySpan{}
	for _, s := range r.spans.Ended() {
		by[s.Name()] = append(by[s.Name()], s)
	}
	return by
}

// attributes of a span by key.
func attributes(s trace.ReadOnlySpan) map[string]any {
	as := map[string]any{}
	for _, a := range s.Attributes() {
		as[string(a.Key)] = a.Value.AsInterface()
	}
	return as
}
