//go:build linux

package guarantees_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/conformance/faultproxy"
	. "github.com/fencelock/fencelock/conformance/guarantees"
	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/servers"
)

// injects makes each fault, and heals it.
var injects = map[Fault]func(*round) error{
	ClientStopped:   clientStopped,
	ClientKilled:    clientKilled,
	Replies:         replies,
	Latency:         latency,
	ClientCut:       clientCut,
	MinoritySilent:  func(r *round) error { return r.paused((len(r.servers) - 1) / 2) },
	ServerSilent:    func(r *round) error { return r.paused(len(r.servers)/2 + 1) },
	ServerRestarted: func(r *round) error { return r.restarted((*servers.Server).Stop, nil) },
	ServerKilled:    func(r *round) error { return r.restarted((*servers.Server).Kill, nil) },
	PowerLoss:       func(r *round) error { return r.restarted((*servers.Server).Kill, r.loss) },
	LeaderLost: func(r *round) error {
		return r.leaderless((*servers.Server).Kill, (*servers.Server).Start)
	},
	LeaderSilent: func(r *round) error {
		return r.leaderless((*servers.Server).Pause, (*servers.Server).Resume)
	},
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
	err := c.signal(syscall.SIGSTOP)
	slept := r.sleep(r.pause())
	err = errors.Join(err, c.signal(syscall.SIGCONT), slept)
	r.each(history.Continued, c)
	return err
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

// rivals has a worker hold a lock over a fault, and another lock it at once when that is over: where the store has forgotten the
// first, both have it.
func (r *round) rivals(fault func() error) error {
	if !r.show {
		return fault()
	}
	a, b := r.clients[r.pick()], r.clients[r.pick()]
	if _, err := a.ask("hold", r.dead()); err != nil {
		return err
	}
	err := fault()
	if err == nil {
		_, err = b.ask("hold", r.dead())
	}
	if err == nil {
		_, err = b.ask("drop")
	}
	_, dropped := a.ask("drop")
	return errors.Join(err, dropped)
}

// replies loses one reply after the other, then holds all of a worker's until its leases are over, and delivers them.
func replies(r *round) error {
	for range 10 {
		for _, p := range r.all() {
			p.LoseReplies(1)
		}
		if err := r.sleep(60 * time.Millisecond); err != nil {
			return err
		}
	}
	for _, p := range r.all() {
		p.LoseReplies(0)
		r.Lost += int(p.Counts().LostReplies)
		p.ResetCounts()
	}
	mine := r.clients[r.pick()].links
	set(mine, faultproxy.Mode{HoldReplies: true})
	defer set(mine, faultproxy.Mode{})
	return r.sleep(r.pause())
}

// latency makes every way slow and uneven.
func latency(r *round) error {
	set(r.all(), faultproxy.Mode{Delay: 40 * time.Millisecond, Jitter: 80 * time.Millisecond})
	defer set(r.all(), faultproxy.Mode{})
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

// all is the ways of all workers.
func (r *round) all() []*faultproxy.Proxy { return r.links }

func set(links []*faultproxy.Proxy, m faultproxy.Mode) {
	for _, p := range links {
		p.Set(m)
	}
}

// refused checks that an attempt of a worker fails, and does not say that another has the lock.
func (r *round) refused(c *client) error {
	said, err := c.ask("try", r.dead()+"-free")
	if err == nil && said != "unavailable" {
		err = fmt.Errorf("an attempt while the store could not be reached: got %q, want unavailable", said)
	}
	return err
}

// paused silences servers: a minority changes nothing, of a majority nobody gets a lock.
func (r *round) paused(n int) error {
	r.count(func(o *outcome) { o.Partitions++ })
	chosen, err := r.choose(n)
	if err != nil {
		return err
	}
	resume := func() {
		for _, s := range chosen {
			err = errors.Join(err, s.Resume())
		}
	}
	for _, s := range chosen {
		if err := s.Pause(); err != nil {
			resume()
			return errors.Join(err, errHarness)
		}
	}
	most := 2*n > len(r.servers)
	from := history.Now()
	var bad error
	if most {
		if bad = r.sleep(r.pause()); bad == nil {
			bad = r.refused(r.clients[r.pick()])
		}
		r.write(history.Event{Kind: history.Down, At: from, Until: history.Now()})
	} else {
		began := time.Now()
		bad = r.back(began) // though they are silent
		if bad == nil {
			bad = r.sleep(r.ttl / 2)
		}
	}
	resume()
	return errors.Join(err, bad)
}

// choose returns n servers, others each time; a minority is without the leader, whose silence is a fault of its own.
func (r *round) choose(n int) ([]*servers.Server, error) {
	var leader *servers.Server
	if 2*n < len(r.servers) && r.leader != nil {
		var err error
		if leader, err = r.leader(r.ctx); err != nil {
			return nil, err
		}
	}
	first := r.pick()
	var chosen []*servers.Server
	for i := range r.servers {
		if s := r.servers[(first+i)%len(r.servers)]; s != leader && len(chosen) < n {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// restarted ends a server, all of them in turn over the rounds, and starts it again with what its disk has.
func (r *round) restarted(end func(*servers.Server) error, loss func(*servers.Server) func() error) error {
	s := r.servers[r.pick()%len(r.servers)]
	if r.direct { // the one that grants
		var err error
		if s, err = r.leader(r.ctx); err != nil {
			return err
		}
	}
	r.count(func(o *outcome) { o.Kills++ })
	cut := func() error { return nil }
	if loss != nil {
		cut = loss(s)
		if err := r.sleep(1100 * time.Millisecond); err != nil { // what everysec may lose
			return err
		}
	}
	if len(r.servers) > 1 && !r.direct { // the others go on
		began := time.Now()
		if err := end(s); err != nil {
			return err
		}
		return errors.Join(r.back(began), s.Start())
	}
	var began time.Time
	err := r.rivals(func() error {
		err := end(s)
		began = time.Now()
		return errors.Join(err, cut(), s.Start())
	})
	if err != nil {
		return err
	}
	return r.back(began)
}

// back measures when a worker gets a lock that nobody has.
func (r *round) back(began time.Time) error {
	c := r.clients[r.pick()]
	_, err := c.ask("hold", r.dead()+"-free")
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); { // it rode the outage out, for as long as it does
		_, err = c.ask("hold", r.dead()+"-free")
	}
	r.Slowest = time.Since(began)
	if err == nil {
		_, err = c.ask("drop")
	}
	return err
}

// leaderless takes the leader or master away until another has its place, and gives it back.
func (r *round) leaderless(take, back func(*servers.Server) error) error {
	s, err := r.leader(r.ctx)
	if err != nil {
		return err
	}
	r.count(func(o *outcome) { o.Kills++ })
	var behind []*servers.Server
	if r.direct {
		if behind, err = r.leaveBehind(s); err != nil {
			return err
		}
	}
	began := time.Now()
	err = r.rivals(func() error {
		err := take(s)
		for _, other := range behind {
			err = errors.Join(err, other.Resume())
		}
		return err
	})
	if err != nil {
		return err
	}
	if err = r.back(began); err == nil {
		err = r.sleep(r.ttl / 2)
	}
	return errors.Join(err, back(s))
}

// diskFull fills a server's disk, and makes room again. A server that ended because of it is started.
func diskFull(r *round) error {
	s := r.servers[0]
	fill := filepath.Join(s.Dir(), "data", "fill")
	f, err := os.Create(fill)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	for size := 1 << 12; size > 0; size /= 2 { // to the last byte
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(err, f.Close(), os.Remove(fill))
	}
	err = errors.Join(f.Close(), r.sleep(r.ttl))
	for _, c := range r.clients {
		err = errors.Join(err, r.refused(c))
	}
	err = errors.Join(err, os.Remove(fill))
	if s.Ready(r.ctx) != nil {
		err = errors.Join(err, s.Restart(true))
	}
	return err
}

// leaveBehind keeps the replicas from the last writes of a Redis master: they are stopped, and their connections ended.
func (r *round) leaveBehind(master *servers.Server) ([]*servers.Server, error) {
	var behind []*servers.Server
	for _, other := range r.servers {
		if other == master {
			continue
		}
		if err := other.Pause(); err != nil {
			return nil, err
		}
		behind = append(behind, other)
	}
	c := goredis.NewClient(&goredis.Options{Addr: master.Addr()})
	defer c.Close()
	if err := c.Do(r.ctx, "client", "kill", "type", "replica").Err(); err != nil {
		return nil, err
	}
	return behind, r.sleep(200 * time.Millisecond)
}

// clockMoved moves the wall clock of one server forward by a minute, and back. Of several servers the holder reaches no more than a
// majority, so that the vote of each counts.
func clockMoved(r *round) error {
	i := r.pick() % len(r.servers)
	mine := r.clients[int(r.next.Load()+1)%len(r.clients)].links // of the next one that is picked
	var gone []*faultproxy.Proxy
	for k := range (len(r.servers) - 1) / 2 {
		gone = append(gone, mine[(i+1+k)%len(r.servers)])
	}
	set(gone, faultproxy.Mode{Refuse: true})
	for _, p := range gone {
		p.Cut()
	}
	err := r.rivals(func() error { return r.clocks.move(i, time.Minute) })
	if err == nil {
		err = r.sleep(r.ttl / 2)
	}
	set(gone, faultproxy.Mode{})
	return errors.Join(err, r.clocks.move(i, 0))
}
