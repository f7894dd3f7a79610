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
)

// report keeps what this client says of itself in both stores. It informs; nothing is safe because of it.
type report struct {
	mu     sync.Mutex
	client backend.Client

	cancel context.CancelFunc
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
	p.cancel, p.done = cancel, make(chan struct{})
	first := p.send(ctx, d)
	go func() {
		defer close(p.done)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = p.send(background, d) // the next one may do
			case <-background.Done():
				return
			}
		}
	}()
	return first
}

// send reports to both stores. The error is that of one that the phase locks in; a store that is not open yet and that the
// phase does not need is opened for it, if it can be.
func (p *report) send(ctx context.Context, d *Driver) error {
	p.mu.Lock()
	p.client.Reported = time.Now().UTC().Truncate(time.Millisecond)
	c := p.client
	p.mu.Unlock()
	var first error
	for _, s := range []struct {
		store *store
		needs bool
	}{{d.from, d.phase != backend.PhaseTo}, {d.to, d.phase != backend.PhaseFrom}} {
		limited, cancel := context.WithTimeout(ctx, sideMost)
		g, err := s.store.gater(limited)
		if err == nil {
			err = g.Report(limited, c, alive+c.MaxTTL)
		}
		cancel()
		if s.needs && first == nil {
			first = err
		}
	}
	return first
}

// asks notes how long a lock is asked for: a longer TTL than any before is reported before it is.
func (p *report) asks(ctx context.Context, d *Driver, ttl time.Duration) error {
	p.mu.Lock()
	longer := ttl > p.client.MaxTTL
	if longer {
		p.client.MaxTTL = ttl
	}
	p.mu.Unlock()
	if !longer {
		return nil
	}
	return p.send(ctx, d)
}

// stop ends the reports and takes back what was said.
func (p *report) stop(d *Driver) {
	if p.cancel == nil {
		return
	}
	p.cancel()
	<-p.done
	for _, s := range []*store{d.from, d.to} {
		if _, g := s.both(); g != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closeMost)
			_ = g.Withdraw(ctx, p.client) // the store forgets it by itself
			cancel()
		}
	}
}
