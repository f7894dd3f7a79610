package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// NewSQL returns a driver of mode lease over a sql.DB that the program has, whatever driver of
// PostgreSQL is under it, such as pgx/v5/stdlib or lib/pq. The db is neither changed nor closed, and
// nothing is sent yet: the first call finds the tables, or creates them. opts may be nil. Modes row
// and advisory are ErrUnsupported: they need [New].
//
// Each statement is a query with arguments on a connection of the db, which goes back at once; no
// state of the session is used or left. Behind a pooler in transaction mode the driver under the db
// must not prepare statements (default_query_exec_mode=exec, binary_parameters=yes). Its sessions must be able to
// write: with default_transaction_read_only=on every lock is ErrUnavailable.
//
// Pushes need a connection of pgx, made with Options.Listen. Without one a process that waits asks
// for all its waiters every 250 ms, and nothing but that: a release is seen so much later, and the
// more processes wait, the more is asked.
//
// Without Options.Listen the renewals too wait for a connection of the db. A program that has used
// it up (SetMaxOpenConns) for as long as a TTL loses its locks, and one that waits for a lock while
// it has the last connection waits in vain: leave one. A call that gets none in time says so, and
// matches ErrUnavailable. With Options.Listen up to four more connections are made with it, for
// renewals and for what the db gives no connection to.
//
// The schema is found by a connection of the db: name it (Options.Schema) where the program changes
// the search_path of its connections.
func NewSQL(db *sql.DB, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	switch {
	case db == nil:
		return nil, backend.Invalid("the sql.DB is nil")
	case opts.Mode == Row || opts.Mode == Advisory:
		return nil, backend.Unsupported("mode %q over a sql.DB: its lease is a connection of pgx. "+
			"Want mode %q here, or postgres.New with a pgxpool.Pool", opts.Mode, Lease)
	case opts.Mode != "" && opts.Mode != Lease:
		return nil, badMode(opts.Mode)
	}
	st, err := newStore(opts)
	if err != nil {
		return nil, err
	}
	st.db, st.pace = db, newPace(beginMost, connectMost)
	if opts.Listen != nil {
		config, err := pgxpool.ParseConfig(opts.Listen.ConnString())
		if err != nil {
			return nil, backend.Invalid("postgres.Options.Listen makes no pool")
		}
		config.ConnConfig = opts.Listen.Copy()
		st.heed(config)
		if err := st.makeOwn(config); err != nil {
			return nil, err
		}
	}
	return leaseOver(st, opts), nil
}

// CreateSchemaSQL is [CreateSchema] by a connection of a sql.DB.
func CreateSchemaSQL(ctx context.Context, db *sql.DB, schema string) error {
	_, err := aside(ctx, func(ctx context.Context) (string, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close() }()
		return schemaIn(ctx, sqlLink{conn, conn}, schema)
	})
	return err
}

// CheckTokenSQL is [CheckTokenIn] in a transaction of database/sql, with any driver under it.
// schema "" stands for the search_path, as in [CheckToken].
func CheckTokenSQL(
	ctx context.Context, tx *sql.Tx, schema, resource string, t backend.Token,
) error {
	before := ""
	if schema != "" {
		before = qualifier(schema)
	}
	return checkToken(ctx, func(text string, args ...any) scanner {
		return tx.QueryRowContext(ctx, text, args...)
	}, before, resource, t)
}

// sqlLink is a link of database/sql.
type sqlLink struct {
	conn *sql.Conn
	by   interface { // conn, or its transaction
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
}

// sqlConn takes a connection of the db. One that the program has used up says so before ctx ends:
// the server is there.
func (st *store) sqlConn(ctx context.Context) (link, error) {
	limited, cancel := ctx, context.CancelFunc(func() {})
	end, ends := ctx.Deadline()
	dials := false
	switch {
	case st.usedUp() > 0 && ends:
		limited, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	case st.usedUp() > 0:
		limited, cancel = context.WithTimeout(ctx, slotMost)
	case st.db.Stats().Idle == 0:
		over, err := st.pace.begin(ctx)
		if err != nil {
			return nil, err
		}
		defer over()
		dials = true
		// A db dials for one caller. A connection that is made too late for this caller serves the next
		// one, so that a wait that rides out an outage has a connection at its end.
		if ends {
			limited, cancel = context.WithTimeout(context.WithoutCancel(ctx), max(connectMost, time.Until(end)))
		}
	}
	defer cancel()
	conn, err := st.db.Conn(limited)
	if err == nil && dials {
		st.pace.set(false)
	}
	if err == nil {
		return sqlLink{conn, conn}, nil
	}
	if most := st.usedUp(); most > 0 && limited.Err() != nil && ctx.Err() == nil {
		err = backend.Refusal(backend.Unavailable(fmt.Errorf("every connection of the sql.DB is in "+
			"use: the %d of SetMaxOpenConns are used up. Raise it, or give postgres.Options.Listen, "+
			"with which the driver makes connections of its own", most)))
	}
	return nil, err
}

// usedUp is how many connections the program's pool can have, if all are in use, and otherwise 0.
func (st *store) usedUp() int {
	if st.db == nil {
		if now := st.pool.Stat(); now.IdleConns() == 0 && now.TotalConns() == now.MaxConns() {
			return int(now.MaxConns())
		}
		return 0
	}
	if now := st.db.Stats(); now.InUse >= now.MaxOpenConnections {
		return now.MaxOpenConnections // 0: any number
	}
	return 0
}

func (l sqlLink) release() { _ = l.conn.Close() }

// ask implements link. A sql.Conn sends nothing twice, unlike a sql.DB.
func (l sqlLink) ask(ctx context.Context, s *statement) error {
	if s.once || s.ping {
		// A driver may say ErrBadConn also of what was sent, so the connection is asked before.
		if err := l.conn.PingContext(ctx); err != nil {
			return unsent{err}
		}
	}
	args := s.args
	if s.raw != nil {
		args = make([]any, len(s.raw))
		for i, arg := range s.raw {
			if arg != nil {
				args[i] = string(arg)
			}
		}
	}
	rows, err := l.by.QueryContext(ctx, s.text, args...)
	if err != nil {
		if errors.Is(err, driver.ErrBadConn) && !s.once && !s.late { // a second copy does no harm
			err = unsent{err}
		}
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		switch {
		case s.raw != nil:
			err = rows.Scan(&s.told)
		case s.take != nil:
			err = s.take(rows)
		}
		if err != nil {
			return err
		}
	}
	return rows.Err() // also of the commit, which comes after the rows
}

func (l sqlLink) exec(ctx context.Context, text string) error {
	_, err := l.by.ExecContext(ctx, text)
	return err
}

func (l sqlLink) begin(ctx context.Context, do func(link) error) error {
	tx, err := l.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if errors.Is(err, driver.ErrBadConn) {
		err = unsent{err}
	}
	if err != nil {
		return err
	}
	in := sqlLink{l.conn, tx}
	if err = in.exec(ctx, limitIdle); err == nil {
		err = do(in)
	}
	if err != nil {
		_ = tx.Rollback() // err says why
		return err
	}
	return tx.Commit()
}

func (sqlLink) reads() bool { return false } // a sql.DB does not tell

// unsent is the error of a connection that had died before.
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }

// SafeToRetry is what pgconn.SafeToRetry asks.
func (unsent) SafeToRetry() bool { return true }

// aside returns when ctx ends: lib/pq and others go on until the server answers. Nobody but the db
// could end what goes on then, so nobody waits for it.
func aside[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	return core.Do(ctx, true, new(core.Group), do)
}

// sqlOnce runs a statement aside. If it goes on after the end of ctx, it touches nothing of the caller's.
func (st *store) sqlOnce(ctx context.Context, s *statement) error {
	var mu sync.Mutex
	over, other := false, *s
	if s.take != nil {
		other.take = func(row scanner) error {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return ctx.Err()
			}
			return s.take(row)
		}
	}
	other.goes = func() error {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return ctx.Err()
		}
		s.sent = true
		return nil
	}
	told, err := aside(ctx, func(ctx context.Context) (string, error) {
		err := st.run(ctx, &other)
		return other.told, err
	})
	mu.Lock()
	defer mu.Unlock()
	over, s.told = true, told
	return err
}
