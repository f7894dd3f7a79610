// Package migrate moves names from one store to another while programs go on locking them, without two holders
// and with tokens that keep rising.
//
// A fleet moves in three deploys, each a change of one word: phase from (the old store only), both
// (the old store, then the new one), to (the new store only). Clients of two neighbouring phases
// exclude each other because they have a store in common. Clients that are two phases apart have
// none; what keeps them apart is a gate in each store, which the acquire reads in the step that
// grants. Of the two gates at most one is open to clients of a single phase. A client that starts
// in phase to, or in from on the way back, switches them if nobody has yet: it closes the one
// store, waits until nobody holds there who does not hold in the other, raises the other's tokens
// above all that the first has given, and opens the other, unless somebody has changed its gate
// meanwhile.
//
// A switch that fails opens again what it has closed, by a switch the other way. [Pair.Finish] and [Pair.Cancel] seal
// what they end: from then on only an operator switches, and a process that starts with a configuration from before is
// refused and changes nothing.
//
// If a store loses its data, its gate is lost too: docs/migrating.md says what stays safe then. [Pair]
// is what operators need: the state of both gates, and the switch by hand.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	openMost = 5 * time.Second // how long New takes at the most when its ctx has no deadline
	sideMost = 2 * time.Second // bounds a call that others are not to wait for
	// stopMost is how long Close may take to take back what a client has reported. A New that fails has what its ctx
	// leaves of that, and stopLeast at least.
	stopMost  = 3 * time.Second
	stopLeast = 300 * time.Millisecond
)

// Options of [New].
type Options struct {
	// Move is the migration's name, the same in every phase: a valid lock name. It stays the
	// same on the way back, too, which is the same migration walked backwards.
	Move string
	// Scope is the names that move. It must not change while the migration runs.
	Scope backend.Scope
	// Phase is from, both or to.
	Phase backend.Phase
	// From and To are the old and the new store: each a backend.Mover. They are the
	// Driver's once New has returned without an error: Close closes them. Phase both needs both.
	From, To backend.Driver
	// Other opens the store that the phase does not lock in, where From (in phase to) or To (in phase from) is
	// nil. It is called when that store is needed, again and again until it succeeds, so that a store
	// which is not there yet, or not any more, keeps nobody from locking in the other one. It may be nil.
	Other func(ctx context.Context) (backend.Driver, error)
	// Look makes a client for operators, which only looks and breaks: it touches no gate and
	// reports nothing, Acquire is ErrUnsupported, and it needs the stores of its phase only.
	Look bool
}

// Driver locks in one phase of a migration, for fencelock.New, which refuses what wraps it: the engine
// calls the two stores, and no claim is asked of a Driver.
type Driver struct{ core.Composite }

// member is the Caller of a Driver: a client of a migration.
type member struct {
	move   string
	scope  backend.Scope
	phase  backend.Phase
	look   bool
	traits backend.Traits
	from   *store
	to     *store
	locks  []*store     // those that the phase locks in, the old one first
	sides  []core.Gater // how these are called
	spare  *store       // the other one; nil in phase both

	report report

	repairing chan struct{} // full while somebody looks at the gates
	repaired  time.Time     // when that was done last
}

var _ backend.Driver = (*Driver)(nil)

// New starts a client of a migration in o.Phase. On an error the drivers stay the caller's.
//
// In phase both it makes sure that both stores have a gate. In phase to it opens the new store,
// unless that is open, and in phase from the old one: that takes until nobody holds a lock in the
// other store alone. It waits for that until ctx ends, or 5 s if ctx has no deadline; then the
// error matches ErrUnavailable and names the holders. ErrInvalid: a client two phases away is
// alive, or the options are no good. ErrUnsupported: a store cannot take part.
func New(ctx context.Context, o Options) (*Driver, error) {
	d, err := o.member()
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openMost)
		defer cancel()
	}
	if o.Look {
		return &Driver{core.Composite{Caller: d}}, nil
	}
	// The report comes first: the next switch must see this client before it has its first lock.
	if err = d.report.start(ctx, d); err == nil {
		err = d.enter(ctx)
	}
	if err != nil {
		most := stopLeast
		if end, _ := ctx.Deadline(); ctx.Err() == nil {
			most = min(max(most, time.Until(end)), stopMost)
		}
		d.report.stop(d, most)
		d.from.closeOther()
		d.to.closeOther()
		return nil, fmt.Errorf("migration %q: %w", o.Move, err)
	}
	return &Driver{core.Composite{Caller: d}}, nil
}

func (o Options) member() (*member, error) {
	o.Scope, _ = unsealed(o.Scope)
	if err := backend.CheckGate(backend.Gate{
		Move: o.Move, Scope: o.Scope, State: backend.GateBoth, Epoch: 1,
	}); err != nil {
		return nil, err
	}
	d := &member{move: o.Move, scope: o.Scope, phase: o.Phase, look: o.Look, repairing: make(chan struct{}, 1)}
	var err error
	if d.from, err = newStore("old", o.From, o.Other); err != nil {
		return nil, err
	}
	if d.to, err = newStore("new", o.To, o.Other); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		what    string
		driver  backend.Driver
		without backend.Phase
	}{{"old", o.From, backend.PhaseTo}, {"new", o.To, backend.PhaseFrom}} {
		if s.driver == nil && (o.Phase != s.without || o.Other == nil && !o.Look) {
			return nil, backend.Invalid("migration %q in phase %s needs a driver of its %s store",
				o.Move, o.Phase, s.what)
		}
	}
	switch o.Phase {
	case backend.PhaseFrom:
		d.traits, d.locks, d.spare = o.From.Traits(), []*store{d.from}, d.to
	case backend.PhaseTo:
		d.traits, d.locks, d.spare = o.To.Traits(), []*store{d.to}, d.from
	case backend.PhaseBoth:
		d.traits, d.locks = TraitsOfBoth(o.From.Traits(), o.To.Traits()), []*store{d.from, d.to}
	default:
		return nil, backend.Invalid("phase %q of migration %q: want %s, %s or %s",
			o.Phase, o.Move, backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo)
	}
	for _, s := range d.locks {
		d.sides = append(d.sides, s.opened())
	}
	d.traits.Readers, d.traits.Permits = false, 0 // two stores number readers' tokens and permits each for itself
	return d, nil
}

// TraitsOfBoth returns what a lock in phase both promises: of each promise the lesser one, and no
// transaction, for only one of the two stores could commit it.
func TraitsOfBoth(from, to backend.Traits) backend.Traits {
	t := backend.Weakest(from, to)
	t.Name = from.Name + "+" + to.Name
	t.Transactional, t.Readers, t.Permits = false, false, 0
	t.DeadWaiter = from.DeadWaiter + to.DeadWaiter
	return t
}

// enter does what a client of this phase does to the gates before it locks.
func (d *member) enter(ctx context.Context) error {
	if d.spare != nil {
		return d.enterOne(ctx)
	}
	p, err := d.pair(ctx)
	if err != nil {
		return err
	}
	return p.prepare(ctx, false)
}

// enterOne is enter for a phase with one store. It needs the other store only if this one is not open.
func (d *member) enterOne(ctx context.Context) error {
	g, err := Pair{Move: d.move, Scope: d.scope}.gate(ctx, d.sides[0])
	if err != nil || g.lets(d.phase == backend.PhaseFrom) {
		return err
	}
	p, err := d.pair(ctx)
	if err != nil {
		return err
	}
	if d.phase == backend.PhaseFrom && g.Epoch == 0 {
		if err := p.prepare(ctx, false); err != nil {
			return err
		}
	}
	return p.open(ctx, d.phase, starting)
}

// pair is both stores, for what is done to their gates.
func (d *member) pair(ctx context.Context) (Pair, error) {
	from, err := d.from.gater(ctx)
	if err != nil {
		return Pair{}, err
	}
	to, err := d.to.gater(ctx)
	if err != nil {
		return Pair{}, err
	}
	return Pair{d.move, d.scope, from, to}, nil
}

// Tells implements core.Caller.
func (d *member) Tells() bool { return false }

// Traits implements core.Caller: those of the phase's store, or in phase both the lesser of each.
func (d *member) Traits() backend.Traits { return d.traits }

// Inspect implements core.Caller. In phase both a lock is held if it is held in either store.
func (d *member) Inspect(ctx context.Context, name string) (backend.Info, error) {
	merged := backend.Info{Name: name}
	for _, s := range d.sides {
		i, err := s.Inspect(ctx, name)
		if err != nil {
			return backend.Info{}, err
		}
		merged = merge(merged, i)
	}
	return merged, nil
}

// merge describes a lock by both stores. The new store's word of the holder counts more: its token is the lease's.
func merge(old, new backend.Info) backend.Info {
	if !new.Held {
		old, new = new, old
	}
	both := new
	both.Name = max(old.Name, new.Name)
	both.Leaked = old.Leaked || new.Leaked
	both.Waiters = old.Waiters + new.Waiters
	if old.Waiters < 0 || new.Waiters < 0 {
		both.Waiters = -1
	}
	return both
}

// List implements core.Caller.
func (d *member) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	if d.spare != nil {
		return d.sides[0].List(ctx, prefix)
	}
	return func(yield func(backend.Info, error) bool) {
		all := map[string]backend.Info{}
		for _, s := range d.sides {
			for i, err := range s.List(ctx, prefix) {
				if err != nil {
					yield(backend.Info{}, err)
					return
				}
				all[i.Name] = merge(all[i.Name], i)
			}
		}
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Break implements core.Caller. In phase both it frees the lock in both stores. The holder hears of
// the first and gives up the other itself. A later holder there is left alone: only a holder that has
// not heard for as long as Traits.Revoked is broken there too.
func (d *member) Break(ctx context.Context, name string) error {
	old := d.sides[0]
	if d.spare != nil {
		return old.Break(ctx, name)
	}
	new := d.sides[1]
	var before backend.Info
	unknown := within(ctx, sideMost, func(ctx context.Context) (err error) {
		before, err = new.Inspect(ctx, name)
		return err
	})
	err := old.Break(ctx, name)
	switch {
	case err == nil && unknown == nil && !before.Held:
		return nil // its holder there has come since
	case err != nil || unknown != nil || before.Token == 0:
		return errors.Join(err, new.Break(ctx, name))
	}
	told := time.NewTimer(d.traits.Revoked) // by then a holder of both that lives has heard of it
	defer told.Stop()
	for last := false; ; {
		now, err := new.Inspect(ctx, name)
		switch {
		case err == nil && now.Token != before.Token:
			return nil
		case last:
			return new.Break(ctx, name)
		}
		select {
		case <-told.C:
			last = true
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// lookAgain is how often Break looks whether the holder has given up.
const lookAgain = 20 * time.Millisecond

// Settle implements core.Caller.
func (d *member) Settle() {
	for _, s := range d.opened() {
		s.Settle()
	}
}

// Land implements core.Caller.
func (d *member) Land() {
	for _, s := range d.opened() {
		s.Land()
	}
}

// opened are the stores that are open.
func (d *member) opened() []core.Gater {
	var open []core.Gater
	for _, s := range []*store{d.from, d.to} {
		if g := s.opened(); g != nil {
			open = append(open, g)
		}
	}
	return open
}

// Close implements core.Caller. It takes the client's report back and closes the drivers of both stores.
func (d *member) Close() error {
	d.report.stop(d, stopMost)
	var errs []error
	for _, s := range d.opened() {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
