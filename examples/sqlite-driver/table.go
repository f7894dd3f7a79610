package sqlitekv

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"iter"
	"math/rand/v2"
	"strconv"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fencelock/fencelock/backend/record"
)

// table is a record.KV.
type table struct{ db *sql.DB }

// busy reports whether another connection has the file, so that nothing was done.
func busy(err error) bool { return code(err) == sqlite3.SQLITE_BUSY }

// unusable reports whether the file is no database, or none that we may open and write.
func unusable(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
		return true
	}
	return false
}

func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// patiently calls f until the file is not busy. SQLite's own busy_timeout does not end with ctx.
func patiently(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || !busy(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond + rand.N(4*time.Millisecond)):
		}
	}
}

// Get implements record.KV.
func (t *table) Get(ctx context.Context, key string) (v record.Value, err error) {
	var at int64
	err = patiently(ctx, func() error {
		return t.db.QueryRowContext(ctx, `SELECT data, version, at FROM fencelock WHERE key = ?`,
			key).Scan(&v.Data, &v.Version, &at)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return record.Value{}, nil
	}
	v.At = time.UnixMicro(at)
	return v, err
}

// Put implements record.KV: an INSERT that does nothing if the row is there, or an UPDATE of the
// row with this version only.
func (t *table) Put(
	ctx context.Context, key string, data []byte, was string, keep time.Duration,
) (string, error) {
	next := rand.Int64()
	var changed int64
	err := patiently(ctx, func() error {
		now := time.Now() // after the call: the lease lives no shorter than its holder thinks
		query, args := `INSERT INTO fencelock (data, version, at, until, key) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (key) DO NOTHING`,
			[]any{data, next, now.UnixMicro(), now.Add(keep).UnixMicro(), key}
		if was != "" {
			query = `UPDATE fencelock SET data = ?, version = ?, at = ?, until = ?
				WHERE key = ? AND version = ?`
			args = append(args, was)
		}
		res, err := t.db.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		changed, err = res.RowsAffected()
		return err
	})
	if err != nil {
		return "", err
	}
	if changed == 0 {
		return "", record.ErrMoved
	}
	if rand.N(100) == 0 { // now and then; where it fails, a later one does it
		_, _ = t.db.ExecContext(ctx, `DELETE FROM fencelock WHERE until < ?`,
			time.Now().UnixMicro())
	}
	return strconv.FormatInt(next, 10), nil
}

// Now implements record.KV. The store's clock is this machine's.
func (t *table) Now(context.Context) (time.Time, error) { return time.Now().Round(0), nil }

// Epoch implements record.KV. There is no connection to lose.
func (t *table) Epoch() uint64 { return 0 }

// Keys implements record.KV. It reads all before it yields: there may be one connection only.
func (t *table) Keys(ctx context.Context, space string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var list []byte
		var keys []string
		err := patiently(ctx, func() error {
			return t.db.QueryRowContext(ctx, `SELECT json_group_array(key) FROM fencelock
				WHERE key GLOB ?`, space+"*").Scan(&list)
		})
		if err == nil {
			err = json.Unmarshal(list, &keys)
		}
		if err != nil {
			yield("", err)
			return
		}
		for _, key := range keys {
			if !yield(key, nil) {
				return
			}
		}
	}
}
