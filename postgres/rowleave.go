package postgres

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Leave implements backend.Driver: COMMIT, or ROLLBACK if a statement of the holder has failed. What
// was not held goes with its connection.
func (r *row) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		s := r.of(c)
		switch {
		case c.Held && s == nil:
			c.Err = backend.ErrLost
		case c.Held:
			c.Err = s.release(ctx)
		case s == nil:
			c.Place = gone{}
		default:
			if c.Err = r.clean(ctx, s); c.Err == nil && s.standing() == past {
				c.Place = gone{}
			}
		}
	}
}

// release commits, and returns what came of it. The COMMIT goes on if ctx ends: it may take its
// time, and the next release finds out.
func (s *session) release(ctx context.Context) error {
	if s.standing() == holding {
		if err := s.take(ctx); err != nil {
			return err
		}
		if err := s.held(); err != nil {
			s.give()
			return err
		}
		s.stand(doubtful)
		s.ended = make(chan struct{})
		s.row.flying.Go(s.commit)
		select {
		case <-s.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.standing() == doubtful {
		if err := s.resolve(ctx); err != nil {
			return err
		}
	}
	if s.standing() == released {
		return s.tx.verdict()
	}
	return s.heldOr(backend.ErrLost)
}

// commit ends the transaction. It has the turn, and keeps it.
func (s *session) commit() {
	defer close(s.ended)
	defer s.putBack()
	used, undone := s.tx.isUsed(), s.tx.undone()
	guard, undo, note, end := "", "", "", "COMMIT"
	if used { // by statements which may have ended the transaction, and begun another
		guard = "SELECT 1/(" + s.identity() + " IS NOT DISTINCT FROM '" + s.id + "')::int;"
	}
	if used && undone { // it commits all the same: whether a ROLLBACK was done could not be told
		undo = "ROLLBACK TO SAVEPOINT " + savepoint + ";"
	}
	if !used || undone { // nothing that must last
		end = "SET LOCAL synchronous_commit=off;COMMIT"
	}
	switch {
	case !s.row.advisory:
	case !used || undone: // tells that the COMMIT was done: there is no number to ask for
		note = s.row.sql("SELECT fencelock_note(ARRAY[") + literal(nonceOf(s.req)) + "]);"
	default: // what was written must not be taken for lost when the note is forgotten
		if err := s.learn(); err != nil {
			s.settle(over, lossOf(err))
			return
		}
	}
	kept, tidying := s.row.keep(s.req.Name), s.tidying
	if kept {
		tidying = s.row.sweeping
	}
	res, err := s.exec(context.Background(), guard+undo+note+end+";"+tidying())
	if kept { // a COMMIT may take longer than a row stays
		s.row.stays(s.req.Name)
	}
	done := ""
	for _, one := range res {
		tag := one.CommandTag.String()
		if one.Err != nil || tag != "COMMIT" && tag != "ROLLBACK" {
			continue
		}
		if undo == "" {
			done = tag
			break
		}
		undo = "" // that was to the savepoint
	}
	closed := s.pg.IsClosed()
	switch {
	case done == "COMMIT" && used && !undone && !s.arrived(): // no answer, then
		_ = s.pg.Close(context.Background())
	case done == "COMMIT":
		s.settle(released, nil)
	case done == "ROLLBACK":
		s.settle(past, backend.ErrLost)
	case !closed && guard != "" && (len(res) == 0 || res[0].Err != nil): // another transaction
		s.settle(past, lossOf(nil)) // the pool throws it away, which rolls that back
	case !closed && err != nil: // the COMMIT was refused: a deferred constraint, a serialization failure
		s.tx.root.fail(err)
		s.settle(released, nil)
	}
}

// arrived reports whether a COMMIT that the server has answered is where it had to wait for, as a synchronous standby.
// Somebody may have ended that wait. A connection that the driver has made tells that (see dialer.serve). One of the
// program's does not, so a later commit must be confirmed.
func (s *session) arrived() bool {
	if !s.waits || s.row.own == s.row.pool {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookMost)
	defer cancel()
	_, err := s.row.prove(ctx, s.at.timeline, backend.Now())
	return err == nil
}

// learn learns the transaction's number, before anything is sent that commits.
func (s *session) learn() error {
	res, err := s.exec(context.Background(), "SELECT pg_current_xact_id()::text WHERE "+s.identity()+"='"+s.id+"'")
	if err == nil && (len(res) != 1 || len(res[0].Rows) != 1) {
		err = backend.ErrLost // another transaction
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.xid = string(res[0].Rows[0][0])
	return nil
}

// number is what learn has learnt.
func (s *session) number() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.xid
}

// settle ends a session whose COMMIT was in doubt.
func (s *session) settle(st standing, loss error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == doubtful {
		s.state, s.loss = st, loss
	}
}

// tidying deletes the name's row if nobody wants it any more, and now and then those that the dead
// have left.
func (s *session) tidying() string {
	sql := "SELECT fencelock_tidy(" + literal(s.row.key(s.req.Name)) + ")"
	if s.row.due() {
		sql += ",fencelock_tidy(NULL)"
	}
	return s.row.tidyingBy(sql)
}

// keep notes a release, and reports whether the row is to stay: the name was released shortly before, too.
func (r *row) keep(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, again := r.recent[name]
	if r.closed || !again && len(r.recent) >= keepMost {
		return false
	}
	r.noteLocked(name, again)
	return again
}

// stays notes that the row of a name was left just now.
func (r *row) stays(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.noteLocked(name, true)
	}
}

func (r *row) noteLocked(name string, kept bool) {
	r.recent[name] = use{time.Now(), kept}
	if r.tidier == nil {
		r.tidier = time.AfterFunc(keepFor, r.tidyKept)
	}
}

// keeps reports whether the row of a name was left.
func (r *row) keeps(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recent[name].kept
}

// tidyKept deletes the rows whose time is over.
func (r *row) tidyKept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	over := r.overLocked(time.Now().Add(-keepFor))
	r.flying.Go(func() {
		left, next := r.tidyAll(over, lookMost), keepFor
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, name := range left {
			next = lookMost
			if _, again := r.recent[name]; !again {
				r.recent[name] = use{kept: true}
			}
		}
		if r.tidier = nil; len(r.recent) > 0 && !r.closed {
			r.tidier = time.AfterFunc(next, r.tidyKept)
		}
	})
}

// tidyLast deletes all of them, in closing.
func (r *row) tidyLast() {
	r.mu.Lock()
	r.closed = true
	if r.tidier != nil {
		r.tidier.Stop()
	}
	all := r.overLocked(time.Now())
	r.mu.Unlock()
	r.tidyAll(all, pingMost)
}

// overLocked takes out the names that were released by then, and returns those whose rows were left: the next lock of
// such a name makes its row again.
func (r *row) overLocked(then time.Time) (left []string) {
	for name, u := range r.recent {
		if u.at.After(then) {
			continue
		}
		if delete(r.recent, name); u.kept {
			left = append(left, name)
		}
	}
	return left
}

// tidyAll deletes the rows of names that no session wants, and returns the names it could not ask about. If it does not
// delete a row, as where a transaction of LockTx has the name, a sweep does later, as for dead processes.
func (r *row) tidyAll(names []string, most time.Duration) (left []string) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	for left = names; len(left) > 0; {
		conn, err := r.spare(ctx)
		if err != nil {
			return left
		}
		some := left[:min(tidyMost, len(left))]
		each := make([]string, len(some)) // apart: a door is not to wait for others' rows
		for i, name := range some {
			each[i] = r.tidyingBy("SELECT fencelock_tidy(" + literal(r.key(name)) + ")")
		}
		err = conn.exec(ctx, strings.Join(each, ";"))
		conn.release()
		if err != nil {
			return left
		}
		left = left[len(some):]
	}
	return nil
}

// sweeping deletes, now and then, rows that the dead have left, or that a try has beside a transaction of LockTx.
func (r *row) sweeping() string {
	if !r.due() {
		return ""
	}
	return r.tidyingBy("SELECT fencelock_tidy(NULL)")
}

func (r *row) tidyingBy(sql string) string {
	return r.sql(beginning + "SET LOCAL synchronous_commit=off;" + sql + ";COMMIT")
}

// tidy deletes the name's row if nobody wants it any more, by another connection.
func (s *session) tidy(ctx context.Context) error {
	return s.row.query(ctx, "SELECT fencelock_tidy($1)", []any{s.row.key(s.req.Name)}, nil)
}

// resolve finds out what became of a COMMIT that has no answer.
func (s *session) resolve(ctx context.Context) error {
	status, err := s.status(ctx)
	switch {
	case err != nil:
		return err
	case status == "in progress":
		select {
		case <-s.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.standing() == doubtful {
			return errors.New("the COMMIT has not arrived yet")
		}
		return nil
	}
	s.drop()
	if err := s.tidy(ctx); err != nil { // the other may have been cancelled behind its COMMIT
		return err
	}
	if status == "committed" {
		s.settle(released, nil)
	} else {
		s.settle(past, s.held())
	}
	return nil
}

// status asks what the server knows of the session's transaction. One that was promoted since, or
// has recovered from a crash, may have given its number to another: of which nothing had reached the log.
func (s *session) status(ctx context.Context) (string, error) {
	var status, now, last, there *string
	text, id, lasts := s.row.progress(), s.id, "NULL"
	if xid := s.number(); xid != "" {
		text, id = xactStatus, xid
	}
	meant := s.tx.isUsed() && !s.tx.undone()
	if meant {
		lasts = replicated
	}
	err := s.row.upkeep(ctx, "SELECT status, line, "+crashed+", "+lasts+" FROM (SELECT line, CASE WHEN line = $2 THEN "+
		text+" END AS status FROM (SELECT "+timeline+" AS line) l) s", []any{id, s.at.timeline},
		func(row scanner) error { return row.Scan(&status, &now, &last, &there) })
	switch {
	case codeOf(err) == "22023": // in the server's future: it has lost what it had
		return "", nil
	case err != nil:
		return "", err
	case *now < s.at.timeline:
		return "", s.row.elsewhere(s.at.timeline, *now)
	case *now != s.at.timeline:
		return "", errPromoted
	case text == xactStatus && (status == nil || hasCrashed(s.at.crashed, *last)):
		if status != nil && *status != "committed" || !meant { // not ours, or nothing was to last
			return "", nil
		}
		return "", errForgotten
	case status != nil:
		return *status, nil
	case s.number() != "": // its COMMIT was sent meanwhile
		return "in progress", nil
	}
	// It has ended, so the note of a COMMIT is there by now, or never.
	committed := ""
	err = s.row.query(ctx, "SELECT 'committed' FROM fencelock_ring WHERE $1 = ANY (nonces)",
		[]any{nonceOf(s.req)}, func(row scanner) error { return row.Scan(&committed) })
	return committed, err
}

// replicated makes the answer "committed" wait for what a COMMIT waits for: a COMMIT that was cancelled while it waited
// for a synchronous standby is committed here alone. The question writes a message behind it, and waits for that.
const replicated = "CASE WHEN status = 'committed' THEN " + awaitStandby + " END"

// awaitStandby makes a statement's commit wait for what a COMMIT waits for, though it changes nothing.
const awaitStandby = `concat(set_config('synchronous_commit',
	CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
	pg_logical_emit_message(true, 'fencelock', ''::text))`

// errForgotten: what became of a COMMIT is not known any more.
var errForgotten = errors.New("the server has recovered from a crash since the COMMIT was sent, or that was too long " +
	"ago: whether it was done cannot be told")

// errPromoted: what became of a COMMIT is not known here.
var errPromoted = errors.New("another server was promoted since the COMMIT was sent: whether it " +
	"was done cannot be told")

// clean makes sure that nothing is left of a session that is not wanted any more. It closes the connection and asks the
// server to end the process behind it. It knows that process by its label. Before the process has read the statement
// that sets the label, clean knows it by the port of the connection or, behind a proxy, by its age: a process of that
// number that is younger than the connection, or more than a minute older, is another one. The process of a pooler is
// older, and may serve another client.
func (r *row) clean(ctx context.Context, s *session) error {
	port, age := 0, float64(math.MaxInt32) // no process's
	if conn := s.pg.PgConn(); s.at.pid == conn.PID() {
		age = s.at.since.Elapsed().Seconds()
		if a, ok := conn.Conn().LocalAddr().(*net.TCPAddr); ok {
			port = a.Port
		}
	}
	const its = " FROM pg_stat_activity WHERE pid=$1 AND (application_name LIKE $2 OR client_port=$3 OR " +
		"extract(epoch FROM clock_timestamp()-backend_start)-$4::float8 BETWEEN 0 AND 60)"
	args := []any{int32(s.at.pid), tagHead + "% " + s.tag + " %", port, age}
	switch st := s.standing(); {
	case st == past || st == released:
		return nil
	case st == trying: // it has asked for nothing
		s.stand(past)
		s.putBack()
		return nil
	case st == doubtful: // to end its wait for a standby would show others what may yet be lost
		err := r.query(ctx, "SELECT"+its+" AND wait_event='SyncRep'", args, func(scanner) error { return errWaits })
		if err != nil {
			return err
		}
	case st == waiting && s.flight == nil && s.sure == nil: // it is in order, and has the door
		if s.leave(ctx, "ROLLBACK;"+s.tidying()); s.standing() == past {
			return nil
		}
	}
	s.end(nil)
	if st := s.standing(); st == past || st == released { // its answer has come meanwhile
		return nil
	}
	err := r.query(ctx, "SELECT pg_terminate_backend(pid,1000)"+its, args,
		func(row scanner) error {
			var gone bool
			if err := row.Scan(&gone); err != nil || gone {
				return err
			}
			return errors.New("the server has not ended the session yet")
		})
	switch st := s.standing(); {
	case err != nil || st == past || st == released:
		return err
	case st == doubtful:
		err = s.resolve(ctx) // Unlock may ask yet
		if errors.Is(err, errForgotten) || errors.Is(err, errPromoted) {
			err = nil // and is told that
		}
		return err
	}
	s.stand(past) // on a slow link there may be no time left: others tidy what the dead have left
	return s.tidy(ctx)
}

// errWaits: its answer is the standby's.
var errWaits = errors.New("the COMMIT waits for a synchronous standby")
