package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// parkAfter is how long a session may be idle before a read is parked on it: a short hold does without.
const parkAfter = 50 * time.Millisecond

// hangUpMost is how long a server may take to end a session that pgx has closed.
const hangUpMost = 500 * time.Millisecond

// standing is what is known of a session's hold.
type standing int

const (
	trying   standing = iota // not granted yet
	holding                  // the row is locked
	released                 // by COMMIT, confirmed
	doubtful                 // COMMIT was sent, its answer lost
	over                     // lost, given up, or not granted
)

// session is a connection with its open transaction: what a hold, or a wait, of mode row consists of. It
// has one goroutine while it is idle, which reads what the server has to say about its end.
type session struct {
	row  *row
	req  *backend.Request
	conn *pgxpool.Conn
	pid  uint32
	tag  string // names the session in pg_stat_activity

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	turn   chan struct{} // of size 1: who has it uses the connection

	mu     sync.Mutex
	state  standing
	loss   error           // why it is over, if it was held
	wanted int             // who waits for the turn
	parked bool            // a read is parked on the connection
	gone   bool            // the connection is being closed
	ending <-chan struct{} // pgx is ending it: closed when the server has hung up
	timer  *time.Timer

	dropped chan struct{} // closed when the connection is gone

	seen    sight  // of the gates
	xid     string // of the transaction, to learn what became of a COMMIT
	token   backend.Token
	ungated bool // of the grant
	ready   bool // the transaction of the try can wait as it is
	tx      tx   // what the holder writes
}

func newSession(r *row, req *backend.Request, conn *pgxpool.Conn) *session {
	s := &session{
		row: r, req: req, conn: conn, pid: conn.Conn().PgConn().PID(),
		tag:  req.Nonce[:6],
		turn: make(chan struct{}, 1), dropped: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tx.s = s
	return s
}

// exec runs statements in one round trip. The caller has the turn.
func (s *session) exec(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	return s.conn.Conn().PgConn().Exec(ctx, sql).ReadAll()
}

// take gets the turn: the parked read is interrupted, another user is waited for.
func (s *session) take(ctx context.Context) error {
	s.mu.Lock()
	s.wanted++
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.parked {
		s.interrupt()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.wanted--
		s.mu.Unlock()
	}()
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.ctx.Done():
		return s.heldOr(backend.ErrLost)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// give ends the turn; the read is parked again soon.
func (s *session) give() {
	<-s.turn
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != holding || s.wanted > 0 {
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(parkAfter, s.park)
	} else {
		s.timer.Reset(parkAfter)
	}
}

// interrupt makes the parked read return; s.mu is held.
func (s *session) interrupt() {
	_ = s.conn.Conn().PgConn().Conn().SetReadDeadline(time.Unix(1, 0)) // a closed one has returned already
}

// park reads until somebody wants the connection or the server ends it: pgx sees nothing of that by itself.
func (s *session) park() {
	select {
	case s.turn <- struct{}{}:
	default:
		return // its user parks again
	}
	s.mu.Lock()
	if s.state != holding || s.wanted > 0 {
		s.mu.Unlock()
		<-s.turn
		return
	}
	s.parked = true
	s.mu.Unlock()
	var err error
	for err == nil {
		_, err = s.conn.Conn().WaitForNotification(context.Background())
	}
	s.mu.Lock()
	s.parked = false
	_ = s.conn.Conn().PgConn().Conn().SetReadDeadline(time.Time{})
	alone := s.wanted == 0
	s.mu.Unlock()
	ended := s.conn.Conn().IsClosed()
	<-s.turn
	switch {
	case ended:
		s.end(lossOf(err))
	case alone: // whoever interrupted has gone away again
		s.mu.Lock()
		if s.state == holding && s.wanted == 0 {
			s.timer.Reset(parkAfter)
		}
		s.mu.Unlock()
	}
}

// lossOf says how a session ended.
func lossOf(err error) error {
	reason := backend.SessionLost
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		switch {
		case answer.Code == "25P03" || answer.Code == "25P04": // the server's lease ran out
			reason = backend.Expired
		case strings.HasPrefix(answer.Code, "57P"): // terminated by somebody
			reason = backend.Revoked
		}
	}
	return &backend.LostError{Reason: reason}
}

// held reports whether the row is locked, as far as is known.
func (s *session) held() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldLocked()
}

func (s *session) heldLocked() error {
	switch {
	case s.state == holding:
		return nil
	case s.loss != nil:
		return s.loss
	}
	return backend.ErrLost
}

// end gives the session up: its connection is closed, which ends the transaction. A holder is told loss, if there is one.
func (s *session) end(loss error) {
	s.mu.Lock()
	if s.state == over || s.state == released {
		s.mu.Unlock()
		return
	}
	tell := s.state == holding && loss != nil
	if s.state != doubtful {
		s.state = over
	}
	s.mu.Unlock()
	if tell {
		s.mu.Lock()
		s.loss = loss
		s.mu.Unlock()
		s.req.Lost(loss)
	}
	s.drop()
}

// drop closes the connection, and returns it to the pool once nobody uses it.
func (s *session) drop() {
	s.cancel()
	s.mu.Lock()
	if s.conn == nil || s.gone {
		s.mu.Unlock()
		return
	}
	s.gone = true
	if s.timer != nil {
		s.timer.Stop()
	}
	conn, ending := s.conn, s.ending
	s.wanted++ // for good: no read is parked any more
	s.mu.Unlock()
	s.row.st.flying.Go(func() {
		defer close(s.dropped)
		if ending != nil {
			timer := time.NewTimer(hangUpMost)
			defer timer.Stop()
			select {
			case <-ending:
			case <-timer.C:
			}
		}
		_ = conn.Conn().PgConn().Conn().Close() // it may be broken
		s.turn <- struct{}{}                    // for good
		s.putBack()
	})
}

// abort ends a session that was asked for something and has not granted it. Its caller has the connection. If pgx has closed that, because
// ctx ended in the middle, the server may still be doing what was asked: it is done when it has hung up.
func (s *session) abort() {
	if pg := s.conn.Conn().PgConn(); pg.IsClosed() {
		s.mu.Lock()
		s.ending = pg.CleanupDone()
		s.mu.Unlock()
	}
	s.end(nil)
}

// putBack returns the connection to the pool, once, which throws it away unless it is idle and outside a
// transaction. The caller has the turn and keeps it.
func (s *session) putBack() {
	s.mu.Lock()
	conn := s.conn
	s.conn = nil
	s.mu.Unlock()
	if conn != nil {
		s.cancel()
		conn.Release()
		<-s.row.slots
	}
}

// renew makes the server's lease last for the full time again. What was sent stays under way when ctx ends: a slow
// answer must not cost the connection.
func (s *session) renew(ctx context.Context) error {
	if err := s.held(); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.held(); err != nil {
		return err
	}
	_, err := s.exec(s.ctx, "SELECT 1")
	return s.survived(err)
}

// survived takes in how a statement on a held session went, and returns the loss if it ended the session. The caller
// has the turn.
func (s *session) survived(err error) error {
	if s.ctx.Err() != nil {
		return s.heldOr(err)
	}
	if pg := s.conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() == 'T' {
		return err
	}
	s.end(lossOf(err))
	return s.heldOr(err)
}

// heldOr is held, or err while it is held.
func (s *session) heldOr(err error) error {
	if lost := s.held(); lost != nil {
		return lost
	}
	return err
}
