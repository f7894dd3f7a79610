package postgres

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// server is what a connection leads to. A pooler invents the process that the protocol names, and
// after a failover the same address leads to another history of the data.
type server struct {
	pid      uint32          // of the server's process
	timeline string          // of the server's log: each promotion begins another
	crashed  string          // the answer to crashed
	since    backend.Instant // when the driver first had the connection
}

// serverOf is what is known of a connection before it is asked.
func serverOf(conn *pgconn.PgConn) server {
	v, ok := conn.CustomData()[serverKey].(server)
	if !ok {
		v = server{pid: conn.PID(), since: backend.Now()}
		conn.CustomData()[serverKey] = v
	}
	return v
}

// whoIsThere asks for that, once for a connection, or for each session behind a pooler, in a transaction
// of its own: those that follow choose their level. A replica has no log of its own.
const whoIsThere = "BEGIN;SELECT pg_backend_pid(),CASE WHEN pg_is_in_recovery()THEN''ELSE " + timeline + " END," +
	crashed + ";COMMIT;"

// timeline is the first part of the name of the server's present log file.
const timeline = "left(pg_walfile_name(pg_current_wal_lsn()),8)"

// crashed is when the server began two of its statistics anew. A recovery from a crash begins all of them anew (seen
// in PostgreSQL 15, 17 and 18), and an operator may begin one. It is compared with itself, with no clock: a statement
// may be under way for long.
const crashed = "(SELECT concat((extract(epoch FROM b.stats_reset)*1000000)::bigint,' '," +
	"(extract(epoch FROM a.stats_reset)*1000000)::bigint)FROM pg_stat_bgwriter b,pg_stat_archiver a)"

// hasCrashed reports whether it has, between two answers.
func hasCrashed(was, now string) bool {
	one, two, _ := strings.Cut(was, " ")
	first, second, _ := strings.Cut(now, " ")
	return first != one && second != two
}

// serverKey is where a connection keeps what was answered.
const serverKey = "fencelock.server"

// ask returns the question, if it was not answered yet. It goes before other statements.
func (v *server) ask() string {
	if v.timeline != "" {
		return ""
	}
	return whoIsThere
}

// told takes in the answers to statements that began with the question.
func (v *server) told(conn *pgconn.PgConn, res []*pgconn.Result) {
	if v.timeline != "" || len(res) < 2 || len(res[1].Rows) != 1 || len(res[1].Rows[0]) != 3 {
		return
	}
	answer := res[1].Rows[0]
	if pid, err := strconv.ParseUint(string(answer[0]), 10, 32); err == nil {
		v.pid, v.timeline, v.crashed = uint32(pid), string(answer[1]), string(answer[2])
		if v.pid == conn.PID() { // a pooler's next transaction may be another process's
			conn.CustomData()[serverKey] = *v
		}
	}
}
