package config

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// router is the driver of a whole configuration: it sends each name to its rule's backend.
type router struct {
	rules  []*Rule
	one    string          // if not empty, no other name has a rule
	routes []backend.Route // one for each rule
	places []place         // the backends, each once
	where  []int           // the place of each rule's
	close  func() error
}

// place is a backend of the file and its driver.
type place struct {
	name   string
	driver backend.Driver
}

// Routes returns one route for each rule.
func (r *router) Routes() []backend.Route { return r.routes }

// Route returns the index of the first rule that matches.
func (r *router) Route(name string) (int, error) {
	if r.one != "" && name != r.one {
		return 0, backend.Invalid("the backends were opened for the name %s alone", quote(r.one))
	}
	return find(r.rules, name)
}

// Traits returns what all backends promise.
func (r *router) Traits() backend.Traits {
	ts := make([]backend.Traits, len(r.places))
	for i, p := range r.places {
		ts[i] = p.driver.Traits()
	}
	return backend.Weakest(ts...)
}

// to returns the driver of a name.
func (r *router) to(name string) (backend.Driver, error) {
	i, err := r.Route(name)
	if err != nil {
		return nil, err
	}
	return r.routes[i].Driver, nil
}

// at returns the index in places of a name's backend; -1 if it has none.
func (r *router) at(name string) int {
	i, err := r.Route(name)
	if err != nil {
		return -1
	}
	return r.where[i]
}

// Acquire takes the lock in the name's backend.
func (r *router) Acquire(ctx context.Context, req *backend.Request) (backend.Grant, error) {
	d, err := r.to(req.Name)
	if err != nil {
		return backend.Grant{}, err
	}
	return d.Acquire(ctx, req)
}

// Renew renews in each backend what is there, at once.
func (r *router) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return r.each(hs, func(d backend.Driver, hs []*backend.Hold) []error { return d.Renew(ctx, hs) })
}

// Check asks those backends that can be asked. Of the others nothing is known against a hold.
func (r *router) Check(ctx context.Context, hs []*backend.Hold) []error {
	return r.each(hs, func(d backend.Driver, hs []*backend.Hold) []error {
		if c, ok := d.(backend.Checker); ok {
			return c.Check(ctx, hs)
		}
		return make([]error, len(hs))
	})
}

// each gives each backend its own of hs, at once, and puts the answers in the order of hs.
func (r *router) each(hs []*backend.Hold, do func(backend.Driver, []*backend.Hold) []error) []error {
	errs := make([]error, len(hs))
	var wg sync.WaitGroup
	for k, p := range r.places {
		var mine []*backend.Hold
		var where []int
		for i, h := range hs {
			if r.at(h.Name) == k {
				mine, where = append(mine, h), append(where, i)
			}
		}
		if len(mine) > 0 {
			wg.Go(func() {
				for i, err := range do(p.driver, mine) {
					errs[where[i]] = err
				}
			})
		}
	}
	wg.Wait()
	return errs
}

// Release frees the lock in the name's backend.
func (r *router) Release(ctx context.Context, h *backend.Hold) error {
	d, err := r.to(h.Name)
	if err != nil {
		return err
	}
	return d.Release(ctx, h)
}

// Abandon undoes a request in the name's backend.
func (r *router) Abandon(ctx context.Context, req *backend.Request) error {
	d, err := r.to(req.Name)
	if err != nil {
		return err
	}
	return d.Abandon(ctx, req)
}

// Inspect asks the name's backend.
func (r *router) Inspect(ctx context.Context, name string) (backend.Info, error) {
	d, err := r.to(name)
	if err != nil {
		return backend.Info{}, err
	}
	return d.Inspect(ctx, name)
}

// List yields what each backend has of the names that the rules send there: what else lies in a store, such as names
// that were moved, is not ours.
func (r *router) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for k, p := range r.places {
			for info, err := range p.driver.List(ctx, prefix) {
				if err != nil {
					yield(backend.Info{}, fmt.Errorf("backend %q: %w", p.name, err))
					return
				}
				if r.at(info.Name) != k {
					continue
				}
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// Break frees the lock in the name's backend.
func (r *router) Break(ctx context.Context, name string) error {
	d, err := r.to(name)
	if err != nil {
		return err
	}
	return d.Break(ctx, name)
}

// Close closes all backends, each once.
func (r *router) Close() error { return r.close() }
