package core

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// gateTries is how often the gates may change under one request.
const gateTries = 100

var (
	errGates = errors.New("the gates of the keyspace change all the time")
	// unknownGates are no store's gates: an Ask that sends them learns what the store has.
	unknownGates = &backend.Record{Key: backend.GateKey, Version: backend.UnknownVersion}
)

// gateSet is what a store has of gates.
type gateSet struct {
	record *backend.Record // nil: none
	gates  []backend.Gate
}

// learn takes in the gates that a store has shown: all gates of a place as one list.
func (d *Client) learn(rec *backend.Record) (*gateSet, error) {
	if s := d.gates.Load(); rec != nil && s.record != nil && s.record.Version == rec.Version {
		return s, nil
	}
	s := &gateSet{record: rec}
	if rec != nil {
		var err error
		if s.gates, err = backend.DecodeGates(rec.Data); err != nil {
			return nil, err
		}
	}
	d.gates.Store(s)
	return s, nil
}

// ask asks for a claim. The gates that the engine knows judge it; if the store has others, those judge it
// again.
func (d *Client) ask(ctx context.Context, c *claim, most int) error {
	known, fresh := d.gates.Load(), false
	for range gateTries {
		if err := c.land(ctx); err != nil {
			return err
		}
		c.Leaving = false
		gated, refusal := backend.Admit(known.gates, c.Request)
		switch {
		case refusal == nil:
			c.Gates = known.record
		case fresh:
			if c.Wait { // it may stand in the queue, or have been woken
				_ = d.leave(ctx, c, false) // if that fails, the engine gives it up later
			}
			return refusal
		default:
			c.Gates = unknownGates // what is known may be old; the store's refuse it, or not
		}
		err := d.send(ctx, c, d.asks, most)
		if err == nil {
			c.Held, c.Ungated = true, c.Move != "" && !gated
		}
		if !errors.Is(err, backend.ErrGates) {
			return err
		}
		if known, err = d.learn(c.Gates); err != nil {
			return err
		}
		fresh = true
	}
	return errGates
}

// Mover is the Gater of one store.
type Mover struct {
	*Client
	store backend.Mover
}

// place is what one place of a store has of gates.
type place struct {
	name    string
	silent  bool // it has not answered
	gates   []backend.Gate
	records []backend.Record
}

// places returns what each place has, in the order of the store.
func (d *Mover) places(ctx context.Context) ([]*place, error) {
	var all []*place
	at := map[string]*place{}
	for rec, err := range d.store.Load(ctx, backend.GateKey) {
		if err != nil {
			return nil, err
		}
		p := at[rec.Place]
		if p == nil {
			p = &place{name: rec.Place}
			at[rec.Place], all = p, append(all, p)
		}
		p.silent = rec.Version == backend.UnknownVersion
		gates, err := backend.DecodeGates(slices.Concat([]byte("["), rec.Data, []byte("]")))
		if err != nil {
			return nil, err
		}
		p.gates = append(p.gates, gates...)
		p.records = append(p.records, rec)
	}
	return all, nil
}

// Gates implements Gater.
func (d *Mover) Gates(ctx context.Context) ([]backend.Gate, error) {
	all, err := d.places(ctx)
	if err != nil {
		return nil, err
	}
	var parts [][]backend.Gate
	for _, p := range all {
		if !p.silent {
			parts = append(parts, p.gates)
		}
	}
	return backend.MergeGates(parts), nil
}

// SetGate implements Gater. If there are several places, the first decides between several clients that
// change a gate at once.
func (d *Mover) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	g.Torn = false
	for range gateTries {
		if err := d.setGate(ctx, g, was); !errors.Is(err, backend.ErrGates) {
			return err
		}
	}
	return errGates
}

func (d *Mover) setGate(ctx context.Context, g backend.Gate, was int64) error {
	all, err := d.places(ctx)
	if err != nil {
		return err
	}
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	var swaps []backend.Record
	for i, p := range all {
		changed, err := backend.ChangeGate(p.gates, g, was)
		switch {
		case p.silent: // to be told all the same
			changed = true
		case err != nil:
			return err
		}
		if changed {
			swaps = append(swaps, p.swap(g.Move, data))
		}
		if i > 0 || !changed {
			continue
		}
		if err := d.store.Swap(ctx, swaps, 0); err != nil {
			return err
		}
		swaps = nil
	}
	if len(swaps) == 0 {
		return nil
	}
	return d.store.Swap(ctx, swaps, 0)
}

// swap is the record that puts a gate in the place of what was seen there.
func (p *place) swap(move string, data []byte) backend.Record {
	rec := backend.Record{Key: backend.GateKey + move, Place: p.name}
	if p.silent {
		rec.Version = backend.UnknownVersion
	}
	for _, r := range p.records {
		if r.Key == rec.Key {
			rec = r
		}
	}
	rec.Data = data
	return rec
}

// undrainedMost is where Undrained stops.
const undrainedMost = 100

// Undrained implements Gater.
func (d *Mover) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	var left []backend.Info
	for i, err := range d.store.Look(ctx, backend.Range{Strict: true}) {
		if err != nil {
			return nil, err
		}
		if i.Held && !i.Pending && i.Both != g.Move && (i.Nameless || g.Scope.Moves(i.Name)) {
			left = append(left, i)
		}
		if len(left) == undrainedMost {
			break
		}
	}
	return left, nil
}

// Source implements Gater.
func (d *Mover) Source(ctx context.Context) (backend.Token, error) {
	return again(ctx, func() (backend.Token, error) { return d.store.Source(ctx) })
}

// Raise implements Gater.
func (d *Mover) Raise(ctx context.Context, floor backend.Token) error {
	return d.raise(ctx, floor, nil)
}

// RaiseHeld implements Gater.
func (d *Mover) RaiseHeld(ctx context.Context, h *Hold, floor backend.Token) error {
	return d.raise(ctx, floor, &d.held(h).Claim)
}

func (d *Mover) raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	_, err := again(ctx, func() (_ struct{}, err error) {
		return struct{}{}, d.store.Raise(ctx, floor, held)
	})
	return err
}

// Report implements Gater.
func (d *Mover) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	if err := backend.CheckName(c.Move); err != nil {
		return err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return d.swap(ctx, backend.Record{Key: clientKey(c.Move, c.ID), Data: data}, keep)
}

// Withdraw implements Gater.
func (d *Mover) Withdraw(ctx context.Context, c backend.Client) error {
	return d.swap(ctx, backend.Record{Key: clientKey(c.Move, c.ID)}, 0)
}

// swap writes a record whatever is there.
func (d *Mover) swap(ctx context.Context, r backend.Record, keep time.Duration) error {
	r.Version = backend.AnyVersion
	_, err := again(ctx, func() (_ struct{}, err error) {
		return struct{}{}, d.store.Swap(ctx, []backend.Record{r}, keep)
	})
	return err
}

// Clients implements Gater.
func (d *Mover) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	if err := backend.CheckName(move); err != nil {
		return nil, err
	}
	var cs []backend.Client
	for rec, err := range d.store.Load(ctx, clientKey(move, "")) {
		if err != nil {
			return nil, err
		}
		var c backend.Client
		if err := json.Unmarshal(rec.Data, &c); err != nil {
			return nil, backend.Invalid("the record %q is no report of a client: %v", rec.Key, err)
		}
		cs = append(cs, c)
	}
	return cs, nil
}

func clientKey(move, id string) string { return backend.ClientKey + move + "\x00" + id }
