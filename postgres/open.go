package postgres

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

func init() {
	backend.Register("postgres", open)
	backend.Register("postgresql", open)
}

// maxConns is the size of a pool that a URL opens, if it does not say.
const maxConns = 50

// passed are the keys that go to pgx and pgxpool as they are: how to connect, the pool, and those
// run-time parameters of the server that make sense for a session of ours. Any other key is refused:
// pgx would hand it to the server, which says so late, and a mistyped sslmode would connect in the
// clear.
var passed = []string{
	// pgconn, as libpq
	"host", "port", "user", "password", "dbname", "database", "passfile", "connect_timeout",
	"service", "servicefile", "target_session_attrs",
	"sslmode", "sslkey", "sslcert", "sslcertmode", "sslrootcert", "sslpassword", "sslsni", "sslnegotiation",
	"krbspn", "krbsrvname", "channel_binding", "require_auth", "min_protocol_version", "max_protocol_version",
	// pgx
	"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	// pgxpool
	"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime",
	"pool_max_conn_lifetime_jitter",
	"pool_max_conn_idle_time", "pool_health_check_period", "pool_ping_timeout",
	// the server's
	"application_name", "search_path", "options", "role", "statement_timeout", "lock_timeout", "synchronous_commit",
	"timezone", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout",
	"geqo", "jit", "work_mem", "log_statement", "log_min_duration_statement",
}

// secret are the keys whose values never show.
var secret = []string{"password", "sslpassword"}

// open makes a driver from
// postgres://[user[:password]@]host[:5432][,host…][/database]?mode=row|advisory|lease&….
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	opts := &Options{
		Mode: Mode(q.String("mode", string(Row))), Prefix: prefix, NoPrefix: prefix == "",
		Schema: q.String("schema", ""),
	}
	listen := q.String("listen_url", "")
	config, err := poolConfig(u, q)
	if opts.Mode != Row && opts.Mode != Advisory && opts.Mode != Lease {
		return nil, badMode(opts.Mode)
	}
	if bad := q.Err(); bad != nil {
		return nil, bad
	}
	if err != nil {
		return nil, err
	}
	if opts.Mode != Lease && config.ConnConfig.RuntimeParams["role"] != "" {
		return nil, backend.Invalid("role= of the %q URL: in mode %s a client ends sessions of its own, which the "+
			"server lets the role do that logs in: give that one the rights", u.Scheme, opts.Mode)
	}
	d := newDialer()
	config.ConnConfig.DialFunc = soon.DialContext
	d.serve(config)
	if listen != "" {
		if opts.Listen, err = listenConfig(listen, opts.Mode); err != nil {
			return nil, err
		}
		opts.Listen.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.dial(ctx, soon.DialContext, network, addr, func() {})
		}
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, backend.Invalid("the pool cannot be made of the URL: %v", err)
	}
	driver, err := newDriver(pool, opts, d)
	if err == nil {
		err = driver.st.probe(ctx)
	}
	if err != nil {
		d.close()
		pool.Close()
		return nil, err
	}
	return driver, nil
}

// poolConfig takes the keys of the connection from the URL.
func poolConfig(u *url.URL, q *backend.Query) (*pgxpool.Config, error) {
	at, keys := *u, url.Values{}
	at.Scheme = "postgres"
	for _, k := range passed {
		if q.Has(k) {
			keys.Set(k, q.String(k, ""))
		}
	}
	at.RawQuery = strings.ReplaceAll(keys.Encode(), "+", "%20") // pgx 5.12 reads a + as one
	config, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		return nil, unreadable(err, "URL", u, keys)
	}
	if !keys.Has("pool_max_conns") {
		config.MaxConns = maxConns
	}
	if !keys.Has("connect_timeout") {
		config.ConnConfig.ConnectTimeout = connectMost
	}
	if params := config.ConnConfig.RuntimeParams; params["application_name"] == "" {
		params["application_name"] = "fencelock"
	}
	return config, nil
}

// listenConfig reads listen_url.
func listenConfig(raw string, mode Mode) (*pgx.ConnConfig, error) {
	if mode != Lease {
		return nil, backend.Invalid("listen_url belongs to mode=lease: the other modes need no pushes")
	}
	u, err := backend.ParseURL(raw)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, backend.Invalid("listen_url cannot be read: want a percent-encoded " +
			"postgres://[user[:password]@]host[:port]/database")
	}
	keys, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, backend.Invalid("the query of listen_url cannot be read")
	}
	known := slices.DeleteFunc(slices.Sorted(slices.Values(passed)),
		func(k string) bool { return strings.HasPrefix(k, "pool_") })
	for k := range keys {
		if !slices.Contains(known, k) {
			return nil, backend.Invalid("unknown key in listen_url: known are %s", strings.Join(known, ", "))
		}
	}
	config, err := pgx.ParseConfig(raw)
	if err != nil {
		return nil, unreadable(err, "listen_url", u, keys)
	}
	if !keys.Has("connect_timeout") {
		config.ConnectTimeout = connectMost
	}
	return config, nil
}

// unreadable says what pgx could not read, without what it quotes: the URL, whose password it hides
// as well as it can.
func unreadable(err error, what string, u *url.URL, keys url.Values) error {
	msg := err.Error()
	if i := strings.LastIndex(msg, "`: "); i >= 0 {
		msg = msg[i+3:]
	}
	hide := make([]string, 0, 4)
	if p, ok := u.User.Password(); ok {
		hide = append(hide, p, url.QueryEscape(p), url.PathEscape(p))
	}
	for _, k := range secret {
		hide = append(hide, keys.Get(k))
	}
	for _, p := range hide {
		if p != "" {
			msg = strings.ReplaceAll(msg, p, "xxxxx")
		}
	}
	return backend.Invalid("the %s cannot be read: %s", what, msg)
}

// probe asks the server for an answer, for its version, and for the schema.
func (st *store) probe(ctx context.Context) error {
	var version string
	var replica bool
	ask := statement{
		conn: (*store).borrow, text: "SELECT current_setting('server_version_num'), pg_is_in_recovery()",
		take: func(row scanner) error { return row.Scan(&version, &replica) },
	}
	err := st.once(ctx, &ask)
	// A server to which many connect at once may take longer to accept one than connect_timeout.
	again := func() bool { return broken(err) || pgconn.Timeout(err) || backend.Refused(err) }
	for tries := 1; err != nil && tries < 3 && ctx.Err() == nil && again(); tries++ {
		err = st.once(ctx, &ask)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return meaning(err)
	}
	if n, err := strconv.Atoi(version); err == nil && n < 150000 {
		return backend.Invalid("the server is PostgreSQL %d: 15 or later is needed", n/10000)
	}
	if replica {
		return errReplica
	}
	return st.ready(ctx)
}
