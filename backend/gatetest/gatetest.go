// Package gatetest holds a driver to the part of the contract that migrations rest on: backend.Mover. What the suite
// of package conformance checks through a Locker is not checked again.
package gatetest

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	ttl     = 30 * time.Second // no rule waits for its end; Redlock's quarantine covers no more
	patient = 15 * time.Second // bounds every wait of a rule
	abreast = 2                // rules that run at once: a gate is written to each slot of a Redis Cluster
)

// Run runs every rule as a subtest. open returns a client of one and the same store and keyspace; it is
// called several times for each rule, and the driver is closed by the rule's end.
func Run(t *testing.T, open func(t *testing.T) backend.Driver) {
	t.Helper()
	places := make(chan struct{}, abreast)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			e := &env{T: t, open: open, move: "m" + core.Nonce()[:8]}
			e.scope = backend.Scope{{Match: e.name("stays/*"), Stays: true}, {Match: e.name("*")}}
			e.d = e.client()
			r.check(e)
		})
	}
}

type env struct {
	*testing.T
	open  func(t *testing.T) backend.Driver
	d     core.Gater
	move  string
	scope backend.Scope
}

var rules = []struct {
	name  string
	check func(e *env)
}{
	{"NoGate", noGate},
	{"Closed", closed},
	{"Open", opened},
	{"NamesThatStay", stays},
	{"WaiterIsRefused", waiterIsRefused},
	{"WaiterInBothPasses", waiterInBothPasses},
	{"SentAgain", sentAgain},
	{"RenewAndRelease", renewAndRelease},
	{"SetGate", setGate},
	{"SetGateRace", setGateRace},
	{"Sealed", sealed},
	{"MovesNothing", movesNothing},
	{"Undrained", undrained},
	{"UndrainedRace", undrainedRace},
	{"Raise", raise},
	{"RaiseHeld", raiseHeld},
	{"Clients", clients},
}
