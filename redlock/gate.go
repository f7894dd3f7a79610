package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// mendPause is how often at the most the gates of nodes that seem to have lost them are looked after.
const mendPause = time.Second

// SetGate implements backend.Gater. Every node must take the gate: one that did not would go on voting as before. The first node
// decides between several who change a gate at once.
func (d *Driver) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	g.Torn = false
	record, err := json.Marshal(g)
	if err != nil {
		return err
	}
	ops := []op{{d.prefix, []any{"o", g.Move, string(record), g.Epoch, was}}}
	for _, some := range [][]*node{d.nodes[:1], d.nodes[1:]} {
		if err := d.setGate(ctx, some, ops); err != nil {
			return err
		}
	}
	return nil
}

// setGate writes a gate on these nodes, which must all take it.
func (d *Driver) setGate(ctx context.Context, nodes []*node, ops []op) error {
	done := make(chan answer, len(nodes))
	for _, n := range nodes {
		n.send(&request{ops: ops, done: done, by: time.Now().Add(callMost)})
	}
	moved, silent := false, silence{d: d}
	for range nodes {
		a, err := await(ctx, done)
		switch {
		case err != nil:
			return err
		case a.err != nil:
			silent.add(a.node, a.err)
		case a.replies[0] == int64(0):
			moved = true
		case a.replies[0] == int64(-1):
			silent.add(a.node, d.badGate())
		case a.replies[0] != int64(1):
			silent.add(a.node, unexpected(a.replies[0]))
		}
	}
	parts, bad := silent.parts()
	switch {
	case moved:
		return backend.ErrGateMoved
	case bad != nil:
		return bad
	case len(parts) > 0:
		return backend.Unavailable(fmt.Errorf("every node must take a change of the gate: %s", strings.Join(parts, "; ")))
	}
	return nil
}

// await waits for one answer. Each call to a node ends by itself.
func await(ctx context.Context, done <-chan answer) (answer, error) {
	select {
	case a := <-done:
		return a, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// Gates implements backend.Gater. A majority of the nodes must answer. Those that have no gate, or an older one, get
// the latest first: they lost it, or whoever changed it was interrupted, and a change that has begun may always be finished.
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	for again := false; ; again = true {
		parts, nodes, err := d.readGates(ctx)
		if err != nil {
			return nil, err
		}
		merged := backend.MergeGates(parts)
		torn := false
		for _, g := range merged {
			torn = torn || g.Torn
		}
		if !torn || again {
			return merged, nil
		}
		if err := d.mend(ctx, parts, nodes); err != nil && !errors.Is(err, backend.ErrGateMoved) {
			return merged, nil
		}
	}
}

// readGates asks every node for its gates: the answers, and of whom they are.
func (d *Driver) readGates(ctx context.Context) (parts [][]backend.Gate, nodes []*node, err error) {
	silent := silence{d: d}
	err = d.each(ctx, d.ask([]op{{d.prefix, []any{"g"}}}, callMost), callMost, func(a answer) bool {
		if a.err != nil {
			silent.add(a.node, a.err)
		} else if gates, err := d.gates(a.replies[0]); err != nil {
			silent.add(a.node, err)
		} else {
			parts, nodes = append(parts, gates), append(nodes, d.nodes[a.node])
		}
		return false // all, if they can
	})
	if _, bad := silent.parts(); err == nil && bad != nil {
		err = bad
	}
	if err == nil && len(parts) < d.quorum {
		err = silent.err(len(parts))
	}
	return parts, nodes, err
}

// gates reads {migration, record, …}.
func (d *Driver) gates(reply any) ([]backend.Gate, error) {
	res, ok := reply.([]any)
	if !ok {
		return nil, unexpected(reply)
	}
	if len(res)%2 != 0 {
		return nil, d.badGate()
	}
	var gates []backend.Gate
	for i := 0; i < len(res); i += 2 {
		var g backend.Gate
		record, _ := res[i+1].(string)
		if err := json.Unmarshal([]byte(record), &g); err != nil || backend.CheckGate(g) != nil || g.Move != res[i] {
			return nil, d.badGate()
		}
		gates = append(gates, g)
	}
	return gates, nil
}

// mend gives the latest record of each gate to the nodes that have an older one or none.
func (d *Driver) mend(ctx context.Context, parts [][]backend.Gate, nodes []*node) error {
	latest := map[string]backend.Gate{}
	for _, gates := range parts {
		for _, g := range gates {
			if g.Epoch > latest[g.Move].Epoch {
				latest[g.Move] = g
			}
		}
	}
	var errs []error
	for move, g := range latest {
		record, err := json.Marshal(g)
		if err != nil {
			return err
		}
		errs = append(errs, d.setGate(ctx, nodes, []op{{d.prefix, []any{"o", move, string(record), g.Epoch, backend.Lower}}}))
	}
	return errors.Join(errs...)
}

// mendSoon looks after the gates in the background, since a node may have lost them.
func (d *Driver) mendSoon() {
	now := time.Now().UnixNano()
	if last := d.mended.Load(); now-last < int64(mendPause) || !d.mended.CompareAndSwap(last, now) {
		return
	}
	d.flying.Go(func() {
		_, _ = d.Gates(context.Background()) // its calls are bounded, and a later vote finds what is still amiss
	})
}

// refuse reads {6, migration, epoch}. The gate of the greatest epoch is the one that is reported.
func (p *poll) refuse(res []any) error {
	if len(res) != 3 {
		return unexpected(res)
	}
	move, _ := res[1].(string)
	text, _ := res[2].(string)
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return unexpected(res)
	}
	p.gates++
	if p.refusal == nil || p.refusal.Epoch < epoch {
		p.refusal = &backend.GateError{Move: move, Epoch: epoch, Phase: p.a.r.Phase}
	}
	return nil
}

// forgetful reports whether a node seems to have no gate that others have, or may have lost what it had.
func (p *poll) forgetful() bool {
	return p.unsettled || p.gates > 0 && p.votes > 0 || p.gated > 0 && p.gated < p.votes
}

func (d *Driver) badGate() error {
	return backend.Invalid("the key %q, which keeps the gates of migrations, holds something else, which some other program put there: until that is gone the node grants nothing", gatesKey+d.prefix)
}
