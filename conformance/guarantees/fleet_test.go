//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	. "github.com/fencelock/fencelock/conformance/guarantees"
	"github.com/fencelock/fencelock/conformance/history"
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
		links, err := f.link()
		if err != nil {
			return f, err
		}
		c, err := f.start(links)
		if err != nil {
			return f, err
		}
		f.clients = append(f.clients, c)
	}
	return f, nil
}

// link makes a worker's own ways to the servers.
func (f *fleet) link() ([]*faultproxy.Proxy, error) {
	var links []*faultproxy.Proxy
	if f.direct {
		return nil, nil
	}
	for _, addr := range f.addrs {
		p, err := faultproxy.New(addr)
		if err != nil {
			return nil, err
		}
		links = append(links, p)
		f.links = append(f.links, p)
	}
	return links, nil
}

// start starts a worker, and returns when it may lock.
func (f *fleet) start(links []*faultproxy.Proxy) (*client, error) {
	f.began++
	addrs := f.addrs
	if links != nil {
		addrs = nil
		for _, p := range links {
			addrs = append(addrs, p.Addr())
		}
	}
	c, err := launch(assignment{URL: f.url(addrs, f.prefix), Name: fmt.Sprintf("w%d", f.began), Dir: f.dir, TTL: f.ttl, Tx: f.tx, load: f.load}, links)
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
	c, err := f.start(f.clients[i].links)
	if err == nil {
		f.clients[i] = c
	}
	return err
}

// revive gives the fleet new workers and open ways, after a round that broke off.
func (f *fleet) revive() error {
	var errs []error
	set(f.links, faultproxy.Mode{})
	for i, c := range f.clients {
		c.kill()
		errs = append(errs, f.replace(i))
	}
	return errors.Join(errs...)
}

// round is one fault, and the history around it.
type round struct {
	*fleet
	ctx   context.Context
	id    string
	names []string
	judge
	next atomic.Int64 // worker to pick

	mu  sync.Mutex
	own []history.Event // written by the parent
	outcome
}

// outcome is what came of a round.
type outcome struct {
	Locks                           int           // grants
	Twice                           int           // times that two trusted a lease at once
	Slowest                         time.Duration // until what the fault had taken was there again
	Pauses, Kills, Partitions, Lost int
	Lacking                         int // acknowledged increments that are not there
}

// judge says what a history is held to.
type judge struct {
	plain bool // two may have the lock at once
	show  bool // and are to
}

var rounds atomic.Int64

// errHarness is matched by the error of a round that broke off: its workers are not where the next one could begin.
var errHarness = errors.New("the round broke off")

// errStalled is matched by the error of a round after which a worker got no lock for long.
var errStalled = errors.New("stalled")

var recording sync.Mutex

// run makes a history around a fault and checks it.
func (f *fleet) run(ctx context.Context, id Fault, j judge, inject func(*round) error, save string) (outcome, error) {
	r := &round{fleet: f, ctx: ctx, judge: j, id: fmt.Sprintf("%s-%d", id, rounds.Add(1))}
	r.next.Store(rounds.Load())
	for i := range f.Names {
		r.names = append(r.names, fmt.Sprintf("%s/%d", r.id, i))
	}
	for _, c := range f.clients {
		if err := r.begin(c); err != nil {
			return r.outcome, errors.Join(errHarness, err)
		}
	}
	err := r.progress(2)
	if err == nil {
		err = inject(r)
	}
	err = errors.Join(err, r.refill())
	if err == nil {
		err = r.progress(2) // healed
	}
	if end := r.end(); end != nil {
		return r.outcome, errors.Join(errHarness, err, end)
	}
	return r.outcome, r.check(err, save)
}

// refill starts workers in the places of those that were killed.
func (r *round) refill() error {
	for i, c := range r.clients {
		if c.dead {
			if err := errors.Join(r.replace(i), r.begin(r.clients[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *round) begin(c *client) error {
	_, err := c.ask(append([]string{"load", r.id}, r.names...)...)
	return err
}

// end ends the load of every worker, all at once.
func (r *round) end() error {
	var errs []error
	for _, c := range r.clients {
		errs = append(errs, c.send("halt"))
	}
	for _, c := range r.clients {
		_, err := c.answer()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// progress waits until every worker has had n more grants.
func (r *round) progress(n int) error {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for _, c := range r.clients {
		had, err := c.grants()
		for now := had; err == nil && now < had+n; now, err = c.grants() {
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %s has had %d grants within %v after the fault, want %d", errStalled, c.name, now-had, patience, n)
			}
			time.Sleep(10 * time.Millisecond) // the pause of a bounded poll
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check reads the history, asks the store what is left, and judges; before is what was wrong already.
func (r *round) check(before error, save string) error {
	events, err := r.read()
	if err != nil {
		return errors.Join(before, err)
	}
	left, ghost := r.look()
	events = append(append(events, left...), r.own...)
	for _, name := range r.names {
		n, err := r.counted(name)
		if err != nil {
			return errors.Join(before, err)
		}
		events = append(events, history.Event{Kind: history.Counted, Process: "parent", Name: name, Value: n})
	}
	for _, e := range events {
		if e.Kind == history.Granted {
			r.Locks++
		}
	}
	found := history.Sweep(events)
	r.Twice, r.Lacking = len(found.Twice), len(found.Counters)
	err = history.Check(events)
	if r.plain {
		err = found.Fenced()
	}
	if err = errors.Join(before, err, ghost); err == nil { // the search takes long where the sweeps found something
		return history.Verify(events, history.Options{Plain: r.plain, Brittle: r.brittle, Save: save})
	}
	if save != "" {
		err = errors.Join(err, os.MkdirAll(save, 0o755), history.Save(filepath.Join(save, r.id+".jsonl"), events))
	}
	return err
}

// read puts the parts of the history together.
func (r *round) read() ([]history.Event, error) {
	parts, err := filepath.Glob(filepath.Join(r.dir, r.id+"-*.jsonl"))
	if err != nil {
		return nil, err
	}
	var events []history.Event
	for _, path := range parts {
		part, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		more, err := history.Read(part)
		if err := errors.Join(err, part.Close(), os.Remove(path)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		events = append(events, more...)
	}
	return events, nil
}

// look waits until every name is free, and says what the store says then: a lock that stays held is a ghost.
func (r *round) look() ([]history.Event, error) {
	bound := r.ttl + 2*time.Second + 2*r.traits.Resolution
	began := time.Now()
	var events []history.Event
	var errs []error
	for _, name := range append(r.names, r.dead()) {
		for {
			called := history.Now()
			info, err := r.inspect(name)
			left := history.Event{Kind: history.Left, Process: info.Owner, Name: name, Token: info.Token, Called: called, At: history.Now()}
			switch waited := time.Since(began); {
			case err == nil && !info.Held:
				left.Process = "store"
			case err == nil && waited > bound:
				errs = append(errs, fmt.Errorf("%q is still held %v after everybody has stopped: %+v", name, waited, info))
			case waited > patience:
				return events, errors.Join(errHarness, err)
			default:
				time.Sleep(10 * time.Millisecond) // the pause of a bounded poll
				continue
			}
			events = append(events, left)
			break
		}
	}
	return events, errors.Join(errs...)
}

func (r *round) inspect(name string) (fencelock.Info, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	return r.watch.Inspect(ctx, name)
}

// counted is what is in a counter at the end.
func (r *round) counted(name string) (int64, error) {
	if r.tx {
		return addedInTx(r.ctx, r.url(r.addrs, ""), name)
	}
	c := counterOf(r.dir, name)
	if _, err := os.Stat(c.Path); err != nil {
		return 0, nil //nolint:nilerr // nobody has come to it
	}
	n, err := c.Peek()
	return n, errors.Join(err, os.Remove(c.Path))
}

// write adds what the parent did.
func (r *round) write(e history.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = append(r.own, e)
}

// count changes the outcome.
func (r *round) count(f func(*outcome)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.outcome)
}

// each writes an event of every goroutine of a worker.
func (r *round) each(k history.Kind, c *client) {
	at := history.Now()
	for i := range r.Goroutines {
		r.write(history.Event{Kind: k, Process: fmt.Sprintf("%s.%d", c.name, i), At: at})
	}
}

// pick chooses a worker, each time the next one; rounds begin at different ones.
func (r *round) pick() int { return int(r.next.Add(1)) % len(r.clients) }

// sleep waits, unless the run ends.
func (r *round) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

func (r *round) dead() string { return strings.Replace(r.names[0], "/0", "/dead", 1) }
