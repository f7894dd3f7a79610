package fencelock_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

// misbehaving is an Observer that panics or blocks at the events of one kind about the name n, once it is armed.
type misbehaving struct {
	kind  fencelock.EventKind
	armed atomic.Bool
	block chan struct{} // nil: it panics
}

func (o *misbehaving) at(e fencelock.Event) {
	if e.Name != "n" || e.Kind != o.kind || !o.armed.Load() {
		return
	}
	if o.block == nil {
		panic("observer")
	}
	<-o.block
}

func (o *misbehaving) Begin(ctx context.Context, e fencelock.Event) context.Context {
	o.at(e)
	return ctx
}

func (o *misbehaving) Observe(_ context.Context, e fencelock.Event) { o.at(e) }

// recovered calls do and reports whether it panicked.
func recovered(do func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	do()
	return false
}

func TestPanicOfTheObserver(t *testing.T) {
	ends := map[string]struct {
		kind fencelock.EventKind
		do   func(t *testing.T, l *fencelock.Locker)
	}{
		"at Acquired, in Do": {fencelock.Acquired, func(t *testing.T, l *fencelock.Locker) {
			_ = l.Do(t.Context(), "n", func(context.Context, *fencelock.Lease) error { return nil })
		}},
		"at Acquired, in TryLock": {
			fencelock.Acquired,
			func(t *testing.T, l *fencelock.Locker) { _, _ = l.Mutex("n").TryLock(t.Context()) },
		},
		"before Lock": {
			fencelock.Locking,
			func(t *testing.T, l *fencelock.Locker) { _, _ = l.Mutex("n").Lock(t.Context()) },
		},
		"when Lock has failed": {
			fencelock.NotAcquired,
			func(t *testing.T, l *fencelock.Locker) { _, _ = l.Mutex("n").Lock(within(t, 0)) },
		},
		"when Unlock has been done": {
			fencelock.Released,
			func(t *testing.T, l *fencelock.Locker) {
				_ = lock(t, l.Mutex("n")).Unlock(t.Context())
			},
		},
		"at a renewal by hand": {fencelock.Renewed, func(t *testing.T, l *fencelock.Locker) {
			le := lock(t, l.Mutex("n"))
			defer func() { _ = le.Unlock(t.Context()) }()
			_ = le.Renew(t.Context())
		}},
		"at Joined": {fencelock.Joined, func(t *testing.T, l *fencelock.Locker) {
			le := lock(t, l.Mutex("n"))
			defer func() { _ = le.Unlock(t.Context()) }()
			_, _ = l.Mutex("n").Lock(carry(t, t.Context(), le))
		}},
		"at Left": {fencelock.Left, func(t *testing.T, l *fencelock.Locker) {
			le := lock(t, l.Mutex("n"))
			defer func() { _ = le.Unlock(t.Context()) }()
			inner, err := l.Mutex("n").Lock(carry(t, t.Context(), le))
			if err != nil {
				t.Error(err)
			}
			_ = inner.Unlock(t.Context())
		}},
		"at Acquired, in LockAll": {
			fencelock.Acquired,
			func(t *testing.T, l *fencelock.Locker) { _, _ = l.LockAll(t.Context(), "m", "n", "o") },
		},
		"before LockAll has it": {
			fencelock.Locking,
			func(t *testing.T, l *fencelock.Locker) { _, _ = l.LockAll(t.Context(), "m", "n", "o") },
		},
		"before Unlock, in Do": {fencelock.Unlocking, func(t *testing.T, l *fencelock.Locker) {
			_ = l.Do(t.Context(), "n", func(context.Context, *fencelock.Lease) error { return nil })
		}},
		"before Unlock": {fencelock.Unlocking, func(t *testing.T, l *fencelock.Locker) {
			_ = lock(t, l.Mutex("n")).Unlock(t.Context())
		}},
		"when Unlock has failed": {fencelock.NotReleased, func(t *testing.T, l *fencelock.Locker) {
			le := lock(t, l.Mutex("n"))
			unlock(t, le)
			_ = le.Unlock(t.Context())
		}},
	}
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				o := &misbehaving{kind: tt.kind}
				l, other := open(t, d, fencelock.WithObserver(o), fencelock.WithReentrancy()), open(t, d.other())
				good := lock(t, l.Mutex("good"))
				o.armed.Store(true)
				if !recovered(func() { tt.do(t, l) }) {
					t.Error("the panic has not come to the caller")
				}
				o.armed.Store(false)
				start := time.Now()
				unlock(t, lock(t, other.Mutex("n")))
				wantTook(t, "until another has it", start, 0, time.Second)
				unlock(t, lock(t, l.Mutex("n")))
				time.Sleep(3 * ttl)
				wantHeld(t, "another lease", good)
				wantFree(t, other, "n")
			})
		})
	}
}

// A panic or a block while the lock is passed on keeps nobody from it.
func TestObserverWhileTheLockIsPassedOn(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		t.Run(fmt.Sprint("blocks ", blocks), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				o := &misbehaving{kind: fencelock.Released}
				if blocks {
					o.block = make(chan struct{})
				}
				l := open(t, d, fencelock.WithObserver(o))
				le, _ := passed(t, l, "n")
				third := background(t.Context(), l.Mutex("n"))
				o.armed.Store(true)
				var wg sync.WaitGroup
				wg.Go(func() {
					if recovered(func() { _ = le.Unlock(t.Context()) }) == blocks {
						t.Errorf("panicked: got %v, want %v", !blocks, blocks)
					}
				})
				synctest.Wait()
				o.armed.Store(false)
				next := want(t, third)
				if next.Token() != le.Token()+1 {
					t.Errorf("got token %d after %d, want the next: passed on", next.Token(), le.Token())
				}
				time.Sleep(3 * ttl)
				wantHeld(t, "who got it", next)
				unlock(t, next)
				if blocks {
					close(o.block)
				}
				wg.Wait()
			})
		})
	}
}

// What no call ends in: an observer that blocks or panics there holds up nobody but itself, and Close says so.
func TestObserverOfEventsWithoutACall(t *testing.T) {
	ends := map[fencelock.EventKind]func(t *testing.T, d *fake, l *fencelock.Locker){
		fencelock.Renewed: func(t *testing.T, _ *fake, l *fencelock.Locker) {
			lock(t, l.Mutex("n"))
			time.Sleep(ttl)
		},
		fencelock.RenewFailed: func(t *testing.T, d *fake, l *fencelock.Locker) {
			lock(t, l.Mutex("n"))
			d.on("renew", refuse(errStore))
			time.Sleep(ttl / 2)
			d.on("renew", nil)
		},
		fencelock.Lost: func(t *testing.T, d *fake, l *fencelock.Locker) {
			lock(t, l.Mutex("n"))
			if err := d.other().Break(t.Context(), "n"); err != nil { // which comes back when the holder was told
				t.Error(err)
			}
		},
		fencelock.CleanedUp: func(t *testing.T, d *fake, l *fencelock.Locker) {
			d.on("acquire", first(1, loseReply))
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
			time.Sleep(time.Second)
		},
		fencelock.Released: func(t *testing.T, _ *fake, l *fencelock.Locker) { lock(t, l.Mutex("n")) }, // by Close
	}
	for kind, end := range ends {
		for _, blocks := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, blocks %v", kind, blocks), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					o := &misbehaving{kind: kind}
					if blocks {
						o.block = make(chan struct{})
					}
					l, other := openLoose(t, d, fencelock.WithObserver(o)), open(t, d.other())
					good, broken := lock(t, l.Mutex("good")), lock(t, l.Mutex("broken"))
					o.armed.Store(true)
					start := time.Now()
					end(t, d, l)
					wantTook(t, "what brings the event about", start, 0, ttl)
					time.Sleep(3 * ttl)
					wantHeld(t, "another lease", good)
					if err := other.Break(t.Context(), "broken"); err != nil {
						t.Error(err)
					}
					synctest.Wait()
					wantLost(t, "one that was broken", broken, fencelock.Revoked)
					start = time.Now()
					unlock(t, lock(t, l.Mutex("another")))
					wantTook(t, "another lock", start, 0, time.Second)
					start = time.Now()
					err := l.Close()
					wantTook(t, "close", start, 0, 5*time.Second)
					if err == nil || !strings.Contains(err.Error(), "observer") {
						t.Errorf("close: got %v, want an error about the observer", err)
					}
					wantFree(t, other, "n", "good", "another")
					if blocks {
						close(o.block)
					}
				})
			})
		}
	}
}

// An observer that ends its goroutine, as FailNow does, is given what comes after that too.
func TestObserverThatEndsItsGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var renewed atomic.Int64
		l := openLoose(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.Renewed && renewed.Add(1) == 1 {
				runtime.Goexit()
			}
		})))
		le := lock(t, l.Mutex("n"))
		time.Sleep(3 * ttl)
		if n := renewed.Load(); n < 3 {
			t.Errorf("it was told of %d renewals, want each", n)
		}
		unlock(t, le)
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// An observer that takes longer than the renewals loses no lease that the store has renewed.
func TestSlowObserver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.Renewed {
				time.Sleep(5 * time.Millisecond)
			}
		})))
		var all []*fencelock.Lease
		for i := range 2000 {
			all = append(all, lock(t, l.Mutex(fmt.Sprint(i))))
		}
		time.Sleep(time.Minute)
		for _, le := range all {
			if err := le.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err == nil || !strings.Contains(err.Error(), "observer") {
			t.Errorf("close: got %v, want an error about the observer, which is behind", err)
		}
		time.Sleep(time.Hour) // the rest of the events
	})
}

// What an observer that blocks has coming to it is bounded, and no Lost is left out of it.
func TestEventsThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		const leases, bound = 1000, 1 << 16
		var renewed, lost int // by the Locker's goroutine
		block := make(chan struct{})
		l := open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			switch e.Kind {
			case fencelock.Renewed:
				<-block
				renewed++
			case fencelock.Lost:
				lost++
			}
		})))
		for i := range leases {
			lock(t, l.Mutex(fmt.Sprint(i)))
		}
		time.Sleep(30 * ttl)
		if n := d.about("renew"); n < bound+2*leases {
			t.Fatalf("got %d renewals, want more than may wait", n)
		}
		d.on("renew", refuse(fencelock.ErrLost))
		time.Sleep(ttl)
		close(block)
		synctest.Wait()
		if renewed < bound || renewed > bound+leases || lost != leases {
			t.Errorf("got %d renewals and %d losses told, want %d to %d, and %d",
				renewed, lost, bound, bound+leases, leases)
		}
	})
}

// A panic of the program's own code in its client comes to the caller, and leaves nothing held and nothing stuck.
func TestPanicOfTheClient(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		once := func(op string) {
			d.on(op, func(c call) error {
				d.on(op, nil)
				_ = c.apply()
				panic("in a hook of the client")
			})
		}
		once("acquire")
		if !recovered(func() { _, _ = l.Mutex("n").Lock(t.Context()) }) {
			t.Error("the panic has not come to who locks")
		}
		start := time.Now()
		unlock(t, lock(t, other.Mutex("n")))
		wantTook(t, "until another has it", start, 0, time.Second)
		le := lock(t, l.Mutex("n"))
		once("renew")
		if !recovered(func() { _ = le.Renew(t.Context()) }) {
			t.Error("the panic has not come to who renews")
		}
		time.Sleep(3 * ttl)
		wantHeld(t, "a lease of which a renewal panicked", le)
		once("release")
		if !recovered(func() { _ = le.Unlock(t.Context()) }) {
			t.Error("the panic has not come to who unlocks")
		}
		unlock(t, le)
		le = lock(t, l.Mutex("n"))
		before := d.count("abandon")
		d.on("release", func(call) error {
			d.on("release", nil)
			time.Sleep(2 * ttl)
			panic("before it was sent")
		})
		if !recovered(func() { _ = le.Unlock(t.Context()) }) {
			t.Error("the panic has not come to who unlocks")
		}
		time.Sleep(time.Second)
		if n := d.count("abandon") - before; n != 1 {
			t.Error("what a lost lease may have left is not freed")
		}
	})
}

// An observer that blocks at the start of a try takes none of the time that the store has for it.
func TestObserverThatBlocksBeforeATry(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		o := &misbehaving{kind: fencelock.TryLocking, block: make(chan struct{})}
		o.armed.Store(true)
		l := open(t, d, fencelock.WithObserver(o))
		time.AfterFunc(6*time.Second, func() { close(o.block) })
		le, err := l.Mutex("n").TryLock(t.Context())
		if err != nil {
			t.Fatalf("a free lock of a store that answers: %v", err)
		}
		unlock(t, le)
	})
}
