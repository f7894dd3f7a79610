package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	drainFirst = 10 * time.Millisecond // between two looks at a store that drains
	drainLast  = 500 * time.Millisecond
	// alive is how old a report may be of a client that counts as alive.
	alive = 30 * time.Second
)

// A Pair is the two stores of a migration, for what clients do to the gates as they start and
// operators by hand. It may be copied. All of it is safe at any time, by any number of callers,
// also by one that is stopped in the middle for however long: a switch whose caller died leaves
// both stores closed to single phases, and the next one starts over.
type Pair struct {
	Move  string
	Scope backend.Scope

	from, to core.Gater
}

// PairOf returns the pair of a migration's old and new store, which stay the caller's. ErrUnsupported:
// one of them cannot take part in a migration.
func PairOf(move string, scope backend.Scope, from, to backend.Driver) (p Pair, err error) {
	p.Move, p.Scope = move, scope
	if p.from, err = gaterOf("old", from); err == nil {
		p.to, err = gaterOf("new", to)
	}
	return p, err
}

// Prepare makes sure that both stores have a gate. Where there is none the new store's is closed, so
// that a program which is merely given its URL is refused, and the old store's is open. A migration that was cancelled
// begins again.
func (p Pair) Prepare(ctx context.Context) error { return p.prepare(ctx, true) }

func (p Pair) prepare(ctx context.Context, again bool) error {
	for apart := false; ; {
		from, to, err := p.both(ctx)
		switch {
		case err != nil:
			return err
		case !again && (from.cancelled() || to.cancelled()):
			return p.isCancelled()
		case to.Epoch == 0 && from.finished():
			return nil // the new store has lost its gate with its data: it is everybody's
		case to.Epoch == 0 && from.Epoch == 0 && !apart:
			apart, err = true, p.apart(ctx)
		case to.Epoch == 0 || to.cancelled() || to.Torn && from.lets(true):
			err = p.set(ctx, p.to, p.fresh(backend.GateBoth, to.Epoch), to.expected())
		case from.lacks() && to.lets(false), // the old store has lost its data: it stays behind
			from.Torn && from.cancelled(): // it can be opened once it is whole
			g := p.fresh(backend.GateBoth, from.Epoch)
			g.sealed = to.sealed
			err = p.set(ctx, p.from, g, from.expected())
		case from.Epoch == 0 || from.cancelled():
			err = p.set(ctx, p.from, p.fresh(backend.GateOpen, from.Epoch), from.Epoch)
		default:
			return nil
		}
		if err = moved(ctx, err); err != nil {
			return err
		}
	}
}

// moved returns err unless that is ErrGateMoved, of which it waits a moment: then the step is tried again.
func moved(ctx context.Context, err error) error {
	if errors.Is(err, backend.ErrGateMoved) {
		select {
		case <-time.After(drainFirst):
		case <-ctx.Done():
		}
		err = nil
	}
	return cmp.Or(err, ctx.Err())
}

// apart returns ErrInvalid if both stores are one, in which every switch would undo itself: what is reported in the new
// one is known in the old one then.
func (p Pair) apart(ctx context.Context) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
	c := backend.Client{ID: core.Nonce(), Move: p.Move, Phase: backend.PhaseBoth, Since: now, Reported: now}
	if err := p.to.Report(ctx, c, time.Second); err != nil {
		return err
	}
	all, err := p.from.Clients(ctx, p.Move)
	for _, one := range all {
		if one.ID == c.ID {
			err = backend.Invalid("migration %q: the old and the new store are one: give one another prefix or server",
				p.Move)
		}
	}
	if gone := p.to.Withdraw(ctx, c); err == nil {
		err = gone
	}
	return err
}

// Open switches: it opens the new store (PhaseTo) or the old one (PhaseFrom) to clients of that
// phase alone, and closes the other. It returns nil at once if the store is open. ErrInvalid: a
// client that the switch would lock out has reported within 30 s, or the migration was cancelled.
// The way back from a migration that is finished is an Open of PhaseFrom, and nothing else.
//
// When ctx ends before the other store is drained, the error matches ErrUnavailable and names the
// holders. The closed store is opened again then, by a switch the other way, for up to 5 s after ctx;
// only a caller that dies, or a store that fails, may leave both closed.
func (p Pair) Open(ctx context.Context, phase backend.Phase) error { return p.open(ctx, phase, byHand) }

// OpenAgainst is Open without asking whom it locks out: their acquisitions are refused, what they hold is waited for.
func (p Pair) OpenAgainst(ctx context.Context, phase backend.Phase) error {
	return p.open(ctx, phase, against)
}

// who makes a switch.
type who int

const (
	starting who = iota // a client that starts: a sealed gate stays
	byHand              // an operator
	against             // an operator who overrides the checks
)

func (p Pair) open(ctx context.Context, phase backend.Phase, by who) (err error) {
	if phase != backend.PhaseFrom && phase != backend.PhaseTo {
		return backend.Invalid("phase %q: want %s or %s", phase, backend.PhaseFrom, backend.PhaseTo)
	}
	opening, closing, away := p.to, p.from, backend.PhaseFrom
	missing := backend.GateOpen // what it means that the store to be closed has no gate
	if phase == backend.PhaseFrom {
		opening, closing, away = p.from, p.to, backend.PhaseTo
		missing = backend.GateBoth
	}
	if by != starting && phase == backend.PhaseTo { // what either has lost is mended, also where the new one is open
		if err := p.prepare(ctx, false); err != nil {
			return err
		}
	}
	work, cancel := forUndo(ctx)
	defer cancel()
	var t turned
	defer func() {
		if err == nil || t.shut.Epoch == 0 {
			return
		}
		if undo := p.undo(ctx, opening, closing, t, missing); undo != nil {
			err = fmt.Errorf("%w; and what it had closed could not be opened again: %w", err, undo)
		}
	}()
	for apart := false; ; {
		g, err := p.gate(work, opening)
		if err != nil || g.lets(phase == backend.PhaseFrom) {
			return err
		}
		other, err := p.gate(work, closing)
		switch {
		case err != nil:
			return err
		case phase == backend.PhaseFrom && by == starting && (g.finished() || other.finished()):
			return p.isFinished()
		case phase == backend.PhaseTo && (g.cancelled() || other.cancelled()):
			return p.isCancelled()
		}
		if by != against {
			if err := p.nobodyIn(work, away, phase); err != nil {
				return err
			}
		}
		if !apart {
			if err := p.apart(work); err != nil {
				return err
			}
			apart = true
		}
		// closed, and of an epoch that does not come back when the store loses its data meanwhile
		if g.Torn || g.Epoch == 0 {
			err = p.set(work, opening, g.over(backend.GateBoth, g.sealed), g.expected())
		} else {
			t = turned{before: other, was: g.Epoch}
			back := phase == backend.PhaseFrom
			t.shut = other.over(backend.GateBoth, other.sealed && (!back || other.cancelled()))
			err = p.turn(work, opening, closing, &t, g.over(backend.GateOpen, g.sealed && !back))
		}
		if err = moved(work, err); err != nil {
			return err
		}
	}
}

// turned is what a switch does to the store that it closes; nothing if shut has no epoch.
type turned struct {
	before, shut gate
	was          int64 // epoch of the gate that it opens, as it was before anything was done
	asked        bool  // that one was told to open
}

// turn is the switch itself. If the epoch of the gate which it opens is another at the end than before, somebody has
// closed it in between, and with it the premise of the switch is gone. The gate that it closes must be the one that was
// looked at, too: an operator may have sealed it since.
func (p Pair) turn(ctx context.Context, opening, closing core.Gater, t *turned, open gate) error {
	if err := p.set(ctx, closing, t.shut, t.before.expected()); err != nil {
		if errors.Is(err, backend.ErrGateMoved) && !t.before.Torn {
			*t = turned{} // another's gate may even have the epoch that this one was to have
		}
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
	now, err := p.gate(ctx, closing)
	if err == nil && (now.Torn || now.Epoch < t.shut.Epoch || now.State == backend.GateOpen) {
		err = backend.ErrGateMoved // it is lost, or was and is there again: later clients do not know of it
	}
	if err != nil {
		return err
	}
	t.asked = true
	return p.set(ctx, opening, open, t.was)
}

const (
	// undoSpare is what a switch leaves of its ctx for an undo.
	undoSpare = time.Second
	// undoMost bounds an undo. It outlasts the ctx rather than leave a whole fleet before two closed stores: holders of
	// the store that was to be opened may have to run out.
	undoMost = 5 * time.Second
)

// forUndo returns a ctx for a switch that leaves time to undo it before parent's deadline.
func forUndo(parent context.Context) (context.Context, context.CancelFunc) {
	d, bounded := parent.Deadline()
	if !bounded {
		return context.WithCancel(parent)
	}
	return context.WithDeadline(parent, d.Add(-min(undoSpare, time.Until(d)/4)))
}

// undo opens the store again that a failed switch has closed. It is a switch the other way, because
// another one the same way may be about to open its store. It expects the epoch that the failed switch
// wrote, so it does nothing if another client has gone on.
//
// If the switch itself has closed the store, and did not come to the end, then no client holds in the other store
// alone, and a client that is about to open that has closed this one since. So this store is opened without a change of
// the other one, which may be why the switch has failed.
func (p Pair) undo(
	parent context.Context, opening, closing core.Gater, t turned, missing backend.GateState,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), undoMost)
	defer cancel()
	now, err := p.gate(ctx, closing)
	if err == nil && now.Epoch == t.before.Epoch && !now.Torn {
		// It was not closed, or is not yet: a new epoch refuses a request that is still on its way.
		g := now.over(missing, now.sealed)
		if now.Epoch != 0 {
			g.State = now.State
		}
		err = p.set(ctx, closing, g, now.Epoch)
	} else if err == nil && now.Epoch == t.shut.Epoch && now.State == backend.GateBoth {
		if now.Torn { // some places have it yet
			t.shut = t.shut.over(backend.GateBoth, t.shut.sealed)
			err = p.set(ctx, closing, t.shut, backend.Lower)
		}
		look, cancel := context.WithTimeout(ctx, sideMost)
		g, silent := p.gate(look, opening)
		cancel()
		again := t.shut.over(backend.GateOpen, t.before.sealed)
		switch {
		case err != nil || g.State == backend.GateOpen:
		case t.before.lets(false) && !t.asked && (silent != nil || !g.Torn && g.Epoch == t.was):
			err = p.set(ctx, closing, again, t.shut.Epoch)
		case silent != nil:
			err = silent
		default:
			back := turned{before: g, shut: g.over(backend.GateBoth, g.sealed), was: t.shut.Epoch}
			err = p.turn(ctx, closing, opening, &back, again)
		}
	}
	if errors.Is(err, backend.ErrGateMoved) {
		return nil
	}
	return err
}

// drain waits until every holder in a closed store holds in both. Its error has what ended it, the end
// of ctx or a look without an answer shortly before, and the holders at the last look that was answered.
func (p Pair) drain(ctx context.Context, s core.Gater) error {
	g := backend.Gate{Move: p.Move, Scope: p.Scope, State: backend.GateBoth}
	var left []backend.Info
	for pause := drainFirst; ; pause = min(2*pause, drainLast) {
		now, err := s.Undrained(ctx, g)
		if err == nil {
			if left = now; len(left) == 0 {
				return nil
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
				err = ctx.Err()
			}
		}
		switch {
		case left == nil && errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("the other store was not searched for holders in time: it does not answer, or has very "+
				"many keys, for which fencelock migrate advance --wait gives it more time: %w", err)
		case left == nil:
			return err
		}
		return fmt.Errorf("%w (%w)",
			backend.Unavailable(fmt.Errorf("still held in the other store "+
				"alone, which is waited for: %s", holders(left))), err)
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
			return backend.Invalid("%s:%d is still in phase %s, two phases away from %s: deploy "+
				"phase both everywhere first (it reported %v ago)",
				c.Host, c.PID, away, phase, time.Since(c.Reported).Round(time.Second))
		}
	}
	return nil
}
