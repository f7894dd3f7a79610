package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// rig is one store with at most one mistake, and the harness that reaches it in virtual time.
type rig struct {
	store   *toy
	mistake *mistake
	wiped   bool
	clients atomic.Int64
	crowd   sync.Map // what wakes the waiters of storm
}

func newRig(m *mistake) *rig { return &rig{store: newToy(m.flaw), mistake: m} }

// harness has all that can be had without a wire and a second process.
func (r *rig) harness() Harness {
	return Harness{
		Name: r.mistake.String(),
		Driver: func(_ context.Context, c Client) (backend.Driver, error) {
			return r.driver(c), nil
		},
		Link:   func(context.Context) (Link, error) { return NewCallLink(), nil },
		Store:  r,
		Server: r,
		Calls:  true,
		Short:  true,
		tiny:   true,
		Given:  r.given,
	}
}

func (r *rig) driver(c Client) backend.Driver {
	var d backend.Driver = &toyDriver{store: r.store, prefix: c.Prefix, id: fmt.Sprint(r.clients.Add(1))}
	d = Wrap(d, c.Link)
	if r.mistake.alter != nil {
		d = r.mistake.alter(r, d, c)
	}
	return d
}

// Look, Take and Left implement Store.
func (r *rig) Look(_ context.Context, prefix, name string) (bool, time.Duration, error) {
	all, _ := r.store.list(prefix, name)
	for _, info := range all {
		if info.Name == name && info.Held {
			return true, info.ExpiresIn, nil
		}
	}
	return false, 0, nil
}

func (r *rig) Take(_ context.Context, prefix, name string) error {
	r.store.breakLock(&order{Prefix: prefix, Name: name})
	return nil
}

func (r *rig) Left(_ context.Context, prefix string) ([]string, error) {
	_, left := r.store.list(prefix, "")
	return left, nil
}

// Stop and the others implement Server: a store that is down fails every call.
func (r *rig) Stop() error { return r.Kill() }

func (r *rig) Start() error {
	time.Sleep(10 * time.Millisecond) // it takes a while; the clock of virtual time would stand still otherwise
	r.store.restarted(r.wiped)
	r.wiped = false
	return r.set(false)
}

func (r *rig) Kill() error     { return r.set(true) }
func (r *rig) Pause() error    { return r.set(true) }
func (r *rig) Resume() error   { return r.set(false) }
func (r *rig) Wipe() error     { r.wiped = true; return nil }
func (r *rig) KeepsData() bool { return true }

func (r *rig) set(down bool) error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.down = down
	return nil
}

// owned stands for a client of a store that the caller has and gives to a driver.
type owned struct {
	closed  bool
	timeout time.Duration
}

// given is Harness.Given.
func (r *rig) given(context.Context) (backend.Driver, func(context.Context) error, error) {
	c := &owned{timeout: time.Second}
	d := &changed{Driver: r.driver(Client{Prefix: "given:"})}
	switch r.mistake.flaw {
	case closesGiven:
		d.close = func() error { c.closed = true; return nil }
	case changesGiven:
		c.timeout = 10 * time.Second
	}
	return d, func(context.Context) error {
		if c.closed || c.timeout != time.Second {
			return fmt.Errorf("closed=%v timeout=%v", c.closed, c.timeout)
		}
		return nil
	}, nil
}

// toyDriver is a driver over a toy by calls.
type toyDriver struct {
	store  *toy
	prefix string
	id     string
}

// order makes the flat form of a request.
func (d *toyDriver) order(op string, r *backend.Request) *order {
	return &order{
		Op: op, Prefix: d.prefix, Client: d.id, Name: r.Name, Nonce: r.Nonce, Owner: r.Owner,
		TTL: r.TTL, Grace: r.Grace, Floor: r.Floor, Wait: r.Wait, Auto: r.Auto,
	}
}

var errDown = errors.New("connection refused")

func (d *toyDriver) up() error {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	if d.store.down {
		return errDown
	}
	return nil
}

func (d *toyDriver) Traits() backend.Traits {
	t := backend.TraitsOf("memory")
	t.Name = "toy"
	return t
}

func (d *toyDriver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if err := d.up(); err != nil {
		return backend.Grant{}, err
	}
	w := d.store.ask(d.order("acquire", r), r.Lost)
	if w == nil {
		return backend.Grant{}, backend.ErrLost
	}
	select {
	case t := <-w.grant:
		return backend.Grant{Token: t, Asked: backend.Now()}, nil
	default:
	}
	if !r.Wait {
		return backend.Grant{}, backend.ErrLocked
	}
	select {
	case t := <-w.grant:
		return backend.Grant{Token: t, Asked: backend.Now()}, nil
	case <-ctx.Done():
		return backend.Grant{}, backend.Ended(ctx, true, nil)
	}
}

func (d *toyDriver) Renew(_ context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	for i, h := range hs {
		if errs[i] = d.up(); errs[i] == nil {
			errs[i] = d.store.renew(d.order("renew", h.Request))
		}
	}
	return errs
}

func (d *toyDriver) Release(_ context.Context, h *backend.Hold) error {
	if err := d.up(); err != nil {
		return err
	}
	return d.store.release(d.order("release", h.Request))
}

func (d *toyDriver) Abandon(_ context.Context, r *backend.Request) error {
	if err := d.up(); err != nil {
		return err
	}
	return d.store.abandon(d.order("abandon", r))
}

func (d *toyDriver) Inspect(_ context.Context, name string) (backend.Info, error) {
	all, _ := d.store.list(d.prefix, name)
	for _, info := range all {
		if info.Name == name {
			return info, d.up()
		}
	}
	return backend.Info{Name: name}, d.up()
}

func (d *toyDriver) List(_ context.Context, prefix string) iter.Seq2[backend.Info, error] {
	all, _ := d.store.list(d.prefix, prefix)
	return func(yield func(backend.Info, error) bool) {
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (d *toyDriver) Break(_ context.Context, name string) error {
	if err := d.up(); err != nil {
		return err
	}
	d.store.breakLock(&order{Prefix: d.prefix, Name: name})
	return nil
}

func (d *toyDriver) Close() error { return nil }

// changed is a driver with some of its methods changed.
type changed struct {
	backend.Driver
	acquire func(ctx context.Context, r *backend.Request) (backend.Grant, error)
	renew   func(ctx context.Context, hs []*backend.Hold) []error
	release func(ctx context.Context, h *backend.Hold) error
	abandon func(ctx context.Context, r *backend.Request) error
	close   func() error
}

func (d *changed) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if d.acquire != nil {
		return d.acquire(ctx, r)
	}
	return d.Driver.Acquire(ctx, r)
}

func (d *changed) Renew(ctx context.Context, hs []*backend.Hold) []error {
	if d.renew != nil {
		return d.renew(ctx, hs)
	}
	return d.Driver.Renew(ctx, hs)
}

func (d *changed) Release(ctx context.Context, h *backend.Hold) error {
	if d.release != nil {
		return d.release(ctx, h)
	}
	return d.Driver.Release(ctx, h)
}

func (d *changed) Abandon(ctx context.Context, r *backend.Request) error {
	if d.abandon != nil {
		return d.abandon(ctx, r)
	}
	return d.Driver.Abandon(ctx, r)
}

func (d *changed) Close() error {
	var err error
	if d.close != nil {
		err = d.close()
	}
	return errors.Join(err, d.Driver.Close())
}
