package postgres

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// rowsHeld describes rows: who holds the transaction that has locked each, and how many sessions wait at its door, or
// for the row itself.
const rowsHeld = `WITH l AS MATERIALIZED (
	SELECT * FROM pg_locks WHERE locktype IN ('transactionid', 'advisory', 'tuple') AND (database IS NULL OR database = (SELECT oid FROM pg_database WHERE datname = current_database()))
)
SELECT r.name, h.pid IS NOT NULL, coalesce(a.application_name, ''),
	CASE WHEN a.state LIKE 'idle in%' THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8 WHEN a.state IS NULL THEN -1 ELSE 0 END,
	(SELECT count(DISTINCT l.pid) FROM l WHERE NOT l.granted AND (
		l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid = (r.door >> 32)::oid AND l.objid = (r.door & 4294967295)::oid
		OR l.locktype = 'transactionid' AND l.transactionid = r.xmax
		OR l.locktype = 'tuple' AND l.relation = r.tableoid AND '(' || l.page || ',' || l.tuple || ')' = r.ctid::text))::int
FROM (SELECT name, door, xmax, ctid, tableoid FROM fencelock_row WHERE name >= $1 AND substr(name, 1, length($1)) = $1 AND ($2 OR name = $1)) r
LEFT JOIN LATERAL (SELECT l.pid FROM l WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax LIMIT 1) h ON true
LEFT JOIN pg_stat_activity a ON a.pid = h.pid`

// Inspect implements backend.Driver.
func (r *row) Inspect(ctx context.Context, name string) (backend.Info, error) {
	info := backend.Info{Name: name}
	err := r.describe(ctx, name, false, func(i backend.Info) { info = i })
	return info, err
}

// describe calls found for the rows with this prefix, or with this name alone.
func (r *row) describe(ctx context.Context, name string, prefix bool, found func(backend.Info)) error {
	return r.st.query(ctx, rowsHeld, []any{r.st.key(name), prefix}, func(row pgx.CollectableRow) error {
		i, err := r.info(row)
		if err == nil {
			found(i)
		}
		return err
	})
}

// info reads what the server says of one name: its key, whether it is held, the holder's label, for how long that has been idle, and the waiters.
func (r *row) info(row pgx.CollectableRow) (backend.Info, error) {
	var key []byte
	var i backend.Info
	var label string
	var idle float64
	if err := row.Scan(&key, &i.Held, &label, &idle, &i.Waiters); err != nil {
		return i, err
	}
	i.Name = strings.TrimPrefix(string(key), r.st.prefix)
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
	if err1 != nil || err2 != nil {
		return 0, "", 0
	}
	var owner strings.Builder
	for s := parts[4]; s != ""; s = s[1:] {
		if s[0] == '%' && len(s) >= 3 {
			if c, err := strconv.ParseUint(s[1:3], 16, 8); err == nil {
				owner.WriteByte(byte(c))
				s = s[2:]
				continue
			}
		}
		owner.WriteByte(s[0])
	}
	return token, strings.ToValidUTF8(owner.String(), ""), time.Duration(ms) * time.Millisecond
}

// List implements backend.Driver.
func (r *row) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return listed(func(found func(backend.Info)) error { return r.describe(ctx, prefix, true, found) })
}

// listed yields what describe finds that is held or waited for.
func listed(describe func(func(backend.Info)) error) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		var all []backend.Info
		if err := describe(func(i backend.Info) {
			if (i.Held || i.Waiters > 0) && backend.CheckName(i.Name) == nil {
				all = append(all, i)
			}
		}); err != nil {
			yield(backend.Info{}, err)
			return
		}
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Break implements backend.Driver: it ends the session that has locked the row.
func (r *row) Break(ctx context.Context, name string) error {
	return r.st.query(ctx, `SELECT pg_terminate_backend(l.pid, 2000) FROM fencelock_row r JOIN pg_locks l
		ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax WHERE r.name = $1 AND l.pid IS NOT NULL`,
		[]any{r.st.key(name)}, func(row pgx.CollectableRow) error {
			var ended bool
			if err := row.Scan(&ended); err != nil || ended {
				return err
			}
			return errors.New("the server has not ended the holder's session yet")
		})
}
