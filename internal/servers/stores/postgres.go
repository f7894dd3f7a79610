package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// pgUser is the superuser and the database. Nobody needs a password.
const pgUser = "postgres"

// PostgresOptions describes one Postgres server.
type PostgresOptions struct {
	Config []string // settings such as "synchronous_commit=off"; they come last and so win
}

// PostgresServer is one Postgres server, a primary or a replica.
type PostgresServer struct{ *Server }

// StartPostgres starts one Postgres server.
func StartPostgres(ctx context.Context, l Launcher, o PostgresOptions) (*PostgresServer, error) {
	return startPostgres(ctx, l, o.Config, newCluster)
}

// origin says where a server's data comes from.
type origin func(
	ctx context.Context, i *pgInstall, dir, data string,
) (setup func(context.Context) error, script string, err error)

// pgInstall is a local installation; empty when a container brings its own.
type pgInstall struct {
	bin  string
	user *User
}

func startPostgres(ctx context.Context, l Launcher, config []string, from origin) (*PostgresServer, error) {
	g, err := startGroup(ctx, 1, false, func(port int) (*Server, error) {
		return preparePostgres(ctx, l, port, config, from)
	})
	if err != nil {
		return nil, err
	}
	return &PostgresServer{g.servers[0]}, nil
}

func preparePostgres(ctx context.Context, l Launcher, port int, config []string, from origin) (*Server, error) {
	install := &pgInstall{}
	if l.Kind() == "local" {
		var err error
		if install, err = findPostgres(); err != nil {
			return nil, err
		}
	}
	return newServer("postgres", l, port, func(s *Server) error {
		s.url = "postgres://" + pgUser + "@" + s.addr + "/" + pgUser + "?sslmode=disable"
		s.ready = func(ctx context.Context) error {
			_, err := pgQuery(ctx, s.addr, "SELECT 1")
			return err
		}
		s.probe = func(ctx context.Context) (string, error) {
			version, err := pgQuery(ctx, s.addr, "SHOW server_version")
			version, _, _ = strings.Cut(version, " ")
			return version, err
		}
		err := makeDir(s.dir, install.user)
		if err == nil {
			s.process, err = install.process(ctx, l, s, port, config, from)
		}
		return err
	})
}

// process describes the server's process. In a container the account postgres of the image runs it.
func (i *pgInstall) process(
	ctx context.Context, l Launcher, s *Server, port int, config []string, from origin,
) (Process, error) {
	data := filepath.Join(s.dir, "data")
	setup, script, err := from(ctx, i, s.dir, data)
	if err != nil {
		return nil, err
	}
	settings := append([]string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=",
		"max_connections=200", "shared_buffers=16MB", "wal_keep_size=64MB", "max_wal_size=128MB", "wal_level=replica",
	}, config...)
	var args []string
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	image := `set -e
data=$1; shift
as="setpriv --reuid=postgres --regid=postgres --clear-groups"
if [ ! -s "$data/PG_VERSION" ]; then
	rm -rf "$data"
	install -d -m 700 -o postgres -g postgres "$data"
	cd "$data"
	` + script + `
fi
cd "$data"
exec $as postgres -D "$data" "$@"`
	return l.Prepare(ctx, Spec{
		Store: "postgres", Name: "postgres", Dir: s.dir, Data: data, Ports: []int{port}, User: i.user, Reap: true,
		Args:       append([]string{i.program("postgres"), "-D", data}, args...),
		Image:      append([]string{"sh", "-c", image, "postgres", data}, args...),
		Env:        []string{"LC_ALL=C"},
		Setup:      setup,
		StopSignal: syscall.SIGINT, // "fast": it does not wait for clients
	})
}

// initArgs make a new cluster that trusts everybody, in small files.
var initArgs = []string{"-U", pgUser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"}

// newCluster is the origin of an empty cluster. It is made once for each version and copied, which takes a tenth of the
// time.
func newCluster(ctx context.Context, i *pgInstall, _, data string) (func(context.Context) error, string, error) {
	script := `$as initdb -D "$data" ` + strings.Join(initArgs, " ") + " >/dev/null"
	if i.bin == "" {
		return nil, script, nil
	}
	version, err := exec.CommandContext(ctx, i.program("postgres"), "--version").Output()
	if err != nil {
		return nil, "", err
	}
	account := os.Getuid()
	if i.user != nil {
		account = i.user.UID
	}
	key := fmt.Sprint(string(version), account, initArgs)
	template, err := cached(ctx, "postgres-"+hash(key), i.makeTemplate(ctx))
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context) error {
		// The caller copies, because it may read the cache. The owner stays.
		return run(ctx, filepath.Dir(data), nil, "cp", "-a", template+"/.", data)
	}, script, nil
}

// makeTemplate makes a new cluster where its owner may write, and copies it to the cache, where
// perhaps only the caller may.
func (i *pgInstall) makeTemplate(ctx context.Context) func(path string) error {
	return func(path string) error {
		dir, err := os.MkdirTemp("", "fencelock-initdb-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := makeDir(dir, i.user); err != nil {
			return err
		}
		fresh := filepath.Join(dir, "data")
		args := append([]string{i.program("initdb"), "-D", fresh}, initArgs...)
		if err := run(ctx, dir, i.user, args...); err != nil {
			return err
		}
		return run(ctx, dir, nil, "cp", "-a", fresh, path)
	}
}

func (i *pgInstall) program(name string) string { return filepath.Join(i.bin, name) }

// findPostgres finds the programs, in PATH or in Debian's folder, and the account that may run them: never root.
func findPostgres() (*pgInstall, error) {
	i := &pgInstall{}
	if path, err := exec.LookPath("postgres"); err == nil {
		// The other programs are where it really is.
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
		i.bin = filepath.Dir(path)
	} else {
		found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("postgres: its programs are %w: neither in PATH "+
				"nor in /usr/lib/postgresql", ErrMissing)
		}
		i.bin = filepath.Dir(slices.MaxFunc(found, func(a, b string) int {
			return debianVersion(a) - debianVersion(b)
		}))
	}
	if os.Getuid() != 0 {
		return i, nil
	}
	account, err := user.Lookup(pgUser)
	if err != nil {
		return nil, fmt.Errorf("postgres: root may not run it, and its account is %w: %w", ErrMissing, err)
	}
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(account.Gid)
	i.user = &User{UID: uid, GID: gid}
	return i, err
}

// debianVersion is the 15 of /usr/lib/postgresql/15/bin/postgres.
func debianVersion(path string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	if err != nil {
		return 0
	}
	return n
}

// pgQuery runs SQL over a connection of its own.
func pgQuery(ctx context.Context, addr, sql string) (string, error) {
	c, err := dialPostgres(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.close()
	return c.query(sql)
}

// Query runs SQL as the superuser over a connection of its own and returns the first column of the first row.
func (s *PostgresServer) Query(ctx context.Context, sql string) (string, error) {
	return pgQuery(ctx, s.addr, sql)
}

// replicaName is the name by which a primary knows its replica.
const replicaName = "fencelock_replica"

// PostgresReplicaOptions describes a replica.
type PostgresReplicaOptions struct {
	Synchronous bool // the primary confirms a commit only when the replica has it
}

// StartPostgresReplica copies the primary and starts a replica that follows it. Wiped and started
// again, it copies it anew.
func StartPostgresReplica(
	ctx context.Context, l Launcher, primary *PostgresServer, o PostgresReplicaOptions,
) (*PostgresServer, error) {
	conn := fmt.Sprintf("host=127.0.0.1 port=%s user=%s application_name=%s sslmode=disable",
		portOf(primary.addr), pgUser, replicaName)
	r, err := startPostgres(ctx, l, nil, copyOf(conn))
	if err != nil {
		return nil, err
	}
	err = r.awaitStreaming(ctx)
	if err == nil && o.Synchronous {
		err = primary.setSynchronous(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// copyOf is the origin of a replica.
func copyOf(conn string) origin {
	return func(_ context.Context, i *pgInstall, dir, data string) (func(context.Context) error, string, error) {
		args := []string{
			i.program("pg_basebackup"), "-d", conn, "-D", data, "-R", "-X", "stream", "-c", "fast",
			"--no-sync",
		}
		// The primary's own wish for a synchronous replica comes along; promoted, this one would wait for ever.
		const alone = "synchronous_standby_names = ''"
		setup := func(ctx context.Context) error {
			if err := run(ctx, dir, i.user, args...); err != nil {
				return err
			}
			f, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(alone + "\n")
			return errors.Join(err, f.Close())
		}
		script := `$as pg_basebackup -d "` + conn + `" -D "$data" -R -X stream -c fast --no-sync
	echo "` + alone + `" >>"$data/postgresql.auto.conf"`
		return setup, script, nil
	}
}

// awaitStreaming waits until the replica receives what the primary writes.
func (s *PostgresServer) awaitStreaming(ctx context.Context) error {
	return s.awaitValue(ctx, "SELECT coalesce((SELECT status FROM pg_stat_wal_receiver), 'none')", "streaming")
}

// AwaitCaughtUp waits until a replica has replayed all that the primary had written when it was called.
func (s *PostgresServer) AwaitCaughtUp(ctx context.Context, primary *PostgresServer) error {
	at, err := primary.Query(ctx, "SELECT pg_current_wal_lsn()")
	if err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT pg_last_wal_replay_lsn() >= '"+at+"'", "t")
}

// setSynchronous makes a primary wait for its replica at every commit.
func (s *PostgresServer) setSynchronous(ctx context.Context) error {
	if _, err := s.Query(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+replicaName+"'"); err != nil {
		return err
	}
	if _, err := s.Query(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := s.awaitValue(ctx, "SHOW synchronous_standby_names", replicaName); err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1")
}

// Promote makes a replica a primary and returns when it takes writes. Writes that it had not received are lost.
func (s *PostgresServer) Promote(ctx context.Context) error {
	if _, err := s.Query(ctx, "SELECT pg_promote(false)"); err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT pg_is_in_recovery()", "f")
}

// awaitValue waits until a query has a result.
func (s *PostgresServer) awaitValue(ctx context.Context, sql, want string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.until(ctx, func(ctx context.Context) error {
		got, err := s.Query(ctx, sql)
		if err == nil && got != want {
			err = fmt.Errorf("%s: %q instead of %q", sql, got, want)
		}
		return err
	})
}
