//go:build linux

package guarantees_test

import (
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

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
			return mishap(err)
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
	return errors.Join(mishap(err), bad)
}

// choose returns n servers, others each time; a minority is without the leader, whose silence is a fault of its own.
func (r *round) choose(n int) ([]*servers.Server, error) {
	var leader *servers.Server
	if 2*n < len(r.servers) && r.leader != nil {
		var err error
		if leader, err = r.led(); err != nil {
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
func (r *round) restarted(end func(*servers.Server) error) error {
	s := r.servers[r.pick()%len(r.servers)]
	if r.replicated() { // the one that grants
		var err error
		if s, err = r.led(); err != nil {
			return err
		}
	}
	r.count(func(o *outcome) { o.Kills++ })
	if len(r.servers) > 1 && !r.replicated() { // the others go on
		began := time.Now()
		if err := end(s); err != nil {
			return mishap(err)
		}
		return errors.Join(r.back(began), mishap(s.Start()))
	}
	var began time.Time
	err := r.rivals(func() error {
		err := end(s)
		began = time.Now()
		return mishap(errors.Join(err, s.Start()))
	})
	if err != nil {
		return err
	}
	return r.back(began)
}

// powerLoss takes the power from all servers at once; where nothing is on a disk, from one of them.
func powerLoss(r *round) error {
	if !r.lab.disks() {
		return r.restarted((*servers.Server).Kill)
	}
	r.count(func(o *outcome) { o.Kills += len(r.servers) })
	var began time.Time
	err := r.rivals(func() error {
		began = time.Now()
		return mishap(r.blackout())
	})
	if err != nil {
		return err
	}
	return r.back(began)
}

// blackout kills all servers, takes what they have not synced, and starts them.
func (r *round) blackout() error {
	err := r.all((*servers.Server).Kill)
	for _, s := range r.servers {
		err = errors.Join(err, r.lab.at(s.Addr()).disk.lose())
	}
	if err != nil {
		return err
	}
	return r.all((*servers.Server).Start) // they need each other
}

// all does something with all servers at once.
func (r *round) all(do func(*servers.Server) error) error {
	errs := make([]error, len(r.servers))
	var running sync.WaitGroup
	for i, s := range r.servers {
		running.Go(func() { errs[i] = do(s) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// back measures when a worker gets a lock that nobody has.
func (r *round) back(began time.Time) error {
	c := r.clients[r.pick()]
	_, err := c.ask("hold", r.dead()+"-free")
	// it rode the outage out, for as long as it does
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
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
	s, err := r.led()
	if err != nil {
		return err
	}
	r.count(func(o *outcome) { o.Kills++ })
	var behind []*servers.Server
	if r.replicated() {
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
		return mishap(err)
	})
	if err != nil {
		return err
	}
	if err = r.back(began); err == nil {
		err = r.sleep(r.ttl / 2)
	}
	return errors.Join(err, mishap(back(s)))
}

// leaderCut keeps the leader and the other servers apart until another has its place. The clients reach all of them.
func leaderCut(r *round) error {
	s, err := r.led()
	if err != nil {
		return err
	}
	r.count(func(o *outcome) { o.Partitions++ })
	h := r.lab.at(s.Addr())
	defer r.lab.isolate(h, faultproxy.Mode{})
	if !r.replicated() {
		began := time.Now()
		err := r.rivals(func() error {
			r.lab.isolate(h, faultproxy.BlackHole)
			return r.succeeded(s)
		})
		if err == nil {
			err = r.back(began)
		}
		return errors.Join(err, r.sleep(r.pause()))
	}
	r.lab.isolate(h, faultproxy.BlackHole) // what it grants now stays with it
	return r.rivals(func() error { return r.succeeded(s) })
}

// succeeded waits until the servers have another leader.
func (r *round) succeeded(old *servers.Server) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if now, err := r.led(); err != nil || now != old {
			return err
		}
		time.Sleep(10 * time.Millisecond) // the pause of a bounded poll
	}
	return mishap(fmt.Errorf("no server has taken the place of %v", old))
}

// led is the leader, or the master.
func (r *round) led() (*servers.Server, error) {
	s, err := r.leader(r.ctx)
	return s, mishap(err)
}

// diskFull fills the disks of all servers, and makes room again. Servers that ended because of it,
// or hang, are started.
func diskFull(r *round) error {
	var errs []error
	var frees []func() error
	for _, s := range r.servers {
		free, err := r.lab.at(s.Addr()).disk.fill()
		if err != nil {
			errs = append(errs, mishap(err))
			continue
		}
		frees = append(frees, free)
	}
	if len(errs) == 0 {
		errs = append(errs, r.refusing())
	}
	for _, free := range frees {
		errs = append(errs, mishap(free()))
	}
	return errors.Join(append(errs, mishap(r.all(func(s *servers.Server) error {
		if s.Ready(r.ctx) != nil {
			return s.Restart(true)
		}
		return nil
	})))...)
}

// refusing waits until the store has given no worker a lock for a TTL: the room that its files had
// may do for some. What can be used up at once is.
func (r *round) refusing() error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if r.useUp != nil {
			r.useUp(r.ctx)
		}
		err := r.refusedAll()
		for since := time.Now(); err == nil && time.Since(since) < r.ttl; {
			err = r.refusedAll()
		}
		if !errors.Is(err, errGranted) {
			return err
		}
	}
	return errors.New("locks are granted, and the disk is full")
}

// refusedAll is refused of all workers at once.
func (r *round) refusedAll() error {
	errs := make([]error, len(r.clients))
	var running sync.WaitGroup
	for i, c := range r.clients {
		running.Go(func() { errs[i] = r.refused(c) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// leaveBehind keeps the replicas from the last writes of a Redis master: they are stopped, and their connections ended.
func (r *round) leaveBehind(master *servers.Server) ([]*servers.Server, error) {
	var behind []*servers.Server
	for _, other := range r.servers {
		if other == master {
			continue
		}
		if err := other.Pause(); err != nil {
			return nil, mishap(err)
		}
		behind = append(behind, other)
	}
	c := goredis.NewClient(&goredis.Options{Addr: master.Addr()})
	defer c.Close()
	if err := c.Do(r.ctx, "client", "kill", "type", "replica").Err(); err != nil {
		return nil, mishap(err)
	}
	return behind, r.sleep(200 * time.Millisecond)
}

// clockMoved moves the wall clock of one server forward by a minute, and back. Of several servers
// the holder reaches no more than a majority, so that the vote of each counts.
func clockMoved(r *round) error {
	i := r.pick() % len(r.servers)
	s := r.servers[i]
	if r.leader != nil { // the one that grants
		var err error
		if s, err = r.led(); err != nil {
			return err
		}
	}
	var gone []*faultproxy.Proxy
	if !r.replicated() {
		mine := r.clients[int(r.next.Load()+1)%len(r.clients)].links // of the next one that is picked
		for k := range (len(r.servers) - 1) / 2 {
			gone = append(gone, mine[(i+1+k)%len(r.servers)])
		}
	}
	set(gone, faultproxy.Mode{Refuse: true})
	for _, p := range gone {
		p.Cut()
	}
	err := r.rivals(func() error { return mishap(r.lab.move(s, time.Minute)) })
	if err == nil {
		err = r.sleep(r.ttl / 2)
	}
	set(gone, faultproxy.Mode{})
	return errors.Join(err, mishap(r.lab.move(s, 0)))
}
