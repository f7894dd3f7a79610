package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/core"
)

// rig is one store with at most one mistake, and the harness that reaches it in virtual time.
type rig struct {
	store   *toy
	mistake *mistake
	wiped   bool
	kept    map[string]backend.Token
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
		Member: func(context.Context) (Link, Server, error) { return NewCallLink(), toyMember{r}, nil },
		Calls:  true,
		Short:  true,
		tiny:   true,
		Given:  r.given,
		Shared: r.shared,
		Own:    true,
		Writes: r,
		Fill:   r.fill,
		Guard: func(context.Context, string) (fence.Guard, error) {
			if r.mistake.flaw == markSpends {
				return &anyToken{max: map[string]backend.Token{}}, nil
			}
			return &fence.Memory{}, nil
		},
		Apart: []Apart{{
			"two databases of the toy",
			func(_ context.Context, side int, prefix string) (backend.Driver, error) {
				return r.driver(Client{Prefix: fmt.Sprintf("%d/%s", side, prefix)}), nil
			},
		}},
	}
}

// toyMember is what a client of the toy is connected to. The store goes on without it.
type toyMember struct{ *rig }

func (m toyMember) Pause() error  { m.store.memberGone(); return nil }
func (m toyMember) Resume() error { return nil }

func (r *rig) driver(c Client) backend.Driver {
	d := core.Of(Wrap(core.Composite{Caller: &toyDriver{
		store: r.store, prefix: c.Prefix, id: fmt.Sprint(r.clients.Add(1)),
	}}, c.Link))
	if r.mistake.alter != nil {
		d = r.mistake.alter(r, d, c)
	}
	return core.Composite{Caller: d}
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

// toyTx is the Handle of a lock: what its holder writes.
type toyTx struct {
	mu    sync.Mutex // a release may overtake a copy of itself
	wrote []string
	cause error
	over  bool
}

// Undo implements backend.Undoer.
func (x *toyTx) Undo(cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over && x.cause == nil {
		x.cause = cause
	}
}

// Write and Written implement Writes.
func (r *rig) Write(_ context.Context, lease backend.Handler, key string) error {
	x, ok := lease.Handle().(*toyTx)
	if !ok {
		return errors.New("the lock has no transaction")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return errors.New("the lock's transaction is over")
	}
	x.wrote = append(x.wrote, key)
	if r.store.flaw == writesAtOnce {
		r.store.commit(x)
	}
	return nil
}

func (r *rig) Written(_ context.Context, key string) (bool, error) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.store.written[key], nil
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

// Keep and SetBack implement Rewinder, as far as tokens are concerned.
func (r *rig) Keep() error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.kept = maps.Clone(r.store.counter)
	return nil
}

func (r *rig) SetBack() error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.counter = r.kept
	return nil
}

func (r *rig) set(down bool) error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.down = down
	return nil
}

// fill is Harness.Fill.
func (r *rig) fill(context.Context) (func(context.Context) error, error) {
	set := func(full bool) {
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		r.store.full = full
	}
	set(true)
	return func(context.Context) error { set(false); return nil }, nil
}

// anyToken is a guard that takes whatever is not lower than what it has seen.
type anyToken struct {
	mu  sync.Mutex
	max map[string]backend.Token
}

// Check implements fence.Guard.
func (g *anyToken) Check(_ context.Context, resource string, t backend.Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case t <= 0:
		return backend.Invalid("token %d", t)
	case t < g.max[resource]:
		return &backend.StaleError{Max: g.max[resource]}
	}
	g.max[resource] = t
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
	d := &changed{Caller: core.Of(r.driver(Client{Prefix: "given:"}))}
	switch r.mistake.flaw {
	case closesGiven:
		d.close = func() error { c.closed = true; return nil }
	case changesGiven:
		c.timeout = 10 * time.Second
	}
	return core.Composite{Caller: d}, func(context.Context) error {
		if c.closed || c.timeout != time.Second {
			return fmt.Errorf("closed=%v timeout=%v", c.closed, c.timeout)
		}
		return nil
	}, nil
}

// shared is Harness.Shared: a link stands for the client. Its sound driver renews, waits and
// releases by a way of its own.
func (r *rig) shared(context.Context) (*Shared, error) {
	client := NewCallLink()
	closed := false
	id := fmt.Sprint("shared", r.clients.Add(1))
	return &Shared{
		Driver: func(prefix string) (backend.Driver, error) {
			own := &toyDriver{store: r.store, prefix: prefix, id: id}
			if r.mistake.flaw != clientIsHolder {
				own.id = fmt.Sprint(r.clients.Add(1))
			}
			lent := core.Of(Wrap(core.Composite{Caller: own}, client))
			d := &changed{Caller: lent, renew: own.Renew, release: own.Release, abandon: own.Abandon}
			d.acquire = func(ctx context.Context, req *backend.Request) (backend.Grant, error) {
				switch {
				case req.Wait:
					return own.Acquire(ctx, req)
				case r.mistake.flaw == ctxUnheeded:
					ctx = context.WithoutCancel(ctx)
				}
				return lent.Acquire(ctx, req)
			}
			if r.mistake.flaw == renewsByClient {
				d.renew = lent.Renew
			}
			d.close = func() error {
				if closed && r.mistake.flaw == closeWaits {
					time.Sleep(time.Minute)
				}
				return nil
			}
			return core.Composite{Caller: d}, nil
		},
		UseUp: func(context.Context) (func(), error) {
			client.Set(blackHole)
			return func() { client.Set(passAll) }, nil
		},
		Close: func() error {
			closed = true
			client.Set(faultproxy.Mode{Refuse: true})
			return nil
		},
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
		TTL: r.TTL, Grace: r.Grace, Floor: r.Floor, Wait: r.Wait, Auto: r.Auto, Reserve: r.Reserve,
	}
}

// grant is that of a token, which a flaw takes a block with.
func (d *toyDriver) grant(r *backend.Request, t backend.Token) backend.Grant {
	g := backend.Grant{Token: t, Asked: backend.Now(), Handle: &toyTx{}}
	if d.store.flaw == blockFreed {
		g.Reserved = r.Reserve
	}
	return g
}

var errDown = errors.New("connection refused")

var errFull = errors.New("no space left")

// full reports whether the store takes nothing new.
func (d *toyDriver) full() bool {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.full
}

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
	t.Name, t.Readers, t.Permits = "toy", false, 0
	return t
}

func (d *toyDriver) Tells() bool { return true }

func (d *toyDriver) Check(_ context.Context, hs []*core.Hold) []error { return make([]error, len(hs)) }

func (d *toyDriver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if err := d.up(); err != nil {
		return backend.Grant{}, err
	}
	if err := backend.CheckFloor(r.Floor, time.Now().UnixMicro()); err != nil && d.store.flaw != floorSpends {
		return backend.Grant{}, err
	}
	w := d.store.ask(d.order("acquire", r), r.Lost)
	if w == nil {
		return backend.Grant{}, backend.ErrLost
	}
	select {
	case t := <-w.grant:
		return d.grant(r, t), nil
	default:
	}
	if !r.Wait {
		return backend.Grant{}, backend.ErrLocked
	}
	select {
	case t := <-w.grant:
		return d.grant(r, t), nil
	case <-ctx.Done():
		return backend.Grant{}, core.Ended(ctx, true, nil)
	}
}

func (*toyDriver) Outage(string) error { return nil }

func (d *toyDriver) Renew(_ context.Context, hs []*core.Hold) []error {
	errs := make([]error, len(hs))
	for i, h := range hs {
		if errs[i] = d.up(); errs[i] == nil {
			errs[i] = d.store.renew(d.order("renew", h.Request))
		}
	}
	return errs
}

func (d *toyDriver) Release(_ context.Context, h *core.Hold) error {
	if err := d.up(); err != nil {
		return err
	}
	if d.store.flaw == releaseWrites && d.full() {
		return errFull
	}
	err := d.store.release(d.order("release", h.Request))
	x, ok := h.Handle.(*toyTx)
	if !ok {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	switch {
	case err != nil:
	case x.cause == nil, d.store.flaw == commitsUndone:
		d.store.commit(x)
	case len(x.wrote) > 0:
		return &backend.UndoneError{Err: x.cause}
	}
	return err
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
	if d.store.flaw == listPattern && prefix != "" {
		all, _ = d.store.list(d.prefix, "")
		all = slices.DeleteFunc(all, func(info backend.Info) bool {
			like, err := path.Match(prefix+"*", info.Name)
			return !like || err != nil
		})
	}
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
	if d.store.flaw == breakPattern {
		all, _ := d.store.list(d.prefix, "")
		for _, info := range all {
			if like, err := path.Match(name, info.Name); like && err == nil {
				d.store.breakLock(&order{Prefix: d.prefix, Name: info.Name})
			}
		}
	}
	d.store.breakLock(&order{Prefix: d.prefix, Name: name})
	return nil
}

func (d *toyDriver) Settle()      {}
func (d *toyDriver) Close() error { return nil }
func (d *toyDriver) Land()        {}

// changed is a driver with some of its methods changed.
type changed struct {
	core.Caller
	acquire func(ctx context.Context, r *backend.Request) (backend.Grant, error)
	renew   func(ctx context.Context, hs []*core.Hold) []error
	release func(ctx context.Context, h *core.Hold) error
	abandon func(ctx context.Context, r *backend.Request) error
	close   func() error
}

func (d *changed) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if d.acquire != nil {
		return d.acquire(ctx, r)
	}
	return d.Caller.Acquire(ctx, r)
}

func (d *changed) Renew(ctx context.Context, hs []*core.Hold) []error {
	if d.renew != nil {
		return d.renew(ctx, hs)
	}
	return d.Caller.Renew(ctx, hs)
}

func (d *changed) Release(ctx context.Context, h *core.Hold) error {
	if d.release != nil {
		return d.release(ctx, h)
	}
	return d.Caller.Release(ctx, h)
}

func (d *changed) Abandon(ctx context.Context, r *backend.Request) error {
	if d.abandon != nil {
		return d.abandon(ctx, r)
	}
	return d.Caller.Abandon(ctx, r)
}

func (d *changed) Close() error {
	var err error
	if d.close != nil {
		err = d.close()
	}
	return errors.Join(err, d.Caller.Close())
}
