//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// workers is how many of them a fleet has.
const workers = 3

// fleet is the workers of one backend, and what happens to them.
type fleet struct {
	*stack
	load
	dir     string
	clients []*client
	began   int
	watch   *fencelock.Locker // looks from outside
	links   []*faultproxy.Proxy
}

var fleets atomic.Int64

// newFleet starts the workers. The caller closes it, also after an error.
func newFleet(ctx context.Context, s *stack, l load, dir string) (*fleet, error) {
	f := &fleet{stack: s, load: l, dir: dir}
	f.prefix = fmt.Sprintf("faults-%d-%d:", os.Getpid(), fleets.Add(1))
	var err error
	if f.watch, err = fencelock.Open(ctx, f.url(f.addrs, f.prefix)); err != nil {
		return f, err
	}
	for range workers {
		w, err := f.connect()
		if err != nil {
			return f, err
		}
		c, err := f.start(w)
		if err != nil {
			return f, err
		}
		f.clients = append(f.clients, c)
	}
	return f, nil
}

// ways is how a worker reaches the servers: through proxies of its own.
type ways struct {
	links []*faultproxy.Proxy
	net   *network // in which it finds them at the servers' addresses; nil: it knows theirs
}

// connect makes a worker's ways. Where servers name others, they are proxies at the same addresses in another network.
func (f *fleet) connect() (w ways, err error) {
	addrs, named := f.addrs, f.replicated()
	if named && !isolated() {
		return w, nil
	}
	if named {
		addrs = f.named
		if w.net, err = newNetwork(); err != nil {
			return w, err
		}
	}
	for _, addr := range addrs {
		at := "127.0.0.1:0"
		if named {
			at = addr
		}
		l, err := w.net.listen(at)
		if err != nil {
			return w, err
		}
		p := faultproxy.NewOn(l, addr, f.lab.at(addr).net.dial)
		w.links, f.links = append(w.links, p), append(f.links, p)
	}
	return w, nil
}

// start starts a worker, and returns when it may lock.
func (f *fleet) start(w ways) (*client, error) {
	f.began++
	addrs := f.addrs
	if w.net == nil && w.links != nil {
		addrs = nil
		for _, p := range w.links {
			addrs = append(addrs, p.Addr())
		}
	}
	c, err := launch(assignment{
		URL: f.url(addrs, f.prefix), Name: fmt.Sprintf("w%d", f.began), Dir: f.dir, TTL: f.ttl,
		Tx: f.tx, load: f.load,
	}, w)
	if err != nil {
		return nil, err
	}
	if line, err := c.answer(); line != "ready" {
		c.kill()
		return nil, fmt.Errorf("%s: got %q, want it to be ready: %w", c.name, line, err)
	}
	return c, nil
}

// close ends everything.
func (f *fleet) close() error {
	for _, c := range f.clients {
		c.kill()
		c.net.close()
	}
	var err error
	for _, p := range f.links {
		err = errors.Join(err, p.Close())
	}
	if f.watch != nil {
		err = errors.Join(err, f.watch.Close())
	}
	return err
}

// replace starts a worker in the place of one that is gone.
func (f *fleet) replace(i int) error {
	c, err := f.start(f.clients[i].ways)
	if err == nil {
		f.clients[i] = c
	}
	return err
}

// revive gives the fleet servers that run, open ways and new workers, after a round that went wrong.
func (f *fleet) revive() error {
	set(f.links, faultproxy.Mode{})
	for _, w := range f.lab.wires {
		w.proxy.Set(faultproxy.Mode{})
	}
	var running sync.WaitGroup
	errs := make([]error, len(f.servers))
	for i, s := range f.servers {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if s.Ready(ctx) != nil { // it has ended, or is paused
				errs[i] = s.Restart(true)
			}
		})
	}
	running.Wait()
	for i, c := range f.clients {
		c.kill()
		errs = append(errs, f.replace(i))
	}
	return errors.Join(errs...)
}
