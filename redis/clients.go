package redis

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Report implements backend.Gater.
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	record, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = d.clients(ctx, c.Move, c.ID, string(record), keep)
	return err
}

// Withdraw implements backend.Gater.
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	_, err := d.clients(ctx, c.Move, c.ID, "", 0)
	return err
}

// Clients implements backend.Gater.
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	return d.clients(ctx, move, "", "", 0)
}

// clients takes in or deletes a report, if there is an id, and returns what is left.
func (d *Driver) clients(ctx context.Context, move, id, record string, keep time.Duration) ([]backend.Client, error) {
	if err := backend.CheckName(move); err != nil {
		return nil, err
	}
	key := ours(tags()[0]) + "k" + d.prefix + "\x00" + move
	reply, err := d.run(ctx, clientsScript, []string{key}, id, record, millis(keep))
	if err != nil {
		return nil, err
	}
	records, ok := reply.([]any)
	if !ok {
		return nil, unexpected(reply)
	}
	var cs []backend.Client
	for _, r := range records {
		var c backend.Client
		text, _ := r.(string)
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return nil, backend.Invalid("the key %q, which keeps the clients of a migration, holds something else: %v", key, err)
		}
		cs = append(cs, c)
	}
	return cs, nil
}
