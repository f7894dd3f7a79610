package migrate

import (
	"context"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// seal ends the scope of a gate that only an operator changes. It changes nothing for names: one that no pattern before
// it matches stays anyway. So it is written in the same step as the gate, and every driver can keep it.
//
// A gate whose scope is the seal alone belongs to a cancelled migration: it moves no name, and admits the requests that
// a store without a gate admits. It still has an epoch, so a switch that was stopped before the cancel cannot finish.
var seal = backend.Pattern{Match: "*", Stays: true}

// gate is a gate whose Scope is without the seal.
type gate struct {
	backend.Gate
	sealed bool
}

// unsealed returns a scope without a seal.
func unsealed(s backend.Scope) (backend.Scope, bool) {
	n := len(s)
	for n > 0 && s[n-1] == seal {
		n--
	}
	return s[:n:n], n < len(s)
}

// cancelled reports whether the gate's migration was cancelled.
func (g gate) cancelled() bool { return g.sealed && len(g.Scope) == 0 }

// finished reports whether the gate's migration is done.
func (g gate) finished() bool { return g.sealed && len(g.Scope) > 0 }

// lets reports whether the gate lets clients of one phase in: in the old store it does so also once the migration was
// cancelled.
func (g gate) lets(old bool) bool {
	return g.State == backend.GateOpen && !g.Torn && (old || !g.cancelled())
}

// lacks reports whether the gate is missing, or may be in some places of its store.
func (g gate) lacks() bool { return g.Epoch == 0 || g.Torn }

// epochAfter is the epoch of a change: by the clock, so that a change from before a loss of the store's data never
// fits what is there after it.
func epochAfter(old int64) int64 { return max(old+1, time.Now().UnixMicro()) }

// gate returns the migration's gate in a store; of epoch 0 if there is none.
func (p Pair) gate(ctx context.Context, s core.Gater) (gate, error) {
	gates, err := s.Gates(ctx)
	if err != nil {
		return gate{}, err
	}
	scope, _ := unsealed(p.Scope)
	for _, stored := range gates {
		if stored.Move != p.Move {
			continue
		}
		g := gate{Gate: stored}
		g.Scope, g.sealed = unsealed(stored.Scope)
		if !g.cancelled() && !g.Torn && !slices.Equal(g.Scope, scope) {
			return gate{}, backend.Invalid("migration %q moves %s in the store, and %s in this "+
				"program's configuration: the names must not change while it runs",
				p.Move, g.Scope, scope)
		}
		return g, nil
	}
	return gate{Gate: backend.Gate{Move: p.Move, Scope: scope}}, nil
}

// both reads the gates of both stores.
func (p Pair) both(ctx context.Context) (from, to gate, err error) {
	if to, err = p.gate(ctx, p.to); err == nil {
		from, err = p.gate(ctx, p.from)
	}
	if err == nil && from.Torn { // by a switch that opens it, perhaps, which has closed the new store since
		to, err = p.gate(ctx, p.to)
	}
	return from, to, err
}

// fresh is the gate of this migration in a state, over a gate of epoch was.
func (p Pair) fresh(state backend.GateState, was int64) gate {
	scope, _ := unsealed(p.Scope)
	return gate{Gate: backend.Gate{Move: p.Move, Scope: scope, State: state, Epoch: epochAfter(was)}}
}

// over returns a change of g: with another state, and a new epoch.
func (g gate) over(state backend.GateState, sealed bool) gate {
	g.State, g.Epoch, g.Torn, g.sealed = state, epochAfter(g.Epoch), false, sealed
	return g
}

// set writes a gate where the store has one of epoch was.
func (p Pair) set(ctx context.Context, s core.Gater, g gate, was int64) error {
	stored := g.Gate
	if g.sealed {
		stored.Scope = append(g.Scope[:len(g.Scope):len(g.Scope)], seal)
	}
	return s.SetGate(ctx, stored, was)
}

// expected is the epoch that a change of g expects: its own. If the places of a store do not agree there is none.
func (g gate) expected() int64 {
	if g.Torn {
		return backend.Lower
	}
	return g.Epoch
}

func (p Pair) isFinished() error {
	return backend.Invalid("migration %q is finished, and this program's configuration is from "+
		"before that: give it the new store alone; the way back begins with fencelock "+
		"migrate advance --phase from", p.Move)
}

func (p Pair) isCancelled() error {
	return backend.Invalid("migration %q was cancelled, and this program's configuration is from "+
		"before that: give it the old store alone; to begin again run fencelock "+
		"migrate advance --phase from", p.Move)
}
