//go:build linux

package guarantees_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	. "github.com/fencelock/fencelock/tests/guarantees"
)

// injects makes each fault, and heals it.
var injects = map[Fault]func(*round) error{
	ClientStopped:   clientStopped,
	ClientKilled:    clientKilled,
	Replies:         replies,
	Requests:        requests,
	Latency:         latency,
	ClientCut:       clientCut,
	HolderNode:      holderNode,
	MinoritySilent:  func(r *round) error { return r.paused((len(r.servers) - 1) / 2) },
	ServerSilent:    func(r *round) error { return r.paused(len(r.servers)/2 + 1) },
	ServerRestarted: func(r *round) error { return r.restarted((*servers.Server).Stop) },
	ServerKilled:    func(r *round) error { return r.restarted((*servers.Server).Kill) },
	PowerLoss:       powerLoss,
	LeaderLost: func(r *round) error {
		return r.leaderless((*servers.Server).Kill, (*servers.Server).Start)
	},
	LeaderSilent: func(r *round) error {
		return r.leaderless((*servers.Server).Pause, (*servers.Server).Resume)
	},
	LeaderCut:  leaderCut,
	DiskFull:   diskFull,
	ClockMoved: clockMoved,
}

// pause is for how long a client is stopped or cut off: past its lease.
func (r *round) pause() time.Duration { return r.ttl + r.traits.Resolution/2 + 300*time.Millisecond }

// clientStopped stops a worker while it holds or waits, and lets it go on when its leases are over.
func clientStopped(r *round) error {
	c := r.clients[r.pick()]
	r.each(history.Stopped, c)
	r.count(func(o *outcome) { o.Pauses++ })
	err := errors.Join(c.signal(syscall.SIGSTOP), r.sleep(r.pause()), c.signal(syscall.SIGCONT))
	r.each(history.Continued, c)
	return mishap(err)
}

// clientKilled kills a worker that holds, and measures when another has the lock.
func clientKilled(r *round) error {
	c, next := r.clients[r.pick()], r.clients[r.pick()]
	if _, err := c.ask("hold", r.dead()); err != nil {
		return err
	}
	r.each(history.Died, c)
	r.count(func(o *outcome) { o.Kills++ })
	began := time.Now()
	c.kill()
	if _, err := next.ask("hold", r.dead()); err != nil {
		return fmt.Errorf("the lock of a killed process: %w", err)
	}
	r.Slowest = time.Since(began)
	_, err := next.ask("drop")
	return err
}

// rivals has a worker hold a lock over a fault, and another lock it at once when that is over.
// Where the store may have forgotten the first, both are to have it; where it may not, never.
func (r *round) rivals(fault func() error) error {
	if r.plain && !r.show {
		return fault()
	}
	a, b := r.clients[r.pick()], r.clients[r.pick()]
	verb := "hold"
	if r.show && r.backend != "redlock" { // which gives no lease longer than its quarantine
		verb = "keep" // to see the other have it takes long on a busy machine
		r.longest = keepTTLs * r.ttl
	}
	if _, err := a.ask(verb, r.dead()); err != nil {
		return err
	}
	err := fault()
	switch {
	case err == nil && r.show:
		var said string
		if said, err = b.ask("take", r.dead()); said == "held" {
			_, err = b.ask("drop")
		}
	case err == nil:
		err = r.kept(a, b)
	}
	_, dropped := a.ask("drop")
	return errors.Join(err, dropped)
}

// kept checks that nobody is granted what a worker still trusts.
func (r *round) kept(holder, other *client) error {
	for end := time.Now().Add(r.ttl); time.Now().Before(end); {
		said, err := other.ask("try", r.dead())
		if err != nil || said == "locked" {
			return err
		}
		if said == "granted" {
			if said, err = holder.ask("still"); said == "held" {
				err = errors.Join(err,
					fmt.Errorf("%q was granted to %s while %s held it",
						r.dead(), other.name, holder.name))
			}
			return err
		}
	}
	return nil // the store was not back in time
}

// replies loses one reply after the other, then holds all of a worker's until its leases are over, and delivers them.
func replies(r *round) error {
	for range 10 {
		for _, p := range r.links {
			p.LoseReplies(1)
		}
		if err := r.sleep(60 * time.Millisecond); err != nil {
			return err
		}
	}
	for _, p := range r.links {
		p.LoseReplies(0)
		r.Lost += int(p.Counts().LostReplies)
		p.ResetCounts()
	}
	mine := r.clients[r.pick()].links
	set(mine, faultproxy.Mode{HoldReplies: true})
	defer set(mine, faultproxy.Mode{})
	return r.sleep(r.pause())
}

// requests holds what a worker sends until its lease is over and another has the lock, and delivers
// it then: the other keeps it.
func requests(r *round) error {
	a, b := r.clients[r.pick()], r.clients[r.pick()]
	if _, err := a.ask("hold", r.dead()); err != nil {
		return err
	}
	set(a.links, faultproxy.Mode{HoldRequests: true})
	err := r.sleep(r.pause())
	if err == nil {
		_, err = b.ask("hold", r.dead())
	}
	set(a.links, faultproxy.Mode{})
	if err != nil {
		return err
	}
	for range 3 {
		if _, err = b.ask("renewal"); err != nil {
			err = fmt.Errorf("the lock of %s, when late requests of %s came: %w", b.name, a.name, err)
			if strings.Contains(err.Error(), fencelock.Expired.String()) {
				err = mishap(err) // a busy machine renews late
			}
			break
		}
	}
	_, dropped := b.ask("drop")
	_, late := a.ask("drop")
	return errors.Join(err, dropped, late)
}

// latency makes every way slow and uneven.
func latency(r *round) error {
	set(r.links, faultproxy.Mode{Delay: 40 * time.Millisecond, Jitter: 80 * time.Millisecond})
	defer set(r.links, faultproxy.Mode{})
	return r.sleep(r.ttl)
}

// clientCut cuts a worker off from every server, without a word.
func clientCut(r *round) error {
	i := r.pick()
	mine := r.clients[i].links
	r.count(func(o *outcome) { o.Partitions++ })
	set(mine, faultproxy.BlackHole)
	err := r.sleep(r.pause())
	if err == nil {
		err = r.refused(r.clients[i])
	}
	for _, p := range mine {
		p.Cut() // as a network that comes back: what was under way is gone
	}
	set(mine, faultproxy.Mode{})
	return err
}

func set(links []*faultproxy.Proxy, m faultproxy.Mode) {
	for _, p := range links {
		p.Set(m)
	}
}

// errGranted is matched by the error of an attempt that succeeded and should not have.
var errGranted = errors.New("granted")

// refused checks that an attempt of a worker fails, and does not say that another has the lock.
func (r *round) refused(c *client) error {
	said, err := c.ask("try", fmt.Sprintf("%s-%d", r.dead(), r.tried.Add(1)))
	switch {
	case err == nil && said == "granted":
		return fmt.Errorf("an attempt while the store could not be reached: %w", errGranted)
	case err == nil && said != "unavailable":
		return fmt.Errorf("an attempt while the store could not be reached: got %q, want unavailable", said)
	}
	return err
}
