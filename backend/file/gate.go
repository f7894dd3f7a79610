package file

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// gate is the gate of one keyspace. It stands in every bucket, so that a grant sees it in the state that it changes.
type gate struct {
	prefix string
	backend.Gate
}

// client is what a client of a migration has reported. It stands in the first bucket only.
type client struct {
	prefix string
	until  int64
	backend.Client
}

func encodeJSON(v any) string {
	raw, _ := json.Marshal(v) // of strings and numbers: never fails
	return string(raw)
}

func (d *decoder) gate() {
	g := gate{prefix: d.word()}
	g.Move, g.State, g.Epoch = d.word(), backend.GateState(d.word()), d.num()
	scope := d.word()
	if d.err == nil {
		d.fail(json.Unmarshal([]byte(scope), &g.Scope))
	}
	d.fail(backend.CheckPrefix(g.prefix))
	d.fail(backend.CheckGate(g.Gate))
	d.st.gates = append(d.st.gates, g)
}

func (d *decoder) client() {
	c := client{prefix: d.word(), until: d.num()}
	record := d.word()
	if d.err == nil {
		d.fail(json.Unmarshal([]byte(record), &c.Client))
	}
	d.fail(backend.CheckPrefix(c.prefix))
	d.st.clients = append(d.st.clients, c)
}

// gatesOf returns the gates of a keyspace.
func (st *state) gatesOf(prefix string) []backend.Gate {
	var gates []backend.Gate
	for _, g := range st.gates {
		if g.prefix == prefix {
			gates = append(gates, g.Gate)
		}
	}
	return gates
}

// setGates replaces the gates of a keyspace.
func (st *state) setGates(prefix string, gates []backend.Gate) {
	kept := st.gates[:0:0]
	for _, g := range st.gates {
		if g.prefix != prefix {
			kept = append(kept, g)
		}
	}
	for _, g := range gates {
		kept = append(kept, gate{prefix, g})
	}
	st.gates = kept
}

// Gates implements [backend.Gater].
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	parts := make([][]backend.Gate, buckets)
	for i, b := range d.buckets {
		st, _, err := b.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		parts[i] = st.gatesOf(d.prefix)
	}
	return backend.MergeGates(parts), nil
}

// SetGate implements [backend.Gater].
func (d *Driver) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	for _, b := range d.buckets {
		var moved error
		err := b.update(ctx, func(st *state, _ backend.Instant, _ int64) bool {
			var next []backend.Gate
			var changed bool
			if next, changed, moved = backend.ChangeGate(st.gatesOf(d.prefix), g, was); changed {
				st.setGates(d.prefix, next)
			}
			return changed
		})
		if err != nil {
			return err
		}
		if moved != nil {
			return moved
		}
	}
	return nil
}

// Undrained implements [backend.Gater].
func (d *Driver) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	g.State = backend.GateBoth
	var left []backend.Info
	for _, b := range d.buckets {
		st, now, err := b.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		for _, e := range st.entries {
			i := e.info(now)
			if e.prefix != d.prefix || !i.Held || !g.Scope.Moves(e.name) {
				continue
			}
			phase := backend.Phase("")
			if e.hold.both != "" {
				phase = backend.PhaseBoth
			}
			if !g.Admits(e.hold.both, phase) {
				left = append(left, i)
			}
		}
	}
	return left, nil
}

// Raise implements [backend.Raiser].
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	if err := checkFloor(floor); err != nil {
		return err
	}
	for _, b := range d.buckets {
		if err := b.update(ctx, func(st *state, _ backend.Instant, _ int64) bool { return st.raise(floor) }); err != nil {
			return err
		}
	}
	return nil
}

// Source implements [backend.Gater].
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	var source backend.Token
	for _, b := range d.buckets {
		st, _, err := b.snapshot(ctx)
		if err != nil {
			return 0, err
		}
		source = max(source, st.counter)
	}
	return source, nil
}

// RaiseHeld implements [backend.Gater].
func (d *Driver) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	if err := checkFloor(floor); err != nil {
		return err
	}
	var answer error
	err := d.bucket(h.Name).update(ctx, func(st *state, _ backend.Instant, now int64) bool {
		if e := st.find(d.prefix, h.Name); !e.ours(h.Nonce) || e.hold.until <= now {
			answer = backend.ErrLost
			return false
		}
		return st.raise(floor)
	})
	if err != nil {
		return err
	}
	return answer
}

func checkFloor(floor backend.Token) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: it must be from 0 to below 2^53-1", floor)
	}
	return nil
}

// raise makes every later token of the bucket exceed floor, and reports whether that changed anything.
func (st *state) raise(floor backend.Token) bool {
	if st.counter >= floor {
		return false
	}
	st.counter = floor
	return true
}

// Report implements [backend.Gater].
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	return d.replaceClient(ctx, c, func(st *state, now int64) {
		st.clients = append(st.clients, client{d.prefix, now + int64(keep), c})
	})
}

// Withdraw implements [backend.Gater].
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	return d.replaceClient(ctx, c, func(*state, int64) {})
}

// replaceClient takes what c reported before out of the state, and then calls add.
func (d *Driver) replaceClient(ctx context.Context, c backend.Client, add func(st *state, now int64)) error {
	return d.buckets[0].update(ctx, func(st *state, _ backend.Instant, now int64) bool {
		kept := st.clients[:0:0]
		for _, o := range st.clients {
			if o.prefix != d.prefix || o.Move != c.Move || o.ID != c.ID {
				kept = append(kept, o)
			}
		}
		st.clients = kept
		add(st, now)
		return true
	})
}

// Clients implements [backend.Gater].
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	st, now, err := d.buckets[0].snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var cs []backend.Client
	for _, c := range st.clients {
		if c.prefix == d.prefix && c.Move == move && c.until > now {
			cs = append(cs, c.Client)
		}
	}
	return cs, nil
}
