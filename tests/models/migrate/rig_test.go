package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	code "github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

// rig is two stores in memory, whose calls wait for their turn.
type rig struct {
	stores [2]*memory.Driver
	whose  [2]map[fencelock.Token]*op // which call has got a token
	under  sync.WaitGroup
	calls  []*call

	mu      sync.Mutex
	wait    bool
	waiting []*op
	opened  []*fencelock.Locker
}

func newRig() *rig {
	r := &rig{}
	for k := range r.stores {
		r.stores[k], _ = memory.New() // never fails
		r.whose[k] = map[fencelock.Token]*op{}
	}
	return r
}

// op is a call of a store.
type op struct {
	by         *program
	store      int
	what       string
	nonce      string
	sent, made time.Time
	turn       chan struct{}

	err   error
	token fencelock.Token
	gate  backend.Gate
}

func (o *op) String() string {
	s := fmt.Sprintf("%v %s %s: %v, token %d", o.by, o.what, side(o.store), o.err, o.token)
	if o.gate.Move != "" {
		s += fmt.Sprintf(", %s of epoch %d", o.gate.State, o.gate.Epoch)
	}
	return s
}

// ready returns the calls that may be let, in an order that the scheduler does not change.
func (r *rig) ready(late *op) (ready []*op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.waiting {
		if !o.by.dead || o == late {
			ready = append(ready, o)
		}
	}
	slices.SortStableFunc(ready, func(a, b *op) int {
		return cmp.Or(a.by.slot-b.by.slot, a.by.j-b.by.j, a.store-b.store,
			cmp.Compare(a.what, b.what), cmp.Compare(a.nonce, b.nonce))
	})
	return ready
}

func (r *rig) let(o *op) {
	close(o.turn)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(w *op) bool { return w == o })
}

// end lets everything go, and closes what was opened.
func (r *rig) end() {
	synctest.Wait()
	r.mu.Lock()
	r.wait = false
	for _, o := range r.waiting {
		close(o.turn)
	}
	r.mu.Unlock()
	for _, c := range r.calls {
		c.cancel()
	}
	r.under.Wait()
	for _, l := range r.opened {
		_ = l.Close() // it has nothing that anybody needs
	}
}

// call is one to the code, by a program.
type call struct {
	what            string
	phase           uint8
	began           time.Time
	cancel          context.CancelFunc
	cancelled, done bool
	lease           *fencelock.Lease
	err             error
}

func (r *rig) call(what string, phase uint8, do func(context.Context, *call) error) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{what: what, phase: phase, began: time.Now(), cancel: cancel}
	r.calls = append(r.calls, c)
	r.under.Go(func() {
		c.err = do(ctx, c)
		c.done = true
	})
	return c
}

// start starts a process.
func (r *rig) start(ctx context.Context, p *program, phase uint8) error {
	d, err := code.New(ctx, code.Options{
		Move: "m", Scope: moving, Phase: phases[phase], From: r.door(p, old), To: r.door(p, new),
	})
	if err != nil {
		return err
	}
	l, err := fencelock.New(d, fencelock.WithTTL(lease), fencelock.WithManualRenew())
	r.mu.Lock()
	defer r.mu.Unlock()
	p.locks[phase], r.opened = l, append(r.opened, l)
	return err
}

// door is a store as one program calls it. What clients report is lost: nobody is kept from a switch by that.
type door struct {
	*memory.Driver
	core.Gater
	r *rig
	p *program
	k int
}

func (r *rig) door(p *program, k int) *door {
	d := &door{Driver: r.stores[k], r: r, p: p, k: k}
	d.Gater = core.Of(claims{d.Driver, d}).(core.Gater)
	return d
}

// await makes a call when its turn has come. It holds a mutex meanwhile for the race detector, which loses sight of
// synctest.Wait where somebody waits for a WaitGroup.
func (d *door) await(o *op, do func() error) error {
	o.by, o.store, o.sent, o.turn = d.p, d.k, time.Now(), make(chan struct{})
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	if d.r.wait {
		d.r.waiting = append(d.r.waiting, o)
		d.r.mu.Unlock()
		<-o.turn
		d.r.mu.Lock()
	}
	o.made, o.err = time.Now(), do()
	return o.err
}

func (d *door) Gates(ctx context.Context) (gates []backend.Gate, err error) {
	o := &op{what: "reads the gate of"}
	return gates, d.await(o, func() error {
		if gates, err = d.Gater.Gates(ctx); len(gates) > 0 {
			o.gate = gates[0]
		}
		return err
	})
}

func (d *door) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	return d.await(&op{what: "sets the gate of", gate: g}, func() error { return d.Gater.SetGate(ctx, g, was) })
}

func (d *door) Undrained(ctx context.Context, g backend.Gate) (left []backend.Info, err error) {
	_ = d.await(&op{what: "sees that nobody holds in"}, func() error {
		if left, err = d.Gater.Undrained(ctx, g); len(left) > 0 {
			return backend.ErrLocked
		}
		return err
	})
	return left, err
}

func (d *door) Source(ctx context.Context) (backend.Token, error) {
	o := &op{what: "reads the source of"}
	err := d.await(o, func() (err error) {
		o.token, err = d.Gater.Source(ctx)
		return err
	})
	return o.token, err
}

func (d *door) Raise(ctx context.Context, floor backend.Token) error {
	return d.await(&op{what: "raises"}, func() error { return d.Gater.Raise(ctx, floor) })
}

func (d *door) Renew(ctx context.Context, hs []*core.Hold) []error {
	o := &op{what: "renews in", nonce: d.nonceOf(hs[0].Request)} // a Locker of these has one lease
	return []error{d.await(o, func() error { return d.Gater.Renew(ctx, hs)[0] })}
}

// nonceOf is the nonce of the acquisition that a request to the store is a part of.
func (d *door) nonceOf(r *backend.Request) string {
	n := r.Nonce
	if r.Phase == backend.PhaseBoth && d.k == new {
		n = n[len(n)-1:] + n[:len(n)-1]
	}
	return n
}

func (d *door) Report(context.Context, backend.Client, time.Duration) error { return nil }

// claims are a store's calls that are about claims: they wait, not the engine's that make them, so that a waiter is
// seen to ask again, and who knows old gates too.
type claims struct {
	*memory.Driver
	d *door
}

func (c claims) Ask(ctx context.Context, cs []*backend.Claim) {
	o := &op{what: "asks", nonce: c.d.nonceOf(cs[0].Request)}
	_ = c.d.await(o, func() error {
		c.Driver.Ask(ctx, cs)
		o.token = cs[0].Token
		return cs[0].Err
	})
}

func (c claims) Leave(ctx context.Context, cs []*backend.Claim) {
	_ = c.d.await(&op{what: "leaves", nonce: c.d.nonceOf(cs[0].Request)}, func() error {
		c.Driver.Leave(ctx, cs)
		return cs[0].Err
	})
}

func (c claims) Raise(ctx context.Context, floor backend.Token, h *backend.Claim) error {
	if h == nil {
		return c.Driver.Raise(ctx, floor, nil)
	}
	o := &op{what: "raises its", nonce: c.d.nonceOf(h.Request), token: floor}
	return c.d.await(o, func() error { return c.Driver.Raise(ctx, floor, h) })
}
