package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// timeout is the server's lease of a session.
func (s *session) timeout() time.Duration { return s.req.TTL + s.req.Grace }

// begin is the statements that begin a session's transaction: what it sets ends with it. A wait does without the timeouts of
// statements, until restore puts them back for what the holder writes.
func (s *session) begin(wait bool) string {
	sql := "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
	if v, _, _ := strings.Cut(s.conn.Conn().PgConn().ParameterStatus("server_version"), "."); len(v) == 2 && v >= "17" {
		sql += "SET LOCAL transaction_timeout=0;"
	}
	if wait {
		sql += "SELECT set_config('fencelock.statement_timeout',current_setting('statement_timeout'),true)," +
			"set_config('fencelock.lock_timeout',current_setting('lock_timeout'),true),set_config('application_name'," + s.label("0") + ",true);" +
			"SET LOCAL client_connection_check_interval=500;SET LOCAL statement_timeout=0;SET LOCAL lock_timeout=0;"
	}
	return sql
}

// restore puts the timeouts that the waiting did without back for what the holder writes.
// The check of the connection goes too: it costs a system call now and then.
const restore = "SET LOCAL client_connection_check_interval=DEFAULT;SELECT set_config('statement_timeout',current_setting('fencelock.statement_timeout'),true)," +
	"set_config('lock_timeout',current_setting('fencelock.lock_timeout'),true);"

// label is the application_name, as SQL, with a token that is SQL too.
func (s *session) label(token string) string { return "'" + tagHead + "'||" + token + "||" + s.tail() }

// tail is what follows the token in it.
func (s *session) tail() string {
	tail := " " + s.tag + " " + strconv.FormatInt(millis(s.timeout()), 36) + " "
	return "'" + tail + label(s.req.Owner, tagMost-len(tagHead)-16-len(tail)) + "'"
}

// label makes an owner fit for an application_name: printable ASCII without quotes, at most so long.
func label(owner string, most int) string {
	var b strings.Builder
	for _, c := range []byte(owner) {
		one := string(rune(c))
		if c < ' ' || c > '~' || strings.IndexByte(`'\%`, c) >= 0 {
			one = fmt.Sprintf("%%%02x", c)
		}
		if b.Len()+len(one) > most {
			break
		}
		b.WriteString(one)
	}
	return b.String()
}

// taking is the statement that locks the row, and sets how long the transaction may be idle.
func (s *session) taking(wait bool, idle time.Duration) string {
	s.seen = s.row.st.look(s.req)
	return fmt.Sprintf("SELECT %s(%s,%d,%v,%d,%s,'%d',%s);",
		s.row.st.sql("fencelock_take"), literal(s.row.st.key(s.req.Name)), s.req.Floor, wait, len(s.row.st.prefix), phase(s.req, s.seen), millis(idle), s.tail())
}

// try makes the row if it is not there, and locks it if it is free: one round trip. It ends the session on any error but ErrLocked.
func (s *session) try(ctx context.Context) (backend.Grant, error) {
	made := s.row.st.sql("BEGIN READ WRITE;SET LOCAL synchronous_commit=off;INSERT INTO fencelock_row(name)VALUES(" + literal(s.row.st.key(s.req.Name)) + ")ON CONFLICT DO NOTHING;COMMIT;")
	sql := made + s.begin(false)
	for range 20 {
		asked := backend.Now()
		state, err := s.ask(ctx, sql+s.taking(false, s.timeout()))
		switch {
		case err != nil:
		case state == "held":
			return s.grant(asked), nil
		case state == "locked":
			return backend.Grant{}, backend.ErrLocked
		}
		if err != nil || state != "missing" {
			return backend.Grant{}, s.refused(ctx, errOr(err, state))
		}
		sql = "ROLLBACK;" + made + s.begin(false) // somebody tidies it away just now
	}
	s.abort()
	return backend.Grant{}, errors.New("the lock's row comes and goes")
}

func errOr(err error, state string) error {
	if err == nil {
		err = fmt.Errorf("unexpected answer of the server: %q", state)
	}
	return err
}

// wait joins the queue after a try that found the row locked, in the transaction of that. The grant is a claim until the second request confirms it.
func (s *session) wait(ctx context.Context) (backend.Grant, error) {
	made := s.row.st.sql("INSERT INTO fencelock_row(name)VALUES(" + literal(s.row.st.key(s.req.Name)) + ")ON CONFLICT DO NOTHING;")
	again := "ROLLBACK;BEGIN READ WRITE;SET LOCAL synchronous_commit=off;" + made + "COMMIT;" + s.begin(true)
	begin, restored := again, restore
	if s.ready {
		begin, restored = "", "SET LOCAL client_connection_check_interval=DEFAULT;"
	}
	for {
		state, err := s.ask(ctx, begin+s.taking(true, min(claim, s.timeout())))
		if err == nil && state == "missing" {
			begin, restored = again, restore
			continue
		}
		if err != nil || state != "held" {
			return backend.Grant{}, s.refused(ctx, errOr(err, state))
		}
		limited, cancel := context.WithTimeout(ctx, lookMost)
		defer cancel()
		asked := backend.Now()
		_, err = s.exec(limited, restored+"SET LOCAL idle_in_transaction_session_timeout="+strconv.FormatInt(millis(s.timeout()), 10))
		if err != nil {
			s.abort()
			return backend.Grant{}, err
		}
		return s.grant(asked), nil
	}
}

// ask runs statements of which the last is fencelock_take, and reads its answer. It creates the schema if that is missing, and raises the
// tokens if the floor is ahead of them.
func (s *session) ask(ctx context.Context, sql string) (string, error) {
	res, err := s.exec(ctx, sql)
	if missing(err) && !strings.Contains(sql, "BEGIN") { // not in the transaction of before
		return "missing", nil
	}
	if missing(err) {
		if _, err := s.exec(ctx, "ROLLBACK"); err != nil {
			return "", err
		}
		if err := s.row.st.ensure(ctx); err != nil {
			return "", err
		}
		res, err = s.exec(ctx, strings.TrimPrefix(sql, "ROLLBACK;"))
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", s.row.st.refusal(err, s.req)
	}
	at := len(res) - 1
	if at < 0 || len(res[at].Rows) != 1 || len(res[at].Rows[0]) < 1 {
		return "", errOr(nil, "no row")
	}
	answer, ungated, err := s.row.st.told(string(res[at].Rows[0][0]), s.seen)
	if err != nil {
		return "", err
	}
	state, token := answer.word(0), []byte(answer.word(1))
	s.xid, s.ungated, s.ready = answer.word(2), ungated, state == "locked" && answer.word(1) == "2"
	for state == "floor" {
		if err := s.row.st.raise(ctx, s.row.st.key(s.req.Name), s.req.Floor); err != nil {
			return "", err
		}
		res, err := s.exec(ctx, fmt.Sprintf("SELECT t,set_config('application_name',%s,true)FROM %s(%s,%d)t",
			s.label("coalesce(t,0)"), s.row.st.sql("fencelock_draw"), literal(s.row.st.key(s.req.Name)), s.req.Floor))
		if err != nil {
			return "", meaning(err)
		}
		if token = res[0].Rows[0][0]; token != nil {
			state = "held"
		}
	}
	if state == "held" {
		s.token, err = strconv.ParseInt(string(token), 10, 64)
	}
	return state, err
}

// grant makes the session a hold. Its user is the caller, who has the connection without a turn until now.
func (s *session) grant(asked backend.Instant) backend.Grant {
	s.mu.Lock()
	s.state = holding
	s.timer = time.AfterFunc(parkAfter, s.park)
	s.mu.Unlock()
	return backend.Grant{Token: s.token, Asked: asked, Ungated: s.ungated, Handle: s}
}

// refused ends a session whose request was not granted. That of a gate is in order, and freed its place in the server by itself.
func (s *session) refused(ctx context.Context, err error) error {
	if errors.As(err, new(*backend.GateError)) {
		s.leave(ctx, "ROLLBACK;"+s.tidying())
	} else {
		s.abort()
	}
	return err
}

// leave ends a session that was granted nothing, by some SQL, and keeps its connection.
func (s *session) leave(ctx context.Context, how string) {
	_, _ = s.exec(ctx, how) // or the pool throws it away
	s.mu.Lock()
	s.state = over
	s.mu.Unlock()
	s.turn <- struct{}{}
	s.putBack()
	s.row.forget(s)
}
