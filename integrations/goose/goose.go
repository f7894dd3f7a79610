// Package goose lets one of many processes migrate a database with github.com/pressly/goose/v3, also one
// that has no locks of its own, as SQLite and ClickHouse.
package goose

import (
	"context"
	"database/sql"
	"sync"

	"github.com/fencelock/fencelock"
)

// A Locker is a lock.SessionLocker: goose.WithSessionLocker.
type Locker struct {
	mutex fencelock.Mutex
	holds sync.Map // *hold by its *sql.Conn
}

type hold struct {
	lease *fencelock.Lease
	end   func()
}

// New returns a Locker of m, whose name stands for the database.
func New(m fencelock.Mutex) *Locker { return &Locker{mutex: m} }

// SessionLock waits until m is held. It is renewed until SessionUnlock. If it is lost, conn is closed as
// soon as its transaction has ended, or its statement where there is none: goose begins no migration
// after that, and fails with sql.ErrConnDone. The one that is under way goes on, beside that of the next
// holder, and so does a Go migration without a transaction, which does not use conn.
//
// Errors: as fencelock.Mutex.Lock, so ErrUnavailable after an outage of more than 5 s, and that of ctx
// if it ended first.
func (l *Locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	lease, err := l.mutex.Lock(ctx)
	if err != nil {
		return err
	}
	held, cancel := lease.Context(context.WithoutCancel(ctx))
	closed := make(chan struct{})
	stop := context.AfterFunc(held, func() {
		defer close(closed)
		_ = conn.Close()
	})
	l.holds.Store(conn, &hold{lease, func() {
		if !stop() {
			<-closed
		}
		cancel()
	}})
	return nil
}

// SessionUnlock releases the lock. goose returns its error beside its own: fencelock.ErrLost if the
// migrations may have overlapped with those of another, and ErrUnavailable if the store is out and the
// lock is free after the TTL only. The migrations that goose reports are done in any case.
func (l *Locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	h, ok := l.holds.LoadAndDelete(conn)
	if !ok {
		return fencelock.ErrReleased
	}
	h.(*hold).end()
	return h.(*hold).lease.Unlock(ctx)
}
