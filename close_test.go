package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

func TestClosedForEveryCall(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		m := l.Mutex("n")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		calls := d.count()
		_, err := m.Lock(t.Context())
		wantErr(t, "lock", err, fencelock.ErrClosed)
		_, err = m.TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrClosed)
		_, err = l.Mutex("new").Lock(t.Context())
		wantErr(t, "lock of a new Mutex", err, fencelock.ErrClosed)
		_, err = l.Inspect(t.Context(), "n")
		wantErr(t, "inspect", err, fencelock.ErrClosed)
		wantErr(t, "break", l.Break(t.Context(), "n"), fencelock.ErrClosed)
		wantErr(t, "do", l.Do(t.Context(), "n", nil), fencelock.ErrClosed)
		n := 0
		for _, err := range l.List(t.Context(), "") {
			n++
			wantErr(t, "list", err, fencelock.ErrClosed)
		}
		if n != 1 {
			t.Errorf("list: got %d results, want the error", n)
		}
		if err := l.Close(); err != nil {
			t.Errorf("a second close: %v", err)
		}
		if got := d.count(); got != calls {
			t.Errorf("got %d calls of the driver after Close", got-calls)
		}
	})
}

func TestCloseReleasesEveryLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := openLoose(t, d), open(t, d.other())
		var leases []*fencelock.Lease
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprint("n", i))
			leases = append(leases, lock(t, l.Mutex(names[i])))
		}
		ctx, cancel := leases[0].Context(t.Context())
		defer cancel()
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, le := range leases {
			wantErr(t, le.Name(), le.Err(), fencelock.ErrReleased)
			wantErr(t, "unlock after Close", le.Unlock(t.Context()), fencelock.ErrReleased)
			wantErr(t, "renew after Close", le.Renew(t.Context()), fencelock.ErrReleased)
			if !closed(le.Done()) {
				t.Errorf("%s: Done is open", le.Name())
			}
		}
		wantErr(t, "a lease's ctx", context.Cause(ctx), fencelock.ErrReleased)
		wantFree(t, other, names...)
		if got := d.count("close"); got != 1 {
			t.Errorf("the driver was closed %d times", got)
		}
	})
}

func TestCloseReleasesEachEvenIfAnotherFails(t *testing.T) {
	bad := func(name string) bool { return name == "n3" }
	tests := map[string]struct {
		step step
		want error
	}{
		"refused":   {refuse(errStore), fencelock.ErrUnavailable},
		"no answer": {hang, fencelock.ErrUnavailable},
		"lost":      {refuse(fencelock.ErrLost), fencelock.ErrLost},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d, fencelock.WithTTL(time.Hour)), open(t, d.other())
				leases := map[string]*fencelock.Lease{}
				for i := range 6 {
					name := fmt.Sprint("n", i)
					leases[name] = lock(t, l.Mutex(name))
				}
				d.on("release", about(bad, tt.step))
				start := time.Now()
				err := l.Close()
				wantTook(t, "close", start, 0, 5*time.Second)
				wantErr(t, "close", err, tt.want)
				if got := opErrors(err); got != 1 || !strings.Contains(err.Error(), "n3") {
					t.Errorf("close: got %v, want one OpError that names the lease", err)
				}
				wantLost(t, "the lease that the store did not confirm", leases["n3"], fencelock.Revoked)
				wantErr(t, "its unlock", leases["n3"].Unlock(t.Context()), fencelock.ErrLost)
				delete(leases, "n3")
				for name, le := range leases {
					wantErr(t, name, le.Err(), fencelock.ErrReleased)
					wantFree(t, other, name)
				}
			})
		})
	}
}

// Many leases whose release hangs (a backend of a routed Locker that is down)
// must not use up the time of the others.
func TestCloseReleasesOthersWhileManyHang(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := openLoose(t, d, fencelock.WithTTL(time.Hour)), open(t, d.other())
		var good []string
		for i := range 150 {
			lock(t, l.Mutex(fmt.Sprint("bad", i)))
			good = append(good, fmt.Sprint("good", i))
			lock(t, l.Mutex(good[i]))
		}
		d.on("release", about(func(name string) bool { return strings.HasPrefix(name, "bad") }, hang))
		start := time.Now()
		wantErr(t, "close", l.Close(), fencelock.ErrUnavailable)
		wantTook(t, "close", start, 0, 5*time.Second)
		wantFree(t, other, good...)
	})
}

func TestCloseWithADriverThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithTTL(2*ttl))
		var leases []*fencelock.Lease
		for i := range 100 {
			leases = append(leases, lock(t, l.Mutex(fmt.Sprint(i))))
		}
		for _, op := range []string{"acquire", "renew", "release", "abandon", "inspect"} {
			d.on(op, hang)
		}
		waiting := background(t.Context(), l.Mutex("other"))
		time.Sleep(ttl) // renewals hang
		start := time.Now()
		err := l.Close()
		wantErr(t, "close", err, fencelock.ErrUnavailable)
		wantTook(t, "close", start, 0, 5*time.Second)
		if len(err.Error()) > 2000 {
			t.Errorf("the error of 100 leases is %d bytes long", len(err.Error()))
		}
		wantErr(t, "the waiting Lock", (<-waiting).err, fencelock.ErrClosed)
		for _, le := range leases {
			wantLost(t, "a lease that the store did not confirm", le, fencelock.Revoked)
		}
	})
}

func TestCloseEndsWaits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d.other()), openLoose(t, d)
		lock(t, a.Mutex("n"))
		var waits []<-chan result
		for range 5 { // the first is at the store, the others in the queue here
			waits = append(waits, background(t.Context(), b.Mutex("n")))
		}
		start := time.Now()
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantTook(t, "close", start, 0, time.Second)
		for i, w := range waits {
			r := <-w
			wantErr(t, fmt.Sprint("waiter ", i), r.err, fencelock.ErrClosed)
			if got := opErrors(r.err); got != 1 {
				t.Errorf("got %d OpErrors in %v, want 1", got, r.err)
			}
		}
		info, err := a.Inspect(t.Context(), "n")
		if err != nil || info.Waiters != 0 {
			t.Errorf("got %d waiters at the store (%v), want none left", info.Waiters, err)
		}
	})
}

func TestConcurrentCloses(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		errs := make(chan error)
		start := time.Now()
		for range 10 {
			go func() { errs <- l.Close() }()
		}
		for range 10 {
			if err := <-errs; err != nil {
				t.Errorf("close: %v", err)
			}
			wantTook(t, "each waits for the first", start, time.Second, time.Second)
		}
		if got := d.count("close"); got != 1 {
			t.Errorf("the driver was closed %d times", got)
		}
	})
}

func TestCloseReportsTheDriversError(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		d.on("close", refuse(errStore))
		err := l.Close()
		wantErr(t, "close", err, errStore)
		if err := l.Close(); err != nil {
			t.Errorf("a second close: %v", err)
		}
	})
}

func TestCloseInsideAList(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		lock(t, l.Mutex("n"))
		start := time.Now()
		d.on("close", func(call) error { return nil }) // it comes while the loop's List is still open
		for range l.List(t.Context(), "") {
			if err := l.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		wantTook(t, "close inside a loop", start, 0, 5*time.Second)
	})
}

func TestCloseFinishesCleanUp(t *testing.T) {
	tests := map[string]struct {
		abandon, then step          // before Close and from then on
		after         time.Duration // when Close is called
	}{
		"not tried yet":        {nil, first(3, refuse(errStore)), 0},
		"tried again soon":     {refuse(errStore), first(3, refuse(errStore)), 10 * time.Millisecond},
		"failing for a while":  {refuse(errStore), nil, 9 * time.Second},
		"in flight":            {slowBack(100 * time.Millisecond), nil, 50 * time.Millisecond},
		"without an answer":    {hang, nil, 100 * time.Millisecond},
		"no answer for longer": {hang, nil, 4 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d, fencelock.WithTTL(time.Hour)), open(t, d.other())
				d.on("acquire", loseReply)
				d.on("abandon", tt.abandon)
				_, err := l.Mutex("n").TryLock(t.Context())
				wantErr(t, "trylock", err, fencelock.ErrUnavailable)
				time.Sleep(tt.after)
				d.on("abandon", tt.then)
				start := time.Now()
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				wantTook(t, "close", start, 0, 5*time.Second)
				wantFree(t, other, "n")
			})
		})
	}
}

func TestCloseGivesUpCleanUpThatFails(t *testing.T) {
	for name, step := range map[string]step{"errors": refuse(errStore), "no answer": hang} {
		t.Run(name, func(t *testing.T) {
			for i := range 10 {
				bubble(t, func(t *testing.T, d *fake) {
					l := openLoose(t, d)
					d.on("acquire", loseReply)
					d.on("abandon", step)
					_, err := l.Mutex("n").TryLock(t.Context())
					wantErr(t, "trylock", err, fencelock.ErrUnavailable)
					time.Sleep(time.Duration(i) * 300 * time.Millisecond)
					start := time.Now()
					if err := l.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
					wantTook(t, "close", start, 0, 5*time.Second)
				})
			}
		})
	}
}

// The grace of a lost lease ends while Close waits for its clean-up.
func TestCloseWhileGraceRuns(t *testing.T) {
	for _, after := range []time.Duration{
		0, 2 * time.Second, 3 * time.Second, 3500 * time.Millisecond, 5 * time.Second,
	} {
		bubble(t, func(t *testing.T, d *fake) {
			l := openLoose(t, d, fencelock.WithGrace(3*time.Second), fencelock.WithManualRenew())
			le := lock(t, l.Mutex("n"))
			d.on("abandon", slowBack(time.Second))
			<-le.Done()
			time.Sleep(after)
			start := time.Now()
			if err := l.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			wantTook(t, "close", start, 0, 5*time.Second)
		})
	}
}

// What a holder has written when Close releases its lease is half done.
func TestCloseUndoesWrites(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		x := transactional(d)
		le := lock(t, l.Mutex("n"))
		write(t, le)
		var undone *fencelock.UndoneError
		if err := l.Close(); !errors.As(err, &undone) || !errors.Is(err, fencelock.ErrClosed) {
			t.Errorf("close: got %v, want an UndoneError with ErrClosed", err)
		}
		if x.cause == nil || !x.closed {
			t.Errorf("the transaction: got %+v, want it undone", x)
		}
		wantErr(t, "the lease", le.Err(), fencelock.ErrReleased)
	})
}

// Close during the grace of a lost lease asks the store nothing about it: the grace is kept.
func TestCloseKeepsTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		const grace = 30 * time.Second
		l, other := openLoose(t, d, fencelock.WithGrace(grace), fencelock.WithManualRenew()), open(t, d.other())
		le := lock(t, l.Mutex("n"))
		<-le.Done()
		lost := time.Now()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if got := d.count("abandon", "release"); got != 0 {
			t.Errorf("got %d calls about a lost lease within its grace, want none", got)
		}
		unlock(t, lock(t, other.Mutex("n")))
		if got := time.Since(lost); got < grace {
			t.Errorf("granted %v after the loss, want at least the grace, %v", got, grace)
		}
	})
}

func TestCloseDuringAnAcquire(t *testing.T) {
	tests := map[string]step{
		"the request is on its way there": slowThere(time.Second),
		"the reply is on its way back":    slowBack(time.Second),
		"granted in spite of the end": func(c call) error { // the driver answers yes although its ctx has ended
			time.Sleep(time.Second)
			return c.apply()
		},
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d), open(t, d.other())
				d.on("acquire", s)
				waiting := background(t.Context(), l.Mutex("n"))
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				r := <-waiting
				got := r.err
				if r.le != nil {
					got = r.le.Err()
				}
				if !errors.Is(got, fencelock.ErrClosed) && !errors.Is(got, fencelock.ErrReleased) {
					t.Errorf("got %v, want closed, or a lease that was released", got)
				}
				wantFree(t, other, "n")
			})
		})
	}
}

func TestCloseDuringAnUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		unlocked := make(chan error, 1)
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantTook(t, "close", start, time.Second, time.Second)
		if err := <-unlocked; err != nil {
			t.Errorf("the unlock in flight: %v", err)
		}
		if got := d.count("release"); got != 1 {
			t.Errorf("got %d releases, want 1", got)
		}
	})
}

func TestUnlockDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// A store that does not answer keeps Close busy for its whole bound; an Unlock whose ctx is over
// does not wait for that.
func TestUnlockWithADoneContextDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", hang)
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantErr(t, "unlock", le.Unlock(ctx), fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, 0, time.Second)
		<-closed
		wantErr(t, "unlock after Close", le.Unlock(t.Context()), fencelock.ErrLost)
	})
}

// An Unlock that the store keeps for longer than Close lasts ends with Close: the fake takes a
// second release in flight, or any call in flight at the driver's Close, for a mistake.
func TestCloseGivesUpAnUnlockThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", hang)
		closed := make(chan error, 1)
		start := time.Now()
		unlocked := make(chan error, 1)
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		go func() { closed <- l.Close() }()
		wantErr(t, "unlock", <-unlocked, fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, 4*time.Second, 4900*time.Millisecond) // by itself it would take 5 s
		wantErr(t, "close", <-closed, fencelock.ErrUnavailable)
		wantTook(t, "close", start, 4*time.Second, 5*time.Second)
		wantLost(t, "after Close", le, fencelock.Revoked)
	})
}

func TestCloseDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		gate := make(chan struct{})
		d.on("renew", until(gate))
		renewed := make(chan error, 1)
		go func() { renewed <- le.Renew(t.Context()) }()
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(gate) })
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantErr(t, "the renewal", <-renewed, fencelock.ErrReleased)
		wantErr(t, "the lease", le.Err(), fencelock.ErrReleased)
	})
}

// The holder is told before the store is asked, which may grant the lock to another and be late to say so.
func TestCloseTellsTheHolderFirst(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := openLoose(t, d), open(t, d.other())
		le := lock(t, l.Mutex("n"))
		ctx, done := carry(t, t.Context(), le), le.Done()
		d.on("release", func(c call) error {
			_ = c.apply()
			return hang(c)
		})
		next := background(t.Context(), other.Mutex("n"))
		closing := make(chan error, 1)
		go func() { closing <- l.Close() }()
		unlock(t, (<-next).le)
		if !closed(done) || !closed(le.Done()) || !closed(ctx.Done()) {
			t.Error("another has had the lock, and Done is open")
		}
		wantErr(t, "the lease", le.Err(), fencelock.ErrReleased)
		wantErr(t, "its ctx", context.Cause(ctx), fencelock.ErrReleased)
		wantErr(t, "close", <-closing, fencelock.ErrUnavailable)
		wantLost(t, "after Close", le, fencelock.Revoked)
	})
}

// What LockAll has locked is released one by one, and the end of the first leaves the others to Close.
func TestCloseReleasesWhatLockAllHas(t *testing.T) {
	for range 20 {
		bubble(t, func(t *testing.T, d *fake) {
			l := openLoose(t, d)
			ls := lockAll(t, l, numbered(10)...)
			d.on("release", about(func(name string) bool { return name == "009" }, refuse(errStore)))
			wantErr(t, "close", l.Close(), fencelock.ErrUnavailable)
			wantLost(t, "what the store did not confirm", ls.Lease("009"), fencelock.Revoked)
			if got := d.count("release"); got != 10 {
				t.Errorf("got %d releases, want 10", got)
			}
		})
	}
}
