//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	. "github.com/fencelock/fencelock/tests/guarantees"
)

// The environment of make soak, besides ONLY and SAVE.
const (
	envHours   = "HOURS"
	envVersion = "VERSION" // under which the figures are added
	envFigures = "FIGURES" // the file that has them
)

// TestSoak makes faults for HOURS on all backends at once: several at a time, on many names. It
// adds its figures to a file after each round, and ends in order when it is interrupted.
func TestSoak(t *testing.T) {
	hours, err := strconv.ParseFloat(os.Getenv(envHours), 64)
	if err != nil {
		t.Skip("make soak HOURS=n")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(hours*float64(time.Hour)))
	defer cancel()
	t.Run("backends", func(t *testing.T) {
		for _, b := range Backends() {
			if chosen(b.Backend, "") {
				t.Run(b.Backend, func(t *testing.T) {
					t.Parallel()
					soak(t, ctx, start(t, b.Backend))
				})
			}
		}
	})
}

func soak(t *testing.T, ctx context.Context, s *stack) {
	work := load{Names: 64, Shared: 4, Goroutines: 16, Think: 60 * time.Millisecond}
	f, err := newFleet(t.Context(), s, work, t.TempDir())
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		began := time.Now()
		server := s.draw()
		plain := s.tx || Of(server, s.backend).Holds == Tokens
		out, broken, mishaps := f.run(t.Context(), "soak", judge{plain: plain},
			func(r *round) error { return r.overlap(server) },
			saves(s.backend))
		now := Figures{
			Minutes: time.Since(began).Minutes(), Rounds: 1, Locks: out.Locks, Pauses: out.Pauses,
			Kills: out.Kills, Partitions: out.Partitions,
			Lost: out.Lost, Lacking: out.Lacking,
		}
		if plain {
			now.SecondHolders = out.Twice
		}
		switch {
		case broken == nil && mishaps != nil:
			now.BrokenOff = 1
		case broken != nil && only(broken, history.ErrUnknown):
			now.Unknown = 1
		case broken != nil && only(broken, errStalled):
			now.Stalled = 1
		case broken != nil:
			now.Violations = 1
		}
		err := errors.Join(broken, mishaps)
		if err != nil {
			t.Errorf("%s with %s: %v", s.backend, server, err)
		}
		if err := tally(s.backend, now); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			if err := f.revive(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// draw chooses what happens to the servers of a round.
func (s *stack) draw() Fault {
	var all []Fault
	for _, f := range []Fault{
		MinoritySilent, ServerSilent, ServerRestarted, ServerKilled, PowerLoss, LeaderLost,
		LeaderCut,
	} {
		if s.can(f) && Of(f, s.backend).Holds != NA {
			all = append(all, f)
		}
	}
	return all[rand.IntN(len(all))]
}

// overlap makes a fault of the servers, and one of each worker, all at once.
func (r *round) overlap(server Fault) error {
	var running sync.WaitGroup
	errs := make([]error, len(r.clients)+1)
	running.Go(func() { errs[0] = r.strike(server) })
	for i := range r.clients {
		running.Go(func() { errs[i+1] = r.harass(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// calm is how long a worker is left alone between two faults, at the most. Without it most of the time goes into
// starting processes, and few locks are taken.
const calm = 6 * time.Second

// harass does one thing after another to a worker, until it is dead.
func (r *round) harass(i int) error {
	var err error
	for range 1 + rand.IntN(12) {
		if c := r.clients[i]; err == nil && !c.dead {
			err = errors.Join(r.annoy(c), r.sleep(rand.N(calm)))
		}
	}
	return err
}

// annoy does one thing or another to a worker.
func (r *round) annoy(c *client) error {
	span := r.ttl/4 + rand.N(r.ttl)
	what := rand.IntN(5)
	if c.links == nil {
		what %= 2
	}
	switch what {
	case 0, 4:
		r.each(history.Stopped, c)
		r.count(func(o *outcome) { o.Pauses++ })
		err := errors.Join(c.signal(syscall.SIGSTOP), r.sleep(span), c.signal(syscall.SIGCONT))
		r.each(history.Continued, c)
		return err
	case 1:
		if rand.IntN(3) > 0 { // a new process costs as much as a thousand locks
			return nil
		}
		r.each(history.Died, c)
		r.count(func(o *outcome) { o.Kills++ })
		c.kill()
		return nil // healed when the servers are
	case 2:
		r.count(func(o *outcome) { o.Partitions++ })
		set(c.links, []faultproxy.Mode{faultproxy.BlackHole, {HoldReplies: true}, {HoldRequests: true}}[rand.IntN(3)])
		err := r.sleep(span)
		set(c.links, faultproxy.Mode{})
		return err
	}
	for range 5 {
		for _, p := range c.links {
			p.LoseReplies(1)
		}
		if err := r.sleep(span / 5); err != nil {
			return err
		}
	}
	for _, p := range c.links {
		p.LoseReplies(0)
		n := int(p.Counts().LostReplies)
		p.ResetCounts()
		r.count(func(o *outcome) { o.Lost += n })
	}
	return nil
}

// strike makes a fault of the servers that asks no worker anything.
func (r *round) strike(id Fault) error {
	span := r.ttl/4 + rand.N(r.ttl)
	first, n := r.pick(), 0
	switch id {
	case MinoritySilent:
		n = (len(r.servers) - 1) / 2
	case ServerSilent:
		n = len(r.servers)/2 + 1
	}
	if n > 0 {
		r.count(func(o *outcome) { o.Partitions += n })
		chosen, err := r.choose(n)
		errs := []error{err}
		for _, s := range chosen {
			errs = append(errs, s.Pause())
		}
		errs = append(errs, r.sleep(span))
		for _, s := range chosen {
			errs = append(errs, s.Resume())
		}
		return errors.Join(errs...)
	}
	if id == PowerLoss && r.lab.disks() {
		r.count(func(o *outcome) { o.Kills += len(r.servers) })
		return mishap(r.blackout())
	}
	s := r.servers[first%len(r.servers)]
	if r.leader != nil && (id == LeaderLost || id == LeaderCut || r.replicated()) {
		var err error
		if s, err = r.led(); err != nil {
			return err
		}
	}
	if id == LeaderCut {
		r.count(func(o *outcome) { o.Partitions++ })
		h := r.lab.at(s.Addr())
		r.lab.isolate(h, faultproxy.BlackHole)
		defer r.lab.isolate(h, faultproxy.Mode{})
		return r.sleep(r.ttl + span)
	}
	r.count(func(o *outcome) { o.Kills++ })
	end := (*servers.Server).Kill
	if id == ServerRestarted {
		end = (*servers.Server).Stop
	}
	err := end(s)
	if id == LeaderLost {
		err = errors.Join(err, r.sleep(span))
	}
	return mishap(errors.Join(err, s.Start()))
}

// tally adds figures to the file, if there is one.
func tally(backend string, now Figures) error {
	path := os.Getenv(envFigures)
	if path == "" {
		return nil
	}
	recording.Lock()
	defer recording.Unlock()
	return Tally(path, os.Getenv(envVersion), backend, now)
}
