package postgres

import (
	"context"
	"errors"
	"iter"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// rowsOf finds the rows with the prefix $1, or, unless $2, the name $1 alone, row or not; their
// doors, and the process that holds each: the one that has its door, or else the one that has locked
// the row by hand. ours: it is a lease's. A transaction of LockTx has the door alone too, but not
// twice, as one of mode advisory has.
const rowsOf = `WITH l AS MATERIALIZED (
	SELECT *, CASE WHEN locktype = 'advisory' AND objsubid = 1
		THEN classid::bigint << 32 | objid::bigint END AS door
	FROM pg_locks WHERE locktype IN ('transactionid', 'advisory', 'tuple') AND (database IS NULL
		OR database = (SELECT oid FROM pg_database WHERE datname = current_database()))
), r AS (
	SELECT name, fencelock_door(name) AS door, xmax, ctid, tableoid FROM fencelock_row
	WHERE name >= $1 AND substr(name, 1, length($1)) = $1 AND ($2 OR name = $1)
	UNION ALL SELECT $1::bytea, fencelock_door($1), NULL, NULL, NULL
	WHERE NOT $2 AND NOT EXISTS (SELECT FROM fencelock_row WHERE name = $1)
), held AS (
	SELECT r.*, h.pid, EXISTS (SELECT FROM l WHERE l.granted AND l.pid = h.pid
		AND (l.locktype = 'transactionid' AND l.transactionid = r.xmax
			OR l.door = r.door AND l.mode = 'ShareLock')) AS ours
	FROM r LEFT JOIN LATERAL (SELECT * FROM l WHERE l.granted
		AND (l.locktype = 'transactionid' AND l.transactionid = r.xmax
			OR l.door = r.door AND l.mode = 'ExclusiveLock')
		ORDER BY l.locktype LIMIT 1) h ON true
)`

// rowsHeld describes rows: what their holders' sessions show, and how many sessions wait at the
// door of each, or for the row itself.
const rowsHeld = rowsOf + ` SELECT encode(r.name, 'hex'), r.pid IS NOT NULL,
	CASE WHEN r.ours THEN coalesce(a.application_name, '') ELSE '' END,
	CASE WHEN a.state LIKE 'idle in%' THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8
		WHEN a.state IS NULL THEN -1 ELSE 0 END,
	(SELECT count(DISTINCT l.pid) FROM l WHERE NOT l.granted AND (l.door = r.door
		OR l.locktype = 'transactionid' AND l.transactionid = r.xmax
		OR l.locktype = 'tuple' AND l.relation = r.tableoid
			AND '(' || l.page || ',' || l.tuple || ')' = r.ctid::text))::int, '', false
FROM held r LEFT JOIN pg_stat_activity a ON a.pid = r.pid`

// rowsUndrained describes the rows of fencelock_undrained_row likewise.
const rowsUndrained = `SELECT encode(name, 'hex'), held, label, idle, waiters,
	encode(coalesce(moving, ''), 'hex'), nameless FROM fencelock_undrained_row($1)`

// Look implements backend.Driver. Why Strict misses none stands at fencelock_undrained_row. The name
// of a lock that [LockTx] holds is not known unless somebody waits for it: such a transaction is
// returned under the process of its session.
func (r *row) Look(ctx context.Context, of backend.Range) iter.Seq2[backend.Info, error] {
	return looked(of, func(name string, prefix bool, found func(backend.Info)) error {
		text, args := rowsHeld, []any{r.key(name), prefix}
		if of.Strict {
			text, args = rowsUndrained, []any{[]byte(r.prefix)}
		}
		return r.query(ctx, text, args, func(row scanner) error {
			i, err := r.info(row)
			if err == nil {
				found(i)
			}
			return err
		})
	})
}

// info reads what the server says of one name: its key in hex, whether it is held, the holder's label, for
// how long that has been idle, the waiters, the migration of a holder in PhaseBoth in hex, and whether
// the name is not known.
func (r *row) info(row scanner) (backend.Info, error) {
	var key, label, move string
	var i backend.Info
	var idle float64
	if err := row.Scan(&key, &i.Held, &label, &idle, &i.Waiters, &move, &i.Nameless); err != nil {
		return i, err
	}
	i.Name, i.Both = strings.TrimPrefix(unhex(key), r.prefix), unhex(move)
	if i.Held {
		var timeout time.Duration
		i.Token, i.Owner, timeout = readLabel(label)
		if timeout > 0 && idle >= 0 {
			i.ExpiresIn = max(timeout-time.Duration(idle*float64(time.Second)), time.Millisecond)
		}
	}
	return i, nil
}

// readLabel reads "fl token nonce timeout owner"; zeros for a session that is not ours.
func readLabel(label string) (backend.Token, string, time.Duration) {
	parts := strings.SplitN(label, " ", 5)
	if len(parts) != 5 || parts[0]+" " != tagHead {
		return 0, "", 0
	}
	token, err1 := strconv.ParseInt(parts[1], 10, 64)
	ms, err2 := strconv.ParseInt(parts[3], 36, 64)
	if err1 != nil || err2 != nil || token < 0 || ms < 0 || ms > math.MaxInt32 {
		return 0, "", 0
	}
	owner, _ := url.PathUnescape(parts[4])
	return token, strings.ToValidUTF8(owner, ""), time.Duration(ms) * time.Millisecond
}

// Break implements backend.Driver: it ends the session that holds the lock. A second copy would end
// the next holder's.
func (r *row) Break(ctx context.Context, name string) error {
	return r.send(ctx, &statement{
		conn: (*store).borrow, once: true, args: []any{r.key(name), false},
		text: rowsOf + " SELECT pg_terminate_backend(pid, 2000) FROM held WHERE pid IS NOT NULL",
		take: func(row scanner) error {
			var ended bool
			if err := row.Scan(&ended); err != nil || ended {
				return err
			}
			return errors.New("the server has not ended the holder's session yet")
		},
	})
}
