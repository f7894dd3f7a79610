// The program postgres-fencing guards a balance in PostgreSQL with a lock and its fencing token: every
// transaction that reads or writes the balance checks the token first, so that the check and the access are one step. A
// worker that was held up for longer than its lease cannot write over the work of the next. The lock may
// be in any backend; here it is in the same server.
//
//	go run ./examples/postgres-fencing 'postgres://user:password@localhost:5432/db'
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/postgres"
)

const resource = "account-7"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: postgres-fencing postgres://user:password@host:5432/db")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return err
	}
	// the same pool for the locks and for the data
	d, err := postgres.New(pool, &postgres.Options{Mode: postgres.Lease})
	if err != nil {
		return err
	}
	locks, err := fencelock.New(d)
	if err != nil {
		return err
	}
	defer locks.Close()
	const name = "examples/account-7"

	// The first worker reads, and is held up: its lease ends before it writes.
	first, err := locks.Mutex(name, fencelock.WithTTL(2*time.Second), fencelock.WithManualRenew()).Lock(ctx)
	if err != nil {
		return err
	}
	if err := add(ctx, pool, first.Token(), 0); err != nil {
		return err
	}

	// The second one gets the lock, and does its work.
	err = locks.Do(ctx, name, func(ctx context.Context, l *fencelock.Lease) error {
		return add(ctx, pool, l.Token(), 100)
	})
	if err != nil {
		return err
	}

	// The first goes on.
	err = add(ctx, pool, first.Token(), 1)
	if !errors.Is(err, fencelock.ErrStale) {
		return fmt.Errorf("the late write: got %w, want it refused", err)
	}
	fmt.Println("refused:", err)
	return nil
}

// add reads and writes the balance in one transaction, which begins with the check.
func add(ctx context.Context, pool *pgxpool.Pool, t fencelock.Token, amount int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := postgres.CheckToken(ctx, tx, resource, t); err != nil {
			return err // rolls back
		}
		var balance int
		if err := tx.QueryRow(ctx, "SELECT balance FROM fencelock_example WHERE id = $1", resource).
			Scan(&balance); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE fencelock_example SET balance = $2 WHERE id = $1",
			resource, balance+amount); err != nil {
			return err
		}
		fmt.Printf("balance is %d, written with token %d\n", balance+amount, t)
		return nil
	})
}

// prepare makes the table of the guards and that of the example.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := postgres.CreateSchema(ctx, conn.Conn(), ""); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS fencelock_example (id text PRIMARY KEY, balance int NOT NULL)`)
	if err == nil {
		_, err = conn.Exec(ctx, `INSERT INTO fencelock_example VALUES ($1, 0) ON CONFLICT DO NOTHING`, resource)
	}
	return err
}
