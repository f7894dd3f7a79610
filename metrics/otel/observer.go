package otel

import (
	"context"
	"errors"
	"sync"
	"time"

	global "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// scope names the instrumentation, as OpenTelemetry asks: by the import path.
const scope = "github.com/fencelock/fencelock/metrics/otel"

// Options of an Observer. The zero value has the defaults.
type Options struct {
	TracerProvider trace.TracerProvider // default: the global one
	MeterProvider  metric.MeterProvider // default: the global one
	// Resource groups names: it returns the attribute "resource" of metrics. It is called for most events, by many
	// goroutines, so it must be quick and must not call back; for "" the value is "other". The default is the part
	// before the first slash, and "other" for a name without one.
	Resource func(name string) string
	// MaxResources bounds the number of resources, whatever Resource returns: the first so many have series of their
	// own, all others are "other". The default, also for what is below 1, is 100.
	MaxResources int
}

// Observer turns the events of Lockers into spans and metrics. It is given to any number of Lockers with WithObserver.
// Its methods may be called by many goroutines. Close it when the Lockers are closed.
type Observer struct {
	tracer  trace.Tracer
	groups  *measure.Groups
	jumps   *measure.Jumps
	leaks   *measure.Leaks
	meters  meters
	looking metric.Registration

	mu    sync.Mutex
	holds map[fencelock.HoldID]trace.Span // recording ones
}

var _ fencelock.Beginner = (*Observer)(nil)

// New returns an Observer; nil options are the defaults. The error is the MeterProvider's.
func New(o *Options) (*Observer, error) {
	if o == nil {
		o = &Options{}
	}
	tp, mp := o.TracerProvider, o.MeterProvider
	if tp == nil {
		tp = global.GetTracerProvider()
	}
	if mp == nil {
		mp = global.GetMeterProvider()
	}
	groups := measure.NewGroups(o.Resource, o.MaxResources)
	ob := &Observer{
		tracer: tp.Tracer(scope),
		groups: groups,
		jumps:  measure.NewJumps(measure.Clock()),
		leaks:  measure.NewLeaks(groups),
		holds:  map[fencelock.HoldID]trace.Span{},
	}
	return ob, ob.meter(mp.Meter(scope))
}

// Close ends the export of what is looked up at each collection. Events may still come, and are counted.
func (o *Observer) Close() error { return o.looking.Unregister() }

// Watch looks for leaked locks: locks that are held with no expiry, which nobody will ever free. It
// lists those of l whose names have the prefix, at once and then every so often, and exports how
// many there are. It returns when ctx ends, with its cause, or with an error when l is closed,
// cannot list, or every is not above 0; the numbers of this watch are not exported any more then. A
// listing that fails otherwise is counted and tried again.
//
// It runs on the caller's goroutine: go o.Watch(ctx, l, "", time.Minute). A listing goes through every lock in the
// store, so one process of a fleet is enough. Of a Locker that routes by name, the backend is what Traits().Name says.
func (o *Observer) Watch(ctx context.Context, l *fencelock.Locker, prefix string, every time.Duration) error {
	return o.leaks.Watch(ctx, l, prefix, every)
}

// callKey is the key under which the context of a call has the call.
type callKey struct{ o *Observer }

// call is a Lock, TryLock or Unlock under way.
type call struct {
	kind   fencelock.EventKind
	caller context.Context // as given to Begin
	span   trace.Span
	attrs  metric.MeasurementOption
}

// spanNames are the names of the calls' spans.
var spanNames = map[fencelock.EventKind]string{
	fencelock.Locking: "lock", fencelock.TryLocking: "trylock", fencelock.Unlocking: "unlock",
}

// Begin starts the span of a call and counts a Lock in. It is for the Locker to call.
func (o *Observer) Begin(ctx context.Context, e fencelock.Event) context.Context {
	resource := o.groups.Of(e.Name)
	c := &call{kind: e.Kind, caller: ctx, attrs: labelsOf(e, resource)}
	ctx, c.span = o.tracer.Start(ctx, spanNames[e.Kind], trace.WithTimestamp(e.At),
		trace.WithAttributes(spanAttributes(e, resource)...))
	if c.kind == fencelock.Locking {
		o.meters.waiting.Add(ctx, 1, c.attrs)
	}
	return context.WithValue(ctx, callKey{o}, c)
}

// Observe ends the spans of what ended, and counts what happened. It is for the Locker to call.
func (o *Observer) Observe(ctx context.Context, e fencelock.Event) {
	resource := o.groups.Of(e.Name)
	c, _ := ctx.Value(callKey{o}).(*call)
	o.count(ctx, e, resource, c)
	switch e.Kind {
	case fencelock.Acquired:
		o.hold(ctx, e, resource, c)
	case fencelock.RenewFailed:
		if span := o.held(e.Hold, false); span != nil && !measure.Overtaken(e.Err) {
			record(span, e.Err, e.At)
		}
	case fencelock.Released, fencelock.Lost:
		if span := o.held(e.Hold, true); span != nil {
			span.SetAttributes(outcome(e)...)
			fail(span, e.Err, e.At)
			span.End(trace.WithTimestamp(e.At))
		}
	default: // says nothing about a hold
	}
	if c == nil || !endsCall(e.Kind) {
		return
	}
	c.span.SetAttributes(outcome(e)...)
	if c.kind == fencelock.TryLocking && errors.Is(e.Err, fencelock.ErrLocked) {
		record(c.span, e.Err, e.At) // an answer, and no failure
	} else {
		fail(c.span, e.Err, e.At)
	}
	c.span.End(trace.WithTimestamp(e.At))
}

// endsCall reports whether a call ends in this kind of event.
func endsCall(k fencelock.EventKind) bool {
	switch k {
	case fencelock.Acquired, fencelock.Joined, fencelock.NotAcquired, fencelock.Released,
		fencelock.Left, fencelock.NotReleased:
		return true
	default:
		return false
	}
}

// hold starts the span of a hold beside that of its call.
func (o *Observer) hold(ctx context.Context, e fencelock.Event, resource string, c *call) {
	start := []trace.SpanStartOption{trace.WithTimestamp(e.At), trace.WithAttributes(spanAttributes(e, resource)...)}
	if c != nil {
		ctx = c.caller
		start = append(start, trace.WithLinks(trace.Link{SpanContext: c.span.SpanContext()}))
	}
	_, span := o.tracer.Start(ctx, "hold", start...)
	if !span.IsRecording() {
		span.End()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds[e.Hold] = span
}

// held returns the span of a hold, or nil; last: it is not needed any more.
func (o *Observer) held(h fencelock.HoldID, last bool) trace.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	span := o.holds[h]
	if last {
		delete(o.holds, h)
	}
	return span
}

// seconds returns d as the unit of every histogram.
func seconds(d time.Duration) float64 { return d.Seconds() }
