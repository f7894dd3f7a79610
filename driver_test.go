package fencelock_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
)

// errStore is an error of the store's own: the outcome is unknown.
var errStore = errors.New("connection reset by peer")

// fake is a Caller over a store in memory whose calls a test can watch, hold
// up, lose and refuse. It holds the engine to the rules of core.Caller about
// what may overlap.
type fake struct {
	core.Composite
	store *memory.Driver
	t     testing.TB

	traits func(*backend.Traits)  // changes what it promises; nil: nothing
	grant  func(*backend.Grant)   // changes a grant on its way; nil: nothing
	watch  func(*backend.Request) // sees what is acquired; nil: nobody
	deaf   bool                   // the store cannot tell a holder of its loss

	mu     sync.Mutex
	steps  map[string]step
	counts map[string]int
	holds  map[string]int // holds that renewals and checks were about
	in     map[string]int
	peaks  map[string]int
	flying map[*backend.Request]string // the call in flight; an operator's has a request of its own
	nonces map[string]bool
	live   int
}

// call is a call on its way to the store.
type call struct {
	ctx   context.Context
	op    string
	reqs  []*backend.Request
	apply func() error // passes it on; once
}

// step stands in for the calls of one kind.
type step func(c call) error

func newFake(t testing.TB) *fake {
	t.Helper()
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	return &fake{
		Composite: over(d), store: d, t: t,
		steps: map[string]step{}, counts: map[string]int{}, holds: map[string]int{}, in: map[string]int{},
		peaks: map[string]int{}, flying: map[*backend.Request]string{}, nonces: map[string]bool{},
	}
}

// over is a driver and a Caller over d.
func over(d backend.Driver) core.Composite { return core.Composite{Caller: core.Of(d)} }

// other returns a plain client of the same store.
func (d *fake) other() core.Composite {
	d.t.Helper()
	o, err := d.store.Client(backend.DefaultPrefix)
	if err != nil {
		d.t.Fatal(err)
	}
	return over(o)
}

// on sets what happens to calls of this kind from now on; nil: nothing special.
func (d *fake) on(op string, s step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps[op] = s
}

// count returns how many calls of these kinds there were; of all kinds without op.
func (d *fake) count(ops ...string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, op := range ops {
		n += d.counts[op]
	}
	if len(ops) == 0 {
		for _, c := range d.counts {
			n += c
		}
	}
	return n
}

// peak returns how many calls of this kind were in flight at once.
func (d *fake) peak(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peaks[op]
}

// about returns how many holds the calls of this kind were about.
func (d *fake) about(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holds[op]
}

// secrets returns every nonce that was seen.
func (d *fake) secrets() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for n := range d.nonces {
		all = append(all, n)
	}
	return all
}

// do runs one call through its step.
func (d *fake) do(ctx context.Context, op string, reqs []*backend.Request, apply func() error) error {
	d.begin(op, reqs)
	defer d.end(op, reqs)
	d.mu.Lock()
	s := d.steps[op]
	d.mu.Unlock()
	if s == nil {
		return apply()
	}
	return s(call{ctx, op, reqs, apply})
}

func (d *fake) begin(op string, reqs []*backend.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts[op]++
	d.holds[op] += len(reqs)
	d.in[op]++
	d.peaks[op] = max(d.peaks[op], d.in[op])
	if op == "close" && (d.live > 0 || d.counts["close"] > 1) {
		d.t.Errorf("Close: call number %d with %d other calls in flight (%v)", d.counts["close"], d.live, d.in)
	}
	if op != "close" && d.counts["close"] > 0 {
		d.t.Errorf("%s after Close", op)
	}
	if op != "list" { // which lasts as long as its caller's loop
		d.live++
	}
	for _, r := range reqs {
		was := d.flying[r]
		overtakes := (op == "release" || op == "abandon") && (was == "renew" || was == "check")
		if was != "" && !overtakes {
			d.t.Errorf("%s of %q while its %s is in flight", op, r.Name, was)
		}
		d.flying[r] = op
		d.nonces[r.Nonce] = true
	}
}

func (d *fake) end(op string, reqs []*backend.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op != "list" {
		d.live--
	}
	d.in[op]--
	for _, r := range reqs {
		if d.flying[r] == op {
			delete(d.flying, r)
		}
	}
}

func (d *fake) Traits() backend.Traits {
	t := d.Caller.Traits()
	if d.traits != nil {
		d.traits(&t)
	}
	return t
}

// Tells: only checking is looked at.
func (d *fake) Tells() bool { return true }

func (d *fake) Acquire(ctx context.Context, r *backend.Request) (g backend.Grant, err error) {
	if d.watch != nil {
		d.watch(r)
	}
	if d.deaf {
		r.Lost = func(error) {}
	}
	err = d.do(ctx, "acquire", []*backend.Request{r}, func() (err error) {
		g, err = d.Caller.Acquire(ctx, r)
		return err
	})
	if d.grant != nil {
		d.grant(&g)
	}
	return g, err
}

func (d *fake) many(ctx context.Context, op string, hs []*core.Hold, do func() []error) []error {
	reqs := make([]*backend.Request, len(hs))
	for i, h := range hs {
		reqs[i] = h.Request
	}
	var errs []error
	err := d.do(ctx, op, reqs, func() error {
		errs = do()
		return nil
	})
	if err != nil {
		errs = make([]error, len(hs))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func (d *fake) Renew(ctx context.Context, hs []*core.Hold) []error {
	return d.many(ctx, "renew", hs, func() []error { return d.Caller.Renew(ctx, hs) })
}

func (d *fake) Release(ctx context.Context, h *core.Hold) error {
	return d.do(ctx, "release", []*backend.Request{h.Request}, func() error { return d.Caller.Release(ctx, h) })
}

func (d *fake) Abandon(ctx context.Context, r *backend.Request) error {
	return d.do(ctx, "abandon", []*backend.Request{r}, func() error { return d.Caller.Abandon(ctx, r) })
}

func (d *fake) Inspect(ctx context.Context, name string) (info backend.Info, err error) {
	err = d.do(ctx, "inspect", nil, func() (err error) {
		info, err = d.Caller.Inspect(ctx, name)
		return err
	})
	return info, err
}

func (d *fake) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		more := true
		err := d.do(ctx, "list", nil, func() error {
			for info, err := range d.Caller.List(ctx, prefix) {
				if more = yield(info, err); !more {
					break
				}
			}
			return nil
		})
		if err != nil && more {
			yield(backend.Info{}, err)
		}
	}
}

func (d *fake) Break(ctx context.Context, name string) error {
	return d.do(ctx, "break", nil, func() error { return d.Caller.Break(ctx, name) })
}

func (d *fake) Close() error {
	return d.do(context.Background(), "close", nil, d.Caller.Close)
}

// checking is a fake whose store can be asked whether a hold is still its own.
type checking struct{ *fake }

func (d checking) Tells() bool { return false }

func (d checking) Check(ctx context.Context, hs []*core.Hold) []error {
	return d.many(ctx, "check", hs, func() []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			info, err := d.Caller.Inspect(ctx, h.Name)
			if err == nil && (!info.Held || info.Token != h.Token) {
				err = backend.ErrLost
			}
			errs[i] = err
		}
		return errs
	})
}

// The steps.

// refuse answers err without passing the call on.
func refuse(err error) step { return func(call) error { return err } }

// loseReply passes the call on and answers that the connection broke.
func loseReply(c call) error {
	_ = c.apply()
	return errStore
}

// hang passes nothing on and answers when its ctx ends.
func hang(c call) error {
	<-c.ctx.Done()
	return c.ctx.Err()
}

// pass passes the call on.
func pass(c call) error { return c.apply() }

// slowThere passes the call on after d.
func slowThere(d time.Duration) step {
	return func(c call) error {
		if err := pause(c.ctx, d); err != nil {
			return err
		}
		return c.apply()
	}
}

// slowBack passes the call on at once and its answer after d.
func slowBack(d time.Duration) step {
	return func(c call) error {
		err := c.apply()
		if late := pause(c.ctx, d); late != nil {
			return late
		}
		return err
	}
}

// until waits for gate, whatever becomes of ctx, and passes the call on.
func until(gate <-chan struct{}) step {
	return func(c call) error {
		<-gate
		return c.apply()
	}
}

// first does s for the first n calls, and nothing special afterwards.
func first(n int64, s step) step {
	var calls atomic.Int64
	return func(c call) error {
		if calls.Add(1) <= n {
			return s(c)
		}
		return c.apply()
	}
}

// about does s for calls about a name for which is reports true.
func about(is func(name string) bool, s step) step {
	return func(c call) error {
		for _, r := range c.reqs {
			if is(r.Name) {
				return s(c)
			}
		}
		return c.apply()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
