package doctor

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
)

const (
	// usualConns is the size of the driver's pool where the URL does not say.
	usualConns = 50
	// statementLeast and lockLeast are the shortest timeouts that do not disturb the driver.
	statementLeast, lockLeast = 5 * time.Second, time.Second
	// keepaliveMost is how many seconds a vanished host's session may stay before the server probes it.
	keepaliveMost = 60
)

// database is a connection to the server, in simple protocol: it may lead through a pooler.
type database struct {
	*pgx.Conn
	config *pgx.ConnConfig
	where  string
	pool   int  // pool_max_conns
	row    bool // mode row or advisory
}

// one asks for one value, as text; empty for NULL.
func (db *database) one(ctx context.Context, sql string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	var v *string
	args = append([]any{pgx.QueryExecModeSimpleProtocol}, args...)
	err := db.QueryRow(ctx, sql, args...).Scan(&v)
	if err != nil || v == nil {
		return "", err
	}
	return *v, nil
}

//go:embed sql
var statements embed.FS

// ask asks for the one value of a statement that is a file.
func (db *database) ask(ctx context.Context, name string, args ...any) (string, error) {
	sql, err := statements.ReadFile("sql/" + name + ".sql")
	if err != nil {
		return "", err
	}
	return db.one(ctx, string(sql), args...)
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
		x.report.Backend = "postgres-" + cmp.Or(x.keys.Get("mode"), "row")
	}
	x.saw(db.where)
	s, err := x.sample(ctx, func(ctx context.Context) (time.Time, error) {
		us, err := db.one(ctx,
			"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text")
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
		x.postgresSettings, x.postgresStandbys, x.postgresRoom, x.postgresHolds, x.postgresPooler,
		x.postgresSchema,
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
	at.Scheme = "postgres"
	at.RawQuery = strings.ReplaceAll(keys.Encode(), "+", "%20") // pgx 5.12 reads a + as one
	pool, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		// The driver has read it. pgx's error may quote it.
		return nil, backend.Invalid("the URL cannot be read by pgx")
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
	other := func(f *pgconn.FallbackConfig) bool { // else it is the same host with or without TLS
		return f.Host != db.config.Host || f.Port != db.config.Port
	}
	if !keys.Has("target_session_attrs") && slices.ContainsFunc(db.config.Fallbacks, other) {
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

// postgresSettings checks settings as they are in force for a session of this role.
func (x *exam) postgresSettings(ctx context.Context, db *database) error {
	recovering, err := db.one(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil {
		return err
	}
	if recovering == "true" {
		x.add("postgres-read-only", db.where, "a standby")
	}
	isOff := func(v string) bool { return v == "off" }
	for _, c := range []struct {
		setting, id, unit string
		wrong             func(v string) bool
	}{
		{"server_version", "postgres-version", "", func(v string) bool {
			return release.Older(v, x.least["postgres"])
		}},
		{"default_transaction_read_only", "postgres-read-only", "", func(v string) bool {
			return v == "on" && recovering != "true"
		}},
		{"fsync", "postgres-fsync", "", isOff},
		{"full_page_writes", "postgres-full-page-writes", "", isOff},
		{"synchronous_commit", "postgres-async-commit", "", isOff},
		{"statement_timeout", "postgres-statement-timeout", " ms", func(v string) bool {
			return short(v, statementLeast)
		}},
		{"lock_timeout", "postgres-lock-timeout", " ms", func(v string) bool {
			return short(v, lockLeast)
		}},
		{"idle_session_timeout", "postgres-idle-session", " ms", func(v string) bool {
			return !db.row && short(v, 1<<62)
		}},
		{"tcp_keepalives_idle", "postgres-keepalives", " s", func(v string) bool {
			idle, err := strconv.Atoi(v)
			return err == nil && idle > keepaliveMost
		}},
	} {
		v, err := db.one(ctx, "SELECT setting FROM pg_settings WHERE name = $1", c.setting)
		if err != nil {
			return err
		}
		if c.wrong(v) {
			x.add(c.id, db.where, v+c.unit)
		}
	}
	return nil
}

// short reports whether a timeout in milliseconds is on and shorter than least.
func short(ms string, least time.Duration) bool {
	n, err := strconv.ParseInt(ms, 10, 64)
	return err == nil && n > 0 && time.Duration(n)*time.Millisecond < least
}

// postgresStandbys checks that a failover would lose no locks.
func (x *exam) postgresStandbys(ctx context.Context, db *database) error {
	text, err := db.ask(ctx, "standbys")
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
		x.add("postgres-async-standby", db.where,
			"synchronous_commit = local waits for none of them")
	}
	return nil
}

// postgresRoom checks that a pool of the URL's size fits into the server's limits.
func (x *exam) postgresRoom(ctx context.Context, db *database) error {
	text, err := db.ask(ctx, "room")
	if err != nil {
		return err
	}
	room, err := strconv.Atoi(text) // without the doctor's own connection
	if err == nil && db.pool > room {
		x.add("postgres-connections", db.where,
			fmt.Sprintf("room for %d more, a pool of up to %d", room, db.pool))
	}
	return err
}

// postgresHolds checks that no lease and no waiter of any schema holds back vacuum for long.
func (x *exam) postgresHolds(ctx context.Context, db *database) error {
	text, err := db.ask(ctx, "holds", fmt.Sprintf("%d ms", x.hold.Milliseconds()))
	if err != nil {
		return err
	}
	var leases, seconds int
	if _, err := fmt.Sscan(text, &leases, &seconds); err != nil {
		return err
	}
	if leases > 0 {
		x.add("postgres-long-hold", db.where,
			fmt.Sprintf("%d for more than %v, the oldest for %v",
				leases, x.hold, time.Duration(seconds)*time.Second))
	}
	return nil
}

// postgresMeaning returns an error with the sentinel that the exit code needs: an error that another try
// cannot mend becomes ErrInvalid. It keeps the server's message, but not pgx's, which may quote the URL.
func postgresMeaning(err error) error {
	if err == nil || backend.Final(err) {
		return err
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch answer.Code {
		case "28P01", "28000", "3D000", "42501":
			return backend.Invalid("the PostgreSQL server refuses: %s (%s)",
				answer.Message, answer.Code)
		}
		return fmt.Errorf("the server answers: %s (%s)", answer.Message, answer.Code)
	}
	if at, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		host := net.JoinHostPort(at.Config.Host, strconv.Itoa(int(at.Config.Port)))
		return fmt.Errorf("the PostgreSQL server at %s cannot be reached: %s", host, plainCause(err))
	}
	return err
}

// plainCause is the text of the network error, or of the innermost error, without pgx's own text.
func plainCause(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
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
