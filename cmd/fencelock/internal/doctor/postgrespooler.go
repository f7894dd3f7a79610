package doctor

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"
)

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
	config := db.config.Copy()
	config.ConnectTimeout = askMost
	conn, err := pgx.ConnectConfig(ctx, config)
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
