package sqlitekv

import (
	"context"
	"database/sql"
	"net/url"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/fencelock/fencelock/backend"
)

func init() { backend.Register("sqlite", open) }

// open makes a driver from sqlite:///path/of/the/file[?prefix=…]. It makes a file that is missing.
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	if err := q.Err(); err != nil {
		return nil, err
	}
	if u.Host != "" || u.User != nil || u.Opaque != "" || u.Path == "" || u.Path == "/" {
		return nil, backend.Invalid("a sqlite URL names a file by its whole path: " +
			"sqlite:///var/lib/app/locks.db")
	}
	file := url.URL{Scheme: "file", Path: u.Path, RawQuery: "_pragma=busy_timeout(100)" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"}
	db, err := sql.Open("sqlite", file.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // one writer at a time is all that SQLite has; here it is chosen fairly
	d, err := New(ctx, db, prefix)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	d.Owns(db.Close)
	return d, nil
}
