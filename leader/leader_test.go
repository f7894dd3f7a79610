package leader_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/leader"
	"github.com/fencelock/fencelock/locktest"
)

// two returns two lockers on one store.
func two(t *testing.T) (a, b *fencelock.Locker) {
	t.Helper()
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.Client("fencelock:")
	if err != nil {
		t.Fatal(err)
	}
	lockers := [2]*fencelock.Locker{}
	for i, d := range []*memory.Driver{d, other} {
		if lockers[i], err = fencelock.New(d); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lockers[i].Close() })
	}
	return lockers[0], lockers[1]
}

// diary is what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) want(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("got %q, want %q", d.lines, want)
	}
}

// running is a Run on a goroutine of its own.
func running(ctx context.Context, m fencelock.Mutex, c leader.Callbacks) (result <-chan error) {
	done := make(chan error, 1)
	go func() { done <- leader.Run(ctx, m, c) }()
	return done
}

func TestTermsPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		var d diary
		var tokens []fencelock.Token
		callbacks := func(who string) leader.Callbacks {
			return leader.Callbacks{
				Lead: func(ctx context.Context, lease *fencelock.Lease) error {
					d.note("%s leads", who)
					tokens = append(tokens, lease.Token())
					if l, ok := fencelock.LeaseFrom(ctx); !ok || l != lease {
						t.Error("Lead's ctx does not carry the lease")
					}
					<-ctx.Done()
					d.note("%s stops", who)
					return ctx.Err()
				},
				Lost: func(_ *fencelock.Lease, err error) {
					d.note("%s lost it: %v", who, errors.Is(err, fencelock.ErrLost))
				},
				Failed: func(err error) { t.Errorf("%s failed: %v", who, err) },
			}
		}
		enough := errors.New("enough")
		ctxA, stopA := context.WithCancelCause(t.Context())
		ctxB, stopB := context.WithCancelCause(t.Context())
		defer stopB(nil)
		doneA := running(ctxA, a.Mutex("n"), callbacks("a"))
		synctest.Wait()
		doneB := running(ctxB, b.Mutex("n"), callbacks("b"))
		time.Sleep(10 * time.Minute) // renewed all the time
		d.want(t, "a leads")
		stopA(enough)
		if err := <-doneA; !errors.Is(err, enough) {
			t.Errorf("a: got %v, want the cause of its end", err)
		}
		synctest.Wait()
		d.want(t, "a leads", "a stops", "b leads")
		info, err := a.Inspect(t.Context(), "n")
		if err != nil || info.Token != tokens[1] || tokens[1] <= tokens[0] {
			t.Errorf("tokens %v, held with %d, %v; want rising ones", tokens, info.Token, err)
		}
		stopB(enough)
		<-doneB
		if info, err := a.Inspect(t.Context(), "n"); err != nil || info.Held {
			t.Errorf("after the end: %+v, %v; want it free", info, err)
		}
	})
}

func TestLoss(t *testing.T) {
	for says, err := range map[string]func(context.Context) error{
		"the cause": func(ctx context.Context) error { return fmt.Errorf("stopped: %w", context.Cause(ctx)) },
		"its end":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
	} {
		t.Run(says, func(t *testing.T) { testLoss(t, err) })
	}
}

func testLoss(t *testing.T, says func(context.Context) error) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		var d diary
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := running(ctx, a.Mutex("n"), leader.Callbacks{
			Lead: func(ctx context.Context, _ *fencelock.Lease) error {
				d.note("leads")
				<-ctx.Done()
				return says(ctx)
			},
			Lost: func(l *fencelock.Lease, err error) {
				d.note("lost %s: %v", l.Name(), errors.Is(err, fencelock.ErrLost))
			},
			Late:   func(*fencelock.Lease, time.Duration) { t.Error("late, though it stopped at once") },
			Failed: func(err error) { t.Errorf("a loss is no failure: %v", err) },
		})
		synctest.Wait()
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		d.want(t, "leads", "lost n: true", "leads") // and stands again
		stop()
		<-done
	})
}

// Who is stopped while another leads has failed in nothing.
func TestStopIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		if _, err := b.Mutex("n").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		done := running(ctx, a.Mutex("n"), leader.Callbacks{
			Lead:   func(context.Context, *fencelock.Lease) error { return nil },
			Failed: func(err error) { t.Errorf("failed: %v", err) },
		})
		synctest.Wait()
		cause := errors.New("a deploy")
		stop(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("got %v, want why it was stopped", err)
		}
	})
}

// A lock that could not be released is told.
func TestReleaseThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var failed error
		done := running(ctx, store.Locker(t).Mutex("n"), leader.Callbacks{
			Lead: func(context.Context, *fencelock.Lease) error {
				store.Outage(10 * time.Second)
				return nil
			},
			Failed: func(err error) {
				failed = err
				stop()
			},
		})
		<-done
		op, ok := errors.AsType[*fencelock.OpError](failed)
		if !errors.Is(failed, fencelock.ErrUnavailable) || !ok || op.Op != "unlock" {
			t.Errorf("got %v, want ErrUnavailable of the unlock", failed)
		}
	})
}

// What Lead says of itself is told, also after a loss.
func TestFailureAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		fault, failed := errors.New("not flushed"), error(nil)
		done := running(ctx, a.Mutex("n"), leader.Callbacks{
			Lead: func(ctx context.Context, _ *fencelock.Lease) error {
				<-ctx.Done()
				return fault
			},
			Failed: func(err error) {
				failed = err
				stop()
			},
		})
		synctest.Wait()
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		<-done
		if !errors.Is(failed, fault) {
			t.Errorf("got %v, want what Lead has said", failed)
		}
	})
}

// A Lead that does not stop is reported, and never has a second one beside it.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		var d diary
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		release := make(chan struct{})
		term := 0
		done := running(ctx, a.Mutex("n"), leader.Callbacks{
			Lead: func(ctx context.Context, _ *fencelock.Lease) error {
				term++
				d.note("term %d", term)
				if term == 1 {
					<-release // without a look at ctx
					return nil
				}
				<-ctx.Done()
				return nil
			},
			Lost: func(*fencelock.Lease, error) { d.note("lost") },
			Late: func(_ *fencelock.Lease, late time.Duration) { d.note("late %v", late) },
		})
		synctest.Wait()
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		lease, err := b.Mutex("n").Lock(t.Context()) // another leads meanwhile
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond)
		d.want(t, "term 1", "lost", "late 1s", "late 2s", "late 3s")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		d.want(t, "term 1", "lost", "late 1s", "late 2s", "late 3s", "late 4s")
		close(release)
		time.Sleep(time.Second)
		d.want(t, "term 1", "lost", "late 1s", "late 2s", "late 3s", "late 4s", "term 2")
		stop()
		<-done
	})
}

// A Lead that returns in the moment of its loss is told of the loss all the same.
func TestLostIsCalledAlso(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := two(t)
		lost := 0
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for range 50 {
			done := running(ctx, a.Mutex("n"), leader.Callbacks{
				Lead: func(ctx context.Context, lease *fencelock.Lease) error {
					if err := a.Break(ctx, "n"); err != nil { // which tells our own leases at once
						t.Error(err)
					}
					if lease.Err() == nil {
						t.Error("the lease has not ended")
					}
					stop()
					return nil
				},
				Lost: func(*fencelock.Lease, error) { lost++ },
			})
			<-done
			ctx, stop = context.WithCancel(t.Context())
		}
		if lost != 50 {
			t.Errorf("Lost was called %d times of 50", lost)
		}
		stop()
	})
}

// loses is a store that has lost each lock when it is unlocked.
type loses struct{ *memory.Driver }

func (l loses) Leave(ctx context.Context, cs []*backend.Claim) {
	l.Driver.Leave(ctx, cs)
	for _, c := range cs {
		c.Err = backend.ErrLost
	}
}

// A loss of which the unlock is the first to know is told as well: another may have led meanwhile.
func TestLostAtTheUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(loses{d})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, stop := context.WithCancel(t.Context())
		lost := 0
		<-running(ctx, l.Mutex("n"), leader.Callbacks{
			Lead: func(context.Context, *fencelock.Lease) error {
				stop()
				return nil
			},
			Lost: func(_ *fencelock.Lease, err error) {
				if lost++; !errors.Is(err, fencelock.ErrLost) {
					t.Errorf("got %v, want ErrLost", err)
				}
			},
		})
		if lost != 1 {
			t.Errorf("Lost was called %d times, want once", lost)
		}
	})
}

// A Lost that ends its goroutine, as FailNow does, is called once, and Run ends.
func TestLostThatEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		ctx, stop := context.WithCancel(t.Context())
		lost := 0
		<-running(ctx, a.Mutex("n"), leader.Callbacks{
			Lead: func(held context.Context, _ *fencelock.Lease) error {
				if err := b.Break(ctx, "n"); err != nil {
					t.Error(err)
				}
				<-held.Done()
				stop()
				return nil
			},
			Lost: func(*fencelock.Lease, error) {
				lost++
				runtime.Goexit()
			},
		})
		if lost != 1 {
			t.Errorf("Lost was called %d times, want once", lost)
		}
	})
}

func TestPanicReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		func() {
			defer func() {
				if got := recover(); got != "at the disco" {
					t.Errorf("got panic %v, want Lead's", got)
				}
			}()
			_ = leader.Run(t.Context(),
				a.Mutex("n"), leader.Callbacks{
					Lead: func(context.Context, *fencelock.Lease) error { panic("at the disco") },
				})
		}()
		if _, err := b.Mutex("n").TryLock(t.Context()); err != nil {
			t.Errorf("after the panic: %v, want it free", err)
		}
	})
}

// down is a Mutex whose store is out.
type down struct {
	fencelock.Mutex
	err   error
	tries []time.Time
}

func (m *down) Lock(context.Context) (*fencelock.Lease, error) {
	m.tries = append(m.tries, time.Now())
	return nil, m.err
}

func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		failed := 0
		m := &down{err: fencelock.ErrUnavailable}
		err := leader.Run(ctx, m, leader.Callbacks{
			Lead: func(context.Context, *fencelock.Lease) error { return nil },
			Failed: func(err error) {
				failed++
				if !errors.Is(err, fencelock.ErrUnavailable) {
					t.Errorf("failed: got %v", err)
				}
			},
		})
		if !errors.Is(err, context.DeadlineExceeded) || failed != len(m.tries) {
			t.Errorf("got %v after %d tries and %d failures", err, len(m.tries), failed)
		}
		if n := len(m.tries); n < 35 || n > 75 {
			t.Errorf("%d tries in 5 minutes, want about 45", n)
		}
		for i := range len(m.tries) - 1 {
			bound := min(100*time.Millisecond<<i, 10*time.Second)
			if i > 7 {
				bound = 10 * time.Second
			}
			if gap := m.tries[i+1].Sub(m.tries[i]); gap < bound/2 || gap > bound {
				t.Errorf("pause %d: got %v, want %v to %v", i, gap, bound/2, bound)
			}
		}
	})
}

// A Lead that gives up at once is held back more and more, and not for ever.
func TestShortTermsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := two(t)
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		var terms []time.Time
		fault := errors.New("no database")
		failed := 0
		_ = leader.Run(ctx, a.Mutex("n"), leader.Callbacks{
			Lead: func(context.Context, *fencelock.Lease) error {
				terms = append(terms, time.Now())
				if len(terms) == 12 {
					time.Sleep(time.Minute)
				}
				return fault
			},
			Failed: func(err error) {
				failed++
				if !errors.Is(err, fault) {
					t.Errorf("failed: got %v, want Lead's error", err)
				}
			},
		})
		if len(terms) < 14 || failed < len(terms)-1 {
			t.Fatalf("%d terms, %d failures", len(terms), failed)
		}
		if gap := terms[11].Sub(terms[10]); gap < 5*time.Second {
			t.Errorf("after ten short terms: a pause of %v", gap)
		}
		if gap := terms[12].Sub(terms[11]) - time.Minute; gap > 100*time.Millisecond {
			t.Errorf("after a long term: a pause of %v, want a short one", gap)
		}
	})
}

func TestHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t)
		lead := leader.Callbacks{Lead: func(ctx context.Context, _ *fencelock.Lease) error {
			<-ctx.Done()
			return nil
		}}
		if err := leader.Run(t.Context(), a.Mutex("n"), leader.Callbacks{}); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("no Lead: got %v", err)
		}
		if err := leader.Run(t.Context(), a.Mutex(""), lead); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("a bad name: got %v", err)
		}
		err := a.Do(t.Context(), "n", func(ctx context.Context, _ *fencelock.Lease) error {
			return leader.Run(ctx, a.Mutex("n"), lead)
		})
		if !errors.Is(err, fencelock.ErrDeadlock) {
			t.Errorf("inside a lease of the name: got %v", err)
		}
		leading := running(t.Context(), a.Mutex("n"), lead)
		synctest.Wait()
		waiting := running(t.Context(), b.Mutex("n"), lead)
		synctest.Wait()
		_ = b.Close()
		if err := <-waiting; !errors.Is(err, fencelock.ErrClosed) {
			t.Errorf("closed while waiting: got %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := leader.Run(ctx, a.Mutex("m"), lead); !errors.Is(err, context.Canceled) {
			t.Errorf("ctx done before: got %v", err)
		}
		_ = a.Close()
		if err := <-leading; !errors.Is(err, fencelock.ErrClosed) {
			t.Errorf("closed while leading: got %v", err)
		}
	})
}

// What is written in a term that a panic or an error ends is rolled back, and the error told once.
func TestTermThatFailedIsUndone(t *testing.T) {
	fault, elsewhere := errors.New("no database"), fmt.Errorf("another lock: %w", fencelock.ErrLost)
	for name, tt := range map[string]struct {
		lead func(ctx context.Context) error
		want error // told to Failed
		undo bool
	}{
		"returns":            {func(context.Context) error { return nil }, nil, false},
		"says its end":       {func(ctx context.Context) error { return fmt.Errorf("end: %w", ctx.Err()) }, nil, false},
		"fails":              {func(context.Context) error { return fault }, fault, true},
		"loses another":      {func(context.Context) error { return elsewhere }, elsewhere, true},
		"panics":             {func(context.Context) error { panic(fault) }, nil, true},
		"ends its goroutine": {func(context.Context) error { runtime.Goexit(); return nil }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, x := testkit.Ledgers(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var failed error
				over := make(chan struct{})
				go func() {
					defer close(over)
					defer func() { _ = recover() }()
					_ = leader.Run(ctx, l.Mutex("n"), leader.Callbacks{
						Lead: func(ctx context.Context, _ *fencelock.Lease) error {
							stop()
							return tt.lead(ctx)
						},
						Lost:   func(*fencelock.Lease, error) { t.Error("told of a loss") },
						Failed: func(err error) { failed = err },
					})
				}()
				<-over
				if (x.Undone != nil) != tt.undo || failed != tt.want {
					t.Errorf("undone by %v, failed with %v, want any: %v, and %v", x.Undone, failed, tt.undo, tt.want)
				}
			})
		})
	}
}

// Lead's error does not hide that the lock was not released.
func TestTermThatFailedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, fault := locktest.New(t), errors.New("no database")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var failed error
		_ = leader.Run(ctx, store.Locker(t).Mutex("n"), leader.Callbacks{
			Lead: func(context.Context, *fencelock.Lease) error {
				stop()
				store.Outage(time.Hour)
				return fault
			},
			Failed: func(err error) { failed = err },
		})
		if !errors.Is(failed, fault) || !errors.Is(failed, fencelock.ErrUnavailable) {
			t.Errorf("failed: got %v, want Lead's error and that of Unlock", failed)
		}
	})
}
