package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Schema is the SQL of every table, sequence and function that the driver uses.
// It is run on first use, in one schema; where the role may not create tables, run it by hand.
//
//go:embed schema.sql
var Schema string

// claim is how long a grant that a waiter has not confirmed yet lasts.
const claim = 2 * time.Second

// createMost is how long creating our objects may take.
const createMost = 30 * time.Second

// limitIdle bounds how long a transaction of several statements waits for the next one: a client
// that is stopped or cut off there would keep its advisory locks.
const limitIdle = "SET LOCAL idle_in_transaction_session_timeout = '5s'"

// pingMost is how long a connection that was idle may take to show that it carries anything, and
// cleanMost how long one that pgx has given up keeps its place in the pool.
const pingMost, cleanMost = 500 * time.Millisecond, time.Second

// store is the way to the server that both modes share.
type store struct {
	pool   *pgxpool.Pool // the program's, or that of the URL
	db     *sql.DB       // the program's, instead of pool
	pace   *pace         // of db
	own    *pgxpool.Pool // the driver's own, for what must not wait for the program; the pool itself if the URL made it
	dialer *dialer       // of own; both are nil over a db without Options.Listen
	schema string        // as the program gave it; "": place says which
	prefix string

	place    atomic.Pointer[string]    // the schema of our objects, found once; nil: nothing was sent yet
	texts    sync.Map                  // words, by a statement without the schema
	plain    atomic.Bool               // sessions do not keep what was prepared: a pooler is in front
	level    atomic.Bool               // the sessions' default isolation level is not READ COMMITTED
	ensuring chan struct{}             // of size 1: its owner looks for the schema, or creates our objects
	flying   core.Group                // what outlives its caller
	swept    atomic.Pointer[time.Time] // when the last sweep began
	slow     *slow                     // of the connections; never nil
}

// sql qualifies the names of our objects, so that the search_path of a connection decides nothing.
// The schema is found by ready.
func (st *store) sql(text string) string {
	return qualified(qualifier(*st.place.Load()), text)
}

// heed notes whether the program allows prepared statements. One whose pooler forgets them does not.
func (st *store) heed(config *pgxpool.Config) {
	st.plain.Store(config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement)
}

// ownMost is how many connections of its own a driver over a program's pool makes at the most. One
// is enough for its upkeep; the others serve calls while the program has used up its pool.
const ownMost = 4

// borrowMost is how long a call waits for a connection of the program's pool that is used up, before one of the
// driver's own serves it.
const borrowMost = 100 * time.Millisecond

// makeOwn makes the driver's own way to the server: connections made as this pool makes them.
func (st *store) makeOwn(config *pgxpool.Config) error {
	if config.ConnConfig.ConnectTimeout == 0 { // the program's own choice, but ours are few
		config.ConnConfig.ConnectTimeout = theirsMost
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = ownMost, 0, 0
	d := newDialer()
	d.serve(config)
	config.MaxConnIdleTime = min(config.MaxConnIdleTime, idleFor)
	// These hooks are for the program's own use of connections.
	//lint:ignore SA1019 a program may set it still
	config.BeforeAcquire = nil
	config.PrepareConn, config.AfterRelease = nil, nil
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return backend.Invalid("the pool's configuration makes no second pool: %v", err)
	}
	st.own, st.dialer = own, d
	return nil
}

// close ends the driver's own connections, and waits for what uses them.
func (st *store) close() {
	if st.own != nil {
		st.dialer.close() // so that none waits for a server that is gone
		st.own.Close()
	}
	st.flying.Wait()
}

// link is a connection that statements of ours go by.
type link interface {
	// ask runs a statement.
	ask(ctx context.Context, s *statement) error
	// exec runs statements that have neither arguments nor an answer.
	exec(ctx context.Context, text string) error
	// begin runs do in a transaction, which is READ COMMITTED, and READ WRITE where reads says so, whatever the
	// session's defaults are. It ends with its session if do leaves it idle, see limitIdle.
	begin(ctx context.Context, do func(link) error) error
	// reads reports whether a statement alone only reads, on a server that could write.
	reads() bool
	// release gives the connection back.
	release()
}

// scanner is a row of an answer: of pgx, or of database/sql.
type scanner interface{ Scan(dest ...any) error }

// pgxLink is a link of pgx.
type pgxLink struct {
	*pgx.Conn
	from *pgxpool.Conn // nil: it is of no pool
}

func (l pgxLink) release() { l.from.Release() }

func acquire(ctx context.Context, pool *pgxpool.Pool) (link, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return pgxLink{conn.Conn(), conn}, nil
}

// ours takes a connection of the driver's own.
func (st *store) ours(ctx context.Context) (link, error) { return acquire(ctx, st.own) }

// theirs takes a connection of the program's.
func (st *store) theirs(ctx context.Context) (link, error) {
	if st.db != nil {
		return st.sqlConn(ctx)
	}
	return acquire(ctx, st.pool)
}

// borrow takes a connection for a call of the program: one of its pool, or, where the pool gives
// none, one of the driver's own. The program may have used up its pool and wait for this very call.
func (st *store) borrow(ctx context.Context) (link, error) {
	if st.own == nil || st.own == st.pool {
		return st.theirs(ctx)
	}
	limited, cancel := st.borrowing(ctx)
	conn, err := st.theirs(limited)
	cancel()
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	return st.ours(ctx)
}

// borrowing bounds the wait for a connection of the program's, if that has used up its pool or does so meanwhile:
// otherwise the pool may ping one that is idle, which it throws away where no answer comes in time.
func (st *store) borrowing(ctx context.Context) (context.Context, context.CancelFunc) {
	if st.usedUp() > 0 {
		return context.WithTimeout(ctx, borrowMost)
	}
	limited, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(lookMost, func() { // what the pool makes or pings for us should be there by then
		if st.usedUp() > 0 {
			cancel()
		}
	})
	return limited, func() { timer.Stop(); cancel() }
}

// spare takes a connection for what keeps locks and waits alive: one of the driver's own, or one of
// the pool where the server lets in no more.
func (st *store) spare(ctx context.Context) (link, error) {
	if st.own == nil {
		return st.theirs(ctx)
	}
	conn, err := st.ours(ctx)
	if err != nil && ctx.Err() == nil && st.own != st.pool && errors.As(err, new(*pgconn.PgError)) {
		limited, cancel := st.borrowing(ctx)
		defer cancel()
		if other, used := st.theirs(limited); used == nil {
			return other, nil
		}
	}
	return conn, err
}

// due reports whether the last sweep is long ago, and begins another one then.
func (st *store) due() bool {
	last, now := st.swept.Load(), time.Now()
	return now.Sub(*last) > tidyEvery && st.swept.CompareAndSwap(last, &now)
}

// key is a lock's name as the tables have it.
func (st *store) key(name string) []byte { return []byte(st.prefix + name) }

// unhex is bytes that the server has told in hex: what else it tells of a bytea depends on the
// session's bytea_output.
func unhex(digits string) string {
	b, _ := hex.DecodeString(digits)
	return string(b)
}

// literal is bytes as SQL, whatever the session's settings about strings and encodings are.
func literal(b []byte) string { return "decode('" + hex.EncodeToString(b) + "','hex')" }

// query runs a statement of ours for a call of the program. It may be sent twice: it has the effect
// of once. It needs no state of a session, so that it works behind a pooler in transaction mode.
// take is called for each row.
func (st *store) query(
	ctx context.Context, text string, args []any, take func(scanner) error,
) error {
	s := statement{conn: (*store).borrow, text: text, args: args, take: take, again: 1}
	return st.send(ctx, &s)
}

// upkeep is query for what keeps locks and waits alive, which no program's use of its pool may hold
// up.
func (st *store) upkeep(
	ctx context.Context, text string, args []any, take func(scanner) error,
) error {
	s := statement{conn: (*store).spare, text: text, args: args, take: take, again: 1}
	return st.send(ctx, &s)
}

// deadMost is how many connections that had died before one statement may meet: more than pools have.
const deadMost = 1000

// statement is one of ours, and what to send it by.
type statement struct {
	// A method of store: as a value it would be allocated.
	conn  func(*store, context.Context) (link, error)
	text  string
	name  string // by which sessions know it once it is prepared; "": it never is
	args  []any
	take  func(scanner) error
	raw   [][]byte // instead of args and take: arguments as text, for an answer of one text
	told  string   // that
	again int      // how often it is sent again where no answer came
	once  bool     // it is not sent to a second session where the server ended the first
	late  bool     // a copy that comes late does harm: the caller sends again what may have been sent
	ping  bool     // that has happened, perhaps to one of many connections that have died: ask first
	mute  bool     // push nothing: the server's queue of pushes is full
	plain bool     // prepare nothing
	same  bool     // it may be asked again in the same words, for the same answer
	sent  bool     // a try of it may have been: a copy may be under way
	// goes, if set, is asked right before it is sent. Its error says that the caller has gone, and nothing is sent.
	goes func() error
	at   backend.Instant // when it was asked; of the copy that was answered
}

// words are a statement's text and name.
type words struct{ text, name string }

// whole is a statement with the schema. A call of a function of ours is prepared, because its plan is the same whatever
// the tables have. Its name is made of its text and our version: behind a pooler a session has the statements of many
// clients.
func (st *store) whole(text string) words {
	w := words{text: st.sql(text)}
	if strings.HasPrefix(text, "SELECT fencelock_") {
		sum := sha256.Sum256([]byte(version + w.text))
		w.name = "fencelock_" + hex.EncodeToString(sum[:8])
	}
	return w
}

// send sends a statement again while the server has undone it or it was not sent.
func (st *store) send(ctx context.Context, s *statement) error {
	if err := st.ready(ctx); err != nil {
		return err
	}
	whole, ok := st.texts.Load(s.text)
	if !ok {
		whole, _ = st.texts.LoadOrStore(s.text, st.whole(s.text))
	}
	s.text, s.name = whole.(words).text, whole.(words).name
	for try := 0; ; try++ {
		s.plain = st.plain.Load()
		err := st.once(ctx, s)
		code := codeOf(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && !s.sent:
			return backend.Refusal(fmt.Errorf("no connection in time: %w", ctx.Err()))
		case ctx.Err() != nil:
			return ctx.Err()
		case missing(err) && try < 3:
			if err := st.create(ctx, true); err != nil {
				return err
			}
		case code == "FL001" && try < 3:
			st.level.Store(true)
		case code == "54000" && !s.mute:
			s.mute = true
		case forgot(err) && !s.plain: // it was not run
			st.plain.Store(true)
		case (code == "40001" || code == "40P01") && try < 3: // it was undone
		case (stale(err) || code == "57P01" && !s.once) && try < deadMost:
			// It met a connection that had died before, perhaps one of many.
		case broken(err) && s.again > 0:
			s.again--
		default:
			return limited(meaning(err))
		}
	}
}

// once runs a statement once.
func (st *store) once(ctx context.Context, s *statement) error {
	if st.db != nil {
		return st.sqlOnce(ctx, s)
	}
	return st.run(ctx, s)
}

func (st *store) run(ctx context.Context, s *statement) error {
	if f := st.slow.under(s); f != nil {
		return st.slow.join(ctx, f, s)
	}
	began := time.Now()
	conn, err := s.conn(st, ctx)
	if err == nil {
		if end, ok := ctx.Deadline(); ok && time.Until(end) < end.Sub(began)/4 {
			conn.release()
			err = errLate // sent now it would cost the connection, which is closed where no answer comes in time
		}
	}
	switch {
	case err != nil && s.sent && backend.Refused(err): // an earlier try was sent
		return errors.New(err.Error())
	case err != nil:
		return err
	}
	if s.goes != nil {
		if err := s.goes(); err != nil {
			conn.release()
			return err
		}
	}
	s.sent = true
	alone := !st.level.Load() && !s.mute && !conn.reads()
	if alone && s.raw != nil && st.slow.now() {
		return st.outlive(ctx, conn, s)
	}
	defer conn.release()
	if alone {
		err := conn.ask(ctx, s)
		st.slow.note(ctx, err)
		return err
	}
	return conn.begin(ctx, func(in link) error {
		if s.mute {
			if err := in.exec(ctx, "SET LOCAL fencelock.mute = on"); err != nil {
				return err
			}
		}
		return in.ask(ctx, s)
	})
}

func (l pgxLink) ask(ctx context.Context, s *statement) error {
	if s.raw != nil {
		rows, err := l.askText(ctx, s)
		if err == nil && len(rows) == 1 {
			s.told = string(rows[0][0])
		}
		return err
	}
	rows, err := l.Query(ctx, s.text, append([]any{pgx.QueryExecModeExec}, s.args...)...)
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		if s.take == nil {
			return struct{}{}, nil
		}
		return struct{}{}, s.take(row)
	})
	return err
}

// askText runs a statement that has its arguments as text. A session prepares it when it is asked for the second time,
// in the same round trip, and keeps it also where it fails then.
func (l pgxLink) askText(ctx context.Context, s *statement) (rows [][][]byte, err error) {
	conn := l.PgConn()
	known, again := conn.CustomData()[s.name].(*pgconn.StatementDescription)
	switch {
	case s.name == "" || s.plain || !again:
		if s.name != "" {
			conn.CustomData()[s.name] = known
		}
		res := conn.ExecParams(ctx, s.text, s.raw, nil, nil, nil).Read()
		return res.Rows, res.Err
	case known != nil:
		res := conn.ExecStatement(ctx, known, s.raw, nil, nil).Read()
		return res.Rows, res.Err
	}
	both := conn.StartPipeline(ctx)
	both.SendPrepare(s.name, s.text, nil)
	both.SendQueryPrepared(s.name, s.raw, nil, nil)
	err = both.Sync()
	for got := any(both); err == nil && got != nil; {
		switch got, err = both.GetResults(); got := got.(type) {
		case *pgconn.StatementDescription:
			if err == nil {
				got.Name = s.name
				conn.CustomData()[s.name] = got
			}
		case *pgconn.ResultReader:
			if err == nil {
				res := got.Read()
				rows, err = res.Rows, res.Err
			}
		}
	}
	return rows, cmp.Or(err, both.Close())
}

// forgot reports whether a session has not what it had prepared, or has another's of that name. PgBouncer from 1.21 on
// says so as of a client that breaks the protocol.
func forgot(err error) bool {
	code := codeOf(err)
	return code == "26000" || code == "42P05" || code == "08P01" && strings.Contains(err.Error(), "prepared statement")
}

func (l pgxLink) exec(ctx context.Context, text string) error {
	_, err := l.PgConn().Exec(ctx, text).ReadAll()
	return err
}

func (l pgxLink) begin(ctx context.Context, do func(link) error) error {
	how := "BEGIN ISOLATION LEVEL READ COMMITTED;"
	if l.reads() {
		how = beginning
	}
	return pgx.BeginTxFunc(ctx, l.Conn, pgx.TxOptions{BeginQuery: how + limitIdle},
		func(pgx.Tx) error { return do(l) })
}

func (l pgxLink) reads() bool {
	pg := l.PgConn()
	return pg.ParameterStatus("default_transaction_read_only") == "on" && pg.ParameterStatus("in_hot_standby") == "off"
}

// limited hides the deadline of a limit that the caller did not set, such as that of making a
// connection.
func limited(err error) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		return err
	case backend.Refused(err):
		return backend.Refusal(errors.New(err.Error()))
	}
	return fmt.Errorf("no answer in time: %s", err.Error())
}

// broken reports whether err is about the connection, not the server's answer to a statement.
func broken(err error) bool {
	var answer *pgconn.PgError
	var dial *pgconn.ConnectError
	if errors.As(err, &dial) || backend.Refused(err) {
		return false
	}
	if errors.As(err, &answer) && answer.SeverityUnlocalized == "FATAL" {
		return true
	}
	if code := codeOf(err); code != "" {
		return strings.HasPrefix(code, "57P0")
	}
	return !errors.Is(err, pgx.ErrNoRows)
}

// stale reports whether the statement met a connection that had died before, so that it was not
// sent. pgx says so of one that it closed while it read the answer too: that one was sent.
func stale(err error) bool {
	return broken(err) && pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

// endedBefore reports whether a session was ended before its statement, or by its server.
func endedBefore(err error) bool { return err != nil && (stale(err) || codeOf(err) == "57P01") }

// codeOf is the code of a server's error, of pgx or lib/pq, and otherwise "".
func codeOf(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// missing reports whether an object of ours is not there.
func missing(err error) bool {
	code := codeOf(err)
	return code == "42P01" || code == "42883" || code == "42704"
}

// ready finds out, before the first statement, in which schema our objects are, and creates them
// there if they are not.
func (st *store) ready(ctx context.Context) error {
	if st.place.Load() != nil {
		return nil
	}
	return st.create(ctx, false)
}

// create looks for our objects and creates them if they are not there, unless another call has done it meanwhile;
// again: where they were, for the server may have lost its data. Processes that do so at once wait for each other. The
// connection is the driver's own, where it has one of the program's pool's kind: no SET of the program has moved its
// search_path. It goes on when ctx ends, or on a slow server every call would begin it anew.
func (st *store) create(ctx context.Context, again bool) error {
	flying := &st.flying
	if st.db != nil {
		flying = new(core.Group)
	}
	_, err := core.Do(ctx, true, flying, func(ctx context.Context) (found string, err error) {
		select {
		case st.ensuring <- struct{}{}:
			defer func() { <-st.ensuring }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
		in := st.schema
		if at := st.place.Load(); at != nil {
			if in = *at; !again {
				return "", nil
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createMost)
		defer cancel()
		if st.db == nil {
			found, err = st.createIn(ctx, in)
		} else {
			found, err = aside(ctx, func(ctx context.Context) (string, error) { return st.createIn(ctx, in) })
		}
		if err == nil {
			st.place.Store(&found)
		}
		return found, limited(err)
	})
	return err
}

// createIn creates our objects in a schema, and returns which that is, see schemaIn.
func (st *store) createIn(ctx context.Context, schema string) (string, error) {
	from := (*store).ours
	if st.db != nil { // whether it has connections of its own or not, all clients must find the same
		from = (*store).theirs
	}
	conn, err := from(st, ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", meaning(err)
	}
	defer conn.release() // also if ctx has ended just now: Close waits for every connection
	return schemaIn(ctx, conn, schema)
}

// CreateSchema creates the objects of [Schema] if they are not there: what the driver does by
// itself on first use. A program that only checks tokens, in a database without locks, calls it
// once. schema is where; "" stands for the first schema of the search_path that has them, and where
// none has, for the first. The error matches ErrInvalid if there is no such schema, the role may
// not create tables in it, or the objects there are of another version: they are never changed.
func CreateSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	_, err := schemaIn(ctx, pgxLink{Conn: conn}, schema)
	return err
}

// schemaIn is CreateSchema, and returns the schema.
func schemaIn(ctx context.Context, conn link, schema string) (in string, err error) {
	err = conn.begin(ctx, func(tx link) error {
		in, err = createSchema(ctx, tx, schema)
		return err
	})
	return in, meaning(err)
}

// version is that of [Schema].
var version = regexp.MustCompile(`fencelock_version\(\).* AS 'SELECT (\d+)'`).FindStringSubmatch(Schema)[1]

// relations are the tables and sequences of [Schema].
var relations = func() (names []string) {
	made := regexp.MustCompile(
		`(?m)^CREATE (?:UNLOGGED )?(?:TABLE|SEQUENCE) IF NOT EXISTS (fencelock_\w+)`)
	for _, m := range made.FindAllStringSubmatch(Schema, -1) {
		names = append(names, m[1])
	}
	return names
}()

// whereSchema finds the schema $1, or, without one, the first of the search_path that has our
// objects, else the first of all.
const whereSchema = `SELECT nspname FROM pg_namespace WHERE nspname = coalesce(nullif($1, ''),
	(SELECT s FROM unnest(current_schemas(false)) WITH ORDINALITY p(s, i) JOIN pg_namespace n ON n.nspname = s
		JOIN pg_proc f ON f.pronamespace = n.oid AND f.proname = 'fencelock_version' ORDER BY i LIMIT 1),
	current_schema())`

// createSchema returns the schema of our objects, and creates them if they are not there. Only callers
// that are about to create them wait for each other.
func createSchema(ctx context.Context, tx link, schema string) (in string, err error) {
	in, there, err := findSchema(ctx, tx, schema)
	if err != nil || there {
		return in, err
	}
	if err := tx.exec(ctx, "SELECT pg_advisory_xact_lock(7306, -1); "+
		"SET LOCAL client_min_messages = warning; SET LOCAL synchronous_commit = on"); err != nil {
		return "", err
	}
	if in, there, err = findSchema(ctx, tx, schema); err == nil && !there {
		err = tx.exec(ctx, "SET LOCAL search_path = "+pgx.Identifier{in}.Sanitize()+";"+Schema)
	}
	return in, err
}

// findSchema returns the schema that our objects belong in, and whether all are there.
func findSchema(ctx context.Context, tx link, schema string) (in string, all bool, err error) {
	// ask returns whether there is a row.
	ask := func(text string, args []any, dest ...any) (found bool, err error) {
		err = tx.ask(ctx, &statement{text: text, args: args, take: func(row scanner) error {
			found = true
			return row.Scan(dest...)
		}})
		return found, err
	}
	found, err := ask(whereSchema, []any{schema}, &in)
	switch {
	case err != nil:
		return "", false, err
	case !found && schema == "":
		return "", false, backend.Invalid("the search_path of the role names no schema that exists: " +
			"create one, or name one by schema=")
	case !found:
		return "", false, backend.Invalid("there is no schema %q: create it, or name another by schema=",
			schema)
	}
	if err := checkSchema(in); err != nil {
		return "", false, err
	}
	before := qualifier(in)
	var there, whole bool
	_, err = ask(`SELECT to_regprocedure($1 || 'fencelock_version()') IS NOT NULL,
		NOT EXISTS (SELECT FROM unnest($2::text[]) r WHERE to_regclass($1 || r) IS NULL)`,
		[]any{before, "{" + strings.Join(relations, ",") + "}"}, &there, &whole)
	if err != nil {
		return "", false, err
	}
	if there {
		var theirs string
		_, err = ask(qualified(before, "SELECT fencelock_version()::text"), nil, &theirs)
		if err == nil && theirs != version {
			err = backend.Invalid("the driver's objects in schema %q are of version %s, "+
				"and this program's of version %s: "+
				"name another schema by schema=", in, theirs, version)
		}
	}
	return in, there && whole, err
}

// qualifier is what goes before the names of objects in a schema.
func qualifier(schema string) string { return pgx.Identifier{schema}.Sanitize() + "." }

// qualified puts it there.
func qualified(before, sql string) string {
	return strings.ReplaceAll(sql, "fencelock_", before+"fencelock_")
}

// checkSchema refuses names that would end a string or a function's body.
func checkSchema(name string) error {
	if len(name) > 63 || strings.ContainsAny(name, "\x00'$") {
		return backend.Invalid("the name of the schema: want at most 63 bytes without ', $ and NUL")
	}
	return nil
}

// meanings are the errors of the server that another try cannot mend, by their codes.
var meanings = map[string]string{
	"42501": "the role lacks rights: run the driver's schema.sql once as the owner of the schema, " +
		"with the GRANTs at its head (docs/postgres.md)",
	"42P01": "a table of the driver is missing, and could not be created",
	"42704": "a table of the driver is missing, and could not be created",
	"42883": "a function of the driver is missing, and could not be created",
	"42703": "a table of the driver's name has other columns: another program's, or of another version",
	"42809": "an object of the driver's name is something else",
	"42P07": "an object of the driver's name is something else",
	"42P13": "a function of the driver's name has another signature: of another version?",
	"28P01": "the server refuses the user or password",
	"28000": "the server refuses the user",
	"3D000": "the server has no such database",
	"3F000": "the server has no such schema",
	"FL053": "a floor or token is too far ahead: want at most the server's clock in µs and an hour",
	"FL022": "a table of the driver has what no driver writes there",
}

// meaning returns an error of the server as the contract has it: one of those is ErrInvalid.
func meaning(err error) error {
	means := meanings[codeOf(err)]
	if means == "" || backend.Final(err) {
		return err
	}
	return backend.Invalid("%s (%w)", means, err)
}

// millis is a duration as the server takes it. It rounds up: the store may keep a lock longer,
// never shorter.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
