package sqlitekv_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	sqlitekv "github.com/fencelock/fencelock/examples/sqlite-driver"
)

func connect(t *testing.T, file string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+file+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestConformance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	address := func(c conformance.Client) string {
		return "sqlite://" + file + "?prefix=" + url.QueryEscape(c.Prefix)
	}
	conformance.Run(t, conformance.Harness{
		Name: "sqlite",
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			d, err := backend.Open(ctx, address(c), nil)
			if err != nil {
				return nil, err
			}
			return conformance.Wrap(d, c.Link), nil
		},
		Link:  func(context.Context) (conformance.Link, error) { return conformance.NewCallLink(), nil },
		Calls: true,
		Store: table{connect(t, file)},
		URL:   address,
		Given: func(ctx context.Context) (backend.Driver, func(context.Context) error, error) {
			db := connect(t, file)
			d, err := sqlitekv.New(ctx, db, "given:")
			return d, func(ctx context.Context) error {
				if n := db.Stats().InUse; n > 0 {
					return fmt.Errorf("%d connections are in use", n)
				}
				return db.PingContext(ctx)
			}, err
		},
		Shared: func(context.Context) (*conformance.Shared, error) {
			db := connect(t, file)
			db.SetMaxOpenConns(1)
			return &conformance.Shared{
				Driver: func(prefix string) (backend.Driver, error) {
					return sqlitekv.New(t.Context(), db, prefix)
				},
				UseUp: func(ctx context.Context) (func(), error) {
					conn, err := db.Conn(ctx)
					if err != nil {
						return nil, err
					}
					return func() { _ = conn.Close() }, nil
				},
				Close: db.Close,
			}, nil
		},
	})
}

// table looks at the store without the driver.
type table struct{ db *sql.DB }

// stored is the part of a record that the suite asks about.
type stored struct {
	Holder *struct{ Since, Keep int64 }
	Queue  []any
}

func space(prefix string) string { return "p" + hex.EncodeToString([]byte(prefix)) + "." }

func key(prefix, name string) string {
	return space(prefix) + "n" + hex.EncodeToString([]byte(name))
}

func (b table) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	var data []byte
	var since int64
	err := b.db.QueryRowContext(ctx, `SELECT data, at FROM fencelock WHERE key = ?`,
		key(prefix, name)).Scan(&data, &since)
	if errors.Is(err, sql.ErrNoRows) {
		return false, 0, nil
	}
	var r stored
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil || r.Holder == nil {
		return false, 0, err
	}
	if r.Holder.Since > 0 {
		since = r.Holder.Since
	}
	left := time.Until(time.UnixMicro(since + r.Holder.Keep))
	return left > 0, left, nil
}

func (b table) Take(ctx context.Context, prefix, name string) error {
	_, err := b.db.ExecContext(ctx, `DELETE FROM fencelock WHERE key = ?`, key(prefix, name))
	return err
}

// Left lists the records with a holder or a queue. Others end a minute after their last use.
func (b table) Left(ctx context.Context, prefix string) (left []string, err error) {
	rows, err := b.db.QueryContext(ctx, `SELECT key, data FROM fencelock WHERE key GLOB ?`,
		space(prefix)+"*")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var data []byte
		if err := rows.Scan(&key, &data); err != nil {
			return nil, err
		}
		var r stored
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, err
		}
		if r.Holder != nil || len(r.Queue) > 0 {
			left = append(left, key)
		}
	}
	return left, rows.Err()
}
