package postgres

import (
	"context"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// Schema is the SQL of every table, sequence and function that the driver uses.
// It is run on first use; where the role may not create tables, run it by hand.
//
//go:embed schema.sql
var Schema string

// claim is how long a grant that a waiter has not confirmed yet lasts.
const claim = 2 * time.Second

// store is the way to the server that both modes share.
type store struct {
	pool   *pgxpool.Pool
	schema string // as the program gave it; "" is the first of the search_path
	before string // what goes before the names of our objects
	prefix string

	gates    atomic.Pointer[gates]
	level    atomic.Bool    // the sessions' default isolation level is not READ COMMITTED
	ensuring chan struct{}  // of size 1: who creates the schema
	flying   sync.WaitGroup // what outlives its caller
}

// sql qualifies the names of our objects.
func (st *store) sql(text string) string {
	return qualified(st.before, text)
}

// key is a lock's name as the tables have it.
func (st *store) key(name string) []byte { return []byte(st.prefix + name) }

// literal is bytes as SQL, whatever the session's settings about strings and encodings are.
func literal(b []byte) string { return "decode('" + hex.EncodeToString(b) + "','hex')" }

// query runs a statement of ours that may be sent twice: it has the effect of once, or
// carries a nonce. It needs no state of a session, so that it works behind a pooler in transaction mode. take is
// called for each row.
func (st *store) query(ctx context.Context, text string, args []any, take func(pgx.CollectableRow) error) error {
	text = st.sql(text)
	all := append([]any{pgx.QueryExecModeExec}, args...)
	again := 1
	for try := 0; ; try++ {
		err := st.once(ctx, text, all, take)
		var answer *pgconn.PgError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case missing(err) && try < 3:
			if err := st.ensure(ctx); err != nil {
				return err
			}
		case errors.As(err, &answer) && answer.Code == "FL001" && try < 3:
			st.level.Store(true)
		case errors.As(err, &answer) && (answer.Code == "40001" || answer.Code == "40P01") && try < 3: // it was undone
		case stale(err) && try <= int(st.pool.Config().MaxConns):
		case broken(err) && again > 0:
			again--
		default:
			return meaning(err)
		}
	}
}

// once runs a statement once.
func (st *store) once(ctx context.Context, text string, args []any, take func(pgx.CollectableRow) error) error {
	run := func(db interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	},
	) error {
		rows, err := db.Query(ctx, text, args...)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			if take == nil {
				return struct{}{}, nil
			}
			return struct{}{}, take(row)
		})
		return err
	}
	if !st.level.Load() {
		return run(st.pool)
	}
	return pgx.BeginTxFunc(ctx, st.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return run(tx) })
}

// broken reports whether err is about the connection, not the server's answer to a statement.
func broken(err error) bool {
	var answer *pgconn.PgError
	var dial *pgconn.ConnectError
	if errors.As(err, &dial) {
		return false
	}
	if errors.As(err, &answer) {
		return answer.SeverityUnlocalized == "FATAL" || strings.HasPrefix(answer.Code, "57P0")
	}
	return !errors.Is(err, pgx.ErrNoRows)
}

// stale reports whether the statement met a connection that had died before, so that it was not sent.
func stale(err error) bool { return broken(err) && pgconn.SafeToRetry(err) }

// missing reports whether an object of ours is not there.
func missing(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (answer.Code == "42P01" || answer.Code == "42883" || answer.Code == "42704")
}

// ensure creates the schema if it is not there. Processes that do so at once wait for each other.
func (st *store) ensure(ctx context.Context) error {
	select {
	case st.ensuring <- struct{}{}:
		defer func() { <-st.ensuring }()
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, err := st.pool.Acquire(ctx)
	if err != nil {
		return meaning(err)
	}
	defer conn.Release()
	return CreateSchema(ctx, conn.Conn(), st.schema)
}

// CreateSchema creates the objects of [Schema] if they are not there, or of an earlier version: what the driver does by itself on first
// use. A program that only checks tokens, in a database without locks, calls it once. schema is where; "" stands
// for the first schema of the search_path. The error matches ErrInvalid if there is no such schema or the
// role may not create tables in it.
func CreateSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return createSchema(ctx, tx, schema)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return meaning(err)
}

// version is that of [Schema].
var version = regexp.MustCompile(`fencelock_version\(\).* AS 'SELECT (\d+)'`).FindStringSubmatch(Schema)[1]

// relations are the tables and sequences of [Schema].
var relations = regexp.MustCompile(`fencelock_\w+`).FindAllString(strings.Join(
	regexp.MustCompile(`(?m)^CREATE (?:UNLOGGED )?(?:TABLE|SEQUENCE) IF NOT EXISTS fencelock_\w+`).FindAllString(Schema, -1), " "), -1)

func createSchema(ctx context.Context, tx pgx.Tx, schema string) error {
	run := func(sql string) error {
		_, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
		return err
	}
	if err := run("SELECT pg_advisory_xact_lock(7306, -1); SET LOCAL client_min_messages = warning; SET LOCAL synchronous_commit = on"); err != nil {
		return err
	}
	var in string
	err := tx.QueryRow(ctx, `SELECT nspname FROM pg_namespace WHERE nspname = coalesce(nullif($1, ''), current_schema()::text)`,
		pgx.QueryExecModeExec, schema).Scan(&in)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && schema == "":
		return backend.Invalid("the search_path of the role names no schema that exists: create one, or name one by schema=")
	case errors.Is(err, pgx.ErrNoRows):
		return backend.Invalid("there is no schema %q: create it, or name another by schema=", schema)
	case err != nil:
		return err
	}
	if err := checkSchema(in); err != nil {
		return err
	}
	// In the database every name is qualified, so that the functions find the tables whatever the search_path of their callers is.
	before := qualifier(in)
	var there bool
	err = tx.QueryRow(ctx, `SELECT to_regprocedure($1 || 'fencelock_version()') IS NOT NULL AND NOT EXISTS (SELECT FROM unnest($2::text[]) r WHERE to_regclass($1 || r) IS NULL)`,
		pgx.QueryExecModeExec, before, relations).Scan(&there)
	if err == nil && there { // of an earlier version it is run again
		err = tx.QueryRow(ctx, qualified(before, "SELECT fencelock_version() >= $1::text::int"), pgx.QueryExecModeExec, version).Scan(&there)
	}
	if err != nil || there {
		return err
	}
	return run(qualified(before, Schema))
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

// meaning returns an error of the server as the contract has it: what another try cannot mend is ErrInvalid.
func meaning(err error) error {
	var answer *pgconn.PgError
	if err == nil || backend.Final(err) || !errors.As(err, &answer) {
		return err
	}
	for _, m := range []struct{ code, means string }{
		{"42501", "the role lacks rights: run the driver's schema.sql once as the owner of the schema, with the GRANTs at its head (docs/postgres.md)"},
		{"42P01", "a table of the driver is missing, and could not be created"},
		{"42704", "a table of the driver is missing, and could not be created"},
		{"42883", "a function of the driver is missing, and could not be created"},
		{"42703", "a table of the driver's name has other columns: another program's, or of another version"},
		{"42809", "an object of the driver's name is something else"},
		{"42P07", "an object of the driver's name is something else"},
		{"42P13", "a function of the driver's name has another signature: of another version?"},
		{"28P01", "the server refuses the user or password"},
		{"28000", "the server refuses the user"},
		{"3D000", "the server has no such database"},
		{"3F000", "the server has no such schema"},
		{"FL053", "a floor or token of 2^53 or more"},
		{"FL022", "a table of the driver has what no driver writes there"},
		{"0A000", "the server cannot do that: PostgreSQL 15 or later is needed"},
	} {
		if answer.Code == m.code {
			return &refused{m.means, err}
		}
	}
	return err
}

// refused is a server's error that matches ErrInvalid.
type refused struct {
	means string
	err   error
}

func (e *refused) Error() string {
	return fmt.Sprintf("%v: %s (%v)", backend.ErrInvalid, e.means, e.err)
}
func (e *refused) Unwrap() []error { return []error{backend.ErrInvalid, e.err} }

// raise makes every later token of a name exceed floor; of all names without a key.
func (st *store) raise(ctx context.Context, key []byte, floor backend.Token) error {
	return st.query(ctx, "SELECT fencelock_raise($1, $2)", []any{key, floor}, nil)
}

// millis is a duration as the server takes it. It rounds up: the store may keep a lock longer, never shorter.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// dialer is the way to dial of pools that the driver opened: it notices a dead network soon, and can end every
// connection at once.
type dialer struct {
	net.Dialer
	mu     sync.Mutex
	closed bool
	conns  map[*dialed]struct{}
}

type dialed struct {
	net.Conn
	of *dialer
}

func newDialer() *dialer {
	return &dialer{
		Dialer: net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 4}},
		conns:  map[*dialed]struct{}{},
	}
}

// dial is a pgconn.DialFunc.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	one := &dialed{c, d}
	d.conns[one] = struct{}{}
	return one, nil
}

// Close closes the connection and forgets it.
func (c *dialed) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close ends every connection, and what waits for one.
func (d *dialer) close() {
	d.mu.Lock()
	d.closed = true
	all := d.conns
	d.conns = map[*dialed]struct{}{}
	d.mu.Unlock()
	for c := range all {
		_ = c.Conn.Close()
	}
}
