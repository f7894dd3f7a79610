package postgres_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// bank is the database of ExampleLockTx.
var bank = "postgres://localhost/bank"

// The lock, the application's own row and the write are in one transaction, which ends them
// together.
func ExampleLockTx() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, bank)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := postgres.CreateSchema(ctx, conn, ""); err != nil { // once, where no Locker does it
		log.Fatal(err)
	}
	var total int
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Waits its turn, in one queue with the Mutexes of that name.
		token, err := postgres.LockTx(ctx, tx, "account/7")
		if err != nil {
			return err
		}
		// A program that knows nothing of the lock does not change the row meanwhile; if it is
		// changing it just now, this one gives up.
		err = tx.QueryRow(ctx, "SELECT total FROM account WHERE id = 7 FOR UPDATE NOWAIT").Scan(&total)
		if err != nil {
			return err
		}
		// The row remembers the token. A holder of an older one, who writes outside of the lock's
		// transaction, is refused.
		total -= 30
		tag, err := tx.Exec(ctx,
			"UPDATE account SET total = $1, token = $2 WHERE id = 7 AND token <= $2", total, token)
		if err == nil && tag.RowsAffected() == 0 {
			err = fencelock.ErrStale
		}
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was written
	}
	fmt.Println("committed: the total is", total)
}

func TestExampleLockTx(t *testing.T) {
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE account (id int PRIMARY KEY, total int, token bigint); "+
		"INSERT INTO account VALUES (7, 100, 0)")
	bank = s.URL()
	ExampleLockTx()
	if total := one[int](t, p, "SELECT total FROM account WHERE token > 0"); total != 70 {
		t.Errorf("the total is %d, want 70", total)
	}
}
