package fencelock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// passed returns two leases: that of a lock which was passed on within the process, and the one before it. The first of
// them was granted by the store with a reserve.
func passed(t *testing.T, l *fencelock.Locker, name string, opts ...fencelock.Option) (le, before *fencelock.Lease) {
	t.Helper()
	first := lock(t, l.Mutex(name, opts...))
	second := background(t.Context(), l.Mutex(name, opts...))
	unlock(t, first)
	before = want(t, second)
	third := background(t.Context(), l.Mutex(name, opts...))
	unlock(t, before)
	return want(t, third), before
}

// want returns the lease of a Lock that must succeed.
func want(t *testing.T, c <-chan result) *fencelock.Lease {
	t.Helper()
	r := <-c
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.le
}

func TestPassedOnWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		var seen order
		var last fencelock.Token
		first := lock(t, l.Mutex("n"))
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				le, err := l.Mutex("n").Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if le.Token() <= last {
					t.Errorf("got the token %d after %d", le.Token(), last)
				}
				last = le.Token()
				wantHeld(t, "a lease that was passed on", le)
				seen.add(i)
				unlock(t, le)
				wantErr(t, "unlocked again", le.Unlock(t.Context()), fencelock.ErrReleased)
			})
			synctest.Wait()
		}
		unlock(t, first)
		wg.Wait()
		for i, got := range seen.got {
			if got != i {
				t.Fatalf("got the order %v, want first come, first served", seen.got)
			}
		}
		// The first, which nobody waited for yet, has no reserve; the second has.
		if a, r := d.count("acquire"), d.count("release"); a != 2 || r != 2 {
			t.Errorf("got %d calls of Acquire and %d of Release for 51 leases, want 2 of each", a, r)
		}
		le := lock(t, l.Mutex("n"))
		if le.Token() <= last {
			t.Errorf("granted by the store: got the token %d after %d", le.Token(), last)
		}
	})
}

// Another process that waits gets the lock when the time to pass it on is over.
func TestPassedOnForALittleWhile(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var grants atomic.Int64
		for range 8 {
			wg.Go(func() {
				for {
					le, err := a.Mutex("n").Lock(ctx)
					if err != nil {
						return
					}
					grants.Add(1)
					time.Sleep(time.Millisecond)
					unlock(t, le)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		for range 50 {
			start, was := time.Now(), grants.Load()
			le := lock(t, b.Mutex("n"))
			// What is left of a millisecond, those that may follow, and one waiter that stood in the store's queue.
			wantTook(t, "the other process's wait", start, 0, 10*time.Millisecond)
			if n := grants.Load() - was; n > 10 {
				t.Errorf("got %d grants in the one process while the other waited, want at most 10", n)
			}
			unlock(t, le)
		}
		if n, calls := int(grants.Load()), d.count("acquire"); n < 2*calls {
			t.Errorf("got %d grants of %d calls, want most of them passed on", n, calls)
		}
	})
}

// What the store granted is used up after as many leases as it reserved tokens for.
func TestPassedOnAsOftenAsReserved(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Reserved = min(g.Reserved, 2) }
		l := open(t, d)
		var wg sync.WaitGroup
		first := lock(t, l.Mutex("n"))
		for range 9 {
			wg.Go(func() { unlock(t, lock(t, l.Mutex("n"))) })
		}
		synctest.Wait()
		unlock(t, first)
		wg.Wait()
		if a := d.count("acquire"); a != 1+3 {
			t.Errorf("got %d calls of Acquire, want 1 and one for every 3", a)
		}
	})
}

// A grant is passed on 1,023 times, and for 3 ms.
func TestHowOftenAndHowLongItIsPassedOn(t *testing.T) {
	for _, tt := range []struct {
		section time.Duration
		each    int // leases of a grant
	}{{0, 1024}, {time.Millisecond, 3}} {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			first := lock(t, l.Mutex("n"))
			var wg sync.WaitGroup
			for range 2 * tt.each {
				wg.Go(func() {
					le := lock(t, l.Mutex("n"))
					time.Sleep(tt.section)
					unlock(t, le)
				})
			}
			synctest.Wait()
			unlock(t, first) // which asked for no tokens: nobody waited
			wg.Wait()
			if a := d.count("acquire"); a != 1+2 {
				t.Errorf("got %d calls of Acquire with sections of %v, want 1 and one for every %d leases",
					a, tt.section, tt.each)
			}
		})
	}
}

// A lease that was passed on ends as any other, and the one before it stays as it was.
func TestLossOfWhatWasPassedOn(t *testing.T) {
	ends := map[string]struct {
		end  func(t *testing.T, d *fake, l *fencelock.Locker)
		want fencelock.Reason
	}{
		"broken by this Locker": {
			func(t *testing.T, _ *fake, l *fencelock.Locker) { _ = l.Break(t.Context(), "n") },
			fencelock.Revoked,
		},
		"broken by another": {
			func(t *testing.T, d *fake, _ *fencelock.Locker) {
				_ = d.other().Break(t.Context(), "n")
			},
			fencelock.Revoked,
		},
		"not renewed": {
			func(_ *testing.T, d *fake, _ *fencelock.Locker) {
				d.on("renew", refuse(errStore))
				time.Sleep(2 * ttl)
			},
			fencelock.Expired,
		},
		"the store does not hear": {
			func(_ *testing.T, d *fake, _ *fencelock.Locker) {
				d.on("renew", hang)
				time.Sleep(2 * ttl)
			},
			fencelock.Expired,
		},
	}
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le, before := passed(t, l, "n")
				tt.end(t, d, l)
				synctest.Wait()
				wantLost(t, name, le, tt.want)
				wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
				wantErr(t, "the one before", before.Err(), fencelock.ErrReleased)
				d.on("renew", nil)
				unlock(t, lock(t, l.Mutex("n")))
				time.Sleep(time.Second)
				wantFree(t, l, "n")
			})
		})
	}
}

func TestDeadlineOfWhatWasPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		start := time.Now()
		l := open(t, d, fencelock.WithManualRenew())
		le, before := passed(t, l, "n")
		if got := le.Deadline(); !got.Equal(before.Deadline()) || got.Sub(start) < trusted-3*time.Millisecond {
			t.Errorf("got the deadline %v after the grant, want that of the grant, and at most 3 "+
				"ms less than after a grant of its own", got.Sub(start))
		}
		time.Sleep(ttl / 2)
		if err := le.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := time.Until(le.Deadline()); got != trusted {
			t.Errorf("renewed: got %v until the deadline, want %v", got, trusted)
		}
		if before.Renew(t.Context()) == nil {
			t.Error("the lease before was renewed")
		}
		wantTook(t, "done", start, ttl/2, ttl/2)
		<-le.Done()
		wantTook(t, "done", start, ttl/2+trusted, ttl/2+trusted)
		wantLost(t, "not renewed again", le, fencelock.Expired)
	})
}

// Renewal goes on for the one who holds.
func TestRenewalOfWhatWasPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		le, before := passed(t, l, "n")
		time.Sleep(10 * ttl)
		wantHeld(t, "after ten TTLs", le)
		if info, err := other.Inspect(t.Context(), "n"); err != nil || info.Token != before.Token() {
			t.Errorf("elsewhere: got %+v, %v, want the token of the store's grant, %d", info, err, before.Token())
		}
		info, err := l.Inspect(t.Context(), "n")
		if err != nil || info.Token != le.Token() {
			t.Errorf("got %+v, %v, want the token %d", info, err, le.Token())
		}
		for info, err := range l.List(t.Context(), "") {
			if err != nil || info.Token != le.Token() {
				t.Errorf("got %+v, %v, want the token %d", info, err, le.Token())
			}
		}
		unlock(t, le)
		wantFree(t, l, "n")
	})
}

func TestEventsOfWhatIsPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := open(t, d, fencelock.WithObserver(&seen))
		le, before := passed(t, l, "n")
		unlock(t, le)
		synctest.Wait()
		// Of different holds: the next Acquired may come before the Released that made way for it.
		holds := map[fencelock.Token][]fencelock.Event{}
		for _, e := range seen.events {
			holds[e.Token] = append(holds[e.Token], e)
		}
		if len(holds) != 3 || len(holds[before.Token()]) != 2 || len(holds[le.Token()]) != 2 {
			t.Errorf("got %v, want three holds with two events each", holds)
		}
		for _, es := range holds {
			if es[0].Kind != fencelock.Acquired || es[len(es)-1].Kind != fencelock.Released ||
				es[0].Hold != es[len(es)-1].Hold {
				t.Errorf("got %v, want acquired and released, of one hold", es)
			}
		}
	})
}

// The store hears nothing of a Lock that is given up while the lock might yet be passed on to it.
func TestGivenUpBeforeTheStoreIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, _ := passed(t, l, "n")
		ctx, cancel := context.WithCancel(t.Context())
		next, calls := background(ctx, l.Mutex("n")), d.count()
		cancel()
		wantErr(t, "given up", (<-next).err, context.Canceled, fencelock.ErrLocked)
		if got := d.count() - calls; got != 0 {
			t.Errorf("got %d calls of the driver, want none", got)
		}
		unlock(t, le)
		unlock(t, lock(t, l.Mutex("n")))
	})
}

// Who asks for the handle of a hold may use it beside the lock: the heir goes to the store at once.
func TestDisinheritedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		first := lock(t, l.Mutex("n"))
		second := background(t.Context(), l.Mutex("n"))
		unlock(t, first)
		le := want(t, second)
		third := background(t.Context(), l.Mutex("n"))
		before := d.count("acquire")
		le.Handle()
		synctest.Wait()
		if got := d.count("acquire") - before; got != 1 {
			t.Errorf("got %d calls of Acquire after Handle, want 1 without a wait", got)
		}
		le.Handle()
		unlock(t, le)
		unlock(t, want(t, third))
	})
}

// Whatever goes wrong at the store: one holder at a time, by its own clock, and rising tokens.
func TestPassedOnAtRandom(t *testing.T) {
	for seed := range uint64(50) {
		bubble(t, func(t *testing.T, d *fake) {
			r := rand.New(rand.NewPCG(seed, 1))
			var faults sync.Mutex
			fate := func(c call) error {
				faults.Lock()
				n, pause := r.IntN(10), time.Duration(r.IntN(4000))*time.Microsecond
				faults.Unlock()
				switch n {
				case 0:
					return loseReply(c)
				case 1:
					return refuse(errStore)(c)
				}
				return slowBack(pause)(c)
			}
			for _, op := range []string{"acquire", "release", "renew"} {
				d.on(op, fate)
			}
			var mu sync.Mutex
			var holder *fencelock.Lease
			var last fencelock.Token
			handed := 0
			var wg sync.WaitGroup
			for i, l := range []*fencelock.Locker{
				openLoose(t, d, fencelock.WithTTL(time.Second)),
				openLoose(t, d.other(), fencelock.WithTTL(time.Second)),
			} {
				defer l.Close()
				for g := range 6 {
					r := rand.New(rand.NewPCG(seed, uint64(10*i+g+2)))
					wg.Go(func() {
						for range 15 {
							le, err := l.Mutex("n").Lock(t.Context())
							if err != nil {
								continue
							}
							mu.Lock()
							if holder != nil && holder.Err() == nil {
								t.Errorf("seed %d: the token %d is granted while "+
									"the lease with %d is held", seed, le.Token(), holder.Token())
							}
							if le.Token() <= last {
								t.Errorf("seed %d: got the token %d after %d", seed, le.Token(), last)
							}
							if le.Token() == last+1 {
								handed++
							}
							holder, last = le, le.Token()
							mu.Unlock()
							time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
							switch r.IntN(20) {
							case 0:
								mu.Lock()
								holder = nil // the next one may get it just before this one is told
								_ = l.Break(t.Context(), "n")
								mu.Unlock()
							case 1:
								time.Sleep(time.Duration(r.IntN(3)) * time.Second) // it may be renewed
							}
							mu.Lock()
							if holder == le {
								holder = nil // it is about to give it back
							}
							mu.Unlock()
							for le.Unlock(t.Context()) != nil && le.Err() == nil {
								time.Sleep(time.Millisecond)
							}
						}
					})
				}
			}
			wg.Wait()
			if handed == 0 {
				t.Errorf("seed %d: no lock was passed on", seed)
			}
		})
	}
}

// A Lock that is given up, or a Locker that is closed, while the lock is passed on to it: nothing is left behind.
func TestGivenUpWhilePassedOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		for range 50 {
			l, other := openLoose(t, d.other()), open(t, d.other())
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					for range 20 {
						le, err := l.Mutex("n").Lock(ctx)
						if err != nil {
							return
						}
						_ = le.Unlock(t.Context())
					}
				})
			}
			wg.Go(func() {
				for range rand.IntN(100) {
					le, err := l.Mutex("n").Lock(t.Context())
					if err != nil {
						return
					}
					_ = le.Unlock(t.Context())
				}
				cancel()
			})
			if rand.IntN(2) == 0 {
				wg.Go(func() { _ = l.Close() })
			}
			wg.Wait()
			cancel()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			wantFree(t, other, "n")
		}
	})
}

// A Lock that is given up in the moment in which the lock is passed on to it gets it or leaves
// nothing behind, without a Close.
func TestGivenUpInTheMoment(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		for i := range 300 {
			le, _ := passed(t, l, "n")
			ctx, cancel := context.WithCancel(t.Context())
			next := background(ctx, l.Mutex("n"))
			cancel() // it sees this, or the lock, or both
			unlock(t, le)
			if r := <-next; r.err == nil {
				unlock(t, r.le)
			}
			time.Sleep(2 * ttl) // what was asked of the store is undone, and what nobody renews is over
			if le, err := other.Mutex("n").TryLock(t.Context()); err != nil {
				t.Fatalf("round %d: the lock is held by nobody that knows: %v", i, err)
			} else {
				unlock(t, le)
			}
		}
	})
}

// A Break that fails, again and again, sends who waits for the lock to be passed on to the store, once.
func TestBreakThatFailsBesideAnHeir(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, _ := passed(t, l, "n")
		waiter := background(t.Context(), l.Mutex("n"))
		synctest.Wait()
		asked := d.count("acquire")
		d.on("break", refuse(errStore))
		for range 4 {
			wantErr(t, "break", l.Break(t.Context(), "n"), errStore)
			synctest.Wait()
			if n := d.count("acquire") - asked; n != 1 {
				t.Errorf("the waiter has asked the store %d times, want once", n)
			}
		}
		unlock(t, le)
		unlock(t, want(t, waiter))
	})
}

// While a renewal is under way the lock is not passed on: there is one call about a request at a time.
func TestNotPassedOnBesideARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, _ := passed(t, l, "n")
		waiter := background(t.Context(), l.Mutex("n"))
		synctest.Wait()
		asked, gate := d.count("acquire"), make(chan struct{})
		d.on("renew", until(gate))
		renewed := make(chan error, 1)
		go func() { renewed <- le.Renew(t.Context()) }()
		synctest.Wait()
		unlock(t, le)
		close(gate)
		<-renewed
		unlock(t, want(t, waiter))
		if n := d.count("acquire") - asked; n != 1 {
			t.Errorf("got %d calls of Acquire, want the waiter's", n)
		}
	})
}
