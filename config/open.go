package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

// openMost is how long Open may take to connect to all backends.
const openMost = 5 * time.Second

// Open connects to the backends that the rules use, at once, and returns one Locker that routes by
// name. Its Close closes all of them. opts are as of fencelock.Open. They must suit every backend, and
// win over the file. A scenario with re-entrancy turns WithReentrancy on for its names; WithoutReentrancy
// turns it off.
//
// A migration in phase both needs both its stores. In another phase it needs the store that it locks in,
// and the other store only if the gates are not as that phase needs them yet. A switch waits until no
// lock is held in the store that is left, for as long as ctx allows.
//
// A name that no rule matches is ErrInvalid at Lock. Errors are *OpError: ErrUnavailable when a
// store does not answer within ctx or 5 s; ErrInvalid for a URL; ErrUnsupported when a driver
// promises less than a rule's scenario needs. Each names the backend as the file does, and shows no
// password.
func (c *Config) Open(ctx context.Context, opts ...fencelock.Option) (*fencelock.Locker, error) {
	if ctx.Err() != nil {
		return nil, &backend.OpError{Op: "open", Err: ended(ctx)}
	}
	o := opening{c: c}
	r, err := o.router(ctx)
	if err != nil {
		_ = o.close() // the first error is the one to report
		return nil, &backend.OpError{Op: "open", Err: err}
	}
	locks, err := fencelock.New(r, opts...)
	if err != nil {
		_ = o.close()
		return nil, err
	}
	return locks, nil
}

// opening is one Open: the drivers that are open so far, one for each backend.
type opening struct {
	c      *Config
	stores map[*Backend]backend.Driver
	moves  map[*Backend]backend.Driver // migrations over stores
}

// router opens what the rules use. A migration may switch as it starts, so the promises are looked at before that.
func (o *opening) router(ctx context.Context) (*router, error) {
	stores, moves := o.c.used()
	limited, cancel := context.WithTimeout(ctx, openMost)
	defer cancel()
	var err error
	o.stores, err = each(stores, func(b *Backend) (backend.Driver, error) { return b.Driver(limited) })
	if err != nil {
		return nil, unopened(ctx, err)
	}
	for _, rule := range o.c.only {
		if err := rule.Need.Check(o.traits(rule.Backend)); err != nil {
			return nil, fmt.Errorf("rule %s: %s: backend %q: %w", rule.shown, rule.asked(), rule.Backend.Name, err)
		}
	}
	o.moves, err = each(moves, func(b *Backend) (backend.Driver, error) { return o.move(ctx, b) })
	if err != nil {
		return nil, unopened(ctx, err)
	}
	r := &router{rules: o.c.only, one: o.c.one, close: o.close}
	for _, rule := range r.rules {
		b := rule.Backend
		d := o.stores[b]
		if b.Migrate != nil {
			d = o.moves[b]
		}
		r.routes = append(r.routes, backend.Route{
			Name: b.Name, Driver: d, TTL: b.TTL, Reentrant: rule.Scenario.Reentrant,
		})
	}
	return r, nil
}

// each opens backends, all at once. On an error it returns those that are open.
func each(bs []*Backend, open func(*Backend) (backend.Driver, error)) (map[*Backend]backend.Driver, error) {
	var mu sync.Mutex
	all := map[*Backend]backend.Driver{}
	return all, atOnce(bs, func(b *Backend) error {
		d, err := open(b)
		if err != nil {
			return fmt.Errorf("backend %q: %w", b.Name, answered(err))
		}
		mu.Lock()
		defer mu.Unlock()
		all[b] = d
		return nil
	})
}

// traits returns the promises of a backend whose stores are open.
func (o *opening) traits(b *Backend) backend.Traits {
	of := func(b *Backend) backend.Traits {
		if d := o.stores[b]; d != nil {
			return d.Traits()
		}
		return backend.Traits{} // of a store that the phase does not lock in
	}
	if b.Migrate != nil {
		return movingTraits(b.Migrate.Phase, of(b.from), of(b.to))
	}
	return of(b)
}

// Driver connects to a backend with a URL; the caller closes the driver. It is for tools that look
// at one backend: Open does what programs need. A migration is ErrInvalid: it consists of two.
func (b *Backend) Driver(ctx context.Context) (backend.Driver, error) {
	if b.url == nil {
		return nil, backend.Invalid("backend %q is a migration: it has no URL", b.Name)
	}
	// ttl= is the engine's key, and was read when the file was loaded. A driver may refuse a TTL.
	return backend.Open(ctx, b.URL(), func(q *backend.Query) { q.Duration("ttl", 0) })
}

// used returns the backends with a URL that the routed rules lock in, and their migrations, each once.
func (c *Config) used() (stores, moves []*Backend) {
	used := map[*Backend]bool{}
	for _, r := range c.only {
		used[r.Backend] = true
		if m := r.Backend.Migrate; m != nil {
			used[r.Backend.from] = used[r.Backend.from] || m.Phase != backend.PhaseTo
			used[r.Backend.to] = used[r.Backend.to] || m.Phase != backend.PhaseFrom
		}
	}
	for _, b := range c.backends {
		switch {
		case !used[b]:
		case b.Migrate == nil:
			stores = append(stores, b)
		default:
			moves = append(moves, b)
		}
	}
	return stores, moves
}

// move starts a migration whose stores are open.
func (o *opening) move(ctx context.Context, b *Backend) (backend.Driver, error) {
	opts := migrate.Options{Move: b.Name, Scope: o.c.Scope(b), Phase: b.Migrate.Phase, Look: o.c.look}
	for leg, to := range map[*Backend]*backend.Driver{b.from: &opts.From, b.to: &opts.To} {
		if d := o.stores[leg]; d != nil {
			*to = keep(d)
		} else {
			opts.Other = leg.Driver
		}
	}
	return migrate.New(ctx, opts)
}

// close closes the migrations, and then the stores.
func (o *opening) close() error {
	closeAll := func(ds map[*Backend]backend.Driver) error {
		return atOnce(slices.Collect(maps.Values(ds)), backend.Driver.Close)
	}
	return errors.Join(closeAll(o.moves), closeAll(o.stores))
}

// atOnce does something with each of all at once, since any may take a while if its store is gone.
func atOnce[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { errs[i] = do(one) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// answered returns a driver's error as users see it. An error without a sentinel means that the store did
// not answer.
func answered(err error) error {
	if backend.Final(err) {
		return err
	}
	return backend.Unavailable(err)
}

// unopened returns the error of an Open. Its ctx may have ended.
func unopened(ctx context.Context, err error) error {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= time.Millisecond {
		select { // a network timeout made of it may be seen a moment earlier
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond): // a context of an unusual kind: its deadline is all that it has
		}
	}
	if ctx.Err() == nil || !errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w (%w)", ended(ctx), err)
}

// ended is the error of a ctx that has ended, with its cause.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(ctx.Err(), cause) {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
