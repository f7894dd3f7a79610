package migrate

import (
	"cmp"
	"context"
	"os"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	reportEvery = 10 * time.Second
	// usualTTL is what a client reports as its longest TTL before it has asked for one.
	usualTTL = 30 * time.Second
)

// report keeps what this client says of itself in both stores. It informs; nothing is safe because of it.
type report struct {
	mu     sync.Mutex
	client backend.Client

	background context.Context
	last       context.CancelFunc // there is to be no further one
	cancel     context.CancelFunc // nor is one that is under way to go on
	done       sync.WaitGroup
}

// start reports for the first time, and from then on every 10 s. It returns when the stores that
// the phase locks in know.
func (p *report) start(ctx context.Context, d *member) error {
	host, _ := os.Hostname() // empty where there is none
	p.client = backend.Client{
		ID: core.Nonce(), Move: d.move, Phase: d.phase, Host: cmp.Or(host, "unknown-host"), PID: os.Getpid(),
		MaxTTL: usualTTL, Since: time.Now().UTC().Truncate(time.Millisecond),
	}
	p.background, p.cancel = context.WithCancel(context.Background())
	going, last := context.WithCancel(p.background)
	p.last = last
	first := p.send(ctx, d, 0)
	p.every(going, func() { _ = p.send(p.background, d, 0) }) // if it fails, the next one may do
	// No lock waits for the spare store: it is told by itself, and opened for that if it can be.
	if s := d.spare; s != nil {
		p.done.Go(func() { _ = p.tell(p.background, s, 0) })
		p.every(going, func() { _ = p.tell(p.background, s, 0) })
	}
	return first
}

// every does something every 10 s until ctx ends.
func (p *report) every(ctx context.Context, do func()) {
	p.done.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-ctx.Done():
				return
			}
		}
	})
}

// send reports to the stores that the phase locks in, at once. With a ttl, only to those that do not know one as long.
func (p *report) send(ctx context.Context, d *member, ttl time.Duration) error {
	stores := d.locks
	errs := make([]error, len(stores))
	var all sync.WaitGroup
	for i, s := range stores {
		all.Go(func() { errs[i] = p.tell(ctx, s, ttl) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// tell reports to one store, unless it knows of a TTL as long as ttl, if that is not 0. Reports follow each other: an
// older one that came later would take the newer one's place. So of many that ask for the same ttl at once, one
// reports it.
func (p *report) tell(ctx context.Context, s *store, ttl time.Duration) error {
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if ttl > 0 && s.knows(ttl) {
		return nil
	}
	var c backend.Client
	err := within(ctx, sideMost, func(ctx context.Context) error {
		g, err := s.gater(ctx)
		p.mu.Lock()
		p.client.Reported = time.Now().UTC().Truncate(time.Millisecond)
		c = p.client
		p.mu.Unlock()
		if err != nil {
			return err
		}
		return g.Report(ctx, c, alive+c.MaxTTL)
	})
	if err == nil {
		s.told.Store(int64(c.MaxTTL))
	}
	return err
}

// asks notes how long a lock is asked for: a longer TTL than any before is reported before it is. A request that waits
// rides an outage out for that, as it does for its lock.
func (p *report) asks(ctx context.Context, d *member, r *backend.Request) error {
	ttl := r.TTL + r.Grace
	p.mu.Lock()
	p.client.MaxTTL = max(p.client.MaxTTL, ttl)
	p.mu.Unlock()
	known := true
	for _, s := range d.locks {
		known = known && s.knows(ttl)
	}
	switch {
	case known:
		return nil
	case !r.Wait:
		return p.send(ctx, d, ttl) // the spare store hears of it with the next report
	}
	return core.Wait(ctx, r.Nonce, nil, func(ctx context.Context) (bool, time.Duration, error) {
		return true, 0, p.send(ctx, d, ttl)
	})
}

// stop ends the reports and withdraws them from both stores at once. It takes no longer than most. A report that is cut
// off may still get to its store, so stop first waits for one that is under way, for a third of the time.
func (p *report) stop(d *member, most time.Duration) {
	if p.cancel == nil {
		return
	}
	p.last()
	late := time.AfterFunc(most/3, p.cancel)
	p.done.Wait()
	late.Stop()
	p.cancel()
	var both sync.WaitGroup
	for _, g := range d.opened() {
		both.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), most-most/3)
			defer cancel()
			_ = g.Withdraw(ctx, p.client) // the store forgets it by itself
		})
	}
	both.Wait()
}
