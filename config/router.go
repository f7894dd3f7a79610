package config

import (
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// router is the driver of a whole configuration: it sends each name to its rule's backend.
type router struct {
	core.Composite
	rules  []*Rule
	one    string          // if not empty, no other name has a rule
	routes []backend.Route // one for each rule
	close  func() error
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

// Traits returns the promises that all backends have in common.
func (r *router) Traits() backend.Traits {
	ts := make([]backend.Traits, len(r.routes))
	for i, to := range r.routes {
		ts[i] = to.Driver.Traits()
	}
	return backend.Weakest(ts...)
}

// Close closes all backends, each once.
func (r *router) Close() error { return r.close() }
