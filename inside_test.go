package fencelock

import (
	"container/heap"
	"context"
	"errors"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
)

// oversleep makes the lease as if the process had been stopped, or the machine
// suspended, for longer than it may be trusted: no timer has fired.
func oversleep(h *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
	h.asked = h.asked.Add(-time.Hour)
}

// sleepy is a driver during whose calls the machine sleeps.
type sleepy struct {
	core.Composite
	h        *hold // nil: it does not
	renewals int
}

func (d *sleepy) Renew(ctx context.Context, hs []*core.Hold) []error {
	d.renewals++
	errs := d.Caller.Renew(ctx, hs)
	if d.h != nil {
		oversleep(d.h)
	}
	return errs
}

func (d *sleepy) Release(ctx context.Context, bh *core.Hold) error {
	err := d.Caller.Release(ctx, bh)
	if d.h != nil {
		oversleep(d.h)
	}
	return err
}

// sleeper returns a lease, manually renewed, and its driver.
func sleeper(t *testing.T) (*Lease, *sleepy) {
	t.Helper()
	m, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	d := &sleepy{Composite: core.Composite{Caller: core.Of(m)}}
	l, err := New(d, WithManualRenew())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	le, err := l.Mutex("n").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return le, d
}

// A context of several leases looks at the clock for each of them.
func TestOuterLeaseAfterASleep(t *testing.T) {
	for name, look := range map[string]func(context.Context) bool{
		"Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, _ := sleeper(t)
				second, _ := sleeper(t)
				outer, cancel := first.Context(t.Context())
				defer cancel()
				inner, cancel := second.Context(outer)
				defer cancel()
				oversleep(first.h)
				if !look(inner) {
					t.Error("the context goes on under a lease that is lost")
				}
			})
		})
	}
}

// The sleep of the machine is a part of the longest time for which a lock is held.
func TestMaxHoldCountsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(core.Composite{Caller: core.Of(m)}, WithMaxHold(time.Hour), WithTTL(2*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		le, err := l.Mutex("n").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const slept = 20 * time.Minute
		le.h.mu.Lock()
		le.h.fresh = le.h.fresh.Add(-slept)
		got := le.h.trust(backend.Now())
		le.h.mu.Unlock()
		if want := time.Hour - slept; got != want {
			t.Errorf("after a sleep of %v it is trusted for %v, want %v", slept, got, want)
		}
	})
}

// A lease that ended for want of a renewal says so, also where WithMaxHold is over too when it is looked at.
func TestExpiredBeforeMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		le, err := le.h.l.Mutex("bounded", WithMaxHold(DefaultTTL+time.Minute)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		le.h.fresh = le.h.fresh.Add(-time.Hour)
		oversleep(le.h)
		var lost *LostError
		if !errors.As(le.Err(), &lost) || lost.Reason != Expired {
			t.Errorf("got %v, want lost: expired", le.Err())
		}
	})
}

// Whatever is looked at first after such a sleep says that the lease is lost.
func TestFirstLookAfterASleep(t *testing.T) {
	looks := map[string]func(ctx context.Context, le *Lease, held context.Context) error{
		"Err":    func(_ context.Context, le *Lease, _ context.Context) error { return le.Err() },
		"Renew":  func(ctx context.Context, le *Lease, _ context.Context) error { return le.Renew(ctx) },
		"Unlock": func(ctx context.Context, le *Lease, _ context.Context) error { return le.Unlock(ctx) },
		"Done": func(_ context.Context, le *Lease, _ context.Context) error {
			<-le.Done()
			return le.h.err
		},
		"the ctx's Err": func(_ context.Context, _ *Lease, held context.Context) error {
			_ = held.Err()
			return context.Cause(held)
		},
		"the ctx's Done": func(_ context.Context, _ *Lease, held context.Context) error {
			<-held.Done()
			return context.Cause(held)
		},
		"a new ctx": func(ctx context.Context, le *Lease, _ context.Context) error {
			c, cancel := le.Context(ctx)
			defer cancel()
			return context.Cause(c)
		},
		"Context": func(ctx context.Context, le *Lease, _ context.Context) error {
			_, cancel := le.Context(ctx)
			cancel()
			return le.h.err
		},
		"re-entry finds none": func(ctx context.Context, le *Lease, held context.Context) error {
			if _, err := le.h.l.Mutex("n", WithReentrancy()).
				TryLock(context.WithoutCancel(held)); errors.Is(err, ErrDeadlock) {
				return err
			}
			return le.Err()
		},
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				le, _ := sleeper(t)
				held, cancel := le.Context(t.Context())
				defer cancel()
				oversleep(le.h)
				if err := look(t.Context(), le, held); !errors.Is(err, ErrLost) {
					t.Errorf("got %v, want lost", err)
				}
			})
		})
	}
}

// Unlock of one of several leases tells of a loss in such a sleep too, and asks the store nothing for it.
func TestUnlockOfOneOfSeveralAfterASleep(t *testing.T) {
	for name, along := range map[string]bool{"re-entry": false, "readers": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				le, d := sleeper(t)
				another := le.h.join(along)
				oversleep(le.h)
				if err := another.Unlock(t.Context()); !errors.Is(err, ErrLost) || d.renewals > 0 {
					t.Errorf("got %v, and %d renewals, want lost, and none", err, d.renewals)
				}
			})
		})
	}
}

// An Unlock that waits for Close looks at the clock as well.
func TestUnlockBesideCloseAfterASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		le.h.take(t.Context(), &le.h.unlocking) // so that Close waits
		defer le.h.give(&le.h.unlocking)
		go func() { _ = le.h.l.Close() }()
		synctest.Wait()
		oversleep(le.h)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := le.Unlock(done); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want lost", err)
		}
	})
}

// What was lost in a sleep before Close is not what went wrong in Close.
func TestCloseAfterASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		oversleep(le.h)
		if err := le.h.l.Close(); err != nil {
			t.Errorf("close: got %v, want none", err)
		}
		if err := le.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want lost", err)
		}
	})
}

// A lease that ends with another is lost if its own time was over too.
func TestSeveralAfterASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, _ := sleeper(t)
		second, _ := sleeper(t)
		together([]*Lease{first, second})
		oversleep(first.h)
		oversleep(second.h)
		_ = first.Err()
		synctest.Wait()
		if err := second.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want lost", err)
		}
	})
}

// Whoever waits for the end of several locks hears of it before the others are given back.
func TestSeveralAreToldFirst(t *testing.T) {
	first, _ := sleeper(t)
	second, _ := sleeper(t)
	ls := together([]*Lease{first, second})
	second.h.mu.Lock() // so that it cannot be given back
	defer second.h.mu.Unlock()
	first.h.lost(ErrLost)
	select {
	case <-ls.done:
	case <-time.After(10 * time.Second):
		t.Error("Done is open")
	}
}

// A context whose parent ends while it is made is not kept.
func TestContextUnderAnEndedParentIsDropped(t *testing.T) {
	le, _ := sleeper(t)
	parent, end := context.WithCancel(t.Context())
	end()
	made := make(chan struct{})
	le.h.mu.Lock()
	go func() {
		defer close(made)
		le.Context(parent) //nolint:govet // its parent has ended
	}()
	time.Sleep(10 * time.Millisecond) // a goroutine that has waited 1 ms for a sync.Mutex gets it in turn
	le.h.mu.Unlock()
	<-made
	le.h.mu.Lock()
	defer le.h.mu.Unlock()
	if got := len(le.ctxs); got != 0 {
		t.Errorf("%d contexts are kept", got)
	}
}

// A reader whose Unlock the store has confirmed has unlocked, also if the hold was given back before it could leave.
func TestReaderWhoIsLateToLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		h, reader := le.h, le.h.join(true)
		h.take(t.Context(), &h.renewing)
		unlocked := make(chan error, 1)
		go func() { unlocked <- reader.Unlock(t.Context()) }()
		synctest.Wait()
		h.mu.Lock()
		h.asked = backend.Now() // another's question was answered
		h.renewing.giveLocked()
		h.endLocked(ErrReleased)
		h.mu.Unlock()
		h.ended()
		if err := <-unlocked; err != nil {
			t.Errorf("got %v, want it unlocked", err)
		}
		if err := reader.Unlock(t.Context()); !errors.Is(err, ErrReleased) {
			t.Errorf("again: got %v, want ErrReleased", err)
		}
	})
}

// A context of several locks that has ended is not kept, whatever ended it.
func TestContextsOfSeveralAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		ls := together([]*Lease{le})
		parent, end := context.WithCancel(t.Context())
		ls.Context(parent) //nolint:govet // its parent ends
		_, cancel := ls.Context(t.Context())
		if len(ls.ctxs) != 2 {
			t.Fatalf("got %d contexts, want 2", len(ls.ctxs))
		}
		end()
		cancel()
		synctest.Wait()
		if len(ls.ctxs) != 0 || len(le.ctxs) != 1 { // by which it ends the others
			t.Errorf("%d contexts are kept, and %d of a lease", len(ls.ctxs), len(le.ctxs)-1)
		}
	})
}

// The contexts under which LockAll waits for the next lock are not kept.
func TestContextsOfLockAllAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		ls, err := le.h.l.LockAll(t.Context(), "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range ls.all {
			if got := len(one.ctxs); got != 1 { // by which it ends the others
				t.Errorf("%q: got %d contexts, want 1", one.Name(), got)
			}
		}
	})
}

// Leases of several locks look at the clock first, as one does.
func TestFirstLookAtSeveralAfterASleep(t *testing.T) {
	looks := map[string]func(context.Context, *Leases) error{
		"Err": func(_ context.Context, ls *Leases) error { return ls.Err() },
		"Done": func(_ context.Context, ls *Leases) error {
			select {
			case <-ls.Done():
				return ls.Err()
			default:
				return nil
			}
		},
		"a new ctx": func(ctx context.Context, ls *Leases) error {
			c, cancel := ls.Context(ctx)
			defer cancel()
			return context.Cause(c)
		},
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			for range 20 { // whether others have seen it meanwhile is a race
				synctest.Test(t, func(t *testing.T) {
					le, _ := sleeper(t)
					ls := together([]*Lease{le})
					oversleep(le.h)
					if err := look(t.Context(), ls); !errors.Is(err, ErrLost) {
						t.Errorf("got %v, want lost", err)
					}
				})
			}
		})
	}
}

// A name that is neither held nor wanted costs nothing, and Wanted no timer after the end of the lease, before which it
// was called or not.
func TestNothingIsKeptOfANameThatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		l := le.h.l
		if _, err := l.Mutex("refused", WithFloor(1<<52)).Lock(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Fatalf("got %v, want invalid", err)
		}
		ended, err := l.Mutex("ended").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		le.Wanted()
		if err := errors.Join(le.Unlock(t.Context()), ended.Unlock(t.Context())); err != nil {
			t.Fatal(err)
		}
		ended.Wanted()
		time.Sleep(2 * wantedEvery)
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.lines) != 0 || l.wanting {
			t.Errorf("got %d lines and a look that is planned %v, want none", len(l.lines), l.wanting)
		}
	})
}

// After Close no timer of a clean-up that is left to the store holds the Locker in memory.
func TestCloseStopsTheJanitorsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		l := le.h.l
		kept, err := l.Mutex("kept", WithMinHold(10*time.Second)).Lock(t.Context())
		if err == nil {
			err = errors.Join(kept.Unlock(t.Context()), le.Unlock(t.Context()), l.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if l.janitors[0].timer.Stop() {
			t.Error("the timer is set")
		}
	})
}

// A job knows its place among those that are tried later, by which it is taken out from the middle.
func TestJobKnowsItsPlace(t *testing.T) {
	q := newJanitor(nil, nil).later
	for i := range 20 {
		heap.Push(&q, &job{at: time.Unix(int64(7*i%20), 0)})
	}
	heap.Pop(&q)
	heap.Push(&q, heap.Remove(&q, 5))
	for i, w := range q.all {
		if w.place != i+1 {
			t.Errorf("at %d: got place %d", i, w.place)
		}
	}
}

// A call counts until it ends or hangs, once, also where both happen at the same moment.
func TestPoolCountsACallOnce(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"quick": 0, "hangs": 2 * poolHangs, "just when it is found to hang": poolHangs,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var p pool
				mu.Lock()
				end := p.begin(&mu, func() {})
				if after > poolHangs {
					mu.Unlock()
					time.Sleep(after)
					mu.Lock()
				} else {
					time.Sleep(after) // its timer waits for mu
				}
				end()
				mu.Unlock()
				synctest.Wait()
				if p.busy != 0 {
					t.Errorf("got %d calls under way, want none", p.busy)
				}
			})
		})
	}
}

// A store's yes that is seen after the deadline is too late, though no timer has
// said so.
func TestSleepDuringACall(t *testing.T) {
	calls := map[string]func(*Lease, context.Context) error{"renew": (*Lease).Renew, "unlock": (*Lease).Unlock}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				le, d := sleeper(t)
				d.h = le.h
				var lost *LostError
				if err := call(le, t.Context()); !errors.As(err, &lost) || lost.Reason != Expired {
					t.Errorf("got %v, want lost: expired", err)
				}
			})
		})
	}
}

// suspend makes everything as if the machine had slept for d: timers stood still, and the clock
// that counts sleep did not.
func suspend(l *Locker, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.holds {
		h.mu.Lock()
		h.asked = h.asked.Add(-d)
		h.mu.Unlock()
	}
	l.sleeps.slept = func(from, to backend.Instant) time.Duration {
		l.sleeps.slept = slept // once
		return d
	}
}

// A goroutine that waits for the end of a lease hears of it soon after the machine woke up, and
// what is still held is renewed at once.
func TestWokenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(m, WithTTL(10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		var leases []*Lease
		for name, opts := range map[string][]Option{
			"lost": {WithManualRenew(), WithTTL(5 * time.Minute)}, "by hand": {WithManualRenew()},
			"renewed": nil,
		} {
			le, err := l.Mutex(name, opts...).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if name == "lost" {
				leases = append([]*Lease{le}, leases...)
			} else {
				leases = append(leases, le)
			}
		}
		lost := leases[0]
		ctx, cancel := lost.Context(t.Context())
		defer cancel()
		child, stop := context.WithCancel(ctx)
		defer stop()
		time.Sleep(time.Minute)
		suspend(l, 6*time.Minute)
		woke := time.Now()
		<-child.Done()
		if got := time.Since(woke); got > time.Second/2 {
			t.Errorf("a derived context heard of the loss %v after the machine woke up, want half a second", got)
		}
		time.Sleep(time.Second)
		for _, le := range leases[1:] {
			left := time.Until(le.Deadline())
			if auto := le.Name() == "renewed"; auto && left < 9*time.Minute || !auto && left > 3*time.Minute {
				t.Errorf("%q: got %v until its deadline a second later", le.Name(), left)
			}
		}
		byHand := leases[1]
		if byHand.Name() == "renewed" {
			byHand = leases[2]
		}
		<-byHand.Done()
		if got := time.Since(woke); got > 3*time.Minute {
			t.Errorf("the other deadline: got Done %v after the machine woke up, want it by its new timer", got)
		}
	})
}

// While a renewal is due no look is begun, for the look could hang and the renewal would wait for it.
func TestNoLookWhileARenewalIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		h, now := le.h, backend.Now().Add(time.Second)
		for due, want := range map[time.Duration]bool{-time.Millisecond: false, 0: false, time.Millisecond: true} {
			h.mu.Lock()
			h.renewal = now.Time().Add(due)
			h.mu.Unlock()
			got := h.lookable(now, time.Millisecond)
			if got {
				h.give(&h.renewing)
			}
			if got != want {
				t.Errorf("a renewal that is due in %v: got a look %v, want %v", due, got, want)
			}
		}
	})
}

// A renewal that is due sooner because the machine slept is one that is due.
func TestNoLookWhileARenewalIsDueAfterASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(m)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		le, err := l.Mutex("n").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h, now := le.h, backend.Now()
		due := h.renewal.Sub(now.Time())
		l.schedule.woken(2 * time.Second)
		if h.lookable(now.Add(due-time.Second), 0) {
			t.Error("a look is begun while a renewal is due")
		}
	})
}

// The schedule does not renew what was lost while the machine slept.
func TestNoRenewalAfterASleepTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		oversleep(le.h)
		if _, err := le.h.fly(nil); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want lost", err)
		}
	})
}

// A renewal moves the timer with the deadline. If it fired at the old one, leases of one moment would have a goroutine
// each, all at once.
func TestRenewalMovesTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		h, fired := le.h, 0
		h.mu.Lock()
		h.timer.Stop()
		h.timer = time.AfterFunc(time.Until(h.asked.Add(h.span).Time()), func() { fired++; h.tick() })
		h.mu.Unlock()
		time.Sleep(DefaultTTL / 2)
		if err := le.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-le.Done()
		synctest.Wait()
		if late := time.Since(le.Deadline()); late != 0 || fired != 1 {
			t.Errorf("Done %v after the deadline, and the timer fired %d times, want once", late, fired)
		}
	})
}

// A process that was stopped before it set the timer of a lease that is renewed by hand is told in time.
func TestTimerAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		le, _ := sleeper(t)
		now := backend.Now()
		time.Sleep(DefaultTTL / 2)
		le.h.mu.Lock()
		le.h.armLocked(now)
		le.h.mu.Unlock()
		<-le.Done()
		if late := time.Since(le.Deadline()); late != 0 {
			t.Errorf("Done %v after the deadline", late)
		}
	})
}

// driver grants every lock, and keeps the way on which it was asked.
type driver struct {
	backend.Driver
	way []string
}

func (*driver) Traits() backend.Traits                  { return backend.TraitsOf("memory") }
func (*driver) Calls() backend.Calls                    { return backend.Calls{Most: 2, Abreast: 1} }
func (*driver) Leave(context.Context, []*backend.Claim) {}
func (*driver) Close() error                            { return nil }
func (s *driver) Ask(_ context.Context, cs []*backend.Claim) {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		if _, method, ok := strings.Cut(name, "(*"); ok {
			s.way = append(s.way, strings.Replace(method, ")", "", 1))
		}
	}
	slices.Reverse(s.way)
	cs[0].Grant = backend.Grant{Token: 1, Asked: backend.Now()}
}

// TestWayOfALock: the picture in the documentation of package backend has the functions that a Lock
// passes, each one in its place.
func TestWayOfALock(t *testing.T) {
	s := &driver{}
	l, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Mutex("n").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("backend/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(text), "# The way of a Lock")
	picture, _, _ = strings.Cut(picture, "The grant goes back")
	drawn := regexp.MustCompile(`(?m)^//\t\W*(\w+\.\w+)`).FindAllStringSubmatch(picture, -1)
	if len(drawn) < 9 {
		t.Fatalf("the picture has %d functions, want 9 at least", len(drawn))
	}
	way := s.way
	for _, f := range drawn {
		i := slices.Index(way, f[1])
		if i < 0 {
			t.Fatalf("%s is not on the way, or not in its place: %v", f[1], s.way)
		}
		way = way[i+1:]
	}
	if passed := s.way[slices.Index(s.way, "mutex.Lock"):]; len(passed) > 13 {
		t.Errorf("a Lock passes %d functions, the picture has %d: %v", len(passed), len(drawn), passed)
	}
}

// Who goes while it waits for a lock to be passed on is given it no more, also before it has left the line.
func TestPassedOnToNobodyWhoGoes(t *testing.T) {
	l, set := &Locker{lines: map[string]*line{}}, &settings{}
	h := &hold{Request: &backend.Request{Name: "n"}, l: l, set: set, fresh: backend.Now()}
	h.Reserved = 1
	p := &place{set: set, heir: true, passed: make(chan *Lease, 1)}
	l.lines["n"] = &line{holder: h, first: p}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if le := l.await(ctx, "n", p); le != nil || l.heir(h) != nil {
		t.Errorf("got %v, and an heir %v; want neither", le, l.heir(h))
	}
}

// Who waits for one holder to pass the lock on is not the heir of another, whose hold may have ended in the store.
func TestHeirOfAnotherHolder(t *testing.T) {
	l, set := &Locker{lines: map[string]*line{}}, &settings{}
	old := &hold{Request: &backend.Request{Name: "n"}, l: l, set: set}
	l.lines["n"] = &line{holder: &hold{Request: old.Request, l: l, set: set}, first: &place{set: set, heir: true}}
	if p := l.heir(old); p != nil {
		t.Errorf("got %v, want nobody", p)
	}
}

// From passOnFor after its grant on, and from its deadline on, a lock is not passed on, though the heir waits yet.
func TestNotPassedOnTooLate(t *testing.T) {
	for _, tt := range []struct{ fresh, asked time.Duration }{{passOnFor, passOnFor}, {0, time.Second}} { // ago
		synctest.Test(t, func(t *testing.T) {
			l, set, now := &Locker{lines: map[string]*line{}}, &settings{}, backend.Now()
			h := &hold{Request: &backend.Request{Name: "n", Nonce: core.Nonce()}, l: l, set: set, state: held}
			h.fresh, h.asked, h.span, h.Reserved = now.Add(-tt.fresh), now.Add(-tt.asked), time.Second, 1
			p := &place{set: set, heir: true, passed: make(chan *Lease, 1)}
			l.lines["n"] = &line{holder: h, first: p}
			if next, _ := h.passLocked(h.first()); next != nil || !p.heir {
				t.Errorf("granted %v ago and asked for %v ago, it is passed on", tt.fresh, tt.asked)
			}
		})
	}
}
