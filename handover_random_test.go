package fencelock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

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
