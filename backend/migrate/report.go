package migrate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	reportEvery = 10 * time.Second
	// usualTTL is what a client reports as its longest TTL before it has asked for one.
	usualTTL = 30 * time.Second
	// Close waits so long for a report under way, and then for each store to forget the client.
	reportMost   = time.Second
	withdrawMost = 2 * time.Second
)

// report keeps what this client says of itself in both stores. It informs; nothing is safe because of it.
type report struct {
	mu     sync.Mutex
	client backend.Client
	told   time.Duration // the longest TTL that the stores were told

	sending chan struct{} // full while a report is under way

	last   context.CancelFunc // there is to be no further one
	cancel context.CancelFunc // nor is one that is under way to go on
	done   chan struct{}
}

// start reports for the first time, to the stores that the phase locks in for sure, and from then on every 10 s.
func (p *report) start(ctx context.Context, d *Driver) error {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	p.client = backend.Client{
		ID: hex.EncodeToString(raw), Move: d.move, Phase: d.phase, Host: host, PID: os.Getpid(),
		MaxTTL: usualTTL, Since: time.Now().UTC().Truncate(time.Millisecond),
	}
	background, cancel := context.WithCancel(context.Background())
	going, last := context.WithCancel(background)
	p.last, p.cancel, p.done, p.sending = last, cancel, make(chan struct{}), make(chan struct{}, 1)
	first := p.send(ctx, d)
	go func() {
		defer close(p.done)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = p.send(background, d) // the next one may do
			case <-going.Done():
				return
			}
		}
	}()
	return first
}

// send reports to both stores at once. The error is that of one that the phase locks in; a store that is not open yet and that the
// phase does not need is opened for it, if it can be. Reports follow each other: an older one that came later would take the
// newer one's place.
func (p *report) send(ctx context.Context, d *Driver) error {
	select {
	case p.sending <- struct{}{}:
		defer func() { <-p.sending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	p.client.Reported = time.Now().UTC().Truncate(time.Millisecond)
	c := p.client
	p.mu.Unlock()
	report := func(s *store) error {
		limited, cancel := context.WithTimeout(ctx, sideMost)
		defer cancel()
		g, err := s.gater(limited)
		if err == nil {
			err = g.Report(limited, c, alive+c.MaxTTL)
		}
		return err
	}
	var from, to error
	var both sync.WaitGroup
	both.Go(func() { from = report(d.from) })
	to = report(d.to)
	both.Wait()
	if from != nil && d.phase != backend.PhaseTo {
		return from
	}
	if to != nil && d.phase != backend.PhaseFrom {
		return to
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = c.MaxTTL
	return nil
}

// asks notes how long a lock is asked for: a longer TTL than any before is reported before it is.
func (p *report) asks(ctx context.Context, d *Driver, ttl time.Duration) error {
	p.mu.Lock()
	p.client.MaxTTL = max(p.client.MaxTTL, ttl)
	known := ttl <= p.told
	p.mu.Unlock()
	if known {
		return nil
	}
	return p.send(ctx, d)
}

// stop ends the reports and takes back what was said, in both stores at once. A report under way that was cut off may be
// in a store yet or still get there: so it is waited for, up to reportMost, and then withdrawn.
func (p *report) stop(d *Driver) {
	if p.cancel == nil {
		return
	}
	p.last()
	late := time.AfterFunc(reportMost, p.cancel)
	<-p.done
	late.Stop()
	p.cancel()
	var both sync.WaitGroup
	for _, s := range []*store{d.from, d.to} {
		if _, g := s.both(); g != nil {
			both.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), withdrawMost)
				defer cancel()
				_ = g.Withdraw(ctx, p.client) // the store forgets it by itself
			})
		}
	}
	both.Wait()
}
