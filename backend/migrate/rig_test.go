package migrate_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

const ttl = 10 * time.Second

var scope = backend.Scope{{Match: "stays/*", Stays: true}, {Match: "*"}}

// world is two stores in memory.
type world struct {
	*testing.T
	old, new store
}

// bubble runs fn in virtual time.
func bubble(t *testing.T, fn func(w world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := world{T: t}
		w.old, w.new = newStore(t), newStore(t)
		fn(w)
	})
}

// store is a store in memory, and how it is called.
type store struct {
	driver
	core.Gater
}

// driver has its methods below those of the Gater.
type driver struct{ *memory.Driver }

func storeOf(d *memory.Driver) store { return store{driver{d}, core.Of(d).(core.Gater)} }

func newStore(t *testing.T) store {
	t.Helper()
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	return storeOf(d)
}

// client of a store in memory; clients of one store share it.
func client(d store) store {
	c, err := d.Client(backend.DefaultPrefix)
	if err != nil {
		panic(err) // the prefix is good
	}
	return storeOf(c)
}

func (w world) options(phase backend.Phase) migrate.Options {
	return migrate.Options{Move: "m", Scope: scope, Phase: phase, From: client(w.old), To: client(w.new)}
}

func (w world) pair() migrate.Pair {
	w.Helper()
	return w.pairOf("m", w.old, w.new)
}

func (w world) pairOf(move string, from, to backend.Driver) migrate.Pair {
	w.Helper()
	p, err := migrate.PairOf(move, scope, from, to)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// start starts a client, which is closed with the test unless the test does it.
func (w world) start(phase backend.Phase) *migrate.Driver {
	w.Helper()
	return w.startWith(w.options(phase))
}

func (w world) startWith(o migrate.Options) *migrate.Driver {
	w.Helper()
	d, err := migrate.New(w.Context(), o)
	if err != nil {
		w.Fatalf("a client in phase %s: %v", o.Phase, err)
	}
	w.Cleanup(func() { w.stop(d) })
	return d
}

func (w world) stop(d *migrate.Driver) {
	w.Helper()
	if err := d.Close(); err != nil {
		w.Errorf("Close: %v", err)
	}
}

func request(name string) *backend.Request {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return &backend.Request{Name: name, Nonce: hex.EncodeToString(raw), Owner: "me", TTL: ttl, Lost: func(error) {}}
}

func (w world) acquire(d core.Caller, r *backend.Request) *core.Hold {
	w.Helper()
	g, err := d.Acquire(w.Context(), r)
	if err != nil {
		w.Fatalf("acquire %q: %v", r.Name, err)
	}
	return &core.Hold{Request: r, Grant: g}
}

func (w world) release(d core.Caller, h *core.Hold) {
	w.Helper()
	if err := d.Release(w.Context(), h); err != nil {
		w.Fatalf("release %q: %v", h.Name, err)
	}
}

// cycle locks and unlocks, and returns the token.
func (w world) cycle(d core.Caller, name string) backend.Token {
	w.Helper()
	h := w.acquire(d, request(name))
	w.release(d, h)
	return h.Token
}

func (w world) want(what string, got, want error) {
	w.Helper()
	if !errors.Is(got, want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (w world) tryFails(d core.Caller, name string, want error) {
	w.Helper()
	_, err := d.Acquire(w.Context(), request(name))
	w.want("a try of "+name, err, want)
}

var errDead = errors.New("the switcher is dead")

// open reports which stores let clients of a single phase in.
func (w world) open() (old, new bool) {
	w.Helper()
	st, err := w.pair().Status(w.Context())
	w.want("status", err, nil)
	return st.From.Open(true), st.To.Open(false)
}

// steps is more than a switch has.
const steps = 10
