//go:build linux

package guarantees_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// holderNode takes a server away together with a holder that is connected to it, just after a
// renewal: the server hangs in one trial and is cut off in the next, and the holder knows all
// servers in two trials and that one only in the next two. Another worker stands in the queue.
func holderNode(r *round) error {
	n := int(rounds.Load())
	cut := n%2 == 1 && isolated() && !r.replicated()
	holder, node, err := r.connected(n%4 < 2)
	if err != nil {
		return err
	}
	var next *client
	for next == nil || next == holder {
		next = r.clients[r.pick()]
	}
	if _, err := holder.ask("hold", r.dead()); err != nil {
		return err
	}
	if err := next.send("hold", r.dead()); err != nil {
		return err
	}
	for range 2 {
		if _, err := holder.ask("renewal"); err != nil {
			if _, granted := next.answer(); granted == nil { // by the loss, and nobody else ends it
				_, granted = next.ask("drop")
				err = errors.Join(err, granted)
			}
			return mishap(err) // a busy machine renews late
		}
	}
	r.count(func(o *outcome) { o.Partitions++ })
	began := time.Now()
	set(holder.links, faultproxy.BlackHole)
	if cut {
		r.lab.isolate(r.lab.at(node.Addr()), faultproxy.BlackHole)
	} else {
		err = mishap(node.Pause())
	}
	_, granted := next.answer()
	for granted != nil && strings.Contains(granted.Error(), fencelock.ErrUnavailable.Error()) &&
		time.Since(began) < patience { // another leader is yet to come
		_, granted = next.ask("hold", r.dead())
	}
	r.Slowest = time.Since(began)
	if granted == nil {
		_, granted = next.ask("drop")
	}
	if cut {
		r.lab.isolate(r.lab.at(node.Addr()), faultproxy.Mode{})
	} else {
		err = errors.Join(err, mishap(node.Resume()))
	}
	for _, p := range holder.links {
		p.Cut() // what was under way is gone
	}
	set(holder.links, faultproxy.Mode{})
	_, dropped := holder.ask("drop")
	return errors.Join(err, granted, dropped)
}

// connected returns a worker of this round alone and a server that it is connected to: the master
// where all are connected to that, else not the leader. alone: it knows no other, where one server
// does for a backend. It locks little besides, for every request of a process may keep its lease.
func (r *round) connected(alone bool) (*client, *servers.Server, error) {
	chosen, err := r.choose(1)
	if err != nil {
		return nil, nil, err
	}
	node := chosen[0]
	var leader *servers.Server
	if r.leader != nil {
		if leader, err = r.led(); err != nil {
			return nil, nil, err
		}
	}
	if r.replicated() {
		node = leader
	}
	c, err := r.hire(node, alone && r.leader != nil && !r.replicated())
	if err != nil || r.replicated() || len(c.links) == 1 {
		return c, node, err
	}
	for i, p := range c.links {
		if s := r.servers[i]; s != leader && p.Counts().Open > 0 {
			node = s
		}
	}
	return c, node, nil
}

// hire starts a worker for this round.
func (r *round) hire(node *servers.Server, alone bool) (*client, error) {
	w, err := ways{}, error(nil)
	if alone {
		var l net.Listener
		if l, err = w.net.listen("127.0.0.1:0"); err == nil {
			w.links = []*faultproxy.Proxy{faultproxy.NewOn(l, node.Addr(), r.lab.at(node.Addr()).net.dial)}
			r.links = append(r.links, w.links...)
		}
	} else {
		w, err = r.connect()
	}
	if err != nil {
		return nil, mishap(err)
	}
	usual := r.load
	r.load = load{Names: usual.Names, Goroutines: 1, Think: min(2*r.ttl, 3*time.Second)}
	c, err := r.start(w)
	r.load = usual
	if err != nil {
		return nil, err
	}
	r.hired = c
	r.clients = append(slices.Clone(r.clients), c)
	return c, r.begin(c)
}

// dismiss ends the worker that was hired.
func (r *round) dismiss() error {
	if r.hired == nil {
		return nil
	}
	r.hired.kill()
	r.clients = slices.DeleteFunc(r.clients, func(c *client) bool { return c == r.hired })
	var err error
	for _, p := range r.hired.links {
		r.links = slices.DeleteFunc(r.links, func(l *faultproxy.Proxy) bool { return l == p })
		err = errors.Join(err, mishap(p.Close()))
	}
	r.hired.net.close()
	return err
}
