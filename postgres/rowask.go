package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

const (
	// tagHead begins the application_name of our sessions: "fl token nonce timeout owner".
	tagHead = "fl "
	// tagMost is how long the server lets an application_name be.
	tagMost = 63
	// freshest is how old the request of a wait may be for its answer to grant by it, before it is confirmed: a hold
	// that is over soon does without. The rest of the claim is what its holder has for that.
	freshest = claim / 2
)

// timeout is the server's lease of a session.
func (s *session) timeout() time.Duration { return s.req.TTL + s.req.Grace }

// beginning begins a transaction, whatever the role's default is.
const beginning = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"

// begin is the statements that begin a session's transaction: what it sets ends with it. A wait
// does without the timeouts of statements, until restore puts them back for what the holder writes.
func (s *session) begin(wait bool) string {
	sql := beginning
	if v, _, _ := strings.Cut(s.pg.PgConn().ParameterStatus("server_version"), "."); len(v) == 2 && v >= "17" {
		sql += "SET LOCAL transaction_timeout=0;"
	}
	if wait {
		sql += "SELECT set_config('fencelock.statement_timeout',current_setting('statement_timeout'),true)," +
			"set_config('fencelock.lock_timeout',current_setting('lock_timeout'),true)," +
			"set_config('application_name'," + s.label("0") + ",true);" +
			"SET LOCAL client_connection_check_interval=500;" +
			"SET LOCAL statement_timeout=0;SET LOCAL lock_timeout=0;"
	}
	return sql
}

// The check of the connection costs a system call now and then, so it ends with the wait; restore
// also puts the timeouts back that the waiting did without, for what the holder writes.
const (
	unchecked = "SET LOCAL client_connection_check_interval=DEFAULT;"
	restore   = unchecked +
		"SELECT set_config('statement_timeout',current_setting('fencelock.statement_timeout'),true)," +
		"set_config('lock_timeout',current_setting('fencelock.lock_timeout'),true);"
)

// label is the application_name, as SQL, with a token that is SQL too.
func (s *session) label(token string) string {
	return "'" + tagHead + "'||" + token + "||" + s.tail()
}

// tail is what follows the token in it.
func (s *session) tail() string {
	tail := " " + s.tag + " " + strconv.FormatInt(millis(s.timeout()), 36) + " "
	return "'" + tail + label(s.req.Owner, tagMost-len(tagHead)-16-len(tail)) + "'"
}

// label makes an owner fit for an application_name: printable ASCII without quotes, at most so
// long.
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

// taking is the statement that takes the lock, and sets how long the transaction may be idle.
func (s *session) taking(c *backend.Claim, wait bool, idle time.Duration) string {
	mark, floor := "NULL", strconv.FormatInt(c.Floor, 10)
	if s.row.advisory {
		floor = "NULL"
	}
	if c.Phase == backend.PhaseBoth {
		mark = literal([]byte(c.Move))
	}
	return s.row.sql("SELECT fencelock_take(") + literal(s.row.key(c.Name)) + "," +
		floor + "," + strconv.FormatBool(wait) + "," +
		strconv.Itoa(len(s.row.prefix)) + "," + mark + "," + seen(c) + ",'" +
		strconv.FormatInt(millis(idle), 10) + "'," + s.tail() + ")" + mayWait
}

// making is the statement that makes the row if it is not there, in a transaction of its own.
func (s *session) making() string {
	return beginning + "SET LOCAL synchronous_commit=off;" + s.row.sql("INSERT INTO fencelock_row(name)VALUES(") +
		literal(s.row.key(s.req.Name)) + ")ON CONFLICT DO NOTHING;COMMIT;"
}

// try makes the row if it is not known to be there, and locks it if it is free: one round trip. A waiter whose
// lock is not free then queues; any other session that was granted nothing has ended.
func (s *session) try(ctx context.Context, c *backend.Claim) error {
	begin := s.begin(false)
	again := s.making() + begin
	sql := s.at.ask()
	if s.row.keeps(c.Name) {
		sql += begin
	} else {
		sql += again
	}
	for range triesMost {
		asked := backend.Now()
		res, err := s.exec(ctx, sql+s.taking(c, false, s.timeout()))
		s.at.told(s.pg.PgConn(), res)
		a, err := s.read(c, res, err)
		if err == nil {
			s.row.answered()
		}
		switch {
		case err != nil:
			return s.refused(ctx, err)
		case a.word(0) == "floor":
			if err := s.draw(ctx, c); err != nil {
				return s.unproved(ctx, c, err)
			}
			lasting, cancel := ctx, context.CancelFunc(func() {})
			if c.Wait { // on a slow way no time may be left
				lasting, cancel = context.WithTimeout(context.WithoutCancel(ctx), lookMost)
			}
			_, err = s.exec(lasting, s.rename)
			cancel()
			if err != nil {
				return s.refused(ctx, err)
			}
			return s.grant(ctx, c, asked)
		case a.word(0) == "held":
			return s.grantProved(ctx, c, asked)
		case a.word(0) == "missing": // somebody tidies it away just now
			sql = "ROLLBACK;" + again
		case c.Wait && a.word(1) == "2": // the transaction can wait as it is
			return s.queue(c, "")
		case c.Wait:
			return s.queue(c, s.waiting())
		default:
			s.leave(ctx, "ROLLBACK;"+s.row.sweeping())
			return backend.ErrLocked
		}
	}
	return s.refused(ctx, errors.New("the lock's row comes and goes"))
}

// triesMost is how often a try asks again while somebody tidies the name's row.
const triesMost = 20

// waiting begins the transaction of a wait, after another one that is open.
func (s *session) waiting() string { return "ROLLBACK;" + s.making() + s.begin(true) }

// queue joins the server's queue after a try that found the row locked, in the transaction of that
// if begin is empty. The grant is for a moment, until it is confirmed.
func (s *session) queue(c *backend.Claim, begin string) error {
	if begin != "" {
		s.unwait = restore
	}
	s.stand(waiting)
	s.flight = s.fly(context.Background(), func() {}, c, begin+s.taking(c, true, min(claim, s.timeout())))
	return queued(c)
}

// fly runs statements that no caller waits for, and wakes the claim when they are answered.
func (s *session) fly(ctx context.Context, done func(), c *backend.Claim, sql string) chan taken {
	answer := make(chan taken, 1)
	s.asked = backend.Now()
	s.row.flying.Go(func() {
		defer done()
		res, err := s.exec(ctx, sql)
		if s.ctx.Err() != nil {
			<-s.turn // the end of the session waits for it
		}
		answer <- taken{res, err}
		c.Wake(0)
	})
	return answer
}

func queued(c *backend.Claim) error {
	c.Queued, c.Next = true, lookEvery
	return backend.ErrLocked
}

// taken is the server's answer to a waiter.
type taken struct {
	res []*pgconn.Result
	err error
}

// asleep reads the answer to a wait, if it is there, and confirms the grant.
func (s *session) asleep(ctx context.Context, c *backend.Claim) error {
	if s.sure != nil {
		return s.confirm(ctx, c)
	}
	var answer taken
	if s.flight == nil { // it has the door, and was told of other gates, or got no token: this waits for nobody
		s.asked = backend.Now()
		answer.res, answer.err = s.exec(ctx, s.taking(c, true, min(claim, s.timeout())))
	} else {
		select {
		case answer = <-s.flight:
			s.flight = nil
		default:
			if err := s.row.look(ctx); err != nil {
				return err
			}
			return queued(c)
		}
	}
	a, err := s.read(c, answer.res, answer.err)
	switch {
	case errors.Is(err, backend.ErrGates):
		return err
	case err != nil:
		return s.refused(ctx, err)
	case a.word(0) == "missing":
		return s.queue(c, s.waiting())
	case a.word(0) == "floor":
		// If that fails the session still has the door, and asks again. It ends with ctx, so that a
		// caller that gives up does not keep the door meanwhile.
		if err := s.draw(ctx, c); err != nil {
			return s.unproved(ctx, c, err)
		}
	case a.word(0) != "held":
		return s.refused(ctx, unexpected(strings.Join(a, " ")))
	case c.Auto && c.Move == "" && s.asked.Elapsed() <= min(freshest, c.TTL/2) && (!s.waits || s.proven(c)):
		s.unconfirmed, s.settles = s.confirming(), make(chan struct{})
		if err := s.grant(ctx, c, s.asked); err != nil {
			return err
		}
		if c.Grant.Short = min(claim, s.timeout()); s.waits {
			c.Grant.Short = min(c.Grant.Short, c.TTL*2/3)
		}
		return nil
	}
	return s.confirm(ctx, c)
}

// confirm makes sure of a grant. A slow server must not cost the place in the queue: what confirms it goes on when ctx
// ends, and the next Ask has the answer.
func (s *session) confirm(ctx context.Context, c *backend.Claim) error {
	if s.sure == nil {
		lasting, cancel := context.WithTimeout(context.Background(), lookMost)
		s.sure = s.fly(lasting, cancel, c, s.confirming())
	}
	select {
	case a := <-s.sure:
		s.sure = nil
		if a.err != nil {
			return s.refused(ctx, a.err)
		}
		return s.grantProved(ctx, c, s.asked)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// confirming makes a grant that was waited for last for the full time.
func (s *session) confirming() string {
	return s.unwait + s.rename + "SET LOCAL idle_in_transaction_session_timeout=" +
		strconv.FormatInt(millis(s.timeout()), 10) + ";"
}

// settled waits until the grant is confirmed. The engine confirms it at once when the program asks for the transaction,
// because a long statement would hold the confirmation up.
func (s *session) settled(ctx context.Context) error {
	if s.settles == nil {
		return nil
	}
	select {
	case <-s.settles:
		return nil
	case <-s.ctx.Done():
		return s.heldOr(backend.ErrLost)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reply is the server's to an acquisition, in words.
type reply []string

func (a reply) word(i int) string {
	if i >= len(a) {
		return ""
	}
	return a[i]
}

// number is a word that is a number of 0 or more, and otherwise -1.
func (a reply) number(i int) int64 {
	n, err := strconv.ParseInt(a.word(i), 10, 64)
	if err != nil {
		return -1
	}
	return max(n, -1)
}

func unexpected(answer string) error {
	return fmt.Errorf("unexpected answer of the server: %q", answer)
}

// read returns what fencelock_take says, in words: held, locked, missing, or floor, where the token
// is still to be drawn, as in mode advisory, or where the floor is ahead of the first one.
func (s *session) read(c *backend.Claim, res []*pgconn.Result, err error) (reply, error) {
	at := len(res) - 1
	switch {
	case err != nil:
		return nil, err
	case at < 0 || len(res[at].Rows) != 1 || len(res[at].Rows[0]) < 1:
		return nil, unexpected("no row")
	}
	told, waits := strings.CutSuffix(string(res[at].Rows[0][0]), " waits")
	a := reply(strings.Fields(told))
	s.id, s.waits = a.word(2), waits
	switch a.word(0) {
	case "gates":
		return nil, s.row.otherGates(c, told)
	case "far":
		return nil, errFar
	case "held":
		s.token, err = strconv.ParseInt(a.word(1), 10, 64)
		return a, err
	case "locked", "missing", "floor":
		return a, nil
	}
	return nil, unexpected(told)
}

// draw draws a token by another connection, whose transaction raises what must be raised, and has
// committed before anybody sees the token. The session's own gets no transaction id by it.
func (s *session) draw(ctx context.Context, c *backend.Claim) error {
	var token *int64
	err := s.row.commits(ctx, s.at.timeline, s.waits, "SELECT fencelock_above($1, $2), "+timeline,
		[]any{s.row.key(c.Name), c.Floor}, &token)
	switch {
	case err != nil:
		return err
	case token == nil:
		return errFar
	}
	s.token = *token
	s.rename = "SELECT set_config('application_name'," + s.label(strconv.FormatInt(s.token, 10)) + ",true);"
	return nil
}

// grant makes the session a hold, and gives its turn away, unless look has ended the session meanwhile.
func (s *session) grant(ctx context.Context, c *backend.Claim, asked backend.Instant) error {
	s.named = s.pg.PgConn().ParameterStatus(applicationName)
	s.mu.Lock()
	ended := s.state != trying && s.state != waiting
	if !ended {
		s.state = holding
	}
	s.mu.Unlock()
	if ended {
		return s.refused(ctx, errors.New("the session was not there any more"))
	}
	s.give()
	c.Grant = backend.Grant{Token: s.token, Asked: asked, Handle: s}
	return nil
}

// refused ends a session that was not granted the lock. One that is in order frees its place in the
// server before its caller hears of it.
func (s *session) refused(ctx context.Context, err error) error {
	if errors.Is(err, errBehind) { // the next session is to have another connection, perhaps to the same server
		_, _ = s.exec(ctx, "ROLLBACK")
		_ = s.pg.Close(ctx)
	}
	s.leave(ctx, "ROLLBACK;"+s.tidying())
	if !missing(err) {
		return err
	}
	if err := s.row.create(ctx, true); err != nil {
		return err
	}
	return backend.Refusal(errors.New("the driver's tables were missing"))
}

// leave ends a session that was granted nothing, by some SQL, and keeps its connection if that is
// in order. Its caller has the connection.
func (s *session) leave(ctx context.Context, how string) {
	s.stand(over)
	if pg := s.pg.PgConn(); !pg.IsClosed() {
		// Under a ctx that has ended nothing is sent (pgx 5.12). A connection outside of a transaction goes to another
		// lock all the same, and nothing must end it any more. The pool throws any other away.
		if _, err := s.exec(ctx, how); err == nil || !pg.IsClosed() && pg.TxStatus() == 'I' {
			s.stand(past)
		}
	}
	s.putBack()
}
