package core_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// slowly grants after half a second.
func slowly(ctx context.Context, cs []*backend.Claim) {
	time.Sleep(500 * time.Millisecond)
	grants(ctx, cs)
}

// TestLaneIsFull: where answers are slow, four times the calls are under way that else go beside each other, and no
// more: the rest share one.
func TestLaneIsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}, ask: slowly}
		c := core.Of(s)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				_, err := c.Acquire(t.Context(), request(fmt.Sprint(i), false))
				want(t, "acquire", err, nil)
			})
			time.Sleep(2 * time.Millisecond)
		}
		all.Wait()
		if len(s.sizes) != 9 || s.most != 8 {
			t.Errorf("got calls about %v claims, %d at once; want 8 at once, and one about the rest", s.sizes, s.most)
		}
	})
}

// TestOneClaimACall: a driver that takes one claim a call is called for all at once.
func TestOneClaimACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}, ask: slowly}
		c := core.Of(s)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				_, err := c.Acquire(t.Context(), request(fmt.Sprint(i), false))
				want(t, "acquire", err, nil)
			})
		}
		all.Wait()
		if s.most != 20 {
			t.Errorf("got %d calls at once, want 20", s.most)
		}
	})
}

// TestHurriedClaims: a claim whose ctx ends soon waits for no other's call, and shares none, also when that shows as
// its turn comes; then the next in the queue leads in its place.
func TestHurriedClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1}, ask: slowly}
		c := core.Of(s)
		var all sync.WaitGroup
		for _, tt := range []struct {
			name string
			most time.Duration
			over time.Duration
		}{
			{"the first leads", time.Hour, 500 * time.Millisecond},
			{"one in a hurry goes beside it", 699 * time.Millisecond, 500 * time.Millisecond},
			{"one that is not yet stands in the queue", 700 * time.Millisecond, time.Second},
			{"the next leads", time.Hour, time.Second},
			{"and takes another with it", time.Hour, time.Second},
		} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), tt.most)
				defer cancel()
				began := time.Now()
				_, err := c.Acquire(ctx, request(tt.name, false))
				want(t, tt.name, err, nil)
				if took := time.Since(began).Round(10 * time.Millisecond); took != tt.over {
					t.Errorf("%s: it took %v, want %v", tt.name, took, tt.over)
				}
			})
			time.Sleep(time.Microsecond)
		}
		all.Wait()
	})
}

// TestTurnOfOneWhoGoes: whose turn comes as his ctx ends gives it to the next.
func TestTurnOfOneWhoGoes(t *testing.T) {
	for range 1000 { // either is first
		bubble(t, func(t *testing.T) {
			ctx, goes := context.WithCancel(t.Context())
			defer goes()
			s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
			s.ask = func(_ context.Context, cs []*backend.Claim) {
				slowly(t.Context(), cs)
				goes()
			}
			c := core.Of(s)
			var all sync.WaitGroup
			for i, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
				all.Go(func() {
					if _, err := c.Acquire(ctx, request(fmt.Sprint(i), false)); err != nil && i != 1 {
						t.Errorf("%d: %v", i, err)
					}
				})
				synctest.Wait()
			}
			all.Wait()
		})
	}
}

// TestEndInTheQueue: whoever stands in the queue goes when its caller, its owner or its time ends it, soon or late.
func TestEndInTheQueue(t *testing.T) {
	for _, tt := range []struct {
		what  string
		after time.Duration
		end   func(caller, owner context.CancelFunc)
	}{
		{"the caller, soon", 30 * time.Millisecond, func(caller, _ context.CancelFunc) { caller() }},
		{"the caller, late", 500 * time.Millisecond, func(caller, _ context.CancelFunc) { caller() }},
		{"the owner, soon", 30 * time.Millisecond, func(_, owner context.CancelFunc) { owner() }},
		{"the owner, late", 500 * time.Millisecond, func(_, owner context.CancelFunc) { owner() }},
		{"its time", 900 * time.Millisecond, func(_, _ context.CancelFunc) {}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
				s.ask = func(ctx context.Context, cs []*backend.Claim) { time.Sleep(2 * time.Second); grants(ctx, cs) }
				c := core.Of(s)
				var others sync.WaitGroup
				for i := range 4 {
					others.Go(func() { _, _ = c.Acquire(t.Context(), request(fmt.Sprint(i), false)) })
					time.Sleep(2 * time.Millisecond)
				}
				caller, cancel := context.WithCancel(t.Context())
				owner, end := context.WithCancel(t.Context())
				defer cancel()
				defer end()
				if tt.what != "its time" {
					time.AfterFunc(tt.after, func() { tt.end(cancel, end) })
				}
				began := time.Now()
				ctx := &core.Deadline{Context: caller, Owner: owner, At: began.Add(900 * time.Millisecond)}
				defer ctx.End()
				_, err := c.Acquire(ctx, request("n", false))
				want(t, "acquire", err, ctx.Err())
				if took := time.Since(began); took != tt.after || err == nil {
					t.Errorf("gone after %v with %v, want after %v", took, err, tt.after)
				}
				others.Wait()
			})
		})
	}
}

// TestClaimUnderWayWithOthers: one whose caller has gone is given up when the call that has it is answered.
func TestClaimUnderWayWithOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const long = 800 * time.Millisecond
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
		began := time.Now()
		s.ask = func(ctx context.Context, cs []*backend.Claim) { time.Sleep(long); grants(ctx, cs) }
		var left time.Duration
		s.leave = func(context.Context, []*backend.Claim) { left = time.Since(began) }
		c := core.Of(s)
		var others sync.WaitGroup
		for i := range 2 {
			others.Go(func() {
				_, err := c.Acquire(t.Context(), request(fmt.Sprint(i), false))
				want(t, "another", err, nil)
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), long+long/2)
		defer cancel()
		r := request("n", false)
		_, err := c.Acquire(ctx, r)
		want(t, "acquire", err, context.DeadlineExceeded)
		want(t, "abandon", c.Abandon(t.Context(), r), nil)
		if left < 2*long || left > 2*long+2*time.Millisecond {
			t.Errorf("given up after %v, want %v", left, 2*long)
		}
		others.Wait()
	})
}

// TestClaimThatStoodInTheQueue: one whose caller goes before it was sent is no doubtful one.
func TestClaimThatStoodInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1}, ask: slowly}
		s.leave = func(_ context.Context, cs []*backend.Claim) {
			if cs[0].Unsure {
				t.Error("given up as one that was sent")
			}
		}
		c := core.Of(s)
		var other sync.WaitGroup
		other.Go(func() {
			_, err := c.Acquire(t.Context(), request("another", false))
			want(t, "another", err, nil)
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		r := request("n", false)
		_, err := c.Acquire(ctx, r)
		want(t, "acquire", err, context.Canceled)
		want(t, "abandon", c.Abandon(t.Context(), r), nil)
		other.Wait()
	})
}

// TestPanicInACall: what the program's own code in its client panics with, the one caller has, and nobody is kept.
func TestPanicInACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var asks, panics atomic.Int32
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if asks.Add(1) == 2 {
				panic("the program's")
			}
			slowly(ctx, cs)
		}
		c := core.Of(s)
		acquire := func(name string) {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g, err := c.Acquire(ctx, request(name, false))
			if want(t, name, err, nil); g.Token == 0 {
				t.Errorf("%s: got no token", name)
			}
		}
		for round := range 2 {
			var all sync.WaitGroup
			for i := range 4 { // the first goes alone, the others together
				all.Go(func() { acquire(fmt.Sprint(round, i)) })
				synctest.Wait()
			}
			all.Wait()
		}
		if panics.Load() != 1 {
			t.Errorf("got %d panics, want one", panics.Load())
		}
	})
}

// TestEachAskHasItsTime: a waiter's second ask has a ctx of its own, as its first has.
func TestEachAskHasItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
		asks := 0
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			want(t, "its ctx", ctx.Err(), nil)
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != 700*time.Millisecond {
				t.Errorf("ask %d ends in %v, %v, want 700ms", asks, time.Until(at), ok)
			}
			if asks++; asks < 4 {
				cs[0].Err, cs[0].Next = backend.ErrLocked, time.Second
				return
			}
			grants(ctx, cs)
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", true))
		want(t, "acquire", err, nil)
	})
}

// TestManyAtAStoreThatHangs: those who stand in the queue learn of it as soon as those under way, so nobody is told of
// an outage later than its Patience, two calls, a pause and a look; and what hung for less is ridden out. Also where a
// call heeds no deadline.
func TestManyAtAStoreThatHangs(t *testing.T) {
	for _, aside := range []bool{false, true} {
		for _, wait := range []bool{true, false} {
			for _, hang := range []time.Duration{3 * time.Second, time.Minute} {
				t.Run(fmt.Sprintf("aside %v wait %v %v", aside, wait, hang), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						s := &store{calls: backend.Calls{Most: 100, Abreast: 2, Aside: aside}}
						began := time.Now()
						s.ask = func(ctx context.Context, cs []*backend.Claim) {
							end, _ := ctx.Deadline()
							if over := began.Add(hang); aside {
								end = over
							} else if over.Before(end) {
								end = over
							}
							time.Sleep(time.Until(end))
							if grants(ctx, cs); ctx.Err() != nil || time.Since(began) < hang {
								for _, c := range cs {
									c.Err = errBroken
								}
							}
						}
						c := core.Of(s)
						var all sync.WaitGroup
						for i := range 1000 {
							all.Go(func() {
								ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
								defer cancel()
								_, err := c.Acquire(ctx, request(fmt.Sprint(i), wait))
								took, told := time.Since(began), core.Patience+3*time.Second
								if aside && !wait {
									told = 10 * time.Second // its ctx ends it: the engine's is of 5 s
								}
								switch {
								case hang < core.Patience && err != nil:
									t.Errorf("got %v after %v, want a grant", err, took)
								case hang > core.Patience && (err == nil || took > told):
									t.Errorf("got %v after %v, want an outage", err, took)
								}
							})
						}
						all.Wait()
						if most := s.mostAtOnce(); most > 16 && !aside {
							t.Errorf("got %d calls at once, want 8 for the first sends and 8 for all others", most)
						}
						time.Sleep(time.Minute)
					})
				})
			}
		}
	}
}

// TestLastSendHasAllTheTime: an answer may take longer than the first sends are given, as where a connection is to be
// made on a slow way. Who waits has it all the same, and who gives up within two seconds.
func TestLastSendHasAllTheTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}}
		slow := func(ctx context.Context, cs []*backend.Claim) {
			select {
			case <-time.After(1200 * time.Millisecond):
				grants(ctx, cs)
			case <-ctx.Done():
				cs[0].Err = ctx.Err()
			}
		}
		s.ask, s.leave = slow, slow
		c, r, began := core.Of(s), request("n", true), time.Now()
		_, err := c.Acquire(t.Context(), r)
		want(t, "acquire", err, nil)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("granted after %v, want within a send and a look", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		want(t, "abandon", c.Abandon(ctx, r), nil)
	})
}

// TestTurnedBackIsSentSoon: a waiter that is turned back does not go by what its last answer said of the next look.
func TestTurnedBackIsSentSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, began := &store{calls: backend.Calls{Most: 3}}, time.Now() // one call at a time: Abreast is 0
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			grants(ctx, cs)
			switch since := time.Since(began); {
			case since < 500*time.Millisecond:
				cs[0].Err, cs[0].Next = backend.ErrLocked, time.Second
			case strings.HasPrefix(cs[0].Name, "silent") && since < 2*time.Second:
				time.Sleep(700 * time.Millisecond)
				cs[0].Err = errBroken
			}
		}
		c := core.Of(s)
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.Acquire(t.Context(), request("n", true))
			want(t, "acquire", err, nil)
			if took := time.Since(began); took > 1900*time.Millisecond {
				t.Errorf("granted after %v, want soon after it was turned back", took)
			}
		})
		time.Sleep(900 * time.Millisecond)
		for i := range 4 { // no more go at once
			all.Go(func() {
				_, err := c.Acquire(t.Context(), request(fmt.Sprint("silent", i), false))
				want(t, "acquire", err, nil)
			})
			time.Sleep(2 * time.Millisecond)
		}
		all.Wait()
	})
}

// TestWhoIsTurnedBack: who is in the queue once a call had no answer for any of its claims, unless another call was
// answered meanwhile.
func TestWhoIsTurnedBack(t *testing.T) {
	for _, tt := range []struct {
		name    string
		abreast int
		before  []string // what becomes of the claims that came before, of which three go together
		want    bool
	}{
		{"a call of one", 1, []string{"silent"}, true},
		{"a call of several", 1, []string{"soon", "silent", "silent", "silent"}, true},
		{"the first of several had an answer", 1, []string{"soon", "late", "silent", "silent"}, false},
		{"another of several had an answer", 1, []string{"soon", "silent", "late", "silent"}, false},
		{"another call had an answer", 2, []string{"silent", "soon", "soon", "soon", "soon"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s, back := &store{calls: backend.Calls{Most: 3, Abreast: tt.abreast}}, false
				s.ask = func(ctx context.Context, cs []*backend.Claim) {
					took := 500 * time.Millisecond
					grants(ctx, cs)
					for _, c := range cs {
						switch {
						case strings.HasPrefix(c.Name, "silent"):
							c.Err, took = errBroken, 700*time.Millisecond
						case strings.HasPrefix(c.Name, "late"):
							took = 700 * time.Millisecond
						}
					}
					time.Sleep(took)
				}
				s.enter = func(*backend.Claim) error { back = true; return nil }
				c := core.Of(s)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for i, name := range append(tt.before, "in line") {
					all.Go(func() {
						_, err := c.Acquire(ctx, request(fmt.Sprint(name, i), name == "in line"))
						if name == "in line" {
							want(t, name, err, nil)
						}
					})
					synctest.Wait()
				}
				all.Wait()
				time.Sleep(time.Second) // the last call about a silent one
				if back != tt.want {
					t.Errorf("turned back: got %v, want %v", back, tt.want)
				}
			})
		})
	}
}

// TestStuckCallsAside keep nobody but those whom they are about.
func TestStuckCallsAside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const stuck = 8
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2, Aside: true}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if grants(ctx, cs); cs[0].Name[0] == 's' {
				time.Sleep(time.Minute)
			}
		}
		c := core.Of(s)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range stuck {
			all.Go(func() {
				_, err := c.Acquire(ctx, request(fmt.Sprint("stuck", i), false))
				want(t, "stuck", err, context.DeadlineExceeded)
			})
			time.Sleep(2 * time.Millisecond)
		}
		began := time.Now()
		for i := range 100 {
			all.Go(func() {
				_, err := c.Acquire(ctx, request(fmt.Sprint(i), i%2 == 0))
				if took := time.Since(began); err != nil || took > time.Second {
					t.Errorf("got %v after %v, want a grant within a second", err, took)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
	})
}

// TestCallsAsideGoTogether, and each of those who wait for one may go.
func TestCallsAsideGoTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 1, Aside: true}, ask: slowly}
		c := core.Of(s)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%2 == 0 { // the leaders, and some with them
					time.AfterFunc(600*time.Millisecond, cancel)
				}
				began, r := time.Now(), request(fmt.Sprint(i), false)
				_, err := c.Acquire(ctx, r)
				if i%2 == 1 || i == 0 {
					want(t, "acquire", err, nil)
					return
				}
				want(t, "acquire", err, context.Canceled)
				if took := time.Since(began); took != 600*time.Millisecond {
					t.Errorf("the caller was kept for %v, want 600ms", took)
				}
				want(t, "abandon", c.Abandon(t.Context(), r), nil)
			})
			synctest.Wait()
		}
		all.Wait()
		if len(s.sizes) > 4 || len(s.unsure) != 9 {
			t.Errorf("got calls about %v claims, and %d left; want few, and 9", s.sizes, len(s.unsure))
		}
	})
}

// TestOneThatHangs: claims that went together with one that the store does not answer are granted soon after all the
// same, though those that had no answer may go together too.
func TestOneThatHangs(t *testing.T) {
	for range 12 { // it may go alone by chance
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 100, Abreast: 1}}
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				grants(ctx, cs)
				if slices.ContainsFunc(cs, func(c *backend.Claim) bool { return c.Name == "hangs" }) {
					hangs(ctx, cs)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			c, began := core.Of(s), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var all sync.WaitGroup
			var once, more atomic.Int32
			acquire := func(name string) {
				_, err := c.Acquire(ctx, request(name, false))
				if name == "hangs" {
					want(t, name, err, context.DeadlineExceeded)
					return
				}
				want(t, name, err, nil)
				switch took := time.Since(began); {
				case took > 2500*time.Millisecond:
					t.Errorf("granted after %v, want after three calls with it at the most", took)
				case took > 800*time.Millisecond:
					more.Add(1)
				case took > 100*time.Millisecond:
					once.Add(1)
				}
			}
			for i := range 80 {
				all.Go(func() { acquire(fmt.Sprint(i)) })
				if i == 40 {
					all.Go(func() { acquire("hangs") })
				}
			}
			all.Wait()
			if once.Load() < 50 || more.Load() > 15 {
				t.Errorf("it took %d along once, and %d again; want nearly all, and 15", once.Load(), more.Load())
			}
		})
	}
}

// TestEachBatchHangs: where every batch has a claim that the store does not answer, and it answers all others, these
// are granted soon enough for a try.
func TestEachBatchHangs(t *testing.T) {
	for _, n := range []int{202, 1000} { // two go alone, and 200 in two batches
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 100, Abreast: 2}}
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				if grants(ctx, cs); len(cs) > 1 {
					hangs(ctx, cs)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			c := core.Of(s)
			crowdOf(t, c, n, core.Patience, nil)
		})
	}
}

// TestSlowStoreIsNotFlooded: a store that needs a second for each call, from the first on or later, however many claims
// it is about, has few calls at a time, and nobody is told of an outage.
func TestSlowStoreIsNotFlooded(t *testing.T) {
	for _, quick := range []time.Duration{0, time.Millisecond} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 100, Abreast: 2}}
			began := time.Now()
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				takes := time.Second
				if time.Since(began) < quick {
					takes = 10 * time.Millisecond
				}
				select {
				case <-time.After(takes):
					grants(ctx, cs)
				case <-ctx.Done():
					for _, c := range cs {
						c.Err = ctx.Err()
					}
				}
			}
			crowdOf(t, core.Of(s), 200, 10*time.Second, nil)
			if most := s.mostAtOnce(); most > 16 {
				t.Errorf("got %d calls at once, want few", most)
			}
		})
	}
}

// crowdOf makes n tries at once, each with so much time, and each is to end so.
func crowdOf(t *testing.T, c core.Caller, n int, within time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, got := c.Acquire(ctx, request(fmt.Sprint(i), false))
			want(t, "acquire", got, err)
		})
	}
	all.Wait()
}

// TestHurriedAtASilentStore: however little time many claims have, a store that does not answer has few calls at
// a time.
func TestHurriedAtASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}, ask: hangs}
		c := core.Of(s)
		crowdOf(t, c, 1, time.Second, context.DeadlineExceeded) // by which the silence is noticed
		crowdOf(t, c, 200, 600*time.Millisecond, context.DeadlineExceeded)
		c.Land()
		if most := s.mostAtOnce(); most > 8 {
			t.Errorf("got %d calls at once, want few", most)
		}
	})
}

// TestHurriedOnceItAnswers: once a store answers again claims in a hurry go as fast as before, though only such ones
// come.
func TestHurriedOnceItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}, ask: hangs}
		c := core.Of(s)
		acquire := func(within time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			_, err := c.Acquire(ctx, request("n", false))
			return time.Since(began), err
		}
		_, err := acquire(time.Second)
		want(t, "at the silent store", err, context.DeadlineExceeded)
		c.Land()
		s.ask = grants
		_, err = acquire(900 * time.Microsecond) // too little to wait for others
		want(t, "the first", err, nil)
		if took, err := acquire(600 * time.Millisecond); err != nil || took > 0 {
			t.Errorf("the second: got %v after %v, want a grant at once", err, took)
		}
	})
}

// TestTriesBesideManyThatHang: tries in a hurry are granted at once, though many other names hang, and nothing else
// tells that the store answers.
func TestTriesBesideManyThatHang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if slices.ContainsFunc(cs, func(c *backend.Claim) bool { return c.Name == "hangs" }) {
				hangs(ctx, cs)
				return
			}
			time.Sleep(2 * time.Millisecond)
			grants(ctx, cs)
		}
		c := core.Of(s)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				for time.Sleep(time.Duration(i) * 37 * time.Millisecond); ctx.Err() == nil; {
					_, _ = c.Acquire(ctx, request("hangs", false))
				}
			})
		}
		for i := range 10 {
			all.Go(func() {
				for time.Sleep(time.Duration(i) * 11 * time.Millisecond); ctx.Err() == nil; {
					short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
					if _, err := c.Acquire(short, request("n", false)); err != nil && ctx.Err() == nil {
						t.Errorf("a try of a name that does not hang: %v", err)
					}
					cancel()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		c.Land()
	})
}

// TestCancelledWhileLeading: a caller is held by a call that is about others too for as long as a first call takes,
// also where one of them has waited for long.
func TestCancelledWhileLeading(t *testing.T) {
	for after := 2200 * time.Millisecond; after < 5*time.Second; after += 50 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 100, Abreast: 1}, ask: hangs}
			c, end := core.Of(s), time.Now().Add(after)
			var all sync.WaitGroup
			for i := range 60 {
				all.Go(func() {
					time.Sleep(time.Duration(i) * 41 * time.Millisecond)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					defer time.AfterFunc(time.Until(end), cancel).Stop()
					_, _ = c.Acquire(ctx, request(fmt.Sprint(i), false))
					if late := time.Since(end); late > 700*time.Millisecond {
						t.Errorf("held for %v after it was cancelled", late)
					}
				})
			}
			all.Wait()
			c.Land()
		})
	}
}

// TestLongCallEndsNoSilence: a call that began before the last answer says nothing of the silence after that.
func TestLongCallEndsNoSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 100, Abreast: 2}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if grants(ctx, cs); cs[0].Name != "answered" {
				hangs(ctx, cs)
			}
		}
		c := core.Of(s)
		var all sync.WaitGroup
		acquire := func(most time.Duration, name string) {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), most)
				defer cancel()
				_, _ = c.Acquire(ctx, request(name, false))
			})
		}
		acquire(time.Minute, "long") // its fourth call begins at 2.1 s
		time.Sleep(2150 * time.Millisecond)
		acquire(time.Second, "answered")
		acquire(4*time.Second, "silence")
		time.Sleep(1500 * time.Millisecond)
		for i := range 600 {
			acquire(600*time.Millisecond, fmt.Sprint(i))
			time.Sleep(2 * time.Millisecond)
		}
		all.Wait()
		c.Land()
		if most := s.mostAtOnce(); most > 12 {
			t.Errorf("got %d calls at once, want few", most)
		}
	})
}
