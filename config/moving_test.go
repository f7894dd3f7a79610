package config_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
	"github.com/fencelock/fencelock/internal/core"
)

// silent returns the address of a server that accepts and never answers.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// Three deploys that change one word: neighbours exclude each other, names that do not move are
// left alone, and tokens rise.
func TestAMoveByConfigurationOnly(t *testing.T) {
	t.Parallel()
	oldURL, newURL := folder(t), folder(t)
	deploy := func(phase string) *fencelock.Locker {
		return open(t, "backends:\n  old: {url: \""+oldURL+"\", ttl: 5s}\n  new: {url: \""+newURL+"\", ttl: 5s}\n"+
			"  moving: {migrate: {from: old, to: new, phase: "+phase+"}}\n"+`locks:
  - {match: "stock/pinned", scenario: inventory, backend: old}
  - {match: "stock/*", scenario: inventory, backend: moving}
  - {match: "*", scenario: deduplication, backend: old}
`)
	}
	stores := []*fencelock.Locker{at(t, oldURL), at(t, newURL)}
	var last fencelock.Token
	holds := func(l *fencelock.Locker, want ...bool) *fencelock.Lease {
		t.Helper()
		le := lock(t, l, "stock/1")
		for i, s := range stores {
			if got := held(t, s, "stock/1"); got != want[i] {
				t.Errorf("held in store %d: %v, want %v", i, got, want[i])
			}
		}
		if le.Token() <= last {
			t.Errorf("token %d after %d", le.Token(), last)
		}
		last = le.Token()
		return le
	}
	excluded := func(l *fencelock.Locker) {
		t.Helper()
		if _, err := l.Mutex("stock/1").TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("a neighbour: got %v, want ErrLocked", err)
		}
	}
	unlock := func(le *fencelock.Lease) {
		t.Helper()
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	from := deploy("from")
	le := holds(from, true, false)
	both := deploy("both")
	excluded(both)
	unlock(le)
	le = holds(both, true, true)
	excluded(from)
	if got := names(t, both, ""); got != "stock/1" {
		t.Errorf("list in phase both: got %q, want each name once", got)
	}
	unlock(le)
	if err := from.Close(); err != nil {
		t.Error(err)
	}
	to := deploy("to")
	le = holds(both, true, true)
	excluded(to)
	unlock(le)
	le = holds(to, false, true)
	excluded(both)
	unlock(le)
	// Names that do not move are in the old store throughout, for every phase.
	for _, name := range []string{"stock/pinned", "other"} {
		le := lock(t, to, name)
		if !held(t, stores[0], name) || held(t, stores[1], name) {
			t.Errorf("%s moved", name)
		}
		unlock(le)
	}
	if _, err := stores[0].Mutex("stock/1").TryLock(t.Context()); !errors.Is(err, fencelock.ErrUnsupported) {
		t.Errorf("a program that never heard of the move, in the old store: got %v, want it refused", err)
	}
}

// A phase that locks in one store starts without the other.
func TestAMoveNeedsTheOtherStoreOnlyToSwitch(t *testing.T) {
	t.Parallel()
	text := "backends:\n  old: {url: \"" + folder(t) + "\"}\n  new: {url: \"NEW\"}\n" +
		"  m: {migrate: {from: old, to: new, phase: PHASE}}\nlocks:\n  - {match: \"*\", " +
		"scenario: inventory, backend: m}\n"
	first := open(t, strings.NewReplacer("PHASE", "from", "NEW", folder(t)).Replace(text)) // it makes the gates
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	text = strings.Replace(text, "NEW", "counted://127.0.0.1:1", 1)
	lock(t, open(t, strings.Replace(text, "PHASE", "from", 1)), "n")
	for _, phase := range []string{"both", "to"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := mustLoad(t, strings.Replace(text, "PHASE", phase, 1)).Open(ctx)
		cancel()
		if !errors.Is(err, fencelock.ErrUnavailable) || !strings.Contains(err.Error(), `"`) {
			t.Errorf("phase %s: got %v, want ErrUnavailable", phase, err)
		}
	}
}

// Several migrations start at once: each has all the time that Open has, and the error has what each waited for.
func TestSeveralMovesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text, rules strings.Builder
		text.WriteString("backends:\n")
		for _, name := range []string{"a", "b"} {
			store := fresh()
			fmt.Fprintf(&text, "  %[1]s-old: {url: \"counted://%[2]s-old\"}\n"+
				"  %[1]s-new: {url: \"counted://%[2]s-new\"}\n"+
				"  %[1]s: {migrate: {from: %[1]s-old, to: %[1]s-new, phase: PHASE}}\n", name, store)
			fmt.Fprintf(&rules, "  - {match: %s, scenario: inventory, backend: %[1]s}\n", name)
			lock(t, at(t, "counted://"+store+"-old"), name)
		}
		both := text.String() + "locks:\n" + rules.String()
		open(t, strings.ReplaceAll(both, "PHASE", "both"))
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		_, err := mustLoad(t, strings.ReplaceAll(both, "PHASE", "to")).Open(ctx)
		if !errors.Is(err, fencelock.ErrUnavailable) {
			t.Fatalf("got %v, want ErrUnavailable", err)
		}
		for _, part := range []string{`backend "a": `, `"a" by `, `backend "b": `, `"b" by `} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %s in it", err, part)
			}
		}
	})
}

// What keep returns can do what the driver can, and nothing else; its Close leaves the driver open.
func TestKeep(t *testing.T) {
	for _, url := range []string{"memory://", folder(t)} {
		c := mustLoad(t, oneBackend("{url: \""+url+"\"}"))
		d, err := c.Backends()[0].Driver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for what, driver := range map[string]backend.Driver{
			"all":         d,
			"a plain one": struct{ backend.Driver }{d},
		} {
			kept := config.Keep(driver)
			_, moves := driver.(backend.Mover)
			if _, keptMoves := kept.(backend.Mover); moves != keptMoves || kept.Traits() != d.Traits() {
				t.Errorf("%s of %s: a Mover %v and %v", what, url, moves, keptMoves)
			}
			if !moves { // the migration refuses it, and closes nothing
				continue
			}
			if err := kept.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := core.Of(d).Inspect(t.Context(), "n"); err != nil {
			t.Errorf("after the Close of a user: %v", err)
		}
		if c, ok := d.(io.Closer); !ok || c.Close() != nil {
			t.Error("the driver cannot be closed")
		}
	}
	m := mustLoad(t, whole).Backends()[4]
	if _, err := m.Driver(t.Context()); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("the driver of a migration: got %v, want ErrInvalid", err)
	}
}

// An operator's tool looks at names that move without taking part in the migration, whatever phase its file has.
func TestLookTakesNoPart(t *testing.T) {
	text := "backends:\n  old: {url: \"" + folder(t) + "\"}\n  new: {url: \"" + folder(t) + "\"}\n" +
		"  m: {migrate: {from: old, to: new, phase: PHASE}}\nlocks:\n  - {match: \"*\", " +
		"scenario: inventory, backend: m}\n"
	in := func(phase string) *config.Config { return mustLoad(t, strings.Replace(text, "PHASE", phase, 1)) }
	from := open(t, strings.Replace(text, "PHASE", "from", 1))
	le := lock(t, from, "x")
	tool, err := in("to").Look().Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	if held(t, tool, "x") {
		t.Error("the new store has the lock")
	}
	if _, err := tool.Mutex("y").TryLock(t.Context()); !errors.Is(err, fencelock.ErrUnsupported) {
		t.Errorf("lock by a tool: got %v, want ErrUnsupported", err)
	}
	looker, err := in("both").Look().Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer looker.Close()
	if !held(t, looker, "x") {
		t.Error("the old store's lock is not seen in phase both")
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	lock(t, from, "y") // no gate was closed
}
