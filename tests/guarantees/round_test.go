//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/history"
	. "github.com/fencelock/fencelock/tests/guarantees"
)

// round is one fault, and the history around it.
type round struct {
	*fleet
	ctx   context.Context
	id    string
	names []string
	judge
	longest time.Duration // lease; a promoted replica that is behind can have it again when it is released

	hired *client      // for this round alone
	next  atomic.Int64 // worker to pick
	tried atomic.Int64 // names

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

// errStalled is matched by the error of a round after which a worker got no lock for long.
var errStalled = errors.New("stalled")

var recording sync.Mutex

// run makes a history around a fault and checks it. A [mishap] is told apart: it says nothing about
// the lock, and hides nothing that the history says.
func (f *fleet) run(
	ctx context.Context, id Fault, j judge, inject func(*round) error, save string,
) (_ outcome, broken, mishaps error) {
	r := &round{fleet: f, ctx: ctx, judge: j, id: fmt.Sprintf("%s-%d", id, rounds.Add(1)), longest: f.ttl}
	r.next.Store(rounds.Load())
	for i := range f.Names {
		r.names = append(r.names, fmt.Sprintf("%s/%d", r.id, i))
	}
	for i := range f.Shared {
		// A store that has gone back may show readers, whose token those share who join them.
		if f.traits.Readers && !j.plain {
			r.names = append(r.names, fmt.Sprint(r.id, ofReaders, i))
		}
		if f.traits.Permits > 0 {
			r.names = append(r.names, fmt.Sprint(r.id, ofPermits, i))
		}
	}
	slices.Reverse(r.names[1:]) // the first are asked for most
	before, err := r.leadership()
	for _, c := range f.clients {
		err = errors.Join(err, mishap(r.begin(c)))
	}
	if err == nil {
		err = r.progress(2)
	}
	if err == nil {
		err = inject(r)
	}
	err = errors.Join(err, mishap(r.refill()))
	if err == nil {
		err = r.progress(2) // healed
	}
	err = errors.Join(err, r.end(), r.dismiss())
	after, lead := r.leadership()
	if before != after { // which a busy machine makes sentinels do by themselves
		r.plain = true
	}
	broken, mishaps = apart(errors.Join(err, lead))
	checked, more := apart(r.check(broken != nil || mishaps != nil, save))
	return r.outcome, errors.Join(broken, checked), errors.Join(mishaps, more)
}

// leadership changes when the servers choose another leader, where tokens are all that is left of the lock then.
func (r *round) leadership() (string, error) {
	if r.epoch == nil {
		return "", nil
	}
	e, err := r.epoch(r.ctx)
	return e, mishap(err)
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
		if !c.dead { // there was no starting another
			errs = append(errs, mishap(c.send("halt")))
		}
	}
	for _, c := range r.clients {
		if !c.dead {
			_, err := c.answer()
			errs = append(errs, err)
		}
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
				return r.starved(fmt.Errorf("%w: %s has had %d grants within %v "+
					"after the fault, want %d", errStalled, c.name, now-had, patience, n))
			}
			time.Sleep(10 * time.Millisecond) // the pause of a bounded poll
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// starved makes a mishap of an error for which a server is to blame that answers nobody.
func (r *round) starved(err error) error {
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	for _, s := range r.servers {
		if down := s.Ready(ctx); down != nil {
			return mishap(fmt.Errorf("%w; and %v does not answer: %w", err, s, down))
		}
	}
	return err
}

// check reads the history, asks the store what is left, and judges. A round that went wrong has no
// search, which could take long.
func (r *round) check(wrong bool, save string) error {
	events, err := r.read()
	if err != nil {
		return mishap(err)
	}
	left, ghost := r.look()
	events = append(append(events, left...), r.own...)
	for _, name := range r.names {
		n, err := r.counted(name)
		if err != nil {
			return errors.Join(ghost, mishap(err))
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
	opts := history.Options{Plain: r.plain, Brittle: r.brittle, Save: save}
	if err = errors.Join(err, ghost); err == nil && !wrong { // the search takes long where the sweeps found something
		return history.Verify(events, opts)
	}
	mutex := history.FencedMutex(events, opts)
	if mutex == nil && !r.brittle && (len(found.Tokens) > 0 || !r.plain && len(found.Twice) > 0) {
		mutex = fmt.Errorf("%w: the fenced mutex accepts what the sweeps found", history.ErrDisagree)
	}
	err = errors.Join(err, mutex)
	if save != "" {
		err = errors.Join(err, mishap(os.MkdirAll(save, 0o755)),
			mishap(history.Save(filepath.Join(save, r.id+".jsonl"), events, opts)))
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
	bound := r.longest + 2*time.Second + 2*r.traits.Resolution
	began := time.Now()
	var events []history.Event
	var errs []error
	for _, name := range append(r.names, r.dead()) {
		for {
			called := history.Now()
			info, err := r.inspect(name)
			left := history.Event{
				Kind: history.Left, Process: info.Owner, Name: name, Token: info.Token,
				Called: called, At: history.Now(),
			}
			switch waited := time.Since(began); {
			case err == nil && !info.Held:
				left.Process = "store"
			case err == nil && waited > bound:
				errs = append(errs, fmt.Errorf("%q is still held %v after everybody has stopped: "+
					"%+v", name, waited, info))
			case waited > patience:
				return events, errors.Join(append(errs, mishap(err))...)
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
