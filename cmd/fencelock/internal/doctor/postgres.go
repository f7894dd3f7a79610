package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

const (
	// usualConns is the size of the driver's pool where the URL does not say.
	usualConns = 50
	// statementLeast and lockLeast are timeouts that do not get into the driver's way.
	statementLeast, lockLeast = 5 * time.Second, time.Second
	// keepaliveMost is how long a vanished host's session may stay before anyone asks for it.
	keepaliveMost = 60
)

// database is a connection to the server, in simple protocol: it may lead through a pooler.
type database struct {
	*pgx.Conn
	config *pgx.ConnConfig
	where  string
	pool   int  // pool_max_conns
	row    bool // mode row
}

// one asks for one value, as text; empty for NULL.
func (db *database) one(ctx context.Context, sql string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	var v *string
	err := db.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&v)
	if err != nil || v == nil {
		return "", err
	}
	return *v, nil
}

// postgres examines a server in the mode of the URL.
func (x *exam) postgres(ctx context.Context) error {
	db, err := x.connectPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	x.report.Backend = "postgres-lease"
	if db.row {
		x.report.Backend = "postgres-row"
	}
	x.saw(db.where)
	s, err := x.sample(ctx, func(ctx context.Context) (time.Time, error) {
		us, err := db.one(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text")
		if err != nil {
			return time.Time{}, err
		}
		n, err := strconv.ParseInt(us, 10, 64)
		return time.UnixMicro(n), err
	})
	if err != nil {
		return postgresMeaning(err)
	}
	x.judge(db.where, s, 0)
	for _, look := range []func(context.Context, *database) error{
		x.postgresSettings, x.postgresStandbys, x.postgresRoom, x.postgresPooler, x.postgresSchema,
	} {
		if err := look(ctx, db); err != nil {
			return postgresMeaning(err)
		}
	}
	return nil
}

func (x *exam) connectPostgres(ctx context.Context) (*database, error) {
	keys := url.Values{}
	for k, v := range x.keys {
		switch k {
		case "mode", "prefix", "ttl", "schema", "listen_url": // the driver's and the engine's
		default:
			keys[k] = v
		}
	}
	at := *x.u
	at.Scheme, at.RawQuery = "postgres", keys.Encode()
	pool, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		return nil, backend.Invalid("the URL cannot be read by pgx") // the driver has read it; pgx's words may quote it
	}
	db := &database{config: pool.ConnConfig, pool: usualConns, row: x.keys.Get("mode") != "lease"}
	if keys.Has("pool_max_conns") {
		db.pool = int(pool.MaxConns)
	}
	if !keys.Has("connect_timeout") {
		db.config.ConnectTimeout = askMost
	}
	if db.config.RuntimeParams["application_name"] == "" {
		db.config.RuntimeParams["application_name"] = "fencelock doctor"
	}
	if len(db.config.Fallbacks) > 0 && !keys.Has("target_session_attrs") && severalHosts(db.config) {
		x.add("postgres-hosts", "", "any, with several hosts")
	}
	if db.Conn, err = pgx.ConnectConfig(ctx, db.config); err != nil {
		return nil, postgresMeaning(err)
	}
	db.where = net.JoinHostPort(db.config.Host, strconv.Itoa(int(db.config.Port)))
	if to := db.PgConn().Conn().RemoteAddr(); to != nil && to.Network() == "tcp" {
		db.where = to.String()
	}
	return db, nil
}

// severalHosts reports whether a client has a choice; pgx also has fallbacks of one host, with and without TLS.
func severalHosts(c *pgx.ConnConfig) bool {
	for _, f := range c.Fallbacks {
		if f.Host != c.Host || f.Port != c.Port {
			return true
		}
	}
	return false
}

// postgresSettings checks settings as they are in force for a session of this role.
func (x *exam) postgresSettings(ctx context.Context, db *database) error {
	get := func(name string) (string, error) {
		return db.one(ctx, "SELECT setting FROM pg_settings WHERE name = $1", name)
	}
	recovering, err := db.one(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		setting string
		finding func(v string) (id, value string) // no id: nothing is wrong
	}{
		{"server_version", func(v string) (string, string) { return when(older(v, x.least["postgres"]), "postgres-version", v) }},
		{"default_transaction_read_only", func(v string) (string, string) {
			if recovering == "true" {
				return "postgres-read-only", "a standby"
			}
			return when(v == "on", "postgres-read-only", v)
		}},
		{"fsync", func(v string) (string, string) { return when(v == "off", "postgres-fsync", v) }},
		{"full_page_writes", func(v string) (string, string) { return when(v == "off", "postgres-full-page-writes", v) }},
		{"synchronous_commit", func(v string) (string, string) { return when(v == "off", "postgres-async-commit", v) }},
		{"statement_timeout", func(v string) (string, string) {
			return when(short(v, statementLeast), "postgres-statement-timeout", v+" ms")
		}},
		{"lock_timeout", func(v string) (string, string) {
			return when(short(v, lockLeast), "postgres-lock-timeout", v+" ms")
		}},
		{"idle_session_timeout", func(v string) (string, string) {
			return when(!db.row && short(v, 1<<62), "postgres-idle-session", v+" ms")
		}},
		{"tcp_keepalives_idle", func(v string) (string, string) {
			idle, err := strconv.Atoi(v)
			return when(err == nil && idle > keepaliveMost, "postgres-keepalives", v+" s")
		}},
	} {
		v, err := get(c.setting)
		if err != nil {
			return err
		}
		if id, value := c.finding(v); id != "" {
			x.add(id, db.where, value)
		}
	}
	return nil
}

func when(wrong bool, id, value string) (string, string) {
	if !wrong {
		return "", ""
	}
	return id, value
}

// short reports whether a timeout in milliseconds is on and shorter than least.
func short(ms string, least time.Duration) bool {
	n, err := strconv.ParseInt(ms, 10, 64)
	return err == nil && n > 0 && time.Duration(n)*time.Millisecond < least
}

// postgresStandbys checks what a failover would lose.
func (x *exam) postgresStandbys(ctx context.Context, db *database) error {
	const sql = `SELECT count(*)::text || ' ' || count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::text || ' ' || count(sync_state)::text
		FROM pg_stat_replication`
	text, err := db.one(ctx, sql)
	if err != nil {
		return err
	}
	var all, synchronous, told int
	if _, err := fmt.Sscan(text, &all, &synchronous, &told); err != nil {
		return err
	}
	commit, err := db.one(ctx, "SHOW synchronous_commit")
	if err != nil {
		return err
	}
	switch {
	case all == 0:
	case told < all:
		x.add("postgres-replication-unseen", db.where, fmt.Sprintf("%d standbys", all))
	case synchronous == 0:
		x.add("postgres-async-standby", db.where, fmt.Sprintf("%d standbys, none synchronous", all))
	case commit == "local":
		x.add("postgres-async-standby", db.where, "synchronous_commit = local waits for none of them")
	}
	return nil
}

// postgresRoom checks that a pool of the URL's size fits into the server's limits.
func (x *exam) postgresRoom(ctx context.Context, db *database) error {
	const sql = `SELECT (1 + least(
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- (SELECT sum(numbackends) FROM pg_stat_database),
			CASE WHEN r.rolconnlimit >= 0 THEN r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) END,
			CASE WHEN d.datconnlimit >= 0 THEN d.datconnlimit - (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()) END
		))::bigint::text
		FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()`
	text, err := db.one(ctx, sql)
	if err != nil {
		return err
	}
	room, err := strconv.Atoi(text) // without the doctor's own connection
	if err == nil && db.pool > room {
		x.add("postgres-connections", db.where, fmt.Sprintf("room for %d more, a pool of up to %d", room, db.pool))
	}
	return err
}

// postgresMeaning returns an error as the exit code needs it: what another try cannot mend is ErrInvalid. The server's own
// words are kept, pgx's are not: they may quote the URL.
func postgresMeaning(err error) error {
	var answer *pgconn.PgError
	var dial *pgconn.ConnectError
	switch {
	case err == nil || backend.Final(err):
		return err
	case errors.As(err, &answer):
		switch answer.Code {
		case "28P01", "28000", "3D000", "42501":
			return backend.Invalid("the PostgreSQL server refuses: %s (%s)", answer.Message, answer.Code)
		}
		return fmt.Errorf("the server answers: %s (%s)", answer.Message, answer.Code)
	case errors.As(err, &dial):
		return errors.New("the PostgreSQL server cannot be reached: " + plainCause(err))
	}
	return err
}

// plainCause is the innermost error's text: a network error, without what pgx says around it.
func plainCause(err error) string {
	var network *net.OpError
	if errors.As(err, &network) {
		return network.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}
