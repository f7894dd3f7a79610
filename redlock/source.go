package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fencelock/fencelock/backend"
)

var errQuarantine = errors.New("in quarantine")

// Raise implements backend.Raiser: a majority of the nodes gives only numbers above floor from then on, and every
// grant has the vote of one of them.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	return d.majority(ctx, op{d.prefix, []any{"m", floor}}, func(reply any) error {
		if reply != int64(1) {
			return errQuarantine
		}
		return nil
	})
}

// Source implements backend.Gater: the greatest number of all nodes that have settled, of which one of any majority knows each
// token, and at least their clocks.
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	var top backend.Token
	err := d.majority(ctx, op{d.prefix, []any{"n"}}, func(reply any) error {
		n, ok := reply.(int64)
		if !ok {
			return unexpected(reply)
		}
		if n == 0 {
			return errQuarantine
		}
		top = max(top, n)
		return nil
	})
	return top, err
}

// RaiseHeld implements backend.Gater: as Raise, where the lock is ours.
func (d *Driver) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	lock := d.prefix + h.Name
	ours, not, silent, err := d.count(ctx, d.ask([]op{{lock, []any{"h", d.held(h).id, h.Token, bucket(lock), floor}}}, callMost), func(ours, not int) bool {
		return ours >= d.quorum || len(d.nodes)-not < d.quorum
	})
	switch {
	case ours >= d.quorum:
		return nil
	case len(d.nodes)-not < d.quorum:
		return backend.ErrLost
	case err == nil:
		err = silent.err(ours + not)
	}
	return err
}

// Report implements backend.Gater.
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	record, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = d.clients(ctx, c.Move, c.ID, string(record), keep)
	return err
}

// Withdraw implements backend.Gater. A node that does not answer forgets by itself.
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	_, err := d.clients(ctx, c.Move, c.ID, "", 0)
	return err
}

// Clients implements backend.Gater.
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	return d.clients(ctx, move, "", "", 0)
}

// clients takes in or deletes a report, if there is an id, and returns what a majority or more of the nodes have: of each client
// its last report.
func (d *Driver) clients(ctx context.Context, move, id, record string, keep time.Duration) ([]backend.Client, error) {
	if err := backend.CheckName(move); err != nil {
		return nil, err
	}
	last := map[string]backend.Client{}
	err := d.majority(ctx, op{d.prefix, []any{"k", move, id, record, millis(keep)}}, func(reply any) error {
		records, ok := reply.([]any)
		if !ok {
			return unexpected(reply)
		}
		for _, r := range records {
			var c backend.Client
			text, _ := r.(string)
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				return backend.Invalid("the clients of migration %q hold something else: %v", move, err)
			}
			if old, ok := last[c.ID]; !ok || c.Reported.After(old.Reported) {
				last[c.ID] = c
			}
		}
		return nil
	})
	var cs []backend.Client
	for _, c := range last {
		cs = append(cs, c)
	}
	return cs, err
}

// majority asks every node, waits for all that answer in time, and wants a majority that take accepts.
func (d *Driver) majority(ctx context.Context, o op, take func(reply any) error) error {
	done, silent := 0, silence{d: d}
	err := d.each(ctx, d.ask([]op{o}, callMost), callMost, func(a answer) bool {
		err := a.err
		if err == nil {
			err = take(a.replies[0])
		}
		if err != nil {
			silent.add(a.node, err)
		} else {
			done++
		}
		return false
	})
	if err == nil && done < d.quorum {
		err = silent.err(done)
	}
	return err
}
