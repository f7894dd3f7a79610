package testkit

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

// Ledger is a store in memory whose locks have a transaction, as in mode row of PostgreSQL.
type Ledger struct {
	backend.Driver
	Undone error // why the transaction was rolled back; nil: it was not
}

// Ledgers returns a Locker over a Ledger.
func Ledgers(t testing.TB) (*fencelock.Locker, *Ledger) {
	t.Helper()
	d, err := memory.New()
	Must(t, err)
	x := &Ledger{Driver: d}
	l, err := fencelock.New(x)
	Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, x
}

// Ask implements backend.Driver.
func (x *Ledger) Ask(ctx context.Context, cs []*backend.Claim) {
	x.Driver.Ask(ctx, cs)
	for _, c := range cs {
		c.Handle = x
	}
}

// Undo implements backend.Undoer.
func (x *Ledger) Undo(cause error) { x.Undone = cause }

// Leave implements backend.Driver: the release of a lock whose transaction was rolled back says so.
func (x *Ledger) Leave(ctx context.Context, cs []*backend.Claim) {
	x.Driver.Leave(ctx, cs)
	for _, c := range cs {
		if c.Err == nil && x.Undone != nil {
			c.Err = &backend.UndoneError{Err: x.Undone}
		}
	}
}
