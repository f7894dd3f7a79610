package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// meters are the metrics of package prometheus: an exporter to Prometheus gives them the same names.
type meters struct {
	wait, hold, margin                                       metric.Float64Histogram
	held, waiting                                            metric.Int64UpDownCounter
	failures, lost, late, renewals, unlockFailures, cleanups metric.Int64Counter
}

// meter makes the instruments.
func (o *Observer) meter(m metric.Meter) error {
	var errs []error
	counter := func(name, unit, about string) metric.Int64Counter {
		c, err := m.Int64Counter("distributed_lock."+name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	gauge := func(name, unit, about string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter("distributed_lock."+name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, about string, buckets []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram("distributed_lock."+name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	o.meters = meters{
		wait: histogram("wait",
			"How long acquisitions took, the wait included: of all that were granted, and of the "+
				"waits that ended without a grant.", measure.WaitBuckets),
		hold: histogram("hold", "How long leases were held, until they were released or lost.", measure.HoldBuckets),
		margin: histogram("loss_margin",
			"How long before the store's expiry a holder was told that its lease is "+
				"over; negative if too late.", measure.MarginBuckets),
		held:     gauge("held", "{lease}", "Leases that are held now."),
		waiting:  gauge("waiting", "{call}", "Calls of Lock that are under way now."),
		failures: counter("failures", "{call}", "Calls of Lock and TryLock that failed."),
		lost:     counter("lost", "{lease}", "Leases that ended without Unlock."),
		late: counter("lost_late", "{lease}",
			"Losses that the holder was told only after the store's expiry."),
		renewals:       counter("renewals", "{renewal}", "Renewals."),
		unlockFailures: counter("unlock_failures", "{call}", "Calls of Unlock that failed."),
		cleanups: counter("cleanups", "{acquisition}",
			"Acquisitions, unwanted or of unknown outcome, that were undone."),
	}
	return errors.Join(append(errs, o.look(m))...)
}

// look makes the instruments that are looked up at each collection.
func (o *Observer) look(m metric.Meter) error {
	leaked, err1 := m.Int64ObservableGauge("distributed_lock.leaked", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that are held with no expiry and that nobody will free, as listed last (Watch)."))
	listings, err2 := m.Int64ObservableCounter("distributed_lock.listings", metric.WithUnit("{listing}"),
		metric.WithDescription("Listings that looked for leaked locks (Watch)."))
	jumps, err3 := m.Int64ObservableCounter("distributed_lock.clock_jumps", metric.WithUnit("{jump}"),
		metric.WithDescription("Times that this machine's wall clock was seen to have moved by "+
			"half a second or more against its monotonic clock between two collections."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	var err error
	o.looking, err = m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for p, n := range o.leaks.Leaked() {
			to.ObserveInt64(leaked, n, labels(p.Backend, p.Resource))
		}
		result := func(backend, word string) metric.ObserveOption {
			return metric.WithAttributes(attribute.String("backend", backend), attribute.String("result", word))
		}
		o.leaks.Listings(func(backend string, ok, failed int64) {
			to.ObserveInt64(listings, ok, result(backend, "ok"))
			to.ObserveInt64(listings, failed, result(backend, "failed"))
		})
		forward, backward := o.jumps.Look()
		to.ObserveInt64(jumps, forward, metric.WithAttributes(attribute.String("direction", "forward")))
		to.ObserveInt64(jumps, backward, metric.WithAttributes(attribute.String("direction", "backward")))
		return nil
	}, leaked, listings, jumps)
	return err
}

// count counts an event; c is the call that ends in it, or nil.
func (o *Observer) count(ctx context.Context, e fencelock.Event, resource string, c *call) {
	m, plain := &o.meters, labelsOf(e, resource)
	with := func(key, value string) metric.MeasurementOption {
		return labelsOf(e, resource, attribute.String(key, value))
	}
	locked := c != nil && c.kind == fencelock.Locking
	if locked {
		m.waiting.Add(ctx, -1, c.attrs)
	}
	switch e.Kind {
	case fencelock.Acquired:
		m.held.Add(ctx, 1, plain)
		m.wait.Record(ctx, seconds(e.Took), plain)
	case fencelock.NotAcquired:
		reason := measure.Failure(e.Err)
		m.failures.Add(ctx, 1, with("reason", reason))
		if locked && measure.Waited(reason) {
			m.wait.Record(ctx, seconds(e.Took), plain)
		}
	case fencelock.Released:
		m.held.Add(ctx, -1, plain)
		m.hold.Record(ctx, seconds(e.Took), plain)
	case fencelock.Lost:
		m.held.Add(ctx, -1, plain)
		m.hold.Record(ctx, seconds(e.Took), plain)
		m.lost.Add(ctx, 1, with("reason", measure.Loss(e.Reason)))
		if measure.Timed(e.Reason) {
			m.margin.Record(ctx, seconds(e.Margin), plain)
			if e.Margin <= 0 {
				m.late.Add(ctx, 1, plain)
			}
		}
	case fencelock.Renewed:
		m.renewals.Add(ctx, 1, with("result", "ok"))
	case fencelock.RenewFailed:
		if !measure.Overtaken(e.Err) {
			m.renewals.Add(ctx, 1, with("result", "failed"))
		}
	case fencelock.NotReleased:
		m.unlockFailures.Add(ctx, 1, with("reason", measure.UnlockFailure(e.Err)))
	case fencelock.CleanedUp:
		m.cleanups.Add(ctx, 1, plain)
	default: // Joined is no new hold, and Left ends none
	}
}
