package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// othersFresh is how often a client looks whether another is just giving the operator's word.
	othersFresh = 10
	// othersPause is how long it waits in between.
	othersPause = 30 * time.Millisecond
)

// settle gives the operator's word that no lock was forgotten. It is heeded only where it can be true: every node must
// answer and none may have settled yet, for among nodes that have, one that has not is one that lost its data. Otherwise
// the nodes keep to their quarantine. So the word may stay in a configuration: it does nothing for a node that restarts.
func (d *Driver) settle(ctx context.Context) error {
	for range othersFresh {
		states, err := d.states(ctx)
		if err != nil {
			return fmt.Errorf("fresh: %w", err)
		}
		settled := 0
		for _, s := range states {
			if s.settled {
				settled++
			}
		}
		if settled == 0 {
			err := d.vouch(ctx, states)
			if err == nil {
				d.fresh.Store(false)
			}
			return err
		}
		if settled == len(states) {
			break
		}
		timer := time.NewTimer(othersPause) // the others may be following at another client's word
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	d.fresh.Store(false)
	return nil
}

// vouch ends the quarantines that were seen, and no others.
func (d *Driver) vouch(ctx context.Context, states []state) error {
	r := d.round()
	for i, n := range d.nodes {
		n.send(&request{done: r.done, to: r, by: time.Now().Add(callMost), ops: []op{{stateKey, []any{"f", states[i].run, states[i].until}}}})
	}
	n := 0
	err := d.each(ctx, r, callMost, func(a answer) bool {
		if a.err == nil && a.replies[0] == int64(1) {
			n++
		}
		return false
	})
	if err == nil && n < d.quorum {
		err = errors.New("fresh: no majority of the nodes settled")
	}
	return err
}

// state is a node's.
type state struct {
	settled    bool
	run, until string // which quarantine it is in
	base       string // changes with every quarantine that ends
}

// stateOf reads a reply of look.lua's s.
func stateOf(reply any) (state, error) {
	res, _ := reply.([]any)
	if len(res) != 5 {
		return state{}, unexpected(reply)
	}
	s := state{settled: res[0] == int64(1)}
	s.run, _ = res[2].(string)
	s.until, _ = res[3].(string)
	s.base, _ = res[4].(string)
	return s, nil
}

// states asks every node, and wants the answer of every one.
func (d *Driver) states(ctx context.Context) ([]state, error) {
	all := make([]state, len(d.nodes))
	answered, silent := 0, silence{d: d}
	err := d.each(ctx, d.ask([]op{{stateKey, []any{"s"}}}, callMost), callMost, func(a answer) bool {
		if a.err != nil {
			silent.add(a.node, a.err)
			return false
		}
		s, err := stateOf(a.replies[0])
		if err != nil {
			silent.add(a.node, err)
			return false
		}
		all[a.node] = s
		answered++
		return false
	})
	if err == nil && answered < len(d.nodes) {
		err = silent.err(answered)
	}
	return all, err
}
