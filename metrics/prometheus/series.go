package prometheus

import (
	"time"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// vecs are the metrics that have a backend, a resource and a mode.
type vecs struct {
	wait, hold, margin                                       *client.HistogramVec
	held, waiting                                            *client.GaugeVec
	failures, lost, late, renewals, unlockFailures, cleanups *client.CounterVec
}

// What is made at the scrape.
var (
	leakedDesc = client.NewDesc("distributed_lock_leaked",
		"Locks that are held with no expiry and that nobody will free, as listed last (Watch).",
		[]string{"backend", "resource"}, nil)
	listingsDesc = client.NewDesc("distributed_lock_listings_total",
		"Listings that looked for leaked locks (Watch).", []string{"backend", "result"}, nil)
	jumpsDesc = client.NewDesc("distributed_lock_clock_jumps_total",
		"Times that this machine's wall clock was seen to have moved by half a second or more "+
			"against its monotonic clock between two scrapes.",
		[]string{"direction"}, nil)
)

func newVecs() vecs {
	counter := func(name, help string, labels ...string) *client.CounterVec {
		return client.NewCounterVec(client.CounterOpts{Name: "distributed_lock_" + name, Help: help},
			append([]string{"backend", "resource", "mode"}, labels...))
	}
	gauge := func(name, help string) *client.GaugeVec {
		return client.NewGaugeVec(client.GaugeOpts{Name: "distributed_lock_" + name, Help: help},
			[]string{"backend", "resource", "mode"})
	}
	histogram := func(name, help string, buckets []float64) *client.HistogramVec {
		return client.NewHistogramVec(client.HistogramOpts{
			Name: "distributed_lock_" + name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"backend", "resource", "mode"})
	}
	return vecs{
		wait: histogram("wait_seconds",
			"How long acquisitions took, the wait included: of all that were granted, and of the "+
				"waits that ended without a grant.", measure.WaitBuckets),
		hold: histogram("hold_seconds",
			"How long leases were held, until they were released or lost.", measure.HoldBuckets),
		margin: histogram("loss_margin_seconds",
			"How long before the store's expiry a holder was told that its lease is "+
				"over; negative if too late.", measure.MarginBuckets),
		held:           gauge("held", "Leases that are held now."),
		waiting:        gauge("waiting", "Calls of Lock that are under way now."),
		failures:       counter("failures_total", "Calls of Lock and TryLock that failed.", "reason"),
		lost:           counter("lost_total", "Leases that ended without Unlock.", "reason"),
		late:           counter("lost_late_total", "Losses that the holder was told only after the store's expiry."),
		renewals:       counter("renewals_total", "Renewals.", "result"),
		unlockFailures: counter("unlock_failures_total", "Calls of Unlock that failed.", "reason"),
		cleanups:       counter("cleanups_total", "Acquisitions, unwanted or of unknown outcome, that were undone."),
	}
}

func (v *vecs) all() []client.Collector {
	return []client.Collector{
		v.wait, v.hold, v.margin, v.held, v.waiting, v.failures, v.lost, v.late, v.renewals,
		v.unlockFailures, v.cleanups,
	}
}

// key tells series apart.
type key struct{ backend, resource, mode string }

// series are the metrics of one key.
type series struct {
	key

	wait, hold, margin                   client.Observer
	held, waiting                        client.Gauge
	late, renewed, renewFailed, cleanups client.Counter
	failures, lost, unlockFailures       *client.CounterVec // have the other labels already
}

// of returns the series of an event. When they are new, every counter is made with the value 0, so
// that the first thing that is counted shows as an increase.
func (c *Collector) of(e fencelock.Event) *series {
	k := key{e.Backend, c.groups.Of(e.Name), e.Mode.String()}
	c.mu.RLock()
	s := c.series[k]
	c.mu.RUnlock()
	if s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.series[k]; s != nil {
		return s
	}
	ls := client.Labels{"backend": k.backend, "resource": k.resource, "mode": k.mode}
	s = &series{
		key:            k,
		wait:           c.wait.With(ls),
		hold:           c.hold.With(ls),
		margin:         c.margin.With(ls),
		held:           c.held.With(ls),
		waiting:        c.waiting.With(ls),
		late:           c.late.With(ls),
		cleanups:       c.cleanups.With(ls),
		failures:       c.failures.MustCurryWith(ls),
		lost:           c.lost.MustCurryWith(ls),
		unlockFailures: c.unlockFailures.MustCurryWith(ls),
	}
	renewals := c.renewals.MustCurryWith(ls)
	s.renewed, s.renewFailed = renewals.WithLabelValues("ok"), renewals.WithLabelValues("failed")
	for _, reason := range measure.Failures {
		s.failures.WithLabelValues(reason)
	}
	for _, reason := range measure.Losses {
		s.lost.WithLabelValues(reason)
	}
	for _, reason := range measure.UnlockFailures {
		s.unlockFailures.WithLabelValues(reason)
	}
	c.series[k] = s
	return s
}

// answered counts the end of a Lock or TryLock; locked: it was a Lock.
func (s *series) answered(e fencelock.Event, locked bool) {
	switch e.Kind {
	case fencelock.Acquired:
		s.held.Inc()
		s.wait.Observe(e.Took.Seconds())
	case fencelock.NotAcquired:
		reason := measure.Failure(e.Err)
		s.failures.WithLabelValues(reason).Inc()
		if locked && measure.Waited(reason) {
			s.wait.Observe(e.Took.Seconds())
		}
	default: // Joined is no new hold
	}
}
