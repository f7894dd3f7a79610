package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	drainFirst = 10 * time.Millisecond // between two looks at a store that drains
	drainLast  = 500 * time.Millisecond
	// alive is how old a report may be of a client that counts as alive.
	alive = 30 * time.Second
)

// A Pair is the two stores of a migration, for what clients do to the gates as they start and operators
// by hand. It may be copied. All of it is safe at any time, by any number of callers, also by one that is stopped in the middle for
// however long: a switch that was not finished leaves both stores closed to single phases, and the next one starts over.
type Pair struct {
	Move     string
	Scope    backend.Scope
	From, To backend.Gater
}

// epochAfter is the epoch of a change: by the clock, so that a change from before a loss of the store's data never
// fits what is there after it.
func epochAfter(old int64) int64 { return max(old+1, time.Now().UnixMicro()) }

// gateOf returns the migration's gate in a store; of epoch 0 if there is none.
func gateOf(ctx context.Context, s backend.Gater, move string, scope backend.Scope) (backend.Gate, error) {
	gates, err := s.Gates(ctx)
	if err != nil {
		return backend.Gate{}, err
	}
	for _, g := range gates {
		switch {
		case g.Move != move:
		case g.Scope.String() != scope.String() && !g.Torn:
			return backend.Gate{}, backend.Invalid("migration %q moves %s in the store, and %s in this program's configuration: the names must not change while it runs", move, g.Scope, scope)
		default:
			return g, nil
		}
	}
	return backend.Gate{Move: move, Scope: scope}, nil
}

func (p Pair) gate(ctx context.Context, s backend.Gater) (backend.Gate, error) {
	return gateOf(ctx, s, p.Move, p.Scope)
}

// set writes a gate over g.
func (p Pair) set(ctx context.Context, s backend.Gater, state backend.GateState, epoch, was int64) error {
	return s.SetGate(ctx, backend.Gate{Move: p.Move, Scope: p.Scope, State: state, Epoch: epoch}, was)
}

// Prepare makes sure that both stores have a gate. Where there is none the new store's is closed, so
// that a program which is merely given its URL is refused, and the old store's is open.
func (p Pair) Prepare(ctx context.Context) error {
	for {
		to, err := p.gate(ctx, p.To)
		if err != nil {
			return err
		}
		if to.Epoch == 0 {
			err = p.set(ctx, p.To, backend.GateBoth, epochAfter(0), 0)
		}
		var from backend.Gate
		if err == nil {
			from, err = p.gate(ctx, p.From)
		}
		if err == nil && from.Epoch == 0 {
			state := backend.GateOpen
			if to.State == backend.GateOpen { // the old store has lost its data: it stays behind
				state = backend.GateBoth
			}
			err = p.set(ctx, p.From, state, epochAfter(0), 0)
		}
		if !errors.Is(err, backend.ErrGateMoved) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Open switches: it opens the new store (PhaseTo) or the old one (PhaseFrom) to clients of that phase alone, and
// closes the other. It returns nil at once if the store is open. ErrInvalid: a client
// that the switch would lock out has reported within 30 s. When ctx ends before the
// other store is drained, the error matches ErrUnavailable and names who holds; nothing need be undone.
func (p Pair) Open(ctx context.Context, phase backend.Phase) error { return p.open(ctx, phase, false) }

// OpenAgainst is Open without asking whom it locks out: their acquisitions are refused, what they hold is waited for.
func (p Pair) OpenAgainst(ctx context.Context, phase backend.Phase) error {
	return p.open(ctx, phase, true)
}

func (p Pair) open(ctx context.Context, phase backend.Phase, force bool) error {
	opening, closing, away := p.To, p.From, backend.PhaseFrom
	if phase == backend.PhaseFrom {
		opening, closing, away = p.From, p.To, backend.PhaseTo
	}
	for {
		g, err := p.gate(ctx, opening)
		if err != nil || g.State == backend.GateOpen {
			return err
		}
		if !force {
			if err := p.nobodyIn(ctx, away, phase); err != nil {
				return err
			}
		}
		if g.Torn || g.Epoch == 0 { // closed, and of an epoch that does not come back when the store loses its data meanwhile
			err = p.set(ctx, opening, backend.GateBoth, epochAfter(g.Epoch), backend.Lower)
		} else {
			err = p.turn(ctx, opening, closing, g.Epoch)
		}
		if err != nil && !errors.Is(err, backend.ErrGateMoved) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// turn is the switch itself. epoch is that of the gate which it opens, as it was before anything was done: if it is another at the end, somebody has closed it
// in between, and with it the premise of the switch is gone.
func (p Pair) turn(ctx context.Context, opening, closing backend.Gater, epoch int64) error {
	shut, err := p.gate(ctx, closing)
	if err != nil {
		return err
	}
	if err := p.set(ctx, closing, backend.GateBoth, epochAfter(shut.Epoch), backend.Lower); err != nil {
		return err
	}
	if err := p.drain(ctx, closing); err != nil {
		return err
	}
	source, err := closing.Source(ctx)
	if err != nil {
		return err
	}
	if err := opening.Raise(ctx, source); err != nil {
		return err
	}
	return p.set(ctx, opening, backend.GateOpen, epochAfter(epoch), epoch)
}

// drain waits until nobody holds in a closed store who does not hold in both.
func (p Pair) drain(ctx context.Context, s backend.Gater) error {
	g := backend.Gate{Move: p.Move, Scope: p.Scope, State: backend.GateBoth}
	var left []backend.Info
	for pause := drainFirst; ; pause = min(2*pause, drainLast) {
		now, err := s.Undrained(ctx, g)
		switch {
		case err == nil && len(now) == 0:
			return nil
		case err == nil:
			left = now
		case ctx.Err() == nil || left == nil:
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w (%w)", backend.Unavailable(fmt.Errorf("still held in the other store alone, which is waited for: %s", holders(left))), ctx.Err())
		}
	}
}

// holders names at most five.
func holders(left []backend.Info) string {
	const most = 5
	var names []string
	for _, i := range left[:min(most, len(left))] {
		who := i.Owner
		if who == "" {
			who = "a holder without a name"
		}
		until := "without end"
		if i.ExpiresIn > 0 {
			until = "for " + i.ExpiresIn.Round(10*time.Millisecond).String() + " unless renewed"
		}
		names = append(names, fmt.Sprintf("%q by %s, %s", i.Name, who, until))
	}
	if len(left) > most {
		names = append(names, fmt.Sprintf("and %d more", len(left)-most))
	}
	return strings.Join(names, "; ")
}

// nobodyIn returns ErrInvalid if a client has reported that phase lately in either store.
func (p Pair) nobodyIn(ctx context.Context, away, phase backend.Phase) error {
	cs, err := p.Clients(ctx)
	if err != nil {
		return err
	}
	for _, c := range cs {
		if c.Phase == away && c.Alive(time.Now()) {
			return backend.Invalid("%s:%d is still in phase %s, two phases away from %s: deploy phase both everywhere first (it reported %v ago)",
				c.Host, c.PID, away, phase, time.Since(c.Reported).Round(time.Second))
		}
	}
	return nil
}
