package fencelock

import (
	"cmp"
	"fmt"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// route is where names go: a driver, and what holds for its names. A Locker over one
// driver has one; over a backend.Router it has the Router's.
type route struct {
	lot     int // the number of its driver: holds of one lot go into one batch
	name    string
	driver  backend.Driver
	caller  core.Caller // of its driver
	janitor *janitor    // of its driver
	looks   *looks      // nil: the driver cannot be asked, or need not
	traits  Traits
	set     settings
}

// routesOf returns the routes of d, with the options of the Locker checked for each.
func routesOf(d backend.Driver, opts []Option) ([]*route, error) {
	plain := []backend.Route{{Driver: d}}
	if r, ok := d.(backend.Router); ok {
		if plain = r.Routes(); len(plain) == 0 {
			return nil, &OpError{Op: "open", Err: backend.Invalid("the router has no routes")}
		}
	}
	var routes []*route
	for _, p := range plain {
		if _, ok := p.Driver.(core.Caller); !ok && p.Driver.Calls().Most < 1 {
			return nil, &OpError{Op: "open", Backend: p.Driver.Traits().Name, Err: backend.Invalid(
				"the driver takes no claims: its Calls.Most is 0, as that of one which is made of others, " +
					"such as a migration, and which cannot be wrapped")}
		}
		rt := &route{name: p.Name, driver: p.Driver, traits: p.Driver.Traits(), lot: len(routes)}
		for _, before := range routes {
			if before.driver == rt.driver {
				rt.lot, rt.caller, rt.looks = before.lot, before.caller, before.looks
				break
			}
		}
		if rt.caller == nil {
			rt.caller = core.Of(rt.driver)
		}
		if rt.looks == nil && rt.traits.Revoked > 0 && !rt.caller.Tells() {
			most := cmp.Or(rt.driver.Calls().Looks, maxBatch)
			rt.looks = &looks{caller: rt.caller, every: rt.traits.Revoked * 6 / 10, most: most}
		}
		set := settings{ttl: DefaultTTL, owner: defaultOwner(), reentrant: p.Reentrant}
		if p.TTL > 0 {
			set.ttl = p.TTL
		}
		var err error
		if rt.set, err = set.apply(rt.traits, opts); err != nil {
			if p.Name != "" {
				err = fmt.Errorf("backend %q: %w", p.Name, err)
			}
			return nil, &OpError{Op: "open", Backend: rt.traits.Name, Err: err}
		}
		routes = append(routes, rt)
	}
	return routes, nil
}

// route returns the route of a valid name.
func (l *Locker) route(name string) (*route, error) {
	r, ok := l.driver.(backend.Router)
	if !ok {
		return l.routes[0], nil
	}
	i, err := r.Route(name)
	if err != nil {
		return nil, err
	}
	if i < 0 || i >= len(l.routes) {
		return nil, backend.Invalid("the router has %d routes and gave number %d", len(l.routes), i)
	}
	return l.routes[i], nil
}

// backendOf returns what messages and events call the backend of a name, which may be a bad one or
// empty: then that of the whole Locker.
func (l *Locker) backendOf(name string) string {
	if len(l.routes) > 1 && backend.CheckName(name) == nil {
		if rt, err := l.route(name); err == nil {
			return rt.traits.Name
		}
	}
	return l.traits.Name
}
