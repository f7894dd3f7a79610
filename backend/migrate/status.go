package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Client is what one client has reported, and in which stores.
type Client struct {
	backend.Client
	InFrom bool `json:"in_from"`
	InTo   bool `json:"in_to"`
}

// Alive reports whether the client has reported within 30 s before now. One that has not may be
// stopped, cut off or dead; what it holds may still be held.
func (c Client) Alive(now time.Time) bool { return now.Sub(c.Reported) <= alive }

// Clients returns what clients have reported in either store, the newest first.
func (p Pair) Clients(ctx context.Context) ([]Client, error) {
	byID := map[string]Client{}
	for _, s := range []struct {
		store core.Gater
		mark  func(*Client)
	}{
		{p.from, func(c *Client) { c.InFrom = true }},
		{p.to, func(c *Client) { c.InTo = true }},
	} {
		cs, err := s.store.Clients(ctx, p.Move)
		if err != nil {
			return nil, err
		}
		for _, c := range cs {
			known := byID[c.ID]
			if c.Reported.After(known.Reported) {
				known.Client = c
			}
			s.mark(&known)
			byID[c.ID] = known
		}
	}
	all := make([]Client, 0, len(byID))
	for _, c := range byID {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Client) int {
		return cmp.Or(b.Reported.Compare(a.Reported), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// Side is what one store says. All of it is sure.
type Side struct {
	Gate      backend.Gate   `json:"gate"`      // of epoch 0 if there is none
	Finished  bool           `json:"finished"`  // no client that starts in phase from changes the gate
	Cancelled bool           `json:"cancelled"` // the gate moves no names any more
	Undrained []backend.Info `json:"undrained"` // held by clients that do not hold in both; a hundred at most
	Source    backend.Token  `json:"source"`    // no token is above it yet; a store with a clock counts that in
}

// Open reports whether clients of a single phase may lock there: in the old store also when it has no gate.
func (s Side) Open(old bool) bool {
	if s.Cancelled {
		return old
	}
	return s.Gate.State == backend.GateOpen || old && s.Gate.Epoch == 0
}

// Status is the state of a migration.
type Status struct {
	From    Side     `json:"from"`
	To      Side     `json:"to"`
	Clients []Client `json:"clients"` // those that have reported
}

// Status asks both stores. Both must answer.
func (p Pair) Status(ctx context.Context) (Status, error) {
	var st Status
	for _, s := range []struct {
		what  string
		store core.Gater
		side  *Side
	}{{"old", p.from, &st.From}, {"new", p.to, &st.To}} {
		var err error
		var g gate
		if g, err = p.gate(ctx, s.store); err == nil {
			s.side.Gate, s.side.Finished, s.side.Cancelled = g.Gate, g.finished(), g.cancelled()
			if s.side.Undrained, err = s.store.Undrained(ctx,
				backend.Gate{Move: p.Move, Scope: p.Scope, State: backend.GateBoth}); err == nil {
				s.side.Source, err = s.store.Source(ctx)
			}
		}
		if err != nil {
			return st, fmt.Errorf("the %s store: %w", s.what, err)
		}
	}
	var err error
	st.Clients, err = p.Clients(ctx)
	return st, err
}

// Blockers says why the next deploy, of this phase, should wait; none: nothing speaks against it. Reports do not show
// all: a client that is cut off does not report, and the gates refuse it if it comes back.
//
// A client whose report of another phase is in a store counts until the store has forgotten it, which is 30 s and the
// longest TTL that it has asked for after the last report.
func (st Status) Blockers(next backend.Phase) []string {
	var why []string
	for _, c := range st.Clients {
		if !neighbours(c.Phase, next) {
			state := "is"
			if !c.Alive(time.Now()) {
				state = fmt.Sprintf("was, when it last reported %v ago,", time.Since(c.Reported).Round(time.Second))
			}
			why = append(why, fmt.Sprintf("%s:%d %s in phase %s", c.Host, c.PID, state, c.Phase))
		}
	}
	switch {
	case next == backend.PhaseFrom && (st.From.Finished || st.To.Finished):
		why = append(why, "the migration is finished: the way back begins with fencelock migrate advance --phase from")
	case next != backend.PhaseFrom && (st.From.Cancelled || st.To.Cancelled):
		why = append(why, "the migration was cancelled: it begins again with fencelock migrate advance --phase from")
	}
	var left []backend.Info // in the store that a switch to the phase closes
	switch next {
	case backend.PhaseTo:
		left = st.From.Undrained
	case backend.PhaseFrom:
		left = st.To.Undrained
	}
	if len(left) > 0 {
		why = append(why, "held in one store alone: "+holders(left))
	}
	return why
}

// neighbours reports whether clients of two phases have a store in common.
func neighbours(a, b backend.Phase) bool {
	return a == b || a == backend.PhaseBoth || b == backend.PhaseBoth
}

// Unfinished says why the migration is not done; none: all clients lock in the new store alone, and
// the old one's gate refuses any other. The new store's gate is opened only when its tokens are above
// all of the old store's.
func (st Status) Unfinished() []string {
	var why []string
	if st.From.Gate.State != backend.GateBoth || st.From.Gate.Torn {
		why = append(why, "the old store is not closed")
	}
	if st.To.Gate.State != backend.GateOpen || st.To.Gate.Torn {
		why = append(why, "the new store is not open")
	}
	if len(st.From.Undrained) > 0 {
		why = append(why, "held in the old store: "+holders(st.From.Undrained))
	}
	for _, c := range st.Clients {
		if c.Phase != backend.PhaseTo {
			why = append(why, fmt.Sprintf("%s:%d reported phase %s", c.Host, c.PID, c.Phase))
		}
	}
	return why
}

// Finished reports whether [Pair.Finish] has sealed the migration in both stores.
func (st Status) Finished() bool { return st.From.Finished && st.To.Finished }

// Finish ends a migration that is done: it seals both gates, so that no client of the old
// configuration switches back as it starts, and deletes what clients have reported in the old
// store. The gates stay: the old one's is the tombstone that refuses stragglers for ever.
// ErrInvalid: the migration is not done, and why.
//
// The new store's gate is sealed first, on the condition that it has been open all the time since it was looked at.
func (p Pair) Finish(ctx context.Context) error {
	return p.end(ctx, func(st Status) error {
		if why := st.Unfinished(); len(why) > 0 {
			return backend.Invalid("migration %q is not finished: %s", p.Move, strings.Join(why, "; "))
		}
		err := p.sealAs(ctx, p.to, st.To, backend.GateOpen)
		if err == nil {
			err = p.sealAs(ctx, p.from, st.From, backend.GateBoth)
		}
		return err
	})
}

// sealAs seals the gate that one side has.
func (p Pair) sealAs(ctx context.Context, s core.Gater, side Side, state backend.GateState) error {
	if side.Finished {
		return nil
	}
	return p.set(ctx, s, gate{Gate: side.Gate}.over(state, true), side.Gate.Epoch)
}

// Unbegun says why the migration cannot be cancelled; none: everybody locks in the old store alone.
func (st Status) Unbegun() []string {
	var why []string
	if !st.From.Open(true) || st.From.Gate.Torn {
		why = append(why, "the old store is not open: fencelock migrate advance --phase from opens it")
	}
	if st.To.Open(false) {
		why = append(why, "the new store is open")
	}
	if len(st.To.Undrained) > 0 && st.To.Gate.Epoch != 0 && !st.To.Cancelled {
		why = append(why, "held in the new store: "+holders(st.To.Undrained))
	}
	for _, c := range st.Clients {
		if c.Phase != backend.PhaseFrom {
			why = append(why, fmt.Sprintf("%s:%d reported phase %s", c.Host, c.PID, c.Phase))
		}
	}
	return why
}

// Cancel ends a migration that was given up: its gates move no names any more. Then the old store is as it was before,
// and the new one is no part of it. A client that starts in phase both or to is refused, and switches nothing.
// ErrInvalid: not everybody locks in the old store alone, and why. [Pair.Prepare] begins again.
//
// The old store's gate is changed first, on the condition that it has been open all the time since it was looked at: a
// switch that was stopped in the middle had closed it, so it is not one that may go on.
func (p Pair) Cancel(ctx context.Context) error {
	return p.end(ctx, func(st Status) error {
		if why := st.Unbegun(); len(why) > 0 {
			return backend.Invalid("migration %q cannot be cancelled: %s", p.Move, strings.Join(why, "; "))
		}
		err := p.cancelIn(ctx, p.from, st.From)
		if err == nil {
			err = p.cancelIn(ctx, p.to, st.To)
		}
		return err
	})
}

func (p Pair) cancelIn(ctx context.Context, s core.Gater, side Side) error {
	if side.Cancelled {
		return nil
	}
	was := gate{Gate: side.Gate}
	g := was.over(backend.GateOpen, true)
	g.Scope = nil
	return p.set(ctx, s, g, was.expected())
}

// end changes the gates as they were looked at, again if another has changed one meanwhile, and
// deletes what clients have reported in the store that they leave.
func (p Pair) end(ctx context.Context, change func(Status) error) error {
	for {
		st, err := p.Status(ctx)
		if err == nil {
			err = change(st)
		}
		switch {
		case errors.Is(err, backend.ErrGateMoved) && ctx.Err() == nil:
			continue
		case err != nil:
			return err
		}
		left, in := p.to, func(c Client) bool { return c.InTo }
		if st.To.Open(false) {
			left, in = p.from, func(c Client) bool { return c.InFrom }
		}
		var errs []error
		for _, c := range st.Clients {
			if in(c) {
				errs = append(errs, left.Withdraw(ctx, c.Client))
			}
		}
		return errors.Join(errs...)
	}
}
