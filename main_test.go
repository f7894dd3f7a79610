package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// TestMain fails the package if a test leaves a goroutine behind. (A bubble of
// synctest checks that for itself.)
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaked(2 * time.Second); left != "" && code == 0 {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// leaked returns the stacks of the goroutines other than the caller's that run
// code of this module and do not end within the given time.
func leaked(within time.Duration) string {
	for end := time.Now().Add(within); ; runtime.Gosched() {
		var left []string
		for _, s := range stacks()[1:] { // the first is the caller's
			if strings.Contains(s, "fencelock/fencelock") {
				left = append(left, s)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return strings.Join(left, "\n\n")
		}
	}
}

// ours counts the goroutines that run code of this module: the runtime starts some of its own when it likes.
func ours() int {
	n := 0
	for _, s := range stacks() {
		if strings.Contains(s, "fencelock/fencelock") {
			n++
		}
	}
	return n
}

// stacks returns the stacks of all goroutines, the caller's first.
func stacks() []string {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")
		}
		buf = make([]byte, 2*len(buf))
	}
}

func TestLeakedSeesAGoroutine(t *testing.T) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		<-stop
	}()
	seen := leaked(0)
	close(stop)
	<-stopped
	if !strings.Contains(seen, "TestLeakedSeesAGoroutine") {
		t.Errorf("got %q, want the stack of the goroutine that is left", seen)
	}
}

const ttl = 10 * time.Second

// trusted is how long a lease of ttl may be trusted: the margin is 2 %.
const trusted = ttl - ttl/50

// bubble runs fn in virtual time with a fake driver on a new store.
func bubble(t *testing.T, fn func(t *testing.T, d *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, newFake(t)) })
}

// open makes a Locker with leases of ttl, and closes it after the test.
func open(t *testing.T, d backend.Driver, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l := openLoose(t, d, opts...)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// openLoose is open without the Close.
func openLoose(t *testing.T, d backend.Driver, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.New(d, append([]fencelock.Option{fencelock.WithTTL(ttl)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func lock(t *testing.T, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	le, err := m.Lock(t.Context())
	if err != nil {
		t.Fatalf("lock of %q: %v", m.Name(), err)
	}
	return le
}

func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(t.Context()); err != nil {
		t.Errorf("unlock of %q: %v", le.Name(), err)
	}
}

// wantErr checks that got matches every error of want.
func wantErr(t *testing.T, what string, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Errorf("%s: got error %v, want %v", what, got, w)
		}
	}
}

// wantNot checks that got matches none of the errors.
func wantNot(t *testing.T, what string, got error, not ...error) {
	t.Helper()
	for _, n := range not {
		if errors.Is(got, n) {
			t.Errorf("%s: got error %v, which must not match %v", what, got, n)
		}
	}
}

// wantHeld checks that the lease is held.
func wantHeld(t *testing.T, what string, le *fencelock.Lease) {
	t.Helper()
	if err := le.Err(); err != nil || closed(le.Done()) {
		t.Errorf("%s: got err %v, Done closed %v, want a lease that is held", what, err, closed(le.Done()))
	}
}

// wantLost checks that the lease was lost for this reason and that Done says so.
func wantLost(t *testing.T, what string, le *fencelock.Lease, want fencelock.Reason) {
	t.Helper()
	var lost *fencelock.LostError
	err := le.Err()
	if !errors.As(err, &lost) || lost.Reason != want || !errors.Is(err, fencelock.ErrLost) {
		t.Errorf("%s: got err %v, want lost: %v", what, err, want)
	}
	if !closed(le.Done()) {
		t.Errorf("%s: Done is open", what)
	}
}

// wantTook checks how long something took in virtual time.
func wantTook(t *testing.T, what string, since time.Time, least, most time.Duration) {
	t.Helper()
	if got := time.Since(since); got < least || got > most {
		t.Errorf("%s: took %v, want %v to %v", what, got, least, most)
	}
}

// wantFree checks what the store says.
func wantFree(t *testing.T, l *fencelock.Locker, names ...string) {
	t.Helper()
	for _, name := range names {
		info, err := l.Inspect(t.Context(), name)
		if err != nil || info.Held || info.Waiters != 0 {
			t.Errorf("%q at the store: got %+v, %v, want free and nobody waiting", name, info, err)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// result is what a Lock in another goroutine came to.
type result struct {
	le  *fencelock.Lease
	err error
	at  time.Time
}

// background calls Lock in a goroutine and returns once it waits.
func background(ctx context.Context, m fencelock.Mutex) <-chan result {
	done := make(chan result, 1)
	go func() {
		le, err := m.Lock(ctx)
		done <- result{le, err, time.Now()}
	}()
	synctest.Wait()
	return done
}

// opErrors counts the *OpError in err's tree.
func opErrors(err error) int {
	n := 0
	if _, ok := err.(*fencelock.OpError); ok {
		n = 1
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return n + opErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			n += opErrors(one)
		}
	}
	return n
}

// Nothing of a lease is kept after its end, however long its TTL is.
func TestCyclesLeaveNothing(t *testing.T) {
	const n = 200
	cycles := map[string]func(*testing.T, *fencelock.Locker, *fake){
		"lock and unlock": func(t *testing.T, l *fencelock.Locker, _ *fake) { unlock(t, lock(t, l.Mutex("n"))) },
		"many at once": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			var leases []*fencelock.Lease
			for i := range n {
				leases = append(leases, lock(t, l.Mutex(fmt.Sprint(i))))
			}
			for _, le := range leases {
				unlock(t, le)
			}
		},
		"broken": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			lock(t, l.Mutex("n"))
			if err := l.Break(t.Context(), "n"); err != nil {
				t.Error(err)
			}
		},
		"max hold": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			<-lock(t, l.Mutex("n", fencelock.WithMaxHold(time.Second))).Done()
		},
		"cancelled": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			le := lock(t, l.Mutex("n"))
			ctx, cancel := context.WithCancel(t.Context())
			waits := background(ctx, l.Mutex("n"))
			cancel()
			wantErr(t, "the wait", (<-waits).err, context.Canceled)
			unlock(t, le)
		},
		"refused": func(t *testing.T, l *fencelock.Locker, d *fake) {
			d.on("acquire", first(1, loseReply))
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
			synctest.Wait()
		},
		"refused, all at once": func(t *testing.T, l *fencelock.Locker, d *fake) {
			d.on("acquire", loseReply)
			d.on("abandon", slowBack(time.Millisecond))
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		},
	}
	for name, cycle := range cycles {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithTTL(24*time.Hour))
				var mu sync.Mutex
				var reqs []weak.Pointer[backend.Request] // each is a part of its hold
				d.watch = func(r *backend.Request) {
					mu.Lock()
					defer mu.Unlock()
					reqs = append(reqs, weak.Make(r))
				}
				for range n {
					cycle(t, l, d)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				runtime.GC()
				runtime.GC()
				mu.Lock()
				defer mu.Unlock()
				left := 0
				for _, r := range reqs {
					if r.Value() != nil {
						left++
					}
				}
				if len(reqs) < n || left > n/2 {
					t.Errorf("%d of %d holds are still in memory after their end", left, len(reqs))
				}
			})
		})
	}
}
