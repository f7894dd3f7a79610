package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// Release implements backend.Driver: COMMIT, or ROLLBACK if a statement of the holder has failed.
func (r *row) Release(ctx context.Context, h *backend.Hold) error {
	s, ok := h.Handle.(*session)
	if !ok {
		return backend.ErrLost
	}
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	if state == released {
		return s.tx.verdict()
	}
	if state == doubtful {
		return s.resolve(ctx)
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	if err := s.held(); err != nil {
		s.give()
		return err
	}
	return s.commit(ctx)
}

// commit ends the transaction. The caller has the turn, and commit keeps it.
func (s *session) commit(ctx context.Context) error {
	s.mu.Lock()
	s.state = doubtful
	s.mu.Unlock()
	end := "COMMIT"
	switch {
	case s.tx.undone() != nil:
		end = "ROLLBACK"
	case !s.tx.isUsed(): // nothing that must last
		end = "SET LOCAL synchronous_commit=off;COMMIT"
	}
	res, err := s.exec(ctx, end+";"+s.tidying())
	done := ""
	for _, one := range res {
		if tag := one.CommandTag.String(); one.Err == nil && (tag == "COMMIT" || tag == "ROLLBACK") {
			done = tag
			break
		}
	}
	closed := s.conn.Conn().IsClosed()
	switch {
	case done == "COMMIT", done == "ROLLBACK" && end == "ROLLBACK":
		s.settle(released)
		return s.tx.verdict()
	case done == "ROLLBACK":
		s.settle(over)
		return backend.ErrLost
	case !closed && err != nil: // the COMMIT was refused: a deferred constraint, a serialization failure
		s.tx.fail(err)
		s.settle(released)
		return s.tx.verdict()
	}
	s.putBack()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if loss := lossOf(err); errors.As(err, new(*pgconn.PgError)) { // the server ended the session before
		s.mu.Lock()
		s.state, s.loss = over, loss
		s.mu.Unlock()
		return loss
	}
	return s.resolve(ctx)
}

// settle ends a session in order: the connection goes back to the pool.
func (s *session) settle(st standing) {
	s.mu.Lock()
	s.state = st
	s.mu.Unlock()
	s.putBack()
	s.row.forget(s)
}

// tidying deletes the name's row if nobody wants it any more, and now and then those that the dead have left.
func (s *session) tidying() string {
	r := s.row
	sql := "BEGIN READ WRITE;SET LOCAL synchronous_commit=off;SELECT fencelock_tidy(" + literal(r.st.key(s.req.Name)) + ")"
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.tidied) > tidyEvery {
		r.tidied = time.Now()
		sql += ",fencelock_tidy(NULL)"
	}
	return r.st.sql(sql + ";COMMIT")
}

// resolve finds out what became of a COMMIT whose answer was lost. One that is under way is given a moment.
func (s *session) resolve(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, hangUpMost)
	defer cancel()
	for {
		status, err := s.status(ctx)
		if err != nil {
			return err
		}
		switch status {
		case "committed":
			s.settle(released)
			return nil
		case "in progress":
		default:
			s.settle(over)
			return backend.ErrLost
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-limited.Done():
			timer.Stop()
			return errors.New("the COMMIT has not arrived yet")
		}
	}
}

// status asks what the server knows of the session's transaction.
func (s *session) status(ctx context.Context) (string, error) {
	var status *string
	err := s.row.st.query(ctx, "SELECT pg_xact_status($1::text::xid8)", []any{s.xid}, func(row pgx.CollectableRow) error { return row.Scan(&status) })
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &answer) && answer.Code == "22023": // in the server's future: its data is another
		return "", nil
	case err != nil || status == nil:
		return "", err
	}
	return *status, nil
}

// Abandon implements backend.Driver: the connection is closed, and the server asked whether its session is gone.
func (r *row) Abandon(ctx context.Context, req *backend.Request) error {
	r.bury(req)
	r.mu.Lock()
	s := r.sessions[req.Nonce]
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	return r.clean(ctx, s)
}

// clean makes sure that nothing is left of a session that is not wanted any more.
func (r *row) clean(ctx context.Context, s *session) error {
	s.end(nil)
	s.drop()
	s.mu.Lock()
	back := s.conn == nil // in order
	s.mu.Unlock()
	if !back {
		select {
		case <-s.dropped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := r.st.query(ctx, "SELECT pg_terminate_backend(pid,1000) FROM pg_stat_activity WHERE pid=$1 AND application_name LIKE $2",
		[]any{int32(s.pid), tagHead + "% " + s.tag + " %"}, func(row pgx.CollectableRow) error {
			var gone bool
			if err := row.Scan(&gone); err != nil || gone {
				return err
			}
			return errors.New("the server has not ended the session yet")
		})
	if err != nil {
		return err
	}
	if err := r.st.query(ctx, "SELECT fencelock_tidy($1)", []any{r.st.key(s.req.Name)}, nil); err != nil {
		return err
	}
	s.mu.Lock()
	s.state = over
	s.mu.Unlock()
	r.forget(s)
	return nil
}
