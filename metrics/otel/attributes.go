package otel

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// labelsOf are the attributes that every metric of an event has, with others.
func labelsOf(e fencelock.Event, resource string, more ...attribute.KeyValue) metric.MeasurementOption {
	return labels(e.Backend, resource, append(more, attribute.String("mode", e.Mode.String()))...)
}

// labels are the attributes of a metric of names.
func labels(backend, resource string, more ...attribute.KeyValue) metric.MeasurementOption {
	all := append([]attribute.KeyValue{
		attribute.String("backend", backend), attribute.String("resource", resource),
	}, more...)
	return metric.WithAttributeSet(attribute.NewSet(all...))
}

// spanAttributes are what is known at the start of a span.
func spanAttributes(e fencelock.Event, resource string) []attribute.KeyValue {
	as := []attribute.KeyValue{
		attribute.String("lock.name", text(e.Name)), attribute.String("lock.backend", e.Backend),
		attribute.String("lock.owner", text(e.Owner)), attribute.String("lock.resource", resource),
		attribute.String("lock.mode", e.Mode.String()),
	}
	if e.Token != 0 {
		as = append(as, attribute.Int64("lock.token", int64(e.Token)))
	}
	return as
}

// text is a name as an exporter takes it: a caller may give anything, and what is no UTF-8 would cost a whole export.
func text(s string) string { return valid(s[:min(len(s), backend.MaxNameLen)]) }

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// outcome is what is known at the end of a span.
func outcome(e fencelock.Event) []attribute.KeyValue {
	as := []attribute.KeyValue{attribute.String("lock.outcome", e.Kind.String())}
	if e.Token != 0 {
		as = append(as, attribute.Int64("lock.token", int64(e.Token)))
	}
	if e.Kind == fencelock.Lost {
		as = append(as, attribute.String("lock.loss", measure.Loss(e.Reason)))
		if measure.Timed(e.Reason) {
			as = append(as, attribute.Float64("lock.margin_seconds", seconds(e.Margin)))
		}
	}
	return as
}

// fail records an error, if there is one, and makes it the span's status.
func fail(span trace.Span, err error, at time.Time) {
	if err == nil {
		return
	}
	record(span, err, at)
	span.SetStatus(codes.Error, valid(err.Error()))
}

// record records an error. What a store says, or a cause of the caller's ctx, may be no UTF-8.
func record(span trace.Span, err error, at time.Time) {
	if s := err.Error(); !utf8.ValidString(s) {
		err = errors.New(valid(s))
	}
	span.RecordError(err, trace.WithTimestamp(at))
}
