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
	o := opening{c: c, stores: map[*Backend]backend.Driver{}}
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

// opening is one Open: the drivers that are open so far.
type opening struct {
	c      *Config
	stores map[*Backend]backend.Driver // of the backends with a URL, each once
	moves  []backend.Driver            // migrations over them
}

// router opens what the rules use.
func (o *opening) router(ctx context.Context) (*router, error) {
	if err := o.open(ctx); err != nil {
		return nil, unopened(ctx, err)
	}
	r := &router{rules: o.c.only, one: o.c.one, close: o.close}
	placed := map[*Backend]backend.Driver{}
	for _, rule := range r.rules {
		b := rule.Backend
		d, ok := placed[b]
		if !ok {
			var err error
			if d, err = o.driver(ctx, b); err != nil {
				return nil, unopened(ctx, fmt.Errorf("backend %q: %w", b.Name, err))
			}
			placed[b] = d
		}
		if err := rule.Need.Check(d.Traits()); err != nil {
			return nil, fmt.Errorf("rule %s: %s: %w", rule.shown, rule.asked(), err)
		}
		r.routes = append(r.routes, backend.Route{
			Name: b.Name, Driver: d, TTL: b.TTL, Reentrant: rule.Scenario.Reentrant,
		})
	}
	return r, nil
}

// open opens the stores that names are locked in, all at once.
func (o *opening) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openMost)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, b := range o.c.stores() {
		wg.Go(func() {
			d, err := b.Driver(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("backend %q: %w", b.Name, answered(err)))
				return
			}
			o.stores[b] = d
		})
	}
	wg.Wait()
	return errors.Join(errs...)
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

// stores returns the backends with a URL that the routed rules lock in, each once.
func (c *Config) stores() []*Backend {
	used := map[string]bool{}
	for _, r := range c.only {
		m := r.Backend.Migrate
		if m == nil {
			used[r.Backend.Name] = true
			continue
		}
		if m.Phase != backend.PhaseTo {
			used[m.From] = true
		}
		if m.Phase != backend.PhaseFrom {
			used[m.To] = true
		}
	}
	var stores []*Backend
	for _, b := range c.backends {
		if used[b.Name] {
			stores = append(stores, b)
		}
	}
	return stores
}

// driver returns the driver of a backend whose stores are open.
func (o *opening) driver(ctx context.Context, b *Backend) (backend.Driver, error) {
	if b.Migrate == nil {
		return o.stores[b], nil
	}
	opts := migrate.Options{Move: b.Name, Scope: o.c.Scope(b), Phase: b.Migrate.Phase, Look: o.c.look}
	for _, leg := range o.c.backends {
		d, open := o.stores[leg]
		switch {
		case leg.Name == b.Migrate.From && open:
			opts.From = keep(d)
		case leg.Name == b.Migrate.To && open:
			opts.To = keep(d)
		case leg.Name == b.Migrate.From || leg.Name == b.Migrate.To:
			opts.Other = leg.Driver
		}
	}
	d, err := migrate.New(ctx, opts)
	if err != nil {
		return nil, answered(err)
	}
	o.moves = append(o.moves, d)
	return d, nil
}

// close closes the migrations, and then the stores, each once.
func (o *opening) close() error {
	return errors.Join(closeAll(o.moves), closeAll(slices.Collect(maps.Values(o.stores))))
}

// closeAll closes drivers all at once, since a driver may take a while if its store is gone.
func closeAll(ds []backend.Driver) error {
	errs := make([]error, len(ds))
	var wg sync.WaitGroup
	for i, d := range ds {
		wg.Go(func() { errs[i] = d.Close() })
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
