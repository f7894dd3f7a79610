package sqlitekv_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	sqlitekv "github.com/fencelock/fencelock/examples/sqlite-driver"
)

// values are what no driver writes under a lock's key.
var values = []string{
	"x", "{", "{}{}", `{"token":-1}`, `{"token":1e300}`, `{"holder":null,"token":0,"extra":1}`,
	`{"token":1,"holder":{"nonce":"short","owner":"","since":1,"keep":1}}`,
	`{"token":1,"queue":[{"nonce":"","seen":0}]}`, "\x00\xff", strings.Repeat("[", 100_000),
}

// What others wrote under our keys is ErrInvalid everywhere, and never a free lock.
func TestHostileValues(t *testing.T) {
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "locks.db")
	l, err := fencelock.Open(ctx, "sqlite://"+file+"?prefix=")
	must(t, err)
	defer l.Close()
	db := connect(t, file)
	for _, v := range values {
		_, err := db.Exec(`INSERT OR REPLACE INTO fencelock VALUES (?, ?, 1, 1, ?)`,
			key("", "n"), []byte(v), time.Now().Add(time.Hour).UnixMicro())
		must(t, err)
		for what, do := range map[string]func() error{
			"TryLock": func() error { _, err := l.Mutex("n").TryLock(ctx); return err },
			"Lock": func() error {
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := l.Mutex("n").Lock(short)
				return err
			},
			"Inspect": func() error { _, err := l.Inspect(ctx, "n"); return err },
			"Break":   func() error { return l.Break(ctx, "n") },
		} {
			if err := do(); !errors.Is(err, fencelock.ErrInvalid) {
				t.Errorf("%s over %.60q: got %v, want ErrInvalid", what, v, err)
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "foreign.db")
	_, err := connect(t, file).Exec(`CREATE TABLE fencelock (id INTEGER)`)
	must(t, err)
	text := filepath.Join(t.TempDir(), "text")
	must(t, os.WriteFile(text, bytes.Repeat([]byte("no database "), 100), 0o600))
	for _, tt := range []struct{ url, says string }{
		{"sqlite://" + file, "not this driver's"},
		{"sqlite://" + text, "cannot use this file"},
		{"sqlite://" + t.TempDir(), "cannot use this file"},
		{"sqlite://host/a.db", "whole path"},
		{"sqlite://", "whole path"},
		{"sqlite:///a.db?db=1", "unknown key"},
	} {
		_, err := fencelock.Open(t.Context(), tt.url)
		if !errors.Is(err, fencelock.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want ErrInvalid that says %q", tt.url, err, tt.says)
		}
	}
	db, err := sql.Open("sqlite", ":memory:")
	must(t, err)
	defer db.Close()
	if _, err := sqlitekv.New(t.Context(), db, ""); !errors.Is(err, fencelock.ErrInvalid) {
		t.Errorf("a database in memory: got %v, want ErrInvalid", err)
	}
}

// A write waits for another program's transaction, and ends with its ctx.
func TestBusy(t *testing.T) {
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "locks.db")
	l, err := fencelock.Open(ctx, "sqlite://"+file)
	must(t, err)
	defer l.Close()
	other, err := connect(t, file).Conn(ctx)
	must(t, err)
	defer other.Close()
	_, err = other.ExecContext(ctx, "BEGIN IMMEDIATE")
	must(t, err)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := l.Mutex("n").TryLock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another writes: got %v, want the end of the context", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	_, err = other.ExecContext(ctx, "COMMIT")
	must(t, err)
	le, err := l.Mutex("n").Lock(ctx)
	must(t, err)
	must(t, le.Unlock(ctx))
}
