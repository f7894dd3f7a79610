package goose_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	_ "modernc.org/sqlite" // the driver

	"github.com/fencelock/fencelock"
	fencegoose "github.com/fencelock/fencelock/integrations/goose"
	"github.com/fencelock/fencelock/locktest"
)

const name = "migrate/shop"

type step = func(ctx context.Context, tx *sql.Tx) error

// process returns the provider of a process of its own on the database in file. Each step makes a table.
func process(t *testing.T, file string, l lock.SessionLocker, steps ...step) *goose.Provider {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	var all []*goose.Migration
	for i, s := range steps {
		all = append(all, goose.NewGoMigration(int64(i+1), &goose.GoFunc{RunTx: s}, nil))
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, nil, goose.WithDisableGlobalRegistry(true),
		goose.WithGoMigrations(all...), goose.WithSessionLocker(l))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func table(name string) step {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE "+name+" (id INTEGER)")
		return err
	}
}

// until returns when done is true.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
	}
}

// waits returns when somebody waits for the lock.
func waits(t *testing.T, look *fencelock.Locker) {
	t.Helper()
	until(t, "a wait for the lock", func() bool {
		info, err := look.Inspect(t.Context(), name)
		return err == nil && info.Waiters == 1
	})
}

func TestOneMigrates(t *testing.T) {
	store, file := locktest.New(t), filepath.Join(t.TempDir(), "shop.db")
	look := store.Locker(t)
	type end struct {
		results []*goose.MigrationResult
		err     error
	}
	second := make(chan end, 1)
	two := process(t, file, fencegoose.New(store.Locker(t).Mutex(name)), table("a"), table("b"))
	one := process(t, file, fencegoose.New(store.Locker(t).Mutex(name)),
		func(ctx context.Context, tx *sql.Tx) error {
			go func() {
				results, err := two.Up(ctx)
				second <- end{results, err}
			}()
			waits(t, look)
			return table("a")(ctx, tx)
		}, table("b"))
	results, err := one.Up(t.Context())
	if err != nil || len(results) != 2 {
		t.Errorf("the first: %v, %v", results, err)
	}
	if e := <-second; e.err != nil || len(e.results) != 0 {
		t.Errorf("the second: %v, %v", e.results, e.err)
	}
	store.AssertFree(t, name)
}

// A spy knows the connection.
type spy struct {
	lock.SessionLocker
	conn *sql.Conn
}

func (s *spy) SessionLock(ctx context.Context, conn *sql.Conn) error {
	s.conn = conn
	return s.SessionLocker.SessionLock(ctx, conn)
}

func TestLoss(t *testing.T) {
	store, file := locktest.New(t), filepath.Join(t.TempDir(), "shop.db")
	l := &spy{SessionLocker: fencegoose.New(store.Locker(t).Mutex(name))}
	one := process(t, file, l, func(ctx context.Context, tx *sql.Tx) error {
		store.Lose(name)
		until(t, "the connection is closed for what comes", func() bool {
			return errors.Is(l.conn.PingContext(ctx), sql.ErrConnDone)
		})
		return table("a")(ctx, tx)
	}, table("b"))
	if _, err := one.Up(t.Context()); !errors.Is(err, fencelock.ErrLost) || !errors.Is(err, sql.ErrConnDone) {
		t.Errorf("got %v, want ErrLost and sql.ErrConnDone", err)
	}
	two := process(t, file, fencegoose.New(store.Locker(t).Mutex(name)), table("a"), table("b"))
	results, err := two.Up(t.Context())
	if err != nil || len(results) != 1 || results[0].Source.Version != 2 {
		t.Errorf("the next: %v, %v, want the second migration", results, err)
	}
}

func TestCanceled(t *testing.T) {
	store := locktest.New(t)
	defer store.Hold(name)()
	p := process(t, filepath.Join(t.TempDir(), "shop.db"), fencegoose.New(store.Locker(t).Mutex(name)), table("a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := p.Up(ctx)
		ended <- err
	}()
	waits(t, store.Locker(t))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, fencelock.ErrLocked) {
		t.Errorf("got %v, want Canceled and ErrLocked", err)
	}
}

// Neither call uses the connection, unless the lock is lost.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		l := fencegoose.New(store.Locker(t).Mutex(name))
		store.Outage(time.Hour)
		if err := l.SessionLock(t.Context(), nil); !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("SessionLock: %v, want ErrUnavailable", err)
		}
		store.Outage(0)
		if err := l.SessionLock(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // renewed
		store.Outage(time.Hour)
		if err := l.SessionUnlock(t.Context(), nil); !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("SessionUnlock: %v, want ErrUnavailable", err)
		}
		if err := l.SessionUnlock(t.Context(), nil); !errors.Is(err, fencelock.ErrReleased) {
			t.Errorf("SessionUnlock again: %v, want ErrReleased", err)
		}
	})
}
