package postgres

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// parkAfter is how long a session may be idle before a read is parked on it: a short hold does
// without.
const parkAfter = 50 * time.Millisecond

// letGoMost is how long a holder's statement may take to notice that its connection was closed.
const letGoMost = 100 * time.Millisecond

// applicationName is the parameter that has a session's label.
const applicationName = "application_name"

// standing is what is known of a session's hold.
type standing int

const (
	trying   standing = iota // asked for, or about to be
	waiting                  // in the server's queue, or granted without being told
	holding                  // the lock is had
	released                 // by COMMIT, confirmed
	doubtful                 // COMMIT was sent, its answer lost
	over                     // lost, given up, or not granted
	past                     // the same, and nothing is left of it in the server
)

// session is a connection with its open transaction: what a hold, or a wait, of mode row consists
// of. Until the grant the claim's Ask has the connection. A hold has one goroutine while it is idle,
// which reads what the server has to say about its end.
type session struct {
	row  *row
	req  *backend.Request
	conn *pgxpool.Conn // nil once it has gone back; mu guards it
	pg   *pgx.Conn     // the same, for the owner of the turn
	at   server
	tag  string // names the session in pg_stat_activity

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	turn   chan struct{} // of size 1: its owner uses the connection

	mu     sync.Mutex
	state  standing
	loss   error // why it is over, if it was held
	wanted int   // how many wait for the turn
	parked bool  // a read is parked on the connection
	closed bool  // the connection is being closed
	timer  *time.Timer

	flight chan taken      // gets the answer to a wait that is under way; Ask's
	sure   chan taken      // the same to a confirmation
	asked  backend.Instant // when its request was sent; Ask's
	unwait string          // ends what is set for a wait; Ask's
	rename string          // shows a token that was drawn by another connection; Ask's
	ended  chan struct{}   // closed when the COMMIT has ended; Leave's

	id  string // the transaction's, see identity: to tell it from another, and to learn what became of a COMMIT
	xid string // mode advisory: the number of one that was written in, before its COMMIT is sent; mu guards it

	waits bool // a COMMIT may wait for a standby; the turn guards it

	unconfirmed string        // what is still to be sent of a grant that is for a moment; the turn guards it
	settles     chan struct{} // closed when that was done; nil: the grant was confirmed

	named string // the application_name of the transaction; the turn guards it
	token backend.Token
	tx    tx // what the holder writes
}

// newSession returns a session whose maker has the turn.
func newSession(r *row, c *backend.Claim, conn *pgxpool.Conn) *session {
	s := &session{
		row: r, req: c.Request, conn: conn, pg: conn.Conn(), at: serverOf(conn.Conn().PgConn()),
		tag: c.Nonce[:6], turn: make(chan struct{}, 1), unwait: unchecked,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tx.root.s = s
	s.turn <- struct{}{}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[s] = struct{}{}
	return s
}

func (s *session) standing() standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *session) stand(st standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
}

// exec runs statements in one round trip. The caller has the turn.
func (s *session) exec(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	return s.pg.PgConn().Exec(ctx, sql).ReadAll()
}

// take gets the turn: the parked read is interrupted, another user is waited for.
func (s *session) take(ctx context.Context) (err error) {
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
		defer s.mu.Unlock()
		if s.wanted--; err != nil && s.wanted == 0 && s.state == holding && s.timer != nil {
			s.timer.Reset(parkAfter) // the last owner of the turn may have left that to us
		}
	}()
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
	_ = s.pg.PgConn().Conn().SetReadDeadline(time.Unix(1, 0)) // a closed one has returned already
}

// park reads until somebody wants the connection or the server ends it: pgx sees nothing of that by
// itself.
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
		_, err = s.pg.WaitForNotification(context.Background())
	}
	s.mu.Lock()
	s.parked = false
	_ = s.pg.PgConn().Conn().SetReadDeadline(time.Time{})
	s.mu.Unlock()
	ended := s.pg.IsClosed()
	s.give()
	if ended {
		s.end(lossOf(err))
	}
}

// lossOf says how a session ended.
func lossOf(err error) error {
	reason := backend.SessionLost
	switch code := codeOf(err); {
	case code == "25P03" || code == "25P04": // the server's lease ran out
		reason = backend.Expired
	case strings.HasPrefix(code, "57P"): // terminated by somebody
		reason = backend.Revoked
	}
	return &backend.LostError{Reason: reason}
}

// held reports whether the lock is had, as far as is known.
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

// end gives the session up: its connection is closed, which ends the transaction. A holder is told
// loss, if there is one.
func (s *session) end(loss error) {
	s.mu.Lock()
	if s.state == over || s.state == released || s.state == past {
		s.mu.Unlock()
		return
	}
	tell := s.state == holding && loss != nil
	if s.state != doubtful {
		s.state = over
	}
	if tell {
		s.loss = loss
	}
	s.mu.Unlock()
	if tell {
		s.req.Lost(loss)
	}
	s.drop()
}

// forsake ends a session that waits; not one that was granted the lock meanwhile.
func (s *session) forsake() {
	s.mu.Lock()
	waits := s.state == waiting
	if waits {
		s.state = over
	}
	s.mu.Unlock()
	if waits {
		s.drop()
	}
}

// drop closes the connection, and returns it to the pool once it is not in use. Rows that a holder has
// left open keep it: the pool forgets it then.
func (s *session) drop() {
	s.cancel()
	s.mu.Lock()
	if s.conn == nil || s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.row.flying.Go(func() {
		_ = s.pg.PgConn().Conn().Close() // it may be broken
		timer := time.NewTimer(letGoMost)
		defer timer.Stop()
		select {
		case s.turn <- struct{}{}: // for good
			s.putBack()
		case <-timer.C:
			// Another still has the turn: the pool forgets the connection, which was closed.
			s.giveUp(func(c *pgxpool.Conn, _ bool) { c.Hijack() })
		}
	})
}

// putBack returns the connection to the pool, once, which throws it away unless it is idle and
// outside a transaction. The caller has the turn and keeps it.
func (s *session) putBack() {
	s.giveUp(func(c *pgxpool.Conn, closed bool) {
		if closed { // which pgx does not know
			_ = c.Conn().Close(s.ctx)
		}
		c.Release()
	})
}

// giveUp ends the session's right to its connection and to its place, if that was not done before.
func (s *session) giveUp(how func(_ *pgxpool.Conn, closed bool)) {
	s.mu.Lock()
	conn, closed := s.conn, s.closed
	s.conn = nil
	s.mu.Unlock()
	if conn == nil {
		return
	}
	s.cancel()
	<-s.row.slots
	s.row.mu.Lock()
	delete(s.row.sessions, s)
	s.row.mu.Unlock()
	how(conn, closed)
}

// renew makes the server's lease last for the full time again. A renewal that was sent stays under way
// when ctx ends: a slow answer must not cost the connection.
func (s *session) renew(ctx context.Context) error {
	if err := s.held(); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	asked, err := backend.Now(), s.held()
	if err == nil {
		err = s.identify()
	}
	waits := s.waits
	s.give()
	if err == nil && waits {
		_, err = s.row.prove(ctx, s.at.timeline, asked)
	}
	return err
}

// identify asks the server which transaction this is, and returns the loss if it is another than
// the one that was granted the lock: a holder's COMMIT AND CHAIN ends that, and begins one that
// looks like it. The caller has the turn.
func (s *session) identify() error {
	res, err := s.exec(s.ctx, s.unconfirmed+"SELECT "+s.identity()+mayWait)
	if lost := s.open(err); lost != nil {
		return lost
	}
	told := ""
	if n := len(res) - 1; n >= 0 && len(res[n].Rows) == 1 {
		told = string(res[n].Rows[0][0])
	}
	id, waits, _ := strings.Cut(told, " ")
	if id != s.id {
		s.end(lossOf(nil))
		return s.heldOr(backend.ErrLost)
	}
	s.waits = waits != ""
	s.named = s.pg.PgConn().ParameterStatus(applicationName)
	if s.unconfirmed != "" {
		s.unconfirmed = ""
		close(s.settles)
	}
	return nil
}

// identity is the server's word for the transaction, in SQL.
func (s *session) identity() string {
	if s.row.advisory {
		door, _, _ := strings.Cut(s.id, ":")
		return s.row.sql("fencelock_here(" + door + ")")
	}
	return "pg_current_xact_id_if_assigned()::text"
}

// progress is what another connection knows of the transaction with the id $1, in SQL: in progress,
// or what became of it; in mode advisory NULL, for what tells that is its number, if it has one, and
// otherwise the nonce that its COMMIT notes.
func (r *row) progress() string {
	if r.advisory {
		return `CASE WHEN EXISTS (SELECT FROM pg_locks WHERE pid = split_part($1, ':', 2)::int AND granted
			AND locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'
			AND classid::bigint << 32 | objid::bigint = split_part($1, ':', 1)::bigint) THEN 'in progress' END`
	}
	return xactStatus
}

const xactStatus = "pg_xact_status($1::text::xid8)"

// survived takes in how a statement on a held session went, and returns the loss if it ended the
// session, or the transaction. The caller has the turn.
func (s *session) survived(err error) error {
	if lost := s.open(err); lost != nil {
		return lost
	}
	// The name ends with the transaction, and the server tells so unasked. Where it is another, the
	// holder may have renamed the session.
	if s.pg.PgConn().ParameterStatus(applicationName) == s.named {
		return nil
	}
	return s.identify()
}

// open returns the loss unless a transaction is open that statements can go on in, after one that
// ended with err.
func (s *session) open(err error) error {
	if s.ctx.Err() == nil {
		if pg := s.pg.PgConn(); !pg.IsClosed() && pg.TxStatus() == 'T' {
			return nil
		}
		s.end(lossOf(err))
	}
	return s.heldOr(backend.ErrLost)
}

// heldOr is held, or err while it is held.
func (s *session) heldOr(err error) error {
	if lost := s.held(); lost != nil {
		return lost
	}
	return err
}
