package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// cancelMost is how long the server may take to cancel a statement before its connection is given
// up.
const cancelMost = time.Second

// Tx returns the transaction that holds a lease of mode row or advisory. What is written through it
// commits with an Unlock that the holder calls, and with nothing else. It rolls back if the lease is lost,
// after [Rollback], if the function of Locker.Do fails, panics or outlives its context, and if
// Locker.Close ends the lease. Tx takes a *fencelock.Lease, or anything else with its Handle. It
// returns false for a lease of another backend or of mode lease.
//
//   - Each statement has the connection for itself: one at a time, and no renewal meanwhile. So
//     read or close the Rows of one before the next. A statement is a renewal for the server; one
//     that takes longer than six tenths of the TTL can lose the lease, whose Deadline it does not move.
//   - A statement that the server refuses undoes what was written before it, not the lease. Unlock
//     rolls back then, frees the lock, and returns the first such error. Where a program expects a
//     failure it uses Begin: that undoes no more than what was written inside, and is forgotten
//     when it is rolled back. An error of the program's own side, such as that of a Scan, undoes
//     nothing.
//   - A statement whose ctx ends is cancelled at the server and counts as refused. A server that is
//     silent for a second after that costs the connection, and the lease with it.
//   - Commit and Rollback are ErrUnsupported: the end of the lease is the end of the transaction,
//     and [Rollback] chooses which. A transaction that a statement such as COMMIT or COMMIT AND
//     CHAIN has ended is a lost lease. LargeObjects does not work, what it returns panics; the
//     functions lo_… of SQL do. Conn is for its type map.
//   - If the answer to the COMMIT of Unlock is lost, that is ErrUnavailable: it may have been done.
//     Unlock called again finds out, also after the Deadline.
//   - After the lease has ended, every method returns an error that matches ErrLost or ErrReleased.
//
// The transaction is READ COMMITTED and lasts as long as the lease. Once it has written, and in mode
// row from the start, it holds back vacuum: keep it short.
func Tx(lease backend.Handler) (pgx.Tx, bool) {
	s := sessionOf(lease)
	if s == nil {
		return nil, false
	}
	return &s.tx.root, true
}

// Rollback makes Unlock roll back what was written through the transaction of a lease of mode row,
// and return nil for that. Until then the lock is held, and no statement goes through [Tx] any
// more. It sends nothing. It returns ErrUnsupported for a lease without a transaction, and ErrLost
// or ErrReleased for one that has ended. Leases that share the hold by re-entry share the
// transaction.
func Rollback(lease backend.Handler) error {
	s := sessionOf(lease)
	if s == nil {
		return backend.Unsupported("only a lease of mode row or advisory has a transaction to roll back")
	}
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	err := s.usable()
	switch {
	case err != nil:
		return err
	case errors.Is(s.tx.cause, backend.ErrLost):
		return s.tx.cause
	}
	s.tx.meant = true
	return nil
}

// sessionOf returns what a lease of mode row has, and nil for any other.
func sessionOf(lease backend.Handler) *session {
	if lease == nil {
		return nil
	}
	s, _ := lease.Handle().(*session)
	return s
}

// Undo implements backend.Undoer.
func (s *session) Undo(cause error) {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	if s.usable() == nil && s.tx.cause == nil { // what was sent to be committed may be so already
		s.tx.cause = cause
	}
}

// tx is what is known of the holder's writes.
type tx struct {
	mu     sync.Mutex
	used   bool
	root   leaseTx
	cause  error      // why the holder's caller does not want it committed
	meant  bool       // the holder itself does not
	parts  []*leaseTx // the nested ones that have not ended, the innermost last
	nested int        // names savepoints
}

// undone reports whether what was written must not be committed.
func (t *tx) undone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failureLocked() != nil || t.cause != nil || t.meant
}

// failureLocked is the error of the first statement that failed, unless that was in a nested
// transaction which has been rolled back.
func (t *tx) failureLocked() error {
	err := t.root.err
	for _, part := range t.parts { // left open
		if err == nil {
			err = part.err
		}
	}
	return err
}

// verdict is what the release of the lock comes to.
func (t *tx) verdict() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.meant || !t.used:
		return nil
	case t.failureLocked() != nil:
		return &backend.UndoneError{Err: t.failureLocked()}
	case t.cause != nil:
		return &backend.UndoneError{Err: t.cause}
	}
	return nil
}

func (t *tx) isUsed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// innermost is the name of the savepoint that a statement which fails goes back to.
func (t *tx) innermost() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.parts); n > 0 {
		return t.parts[n-1].name
	}
	return savepoint
}

// savepoint is the name of that behind the grant.
const savepoint = "fencelock_granted"

// leaseTx is the transaction of a lease, or one nested in it.
type leaseTx struct {
	s     *session
	outer *leaseTx // nil: it is the lease's
	name  string   // of the nested one's savepoint

	// tx.mu guards these.
	err  error // of the first statement that failed, not counting nested ones
	done bool
}

var _ pgx.Tx = (*leaseTx)(nil)

// fail notes the error of a statement.
func (t *leaseTx) fail(err error) {
	t.s.tx.mu.Lock()
	defer t.s.tx.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

// live returns an error unless statements may go through t.
func (t *leaseTx) live() error {
	x := &t.s.tx
	x.mu.Lock()
	defer x.mu.Unlock()
	for one := t; one != nil; one = one.outer {
		if one.done {
			return pgx.ErrTxClosed
		}
	}
	err := t.s.usable()
	switch {
	case err != nil:
		return err
	case x.meant:
		return pgx.ErrTxClosed
	case x.cause != nil:
		return fmt.Errorf("the transaction of the lease is rolled back: %w", x.cause)
	}
	return nil
}

// usable returns an error unless the transaction is there.
func (s *session) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == released || s.state == doubtful {
		return backend.ErrReleased
	}
	return s.heldLocked()
}

// begin gets the connection for one statement.
func (t *leaseTx) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.enter(ctx)
}

// enter gets the connection. The first one to use it makes the transaction ready.
func (t *leaseTx) enter(ctx context.Context) error {
	if err := t.live(); err != nil {
		return err
	}
	if err := t.s.settled(ctx); err != nil {
		return err
	}
	if err := t.s.take(ctx); err != nil {
		return err
	}
	err := t.live()
	x := &t.s.tx
	if err == nil && !x.isUsed() {
		x.mu.Lock()
		x.used = true
		x.mu.Unlock()
		err = t.control(ctx, t.s.writable())
	}
	if err != nil {
		t.s.give()
	}
	return err
}

// writable is what precedes the holder's first statement.
//
// While a statement runs, or its result is not read, the idle timeout does not run. So other limits
// free the lock of a holder that is gone: the server looks whether the connection is there, and after
// the time of the lease it ends a statement, or a connection whose client reads nothing. A savepoint
// comes last, for a statement that fails.
func (s *session) writable() string {
	ms := strconv.FormatInt(millis(s.timeout()), 10)
	return "SET LOCAL client_connection_check_interval=500;SET LOCAL tcp_user_timeout=" + ms + ";" +
		"SELECT set_config('statement_timeout','" + ms + "',true)" +
		" WHERE current_setting('statement_timeout')::interval NOT BETWEEN '1 ms' AND '" + ms + " ms';" +
		"SAVEPOINT " + savepoint
}

// control runs what is about savepoints. It is not cancelled, which would end the transaction. The
// caller has the turn.
func (t *leaseTx) control(ctx context.Context, sql string) error {
	run, stop := t.bounded(ctx, false)
	_, err := t.s.exec(run, sql)
	stop()
	if lost := t.s.survived(err); lost != nil {
		err = lost
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// end takes in how a statement went, undoes what was written if the server refused it, and gives
// the connection back. An error of this side alone, such as that of a Scan, undoes nothing.
func (t *leaseTx) end(ctx context.Context, err error) error {
	defer t.s.give()
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	var lost error
	if pg := t.s.pg.PgConn(); !pg.IsClosed() && pg.TxStatus() == 'E' {
		t.fail(err)
		lost = t.control(ctx, "ROLLBACK TO SAVEPOINT "+t.s.tx.innermost())
	} else {
		lost = t.s.survived(err) // it may have been a COMMIT
	}
	switch {
	case lost == nil:
		return err
	case err == nil:
		return lost
	}
	return errors.Join(lost, err)
}

// bounded returns the ctx that a statement runs with, and what stops watching the caller's. When
// that ends, the statement may be cancelled at the server, so that the connection, and with it the
// lease, lives on.
func (t *leaseTx) bounded(ctx context.Context, cancellable bool) (context.Context, func()) {
	run, kill := context.WithCancel(context.WithoutCancel(ctx))
	unbind := context.AfterFunc(t.s.ctx, kill)
	done := make(chan struct{})
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelMost)
		defer cancel()
		if cancellable {
			_ = t.s.pg.PgConn().CancelRequest(limited)
		}
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

// once makes one call that needs the connection no longer than it takes.
func once[T any](ctx context.Context, t *leaseTx, do func(ctx context.Context) (T, error)) (T, error) {
	if err := t.begin(ctx); err != nil {
		var none T
		return none, err
	}
	run, stop := t.bounded(ctx, true)
	var res T
	err := t.during(ctx, stop, func() (err error) { res, err = do(run); return err })
	stop()
	return res, t.end(ctx, err)
}

// during makes a call that may call the program's own code. Where that panics, or ends its goroutine, what was
// written is undone and the connection given back; one that is in the middle of an answer ends, and the lease with it.
func (t *leaseTx) during(ctx context.Context, stop func(), call func() error) error {
	returned := false
	defer func() {
		if returned {
			return
		}
		stop()
		t.fail(errPanicked)
		if t.s.pg.PgConn().IsBusy() {
			t.s.end(lossOf(nil))
		}
		_ = t.end(ctx, errPanicked)
	}()
	err := call()
	returned = true
	return err
}

// closing returns a Close that calls do once. Unlike sync.OnceValue it lets do end its goroutine.
func closing(do func() error) func() error {
	var once sync.Once
	err := errPanicked
	return func() error {
		once.Do(func() { err = do() })
		return err
	}
}

// errPanicked is why what was written is rolled back.
var errPanicked = errors.New("code of the program panicked in a call of the transaction")

// Exec implements pgx.Tx.
func (t *leaseTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return once(ctx, t, func(ctx context.Context) (pgconn.CommandTag, error) { return t.s.pg.Exec(ctx, sql, args...) })
}

// Query implements pgx.Tx. The connection is taken until the Rows are closed or read to their end.
func (t *leaseTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return &failedRows{err}, err
	}
	run, stop := t.bounded(ctx, true)
	var rows pgx.Rows
	err := t.during(ctx, stop, func() (err error) { rows, err = t.s.pg.Query(run, sql, args...); return err })
	if err != nil {
		stop()
		err = t.end(ctx, err)
		return &failedRows{err}, err
	}
	return &leaseRows{Rows: rows, end: closing(func() error {
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

// SendBatch implements pgx.Tx. The connection is taken until the results are closed. The statements
// of a batch are one as far as failing goes.
func (t *leaseTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.begin(ctx); err != nil {
		return &failedBatch{err}
	}
	run, stop := t.bounded(ctx, true)
	var res pgx.BatchResults
	_ = t.during(ctx, stop, func() error { res = t.s.pg.SendBatch(run, b); return nil })
	return &leaseBatch{BatchResults: res, end: closing(func() error {
		err := t.during(ctx, stop, res.Close)
		stop()
		return t.end(ctx, err)
	})}
}

// CopyFrom implements pgx.Tx.
func (t *leaseTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource,
) (int64, error) {
	return once(ctx, t, func(ctx context.Context) (int64, error) { return t.s.pg.CopyFrom(ctx, table, columns, src) })
}

// Prepare implements pgx.Tx.
func (t *leaseTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return once(ctx, t, func(ctx context.Context) (*pgconn.StatementDescription, error) {
		return t.s.pg.Prepare(ctx, name, sql)
	})
}

// Begin starts a transaction nested in this one: a savepoint, which Commit or Rollback of what it
// returns ends.
func (t *leaseTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer t.s.give()
	x := &t.s.tx
	x.mu.Lock()
	x.nested++
	part := &leaseTx{s: t.s, outer: t, name: fmt.Sprintf("fencelock_%d", x.nested)}
	x.mu.Unlock()
	if err := t.control(ctx, "SAVEPOINT "+part.name); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.parts = append(x.parts, part)
	return part, nil
}

// Commit implements pgx.Tx.
func (t *leaseTx) Commit(ctx context.Context) error {
	if t.outer == nil {
		return backend.Unsupported("the transaction of a lease commits with Unlock; Begin one inside it for a part")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.finish(ctx, ctx, "RELEASE SAVEPOINT "+t.name, true)
}

// Rollback implements pgx.Tx. It works when its ctx is done.
func (t *leaseTx) Rollback(ctx context.Context) error {
	if t.outer == nil {
		return backend.Unsupported("the transaction of a lease ends with Unlock, which rolls back " +
			"after postgres.Rollback; Begin one inside it for a part")
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(cancelMost, cancel) })
	defer stop()
	return t.finish(ctx, lasting, "ROLLBACK TO SAVEPOINT "+t.name+";RELEASE SAVEPOINT "+t.name, false)
}

// finish ends a nested transaction, and those inside it. It waits for the connection as long as
// lasting.
func (t *leaseTx) finish(ctx, lasting context.Context, sql string, commit bool) error {
	if err := t.enter(lasting); err != nil {
		return err
	}
	defer t.s.give()
	x := &t.s.tx
	x.mu.Lock()
	t.done = true
	failed := t.err
	if at := slices.Index(x.parts, t); at >= 0 {
		for _, part := range x.parts[at+1:] { // they end with it
			if failed == nil {
				failed = part.err
			}
		}
		x.parts = x.parts[:at]
	}
	x.mu.Unlock()
	if commit && failed != nil {
		t.outer.fail(failed)
	}
	return t.control(ctx, sql)
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
	return t.s.pg
}
