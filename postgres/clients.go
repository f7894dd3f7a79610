package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// Report implements backend.Gater. It also deletes the reports whose time is over, by the server's clock.
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	report, err := json.Marshal(c)
	if err != nil {
		return backend.Invalid("the report cannot be written: %v", err)
	}
	return d.st.query(ctx, "SELECT fencelock_report($1, $2, $3, $4, $5)",
		[]any{[]byte(d.st.prefix), []byte(c.Move), []byte(c.ID), report, millis(keep)}, nil)
}

// Withdraw implements backend.Gater.
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	return d.st.query(ctx, "DELETE FROM fencelock_client WHERE keyspace = $1 AND move = $2 AND id = $3",
		[]any{[]byte(d.st.prefix), []byte(c.Move), []byte(c.ID)}, nil)
}

// Clients implements backend.Gater.
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	var cs []backend.Client
	err := d.st.query(ctx, "SELECT id, report FROM fencelock_client WHERE keyspace = $1 AND move = $2 AND expires_at > clock_timestamp()",
		[]any{[]byte(d.st.prefix), []byte(move)}, func(row pgx.CollectableRow) error {
			var id, report []byte
			if err := row.Scan(&id, &report); err != nil {
				return err
			}
			var c backend.Client
			if err := json.Unmarshal(report, &c); err != nil || c.ID != string(id) || c.Move != move {
				return backend.Invalid("the report of client %q of migration %q of keyspace %q in fencelock_client cannot be read", id, move, d.st.prefix)
			}
			cs = append(cs, c)
			return nil
		})
	return cs, err
}
