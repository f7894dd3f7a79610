package doctor

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/release"
	"github.com/fencelock/fencelock/postgres"
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
	db.config.ConnectTimeout = cli.OpenMost // that of the URL may be 0: for ever
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

// rounds is how often two connections are compared.
const rounds = 5

// postgresPooler finds out whether a pooler is in between, and in which mode.
//
// A pooler gives its clients process ids of its own, so the id in the connection's greeting is not the
// server's. If the pooler pools sessions, two clients have two sessions for as long as they are
// connected. If both are ever served by one session, it pools transactions or statements.
func (x *exam) postgresPooler(ctx context.Context, db *database) error {
	mine, err := db.one(ctx, "SELECT pg_backend_pid()::text")
	if err != nil {
		return err
	}
	if pid, err := strconv.ParseUint(mine, 10, 32); err != nil || uint32(pid) == db.PgConn().PID() {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, db.config)
	if err != nil {
		x.add("postgres-pooler-session", db.where, "it refuses a second connection")
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	other := &database{Conn: conn}
	seen := map[string]bool{}
	for range rounds {
		for i, c := range []*database{db, other} {
			pid, err := c.one(ctx, "SELECT pg_backend_pid()::text")
			if err != nil {
				return err
			}
			seen[strconv.Itoa(i)+" "+pid] = true
			if len(seen) > 2 || seen[strconv.Itoa(1-i)+" "+pid] {
				x.pooled(db)
				return nil
			}
		}
	}
	x.add("postgres-pooler-session", db.where, "session mode")
	return nil
}

// pooled notes a pooler that serves several clients with one session.
func (x *exam) pooled(db *database) {
	switch {
	case db.row:
		x.add("postgres-pooler", db.where, "several clients share a session")
	case !x.keys.Has("listen_url"):
		x.add("postgres-pooler-listen", db.where, "no listen_url")
	}
}

// objects are the names of the tables and sequences in the driver's schema.
var (
	tables    = objects("TABLE")
	sequences = objects("SEQUENCE")
)

func objects(kind string) []string {
	create := regexp.MustCompile(
		`(?m)^CREATE (?:UNLOGGED )?` + kind + ` IF NOT EXISTS (fencelock_\w+)`)
	var names []string
	for _, m := range create.FindAllStringSubmatch(postgres.Schema, -1) {
		names = append(names, m[1])
	}
	return names
}

var schemaVersion = regexp.MustCompile(`fencelock_version\(\).* AS 'SELECT (\d+)'`).
	FindStringSubmatch(postgres.Schema)[1]

// postgresSchema checks that the driver's tables are there or may be made, and that the role may
// use them.
func (x *exam) postgresSchema(ctx context.Context, db *database) error {
	schema, err := db.ask(ctx, "where", x.keys.Get("schema"))
	if err != nil && err != pgx.ErrNoRows {
		return err
	}
	if schema == "" {
		x.add("postgres-schema", db.where, "no schema: neither search_path nor schema= names one "+
			"that exists")
		return nil
	}
	may, err := db.one(ctx, "SELECT has_schema_privilege($1, 'CREATE')::text || ' ' || "+
		"has_schema_privilege($1, 'USAGE')::text", schema)
	if err != nil {
		return err
	}
	create, usage := strings.HasPrefix(may, "true"), strings.HasSuffix(may, " true")
	if !usage { // the objects cannot be asked for without it
		x.add("postgres-rights", db.where, "no USAGE on schema "+schema)
		return nil
	}
	before := pgx.Identifier{schema}.Sanitize() + "."
	theirs, err := db.ask(ctx, "version", before)
	if err != nil {
		return err
	}
	if theirs = strings.TrimPrefix(theirs, "SELECT "); theirs != "" && theirs != schemaVersion {
		x.add("postgres-schema-old", db.where,
			"version "+theirs+", this program has "+schemaVersion)
		return nil
	}
	all := strings.Join(slices.Concat(tables, sequences), " ")
	missing, err := db.ask(ctx, "missing", before, all)
	switch {
	case err != nil:
		return err
	case missing != "" && create:
		x.add("postgres-schema-missing", db.where, "in schema "+schema)
		return nil
	case missing != "":
		x.add("postgres-schema", db.where, "missing in schema "+schema+": "+shorten(missing))
		return nil
	}
	return x.postgresObjects(ctx, db, before)
}

// postgresObjects checks the rights on tables that are all there.
func (x *exam) postgresObjects(ctx context.Context, db *database, before string) error {
	refused, err := db.ask(ctx, "refused", before,
		strings.Join(tables, " "), strings.Join(sequences, " "))
	if err != nil {
		return err
	}
	if refused != "" {
		x.add("postgres-rights", db.where, shorten(refused))
	}
	return nil
}

// shorten keeps a list readable.
func shorten(list string) string {
	const most = 5
	parts := strings.Split(list, ", ")
	if len(parts) > most {
		return strings.Join(parts[:most], ", ") + fmt.Sprintf(" and %d more", len(parts)-most)
	}
	return list
}
