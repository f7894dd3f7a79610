package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/meant"
)

func TestInspect(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithOwner("me"), fencelock.WithManualRenew()), open(t, d.other())
		info, err := a.Inspect(t.Context(), "n")
		if want := (fencelock.Info{Name: "n"}); err != nil || !reflect.DeepEqual(info, want) {
			t.Errorf("a free lock: got %+v, %v, want %+v", info, err, want)
		}
		le := lock(t, a.Mutex("n"))
		ctx, cancel := context.WithCancel(t.Context())
		waiter := background(ctx, b.Mutex("n"))
		time.Sleep(time.Second)
		info, err = b.Inspect(t.Context(), "n")
		want := fencelock.Info{
			Name: "n", Owner: "me", Held: true, Token: le.Token(), ExpiresIn: ttl - time.Second,
			Waiters: 1,
		}
		if err != nil || !reflect.DeepEqual(info, want) {
			t.Errorf("a held lock: got %+v, %v, want %+v", info, err, want)
		}
		cancel()
		wantErr(t, "the waiter", (<-waiter).err, context.Canceled)
	})
}

func TestList(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		for _, name := range []string{"jobs/a", "jobs/b", "other", "jobs"} {
			lock(t, l.Mutex(name))
		}
		tests := map[string][]string{
			"":      {"jobs", "jobs/a", "jobs/b", "other"},
			"jobs/": {"jobs/a", "jobs/b"},
			"none":  nil,
		}
		for prefix, want := range tests {
			var got []string
			for info, err := range l.List(t.Context(), prefix) {
				if err != nil || !info.Held {
					t.Errorf("list %q: got %+v, %v", prefix, info, err)
				}
				got = append(got, info.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("list %q: got %q, want %q", prefix, got, want)
			}
		}
		n := 0
		for range l.List(t.Context(), "") {
			if n++; n == 2 {
				break
			}
		}
		seq := l.List(t.Context(), "other")
		for range 2 { // a sequence may be used twice
			for info := range seq {
				n += len(info.Name)
			}
		}
		if want := 2 + 2*len("other"); n != want {
			t.Errorf("got %d, want %d", n, want)
		}
	})
}

func TestOperatorsCallsAndErrors(t *testing.T) {
	calls := map[string]func(context.Context, *fencelock.Locker) error{
		"inspect": func(ctx context.Context, l *fencelock.Locker) error {
			_, err := l.Inspect(ctx, "n")
			return err
		},
		"break": func(ctx context.Context, l *fencelock.Locker) error { return l.Break(ctx, "n") },
		"list": func(ctx context.Context, l *fencelock.Locker) (last error) {
			for _, err := range l.List(ctx, "n") {
				last = err
			}
			return last
		},
	}
	for op, do := range calls {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := openLoose(t, d)
				cause := errors.New("the cause")
				tests := map[string]struct {
					step step
					want []error
				}{
					"store error": {refuse(errStore), []error{fencelock.ErrUnavailable, errStore}},
					"rights":      {refuse(fencelock.ErrInvalid), []error{fencelock.ErrInvalid}},
					"unsupported": {refuse(fencelock.ErrUnsupported), []error{fencelock.ErrUnsupported}},
					"no answer":   {hang, []error{context.DeadlineExceeded, cause}},
				}
				for name, tt := range tests {
					d.on(op, tt.step)
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
					defer cancel()
					err := do(ctx, l)
					wantErr(t, name, err, tt.want...)
					if got := opErrors(err); got != 1 {
						t.Errorf("%s: got %d OpErrors in %v, want 1", name, got, err)
					}
				}
				d.on(op, hang)
				done := make(chan error, 1)
				go func() { done <- do(t.Context(), l) }()
				time.Sleep(time.Second)
				start := time.Now()
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				wantErr(t, "a call that Close ended", <-done, fencelock.ErrClosed)
				wantTook(t, "close", start, 0, time.Second)
			})
		})
	}
}

// A store that is silent ends a call whose ctx has no deadline.
func TestOperatorsPatience(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		calls := map[string]func(context.Context) error{
			"inspect": func(ctx context.Context) error {
				_, err := l.Inspect(ctx, "n")
				return err
			},
			"break": func(ctx context.Context) error { return l.Break(ctx, "n") },
			"list": func(ctx context.Context) (last error) {
				for _, err := range l.List(ctx, "n") {
					last = err
				}
				return last
			},
		}
		for op, do := range calls {
			d.on(op, hang)
			ctx, cancel := context.WithCancel(t.Context())
			late := time.AfterFunc(time.Minute, cancel)
			start := time.Now()
			err := do(ctx)
			late.Stop()
			cancel()
			wantErr(t, op, err, fencelock.ErrUnavailable)
			wantNot(t, op, err, context.DeadlineExceeded, context.Canceled)
			most := 10 * time.Second
			if op == "list" {
				most = 30 * time.Second
			}
			wantTook(t, op, start, most, most)
			d.on(op, nil)
		}
	})
}

// slowList is a fake that finds a lock every so often.
type slowList struct {
	*fake
	every time.Duration
}

func (d slowList) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for info, err := range d.fake.List(ctx, prefix) {
			if late := pause(ctx, d.every); late != nil {
				yield(backend.Info{}, late)
				return
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

// A List has its patience for each lock, and what the caller's loop takes is not part of it.
func TestListIsPatientForEachLock(t *testing.T) {
	tests := map[string]struct {
		every, loop, deadline time.Duration
		want                  error
	}{
		"slow":                           {28 * time.Second, 0, 0, nil},
		"slow, with a slow loop":         {28 * time.Second, time.Minute, 0, nil},
		"too slow":                       {31 * time.Second, 0, 0, fencelock.ErrUnavailable},
		"too slow, but for the deadline": {31 * time.Second, 0, 2 * time.Minute, nil},
		"beyond the deadline":            {28 * time.Second, 0, 50 * time.Second, context.DeadlineExceeded},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, slowList{d, tt.every})
				for _, name := range []string{"a", "b", "c"} {
					lock(t, l.Mutex(name))
				}
				ctx, cancel := t.Context(), func() {}
				if tt.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				}
				defer cancel()
				var last error
				n := 0
				for _, err := range l.List(ctx, "") {
					if last = err; err == nil {
						n++
					}
					time.Sleep(tt.loop)
				}
				if tt.want == nil && (last != nil || n != 3) {
					t.Errorf("got %d locks and %v, want 3", n, last)
				}
				if tt.want != nil {
					wantErr(t, "list", last, tt.want)
				}
			})
		})
	}
}

func TestBreak(t *testing.T) {
	for _, by := range []string{"the same Locker", "another Locker"} {
		t.Run(by, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d), open(t, d.other())
				breaker := map[string]*fencelock.Locker{"the same Locker": a, "another Locker": b}[by]
				if err := breaker.Break(t.Context(), "n"); err != nil {
					t.Errorf("break of a free lock: %v", err)
				}
				le, other := lock(t, a.Mutex("n")), lock(t, a.Mutex("other"))
				next := background(t.Context(), b.Mutex("n"))
				if err := breaker.Break(t.Context(), "n"); err != nil {
					t.Errorf("break: %v", err)
				}
				r := <-next
				if r.err != nil || r.le.Token() <= le.Token() {
					t.Errorf("the next: got %v, %v", r.le, r.err)
				}
				time.Sleep(a.Traits().Revoked)
				wantLost(t, "the holder", le, fencelock.Revoked)
				wantErr(t, "its unlock", le.Unlock(t.Context()), fencelock.ErrLost)
				wantHeld(t, "the next holder", r.le)
				wantHeld(t, "another name", other)
			})
		})
	}
}

// A Break that is told which hold is meant spares the next one, which may come while it looks.
func TestBreakOfTheHoldThatIsMeant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b, breaker := open(t, d), open(t, d.other()), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		seen, err := breaker.Inspect(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		waiter := background(t.Context(), b.Mutex("n"))
		done := make(chan error, 1)
		go func() { done <- breaker.Break(meant.With(t.Context(), seen), "n") }()
		time.Sleep(30 * time.Millisecond)
		unlock(t, le)
		next := want(t, waiter)
		err = <-done
		gone, ok := errors.AsType[*meant.GoneError](err)
		if !ok || !gone.Now.Held || gone.Now.Token != next.Token() {
			t.Errorf("got %v, want a GoneError with token %d", err, next.Token())
		}
		time.Sleep(b.Traits().Revoked)
		wantHeld(t, "the next holder", next)
		unlock(t, next)

		err = breaker.Break(meant.With(t.Context(), seen), "n")
		if gone, ok = errors.AsType[*meant.GoneError](err); !ok || gone.Now.Held {
			t.Errorf("free by now: got %v, want a GoneError", err)
		}
		if err := breaker.Break(meant.With(t.Context(), fencelock.Info{Name: "n"}), "n"); err != nil {
			t.Errorf("free, as it was meant: %v", err)
		}
		le = lock(t, a.Mutex("n"))
		if seen, err = a.Inspect(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*fencelock.Locker{breaker, a} {
			old := seen
			old.Token--
			wantErr(t, "of an older one", l.Break(meant.With(t.Context(), old), "n"), fencelock.ErrLost)
			wantHeld(t, "the holder", le)
		}
		if err := breaker.Break(meant.With(t.Context(), seen), "n"); err != nil {
			t.Errorf("break: %v", err)
		}
		time.Sleep(a.Traits().Revoked)
		wantLost(t, "the holder", le, fencelock.Revoked)
	})
}

func TestBreakThatFailedTellsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("break", refuse(errStore))
		wantErr(t, "break", l.Break(t.Context(), "n"), fencelock.ErrUnavailable)
		wantHeld(t, "the holder", le)
	})
}

var sentinels = map[string]error{
	"ErrLocked": fencelock.ErrLocked, "ErrLost": fencelock.ErrLost, "ErrReleased": fencelock.ErrReleased,
	"ErrDeadlock": fencelock.ErrDeadlock, "ErrStale": fencelock.ErrStale, "ErrUnavailable": fencelock.ErrUnavailable,
	"ErrUnsupported": fencelock.ErrUnsupported, "ErrInvalid": fencelock.ErrInvalid, "ErrClosed": fencelock.ErrClosed,
}

func TestWhatMatchesWhat(t *testing.T) {
	lost := &fencelock.LostError{Reason: fencelock.SessionLost}
	stale := &fencelock.StaleError{Max: 7}
	tests := map[string]struct {
		err  error
		want []string // the sentinels it matches, and no others
	}{
		"lost":        {lost, []string{"ErrLost"}},
		"stale":       {stale, []string{"ErrStale"}},
		"invalid":     {backend.Invalid("bad: %w", errStore), []string{"ErrInvalid"}},
		"unsupported": {backend.Unsupported("no"), []string{"ErrUnsupported"}},
		"unavailable": {backend.Unavailable(errStore), []string{"ErrUnavailable"}},
		"joined":      {errors.Join(lost, fencelock.ErrClosed), []string{"ErrLost", "ErrClosed"}},
		"plain":       {errStore, nil},
	}
	for s, err := range sentinels {
		tests[s] = struct {
			err  error
			want []string
		}{err, []string{s}}
	}
	for name, tt := range tests {
		wrapped := &fencelock.OpError{Op: "lock", Backend: "memory", Name: "n", Err: tt.err}
		for how, err := range map[string]error{
			"bare": tt.err, "in an OpError": wrapped, "deeper": fmt.Errorf("doing it: %w", wrapped),
		} {
			want := map[string]bool{}
			for _, w := range tt.want {
				want[w] = true
			}
			for s, sentinel := range sentinels {
				if got := errors.Is(err, sentinel); got != want[s] {
					t.Errorf("%s, %s: matches %s: got %v, want %v", name, how, s, got, want[s])
				}
			}
		}
	}
	got := backend.Unavailable(backend.Unavailable(errStore)).Error()
	if strings.Count(got, fencelock.ErrUnavailable.Error()) != 1 {
		t.Errorf("got %q, want the mark once", got)
	}
	wantErr(t, "the cause", backend.Unavailable(errStore), errStore)
	wantErr(t, "the cause", backend.Invalid("bad: %w", errStore), errStore)
}

func TestErrorsAs(t *testing.T) {
	var lost *fencelock.LostError
	unlock := func(err error) error {
		return fmt.Errorf("x: %w", &fencelock.OpError{Op: "unlock", Err: err})
	}
	err := unlock(&fencelock.LostError{Reason: fencelock.MaxHold})
	if !errors.As(err, &lost) || lost.Reason != fencelock.MaxHold {
		t.Errorf("got %v, want the LostError", lost)
	}
	var stale *fencelock.StaleError
	if err := fmt.Errorf("x: %w", &fencelock.StaleError{Max: 7}); !errors.As(err, &stale) || stale.Max != 7 {
		t.Errorf("got %v, want the StaleError", stale)
	}
	var op *fencelock.OpError
	if err := unlock(fencelock.ErrLost); !errors.As(err, &op) || op.Op != "unlock" {
		t.Errorf("got %v, want the OpError", op)
	}
}

func TestOpErrorText(t *testing.T) {
	tests := []struct {
		err  fencelock.OpError
		want string
	}{
		{fencelock.OpError{Op: "open", Err: errStore}, "fencelock: open: connection reset by peer"},
		{
			fencelock.OpError{Op: "open", Backend: "redis", Err: errStore},
			"fencelock: open (redis): connection reset by peer",
		},
		{
			fencelock.OpError{Op: "lock", Backend: "redis", Name: "a\nb", Err: fencelock.ErrLocked},
			`fencelock: lock "a\nb" (redis): locked by another holder`,
		},
		{
			fencelock.OpError{Op: "lock", Name: strings.Repeat("é", 200), Err: fencelock.ErrLocked},
			`fencelock: lock "` + strings.Repeat("é", 40) + `…": locked by another holder`,
		},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	want := map[fencelock.Reason]string{
		fencelock.Expired: "expired", fencelock.Revoked: "revoked", fencelock.SessionLost: "session lost",
		fencelock.MaxHold: "maximum hold reached", 0: "reason 0", 9: "reason 9",
	}
	for r, want := range want {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := (&fencelock.LostError{Reason: r}).Error(); got != "lease lost: "+want {
			t.Errorf("got %q", got)
		}
	}
}

// Every method of a Locker and a Lease wraps its error once, and says what it did.
func TestEachOperationIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		for _, op := range []string{"acquire", "renew", "release", "inspect", "list", "break", "abandon"} {
			d.on(op, refuse(errStore))
		}
		_, lockErr := l.Mutex("x").Lock(t.Context())
		_, tryErr := l.Mutex("x").TryLock(t.Context())
		_, readErr := l.RWMutex("x").RLock(t.Context())
		_, tryReadErr := l.RWMutex("x").TryRLock(t.Context())
		_, acquireErr := l.Semaphore("x", 2).Acquire(t.Context())
		_, tryAcquireErr := l.Semaphore("x", 2).TryAcquire(t.Context())
		_, inspectErr := l.Inspect(t.Context(), "x")
		var listErr error
		for _, err := range l.List(t.Context(), "x") {
			listErr = err
		}
		errs := []struct {
			op, name string
			err      error
		}{
			{"lock", "x", lockErr},
			{"trylock", "x", tryErr},
			{"rlock", "x", readErr},
			{"tryrlock", "x", tryReadErr},
			{"acquire", "x", acquireErr},
			{"tryacquire", "x", tryAcquireErr},
			{"inspect", "x", inspectErr},
			{"list", "x", listErr},
			{"break", "x", l.Break(t.Context(), "x")},
			{"renew", "n", le.Renew(t.Context())},
			{"unlock", "n", le.Unlock(t.Context())},
			{"close", "", l.Close()},
		}
		for _, e := range errs {
			var op *fencelock.OpError
			if !errors.As(e.err, &op) || opErrors(e.err) != 1 {
				t.Errorf("%s: got %v, want one OpError", e.op, e.err)
				continue
			}
			if op.Op != e.op || op.Name != e.name || op.Backend != "memory" {
				t.Errorf("got %s %q (%s), want %s %q (memory)", op.Op, op.Name, op.Backend, e.op, e.name)
			}
			wantErr(t, e.op, e.err, fencelock.ErrUnavailable, errStore)
		}
	})
}

// Where the look before a Break fails, nothing is broken: but what is wrong with the name Break itself says, unless it
// is told which hold is meant.
func TestBreakAfterALookThatFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		look  error
		meant bool
		want  error
	}{
		{"no answer", errStore, false, errStore},
		{"the name is none", backend.ErrInvalid, false, nil},
		{"the name is none, and one is meant", backend.ErrInvalid, true, backend.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, ctx, breaks := open(t, d), t.Context(), 0
				d.on("inspect", refuse(tt.look))
				if tt.meant {
					ctx = meant.With(ctx, fencelock.Info{Name: "n"})
				}
				if tt.want == nil {
					breaks = 1
				}
				if err := l.Break(ctx, "n"); !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if got := d.count("break"); got != breaks {
					t.Errorf("got %d calls of Break, want %d", got, breaks)
				}
			})
		})
	}
}

// Who is held instead of the hold that is meant is told as Inspect tells it.
func TestHoldersInsteadOfTheOneThatIsMeant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, err := l.RWMutex("n").RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, err := l.Inspect(t.Context(), "n")
		if err != nil || len(seen.Holds) != 1 {
			t.Fatalf("got %+v, %v, want one hold", seen, err)
		}
		err = l.Break(meant.With(t.Context(), fencelock.Info{Name: "n", Held: true, Token: 1}), "n")
		gone, ok := errors.AsType[*meant.GoneError](err)
		if !ok || len(gone.Now.Holds) != 1 || gone.Now.Holds[0].ID != seen.Holds[0].ID {
			t.Errorf("got %v, want a GoneError with the hold %v", err, seen.Holds)
		}
		unlock(t, le)
	})
}
