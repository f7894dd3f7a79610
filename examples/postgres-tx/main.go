// The program postgres-tx writes in the very transaction that holds its lock: what it writes is
// committed by Unlock, and gone if the lock is lost before. Nothing needs to check a token.
//
//	go run ./examples/postgres-tx 'postgres://user:password@localhost:5432/db'
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/postgres"
)

const ledger = "examples/ledger"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: postgres-tx postgres://user:password@host:5432/db")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	locks, err := fencelock.Open(ctx, url) // mode=row is the default
	if err != nil {
		return err
	}
	defer locks.Close()
	total, err := add(ctx, locks, 100)
	if err != nil {
		return err
	}
	fmt.Println("committed: the total is", total)

	// An operator breaks the lock while the next entry is being written: the entry is gone with it.
	err = locks.Do(ctx, ledger, func(ctx context.Context, l *fencelock.Lease) error {
		if _, err := enter(ctx, l, 1_000_000); err != nil {
			return err
		}
		return locks.Break(context.WithoutCancel(ctx), ledger)
	})
	if !errors.Is(err, fencelock.ErrLost) {
		return fmt.Errorf("the broken lock: got %w, want a loss", err)
	}
	fmt.Println("rolled back:", err)

	again, err := add(ctx, locks, 0)
	if err == nil && again != total {
		err = fmt.Errorf("the total is %d, want %d", again, total)
	}
	return err
}

// add makes an entry and returns the total. Its error is that of the statements or that of the commit: only nil
// means that the entry is there.
func add(ctx context.Context, locks *fencelock.Locker, amount int) (total int, err error) {
	err = locks.Do(ctx, ledger, func(ctx context.Context, l *fencelock.Lease) error {
		total, err = enter(ctx, l, amount)
		return err
	})
	return total, err
}

// enter writes through the lock's own transaction.
func enter(ctx context.Context, l *fencelock.Lease, amount int) (total int, err error) {
	tx, ok := postgres.Tx(l)
	if !ok {
		return 0, errors.New("the lock is not in PostgreSQL, or not in mode row")
	}
	if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS fencelock_example_ledger (amount int)"); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO fencelock_example_ledger VALUES ($1)", amount); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT sum(amount) FROM fencelock_example_ledger").Scan(&total)
	return total, err
}
