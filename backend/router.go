package backend

import (
	"slices"
	"strings"
	"time"
)

// A Router is a Driver made of several: it sends each name to one of them. The engine finds it by
// type assertion, and gives each name the defaults, the margin and the checks of its own driver, and
// each driver batches of its own. It calls the drivers of the routes; of the Router itself it calls
// Routes, Route, Traits, which are the [Weakest] of all, and Close, which closes all, each once.
type Router interface {
	Driver

	// Routes returns the routes: at least one, always the same ones in the same order. Several may
	// have one driver.
	Routes() []Route

	// Route returns the index in Routes of the route that name takes, always the same, without
	// asking a server; or an error that matches [ErrInvalid] for a name that has none.
	Route(name string) (int, error)
}

// A Route is where some names go, and what holds for them unless the program says otherwise.
type Route struct {
	Name      string        // of its store, in errors; may be empty
	Driver    Driver        // comparable, as a pointer is
	TTL       time.Duration // the default TTL; 0: the engine's
	Reentrant bool          // as WithReentrancy
}

// Weakest returns what all of ts promise: of each field the lesser promise. Its Name is theirs, joined with +
// where they differ. Without ts it returns the zero Traits.
func Weakest(ts ...Traits) Traits {
	if len(ts) == 0 {
		return Traits{}
	}
	w, names := ts[0], []string{ts[0].Name}
	for _, t := range ts[1:] {
		if !slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
		w = Traits{
			Fencing:       min(w.Fencing, t.Fencing),
			FIFO:          w.FIFO && t.FIFO,
			DeadWaiter:    max(w.DeadWaiter, t.DeadWaiter),
			ClockFree:     w.ClockFree && t.ClockFree,
			SurvivesNode:  w.SurvivesNode && t.SurvivesNode,
			Transactional: w.Transactional && t.Transactional,
			Grace:         w.Grace && t.Grace,
			MinHold:       w.MinHold && t.MinHold,
			LeasePerConn:  w.LeasePerConn || t.LeasePerConn,
			MinTTL:        max(w.MinTTL, t.MinTTL),
			Resolution:    max(w.Resolution, t.Resolution),
			Revoked:       revoked(w.Revoked, t.Revoked),
			Margin:        max(w.Margin, t.Margin),
			Readers:       w.Readers && t.Readers,
			Permits:       min(w.Permits, t.Permits),
		}
	}
	w.Name = strings.Join(names, "+")
	return w
}

// revoked is the lesser of two promises; 0 is none.
func revoked(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}
