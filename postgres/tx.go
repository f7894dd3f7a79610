package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// cancelMost is how long the server may take to cancel a statement before its connection is given up.
const cancelMost = time.Second

// Tx returns the transaction that holds a lease of mode row: what is written through it commits with Unlock, and rolls
// back if the lease is lost. It takes a *fencelock.Lease, or anything else with its Handle. It
// returns false for a lease of another backend or of mode lease.
//
//   - Each statement has the connection for itself: one at a time, and no renewal meanwhile. So
//     read or close the Rows of one before the next. A statement is a renewal for the server; one that takes longer than
//     the TTL loses the lease.
//   - Before each statement goes a savepoint. A statement that fails undoes itself, not the lease; but Unlock
//     rolls everything back then, frees the lock, and returns the first such error. Where a program
//     expects a failure it uses Begin: what fails inside is forgotten when that is rolled back.
//   - A statement whose ctx ends is cancelled at the server and counts as failed.
//   - Commit and Rollback are ErrUnsupported: the end of the lease is the end of the transaction, and a
//     transaction that a statement such as COMMIT has ended is a lost lease. So are LargeObjects;
//     the functions lo_… of SQL work. Conn is for its type map.
//   - If the answer to the COMMIT of Unlock is lost, that is ErrUnavailable: it may have been done. Unlock
//     called again finds out.
//   - After the lease has ended, every method returns an error that matches ErrLost or ErrReleased.
//
// The transaction is READ COMMITTED and lasts as long as the lease, which holds back vacuum: keep it short.
func Tx(lease backend.Handler) (pgx.Tx, bool) {
	if lease == nil {
		return nil, false
	}
	s, ok := lease.Handle().(*session)
	if !ok {
		return nil, false
	}
	return &leaseTx{s: s}, true
}

// tx is what is known of the holder's writes.
type tx struct {
	s *session

	mu      sync.Mutex
	used    bool
	err     error // of the first statement that failed
	nested  int   // names savepoints
	pending bool  // the last statement's savepoint is still there; the session's turn guards it
}

// undone returns why what was written must not be committed.
func (t *tx) undone() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// verdict is what the release of the lock comes to.
func (t *tx) verdict() error {
	if err := t.undone(); err != nil {
		return &backend.UndoneError{Err: err}
	}
	return nil
}

func (t *tx) isUsed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

func (t *tx) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

// savepoint is the name of that before each statement.
const savepoint = "fencelock_statement"

// leaseTx is the transaction of a lease, or one nested in it.
type leaseTx struct {
	s     *session
	outer *leaseTx // nil for that of the lease
	name  string   // of the nested one's savepoint

	mu   sync.Mutex
	err  error // of the first statement that failed inside a nested one
	done bool
}

var _ pgx.Tx = (*leaseTx)(nil)

// fail notes the error of a statement where it belongs.
func (t *leaseTx) fail(err error) {
	if t.outer == nil {
		t.s.tx.fail(err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

// live returns an error unless statements may go through t.
func (t *leaseTx) live() error {
	for one := t; one != nil; one = one.outer {
		one.mu.Lock()
		done := one.done
		one.mu.Unlock()
		if done {
			return pgx.ErrTxClosed
		}
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.state == released || t.s.state == doubtful {
		return backend.ErrReleased
	}
	return t.s.heldLocked()
}

// begin gets the connection for one statement, behind a savepoint.
func (t *leaseTx) begin(ctx context.Context) error {
	if err := t.live(); err != nil {
		return err
	}
	if err := t.s.take(ctx); err != nil {
		return err
	}
	if err := t.live(); err != nil {
		t.s.give()
		return err
	}
	x := &t.s.tx
	x.mu.Lock()
	x.used = true
	x.mu.Unlock()
	if err := t.control(x.over() + "SAVEPOINT " + savepoint); err != nil {
		t.s.give()
		return err
	}
	x.pending = true
	return nil
}

// over is what ends the last statement's savepoint.
func (t *tx) over() string {
	if !t.pending {
		return ""
	}
	t.pending = false
	return "RELEASE SAVEPOINT " + savepoint + ";"
}

// control runs what is about savepoints, which must not be cut short. The caller has the turn.
func (t *leaseTx) control(sql string) error {
	_, err := t.s.exec(t.s.ctx, sql)
	return t.s.survived(err)
}

// end takes in how a statement went, undoes it if it failed, and gives the connection back.
func (t *leaseTx) end(ctx context.Context, err error) error {
	defer t.s.give()
	if err == nil {
		return t.s.survived(nil) // it may have been a COMMIT
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	t.fail(err)
	if conn := t.s.conn.Conn(); conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return errors.Join(t.s.survived(err), err)
	}
	t.s.tx.pending = false
	if lost := t.control("ROLLBACK TO SAVEPOINT " + savepoint + ";RELEASE SAVEPOINT " + savepoint); lost != nil {
		return errors.Join(lost, err)
	}
	return err
}

// bounded returns the ctx that a statement runs with, and what stops watching the caller's. When that ends, the
// statement is cancelled at the server, so that the connection, and with it the lease, lives on.
func (t *leaseTx) bounded(ctx context.Context) (context.Context, func()) {
	run, kill := context.WithCancel(context.WithoutCancel(ctx))
	unbind := context.AfterFunc(t.s.ctx, kill)
	done := make(chan struct{})
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelMost)
		defer cancel()
		_ = t.s.conn.Conn().PgConn().CancelRequest(limited)
		select {
		case <-done:
		case <-limited.Done():
			kill() // no answer: the connection goes, and the lease
		}
	})
	return run, sync.OnceFunc(func() {
		close(done)
		if !stop() {
			<-finished // a cancel that is late must not meet the next statement
		}
		unbind()
		kill()
	})
}

// Exec implements pgx.Tx.
func (t *leaseTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.begin(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	run, stop := t.bounded(ctx)
	tag, err := t.s.conn.Conn().Exec(run, sql, args...)
	stop()
	return tag, t.end(ctx, err)
}

// Query implements pgx.Tx. The connection is taken until the Rows are closed or read to their end.
func (t *leaseTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return &failedRows{err}, err
	}
	run, stop := t.bounded(ctx)
	rows, err := t.s.conn.Conn().Query(run, sql, args...)
	if err != nil {
		stop()
		err = t.end(ctx, err)
		return &failedRows{err}, err
	}
	return &leaseRows{Rows: rows, end: sync.OnceValue(func() error {
		rows.Close()
		stop()
		return t.end(ctx, rows.Err())
	})}, nil
}

// QueryRow implements pgx.Tx. The connection is taken until Scan.
func (t *leaseTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	if err != nil {
		return &failedRows{err}
	}
	return oneRow{rows}
}

// SendBatch implements pgx.Tx. The connection is taken until the results are closed. The statements of a batch are one as
// far as failing goes.
func (t *leaseTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.begin(ctx); err != nil {
		return &failedBatch{err}
	}
	run, stop := t.bounded(ctx)
	res := t.s.conn.Conn().SendBatch(run, b)
	return &leaseBatch{BatchResults: res, end: sync.OnceValue(func() error {
		err := res.Close()
		stop()
		return t.end(ctx, err)
	})}
}

// CopyFrom implements pgx.Tx.
func (t *leaseTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	run, stop := t.bounded(ctx)
	n, err := t.s.conn.Conn().CopyFrom(run, table, columns, src)
	stop()
	return n, t.end(ctx, err)
}

// Prepare implements pgx.Tx.
func (t *leaseTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	run, stop := t.bounded(ctx)
	sd, err := t.s.conn.Conn().Prepare(run, name, sql)
	stop()
	return sd, t.end(ctx, err)
}

// Begin starts a transaction nested in this one: a savepoint, which Commit or Rollback of what it returns ends.
func (t *leaseTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer t.s.give()
	x := &t.s.tx
	x.mu.Lock()
	x.nested++
	name := fmt.Sprintf("fencelock_%d", x.nested)
	x.mu.Unlock()
	if err := t.control(x.over() + "SAVEPOINT " + name); err != nil {
		return nil, err
	}
	return &leaseTx{s: t.s, outer: t, name: name}, nil
}

// Commit implements pgx.Tx.
func (t *leaseTx) Commit(ctx context.Context) error {
	return t.finish(ctx, "commits with Unlock", func() string {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.err != nil {
			t.outer.fail(t.err)
		}
		return "RELEASE SAVEPOINT " + t.name
	})
}

// Rollback implements pgx.Tx.
func (t *leaseTx) Rollback(ctx context.Context) error {
	return t.finish(ctx, "ends with Unlock", func() string {
		return "ROLLBACK TO SAVEPOINT " + t.name + ";RELEASE SAVEPOINT " + t.name
	})
}

// finish ends a nested transaction.
func (t *leaseTx) finish(ctx context.Context, how string, sql func() string) error {
	if t.outer == nil {
		return backend.Unsupported("the transaction of a lease %s; Begin one inside it for a part", how)
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.s.give()
	t.mu.Lock()
	t.done = true
	t.mu.Unlock()
	return t.control(t.s.tx.over() + sql())
}

// LargeObjects implements pgx.Tx. What it returns does not work.
func (t *leaseTx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// Conn implements pgx.Tx.
func (t *leaseTx) Conn() *pgx.Conn {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.conn == nil {
		return nil
	}
	return t.s.conn.Conn()
}
