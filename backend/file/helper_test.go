package file

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(jobEnv); job != "" {
		child(job)
	}
	os.Exit(m.Run())
}

// newDriver returns a driver with sockets.
func newDriver(t testing.TB, dir string) caller {
	t.Helper()
	return newWith(t, dir, Options{Prefix: backend.DefaultPrefix})
}

// newQuiet returns a driver without sockets, for virtual time.
func newQuiet(t testing.TB, dir string) caller {
	t.Helper()
	return newWith(t, dir, Options{Prefix: backend.DefaultPrefix, NoSockets: true})
}

func newWith(t testing.TB, dir string, o Options) caller {
	t.Helper()
	d, err := NewWith(dir, o)
	if err != nil {
		t.Fatalf("NewWith(%q, %+v): %v", dir, o, err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return call(d)
}

func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func try(name string, ttl time.Duration) *backend.Request {
	return &backend.Request{Name: name, Nonce: nonce(), Owner: "tester", TTL: ttl}
}

func wait(name string, ttl time.Duration) *backend.Request {
	r := try(name, ttl)
	r.Wait = true
	return r
}

// take acquires, and fails the test if it cannot.
func take(t testing.TB, d caller, r *backend.Request) *core.Hold {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%.40q): %v", r.Name, err)
	}
	return &core.Hold{Request: r, Grant: g}
}

func release(t testing.TB, d caller, h *core.Hold) {
	t.Helper()
	if err := d.Release(t.Context(), h); err != nil {
		t.Fatalf("Release(%.40q): %v", h.Name, err)
	}
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func inspect(t testing.TB, d caller, name string) backend.Info {
	t.Helper()
	i, err := d.Inspect(t.Context(), name)
	if err != nil {
		t.Fatalf("Inspect(%.40q): %v", name, err)
	}
	return i
}

type granted struct {
	h   *core.Hold
	err error
}

// later acquires in a goroutine.
func later(ctx context.Context, d caller, r *backend.Request) <-chan granted {
	c := make(chan granted, 1)
	go func() {
		g, err := d.Acquire(ctx, r)
		c <- granted{&core.Hold{Request: r, Grant: g}, err}
	}()
	return c
}

// soon returns what c brings, in real time.
func soon(t testing.TB, c <-chan granted) *core.Hold {
	t.Helper()
	select {
	case g := <-c:
		if g.err != nil {
			t.Fatalf("Acquire: %v", g.err)
		}
		return g.h
	case <-time.After(20 * time.Second):
		t.Fatal("not granted within 20 s")
	}
	return nil
}

// eventually looks at the store until cond holds, in real time.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// queued waits until n processes wait for a name.
func queued(t testing.TB, d caller, name string, n int) {
	t.Helper()
	eventually(t, "the queue", func() bool { return inspect(t, d, name).Waiters == n })
}

// sleeper is a claim that stands in a queue, and that nobody looks after but the test: it hears of nothing but what its
// driver is told.
type sleeper struct {
	*backend.Claim
	d     caller
	woken chan time.Duration // it is to look in that time
}

// Wake implements backend.Waker.
func (s *sleeper) Wake(in time.Duration) { s.woken <- in }

// sleep puts a request in the queue.
func sleep(t testing.TB, d caller, r *backend.Request) *sleeper {
	t.Helper()
	s := &sleeper{&backend.Claim{Request: r}, d, make(chan time.Duration, 1000)}
	s.Waker = s
	wantErr(t, "Enter", d.store.Enter(t.Context(), s.Claim), nil)
	wantErr(t, "joining the queue", s.look(t), backend.ErrLocked)
	return s
}

func (s *sleeper) look(t testing.TB) error {
	s.d.store.Ask(t.Context(), []*backend.Claim{s.Claim})
	return s.Err
}

func (s *sleeper) leave(t testing.TB) {
	t.Helper()
	s.d.store.Leave(t.Context(), []*backend.Claim{s.Claim})
	wantErr(t, "Leave", s.Err, nil)
}

// told returns in what time the sleeper is to look.
func (s *sleeper) told(t testing.TB) time.Duration {
	t.Helper()
	select {
	case in := <-s.woken:
		return in
	case <-time.After(20 * time.Second):
		t.Fatal("a waiter was not told within 20 s")
		return 0
	}
}

// takes waits until the sleeper is told to look at once, and looks: it has the lock then.
func (s *sleeper) takes(t testing.TB) {
	t.Helper()
	for s.told(t) > 0 {
	}
	wantErr(t, "the waiter that was told", s.look(t), nil)
	s.Held = true
}

// expire ends the time of the holds that have a token, as though nobody had renewed them.
func expire(t testing.TB, d caller, name string, token backend.Token) {
	t.Helper()
	err := d.store.bucket(name).update(t.Context(), func(st *state) (changed bool, err error) {
		l := st.locks[d.store.key(name)]
		for i := range l.holds {
			if h := &l.holds[i]; h.token == token {
				h.until, changed = st.now+1, true
			}
		}
		return changed, nil
	})
	wantErr(t, "expire", err, nil)
}

// files returns the names in a directory that match a pattern.
func files(t testing.TB, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
