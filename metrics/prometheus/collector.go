package prometheus

import (
	"context"
	"sync"
	"time"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// Options of a Collector. The zero value has the defaults.
type Options struct {
	// Resource groups names: it returns the value of the label "resource". It is called for most events, by many
	// goroutines, so it must be quick and must not call back; for "" the value is "other". The default is the part
	// before the first slash, and "other" for a name without one. Return few values: each is about 70 time series, for
	// each mode that its names are held in.
	Resource func(name string) string
	// MaxResources bounds the number of resources, whatever Resource returns: the first so many have series of their
	// own, all others are "other". The default, also for what is below 1, is 100.
	MaxResources int
}

// Collector turns the events of Lockers into metrics. It is given to any number of Lockers with WithObserver, and
// registered once. Its methods may be called by many goroutines. It has no goroutine of its own and needs no Close:
// when a Locker is closed, its leases end and are counted down.
type Collector struct {
	groups *measure.Groups
	jumps  *measure.Jumps
	leaks  *measure.Leaks
	vecs

	mu     sync.RWMutex
	series map[key]*series
}

// It is found by type assertion, so this is where a change would show.
var (
	_ fencelock.Beginner = (*Collector)(nil)
	_ client.Collector   = (*Collector)(nil)
)

// New returns a Collector; nil options are the defaults.
func New(o *Options) *Collector {
	if o == nil {
		o = &Options{}
	}
	groups := measure.NewGroups(o.Resource, o.MaxResources)
	return &Collector{
		groups: groups,
		jumps:  measure.NewJumps(measure.Clock()),
		leaks:  measure.NewLeaks(groups),
		vecs:   newVecs(),
		series: map[key]*series{},
	}
}

// waitKey is the key under which the context of a Lock has the series that it waits in.
type waitKey struct{ c *Collector }

// Begin counts a Lock in. It is for the Locker to call.
func (c *Collector) Begin(ctx context.Context, e fencelock.Event) context.Context {
	if e.Kind != fencelock.Locking {
		return ctx
	}
	s := c.of(e)
	s.waiting.Inc()
	return context.WithValue(ctx, waitKey{c}, s)
}

// Observe counts what happened. It is for the Locker to call.
func (c *Collector) Observe(ctx context.Context, e fencelock.Event) {
	s := c.of(e)
	switch e.Kind {
	case fencelock.Acquired, fencelock.NotAcquired, fencelock.Joined:
		waited, _ := ctx.Value(waitKey{c}).(*series)
		if waited != nil {
			waited.waiting.Dec()
		}
		s.answered(e, waited != nil)
	case fencelock.Released:
		s.held.Dec()
		s.hold.Observe(e.Took.Seconds())
	case fencelock.Lost:
		s.held.Dec()
		s.hold.Observe(e.Took.Seconds())
		s.lost.WithLabelValues(measure.Loss(e.Reason)).Inc()
		if measure.Timed(e.Reason) {
			s.margin.Observe(e.Margin.Seconds())
			if e.Margin <= 0 {
				s.late.Inc()
			}
		}
	case fencelock.Renewed:
		s.renewed.Inc()
	case fencelock.RenewFailed:
		if !measure.Overtaken(e.Err) {
			s.renewFailed.Inc()
		}
	case fencelock.NotReleased:
		s.unlockFailures.WithLabelValues(measure.UnlockFailure(e.Err)).Inc()
	case fencelock.CleanedUp:
		s.cleanups.Inc()
	default: // Left changes no number
	}
}

// Watch looks for leaked locks: locks that are held with no expiry, which nobody will ever free. It
// lists those of l whose names have the prefix, at once and then every so often, and exports how
// many there are. It returns when ctx ends, with its cause, or with an error when l is closed,
// cannot list, or every is not above 0; the numbers of this watch are not exported any more then. A
// listing that fails otherwise is counted and tried again.
//
// It runs on the caller's goroutine: go c.Watch(ctx, l, "", time.Minute). A listing goes through every lock in the
// store, so one process of a fleet is enough. Of a Locker that routes by name, the backend is what Traits().Name says.
func (c *Collector) Watch(ctx context.Context, l *fencelock.Locker, prefix string, every time.Duration) error {
	return c.leaks.Watch(ctx, l, prefix, every)
}

// Describe is for the registry to call.
func (c *Collector) Describe(ds chan<- *client.Desc) {
	for _, v := range c.all() {
		v.Describe(ds)
	}
	for _, d := range []*client.Desc{leakedDesc, listingsDesc, jumpsDesc} {
		ds <- d
	}
}

// Collect is for the registry to call. It looks at the clocks.
func (c *Collector) Collect(ms chan<- client.Metric) {
	for _, v := range c.all() {
		v.Collect(ms)
	}
	for p, n := range c.leaks.Leaked() {
		ms <- client.MustNewConstMetric(leakedDesc, client.GaugeValue, float64(n), p.Backend, p.Resource)
	}
	c.leaks.Listings(func(backend string, ok, failed int64) {
		ms <- client.MustNewConstMetric(listingsDesc, client.CounterValue, float64(ok), backend, "ok")
		ms <- client.MustNewConstMetric(listingsDesc, client.CounterValue, float64(failed), backend, "failed")
	})
	forward, backward := c.jumps.Look()
	ms <- client.MustNewConstMetric(jumpsDesc, client.CounterValue, float64(forward), "forward")
	ms <- client.MustNewConstMetric(jumpsDesc, client.CounterValue, float64(backward), "backward")
}
