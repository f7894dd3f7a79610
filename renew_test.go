package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

func TestRenewedForAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		token := le.Token()
		_, err := b.Mutex("n").Lock(within(t, time.Hour))
		wantErr(t, "another's wait", err, fencelock.ErrLocked, context.DeadlineExceeded)
		wantHeld(t, "after an hour", le)
		if le.Token() != token {
			t.Errorf("token: got %d after an hour, want %d", le.Token(), token)
		}
		// Every third of the TTL, with up to a tenth and the batch's eighth taken off.
		least, most := int(time.Hour/(ttl/3)), int(time.Hour/(ttl/3*3/4))
		if got := d.count("renew"); got < least || got > most {
			t.Errorf("got %d renewals in an hour, want %d to %d", got, least, most)
		}
		unlock(t, le)
	})
}

func TestRenewalsAreJittered(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		var mu sync.Mutex
		var last time.Time
		gaps := map[time.Duration]bool{}
		d.on("renew", func(c call) error {
			mu.Lock()
			defer mu.Unlock()
			gaps[time.Since(last)] = true
			last = time.Now()
			return c.apply()
		})
		lock(t, l.Mutex("n"))
		time.Sleep(20 * ttl)
		mu.Lock()
		defer mu.Unlock()
		if len(gaps) < 10 {
			t.Errorf("the gaps between renewals: got %v, want many different ones", gaps)
		}
	})
}

// Processes that were granted locks at one moment, as after an outage, do not renew them at one moment.
func TestProcessesDoNotRenewInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		first := map[time.Duration]bool{}
		for i := range 10 {
			o := newFake(t)
			renewed := false
			o.on("renew", func(c call) error {
				mu.Lock()
				defer mu.Unlock()
				if !renewed {
					renewed, first[time.Since(began)] = true, true
				}
				return c.apply()
			})
			lock(t, open(t, o).Mutex(fmt.Sprint(i)))
		}
		time.Sleep(ttl)
		mu.Lock()
		defer mu.Unlock()
		if len(first) < 5 {
			t.Errorf("ten processes made their first renewals at %v, want many moments", first)
		}
	})
}

func TestRenewalAnswers(t *testing.T) {
	tests := map[string]struct {
		step        step
		least, most time.Duration // when the lease ends
		want        fencelock.Reason
	}{
		"lost": {refuse(fencelock.ErrLost), ttl / 4, ttl / 3, fencelock.Revoked},
		"lost, wrapped": {
			refuse(fmt.Errorf("hold 0: %w", fencelock.ErrLost)), ttl / 4, ttl / 3,
			fencelock.Revoked,
		},
		"session lost": {
			refuse(&fencelock.LostError{Reason: fencelock.SessionLost}), ttl / 4, ttl / 3,
			fencelock.SessionLost,
		},
		"store error":         {refuse(errStore), trusted, trusted, fencelock.Expired},
		"unavailable":         {refuse(fencelock.ErrUnavailable), trusted, trusted, fencelock.Expired},
		"locked":              {refuse(fencelock.ErrLocked), trusted, trusted, fencelock.Expired},
		"no answer":           {hang, trusted, trusted, fencelock.Expired},
		"answers always late": {slowBack(ttl), trusted, trusted, fencelock.Expired},
		"driver's ctx error":  {refuse(context.Canceled), trusted, trusted, fencelock.Expired},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				start := time.Now()
				le := lock(t, l.Mutex("n"))
				d.on("renew", tt.step)
				<-le.Done()
				wantTook(t, "the lease", start, tt.least, tt.most)
				wantLost(t, name, le, tt.want)
				tries := d.count("renew")
				time.Sleep(3 * ttl)
				if got := d.count("renew"); got != tries {
					t.Errorf("got %d renewals after the loss", got-tries)
				}
			})
		})
	}
}

func TestRenewalRecovers(t *testing.T) {
	tests := map[string]step{
		"one error":              first(1, refuse(errStore)),
		"several errors":         first(4, refuse(errStore)),
		"one lost reply":         first(1, loseReply),
		"one without an answer":  first(1, hang),
		"one with a late answer": first(1, slowBack(ttl)),
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le := lock(t, l.Mutex("n"))
				d.on("renew", s)
				time.Sleep(10 * ttl)
				wantHeld(t, name, le)
			})
		})
	}
}

func TestOutageShorterThanTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		for range 20 {
			d.on("renew", refuse(errStore))
			time.Sleep(ttl / 2)
			wantHeld(t, "in the outage", le)
			d.on("renew", nil)
			time.Sleep(ttl)
		}
		wantHeld(t, "after twenty outages", le)
	})
}

// A renewal that failed is tried again soon, not just before the deadline.
func TestRenewalIsTriedAgainSoon(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("renew", refuse(errStore))
		time.Sleep(ttl / 2)
		if got := d.count("renew"); got < 2 || got > 30 {
			t.Errorf("got %d tries in an outage from %v to %v, want a few", got, ttl/3, ttl/2)
		}
		before := le.Deadline()
		d.on("renew", nil)
		time.Sleep(1100 * time.Millisecond)
		if !le.Deadline().After(before) {
			t.Error("not renewed a good second after the outage")
		}
	})
}

func TestLateConfirmationDoesNotRevive(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		deadline := le.Deadline()
		gate := make(chan struct{})
		d.on("renew", func(c call) error { // applied in time, confirmed after the deadline
			err := c.apply()
			<-gate
			return err
		})
		<-le.Done()
		close(gate)
		synctest.Wait()
		wantLost(t, "after the late confirmation", le, fencelock.Expired)
		if got := le.Deadline(); !got.Equal(deadline) {
			t.Errorf("deadline: got %v after the loss, want it unchanged", got.Sub(deadline))
		}
		start := time.Now()
		lock(t, b.Mutex("n"))
		wantTook(t, "the next grant (the renewed lock is freed)", start, 0, time.Second)
	})
}

func TestNoRenewalAfterUnlock(t *testing.T) {
	tests := map[string]time.Duration{"at once": 0, "after one renewal": ttl / 2, "when a renewal is due": ttl / 3}
	for name, hold := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le := lock(t, l.Mutex("n"))
				time.Sleep(hold)
				unlock(t, le)
				before := d.count("renew")
				time.Sleep(3 * ttl)
				if got := d.count("renew"); got != before {
					t.Errorf("got %d renewals in the 3 TTLs after Unlock", got-before)
				}
			})
		})
	}
}

func TestManualRenew(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		le := lock(t, l.Mutex("n"))
		for range 3 {
			time.Sleep(trusted - 2*time.Second)
			asked := time.Now()
			d.on("renew", slowBack(500*time.Millisecond))
			if err := le.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := le.Deadline().Sub(asked); got != trusted {
				t.Errorf("deadline: got %v after the renewal was asked for, want %v", got, trusted)
			}
		}
		if got := d.count("renew"); got != 3 {
			t.Errorf("got %d renewals, want the 3 that were asked for", got)
		}
		<-le.Done()
		wantLost(t, "without more renewals", le, fencelock.Expired)
		wantErr(t, "renew after the loss", le.Renew(t.Context()), fencelock.ErrLost)
		if got := d.count("renew"); got != 3 {
			t.Errorf("a renewal of a lost lease was sent")
		}
	})
}

func TestManualRenewErrors(t *testing.T) {
	tests := map[string]struct {
		step step
		want []error
		held bool
		most time.Duration
	}{
		"store error": {refuse(errStore), []error{fencelock.ErrUnavailable, errStore}, true, 0},
		"lost":        {refuse(fencelock.ErrLost), []error{fencelock.ErrLost}, false, 0},
		"no answer":   {hang, []error{fencelock.ErrUnavailable}, true, 5 * time.Second},
		"lost reply":  {loseReply, []error{fencelock.ErrUnavailable}, true, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithManualRenew())
				le := lock(t, l.Mutex("n"))
				deadline := le.Deadline()
				d.on("renew", tt.step)
				start := time.Now()
				err := le.Renew(t.Context())
				wantErr(t, "renew", err, tt.want...)
				wantTook(t, "renew", start, 0, tt.most)
				if got := opErrors(err); got != 1 {
					t.Errorf("got %d OpErrors in %v, want 1", got, err)
				}
				if got := le.Err() == nil; got != tt.held {
					t.Errorf("held: got %v, want %v", got, tt.held)
				}
				if !le.Deadline().Equal(deadline) {
					t.Error("a renewal that was not confirmed moved the deadline")
				}
			})
		})
	}
}

func TestManualRenewAndItsContext(t *testing.T) {
	cause := errors.New("the cause")
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		le := lock(t, l.Mutex("n"))
		done, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantErr(t, "renew with a done ctx", le.Renew(done), context.Canceled, cause)
		if got := d.count("renew"); got != 0 {
			t.Errorf("renew with a done ctx sent %d requests", got)
		}
		d.on("renew", hang)
		start := time.Now()
		wantErr(t, "renew that its ctx ended", le.Renew(within(t, time.Second)), context.DeadlineExceeded)
		wantTook(t, "renew that its ctx ended", start, time.Second, time.Second)
		wantHeld(t, "after it", le)
		<-le.Done()
		wantErr(t, "renew of a lost lease with a done ctx (the clock is looked at first)",
			le.Renew(done), fencelock.ErrLost)
	})
}

func TestManualRenewEndsAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		start := time.Now()
		le := lock(t, l.Mutex("n"))
		d.on("renew", hang)
		time.Sleep(trusted - time.Second)
		wantErr(t, "renew", le.Renew(t.Context()), fencelock.ErrLost)
		wantTook(t, "renew", start, trusted, trusted)
	})
}

func TestManualRenewBehindAnother(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		le := lock(t, l.Mutex("n"))
		d.on("renew", slowBack(3*time.Second))
		firstDone := make(chan error, 1)
		go func() { firstDone <- le.Renew(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		wantErr(t, "the second", le.Renew(within(t, time.Second)), context.DeadlineExceeded)
		wantTook(t, "the second", start, time.Second, time.Second)
		if err := <-firstDone; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

// The driver sees one call about a request at a time: the fake asserts it.
func TestManualRenewBesideTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("renew", slowBack(300*time.Millisecond))
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 20 {
					if err := le.Renew(t.Context()); err != nil {
						t.Errorf("renew: %v", err)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(3 * ttl)
		wantHeld(t, "after 200 renewals by hand", le)
		if got := d.peak("renew"); got != 1 {
			t.Errorf("got %d renewals of one lease in flight, want 1 at a time", got)
		}
	})
}

func TestManualRenewInFlightWhenTheScheduleIsDue(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		time.Sleep(2 * time.Second)
		d.on("renew", first(1, slowBack(4*time.Second)))
		if err := le.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * ttl)
		wantHeld(t, "afterwards", le)
	})
}

// A Renew that comes while its lease waits for Close does nothing, and holds up nothing.
func TestManualRenewDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithManualRenew(), fencelock.WithMinHold(ttl))
		var leases []*fencelock.Lease
		for i := range 100 { // more than Close releases at once
			leases = append(leases, lock(t, l.Mutex(fmt.Sprint(i))))
		}
		d.on("renew", slowBack(10*time.Millisecond)) // which WithMinHold makes of a release
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- l.Close() }()
		synctest.Wait()
		refused := 0
		for _, le := range leases {
			if errors.Is(le.Renew(t.Context()), fencelock.ErrClosed) {
				refused++
			}
		}
		if err := <-done; err != nil || refused == 0 {
			t.Errorf("close beside %d refused renewals: %v", refused, err)
		}
		wantTook(t, "close", start, 0, time.Second)
	})
}

// What the driver does for a Renew ends with it.
func TestManualRenewEndsItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		le := lock(t, open(t, d, fencelock.WithManualRenew()).Mutex("n"))
		var given context.Context
		d.on("renew", func(c call) error {
			given = c.ctx
			return c.apply()
		})
		if err := le.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "the ctx of the call", given.Err(), context.Canceled)
	})
}

// The end of the time that this package gives a call is told as that, beside what the store has said, and not as
// the end of the caller's context.
func TestManualRenewOutOfTime(t *testing.T) {
	late := func(answer func(ctx error) error) step {
		return func(c call) error {
			<-c.ctx.Done()
			return answer(c.ctx.Err())
		}
	}
	tests := map[string]struct {
		step step
		want error
		text string
	}{
		"no answer": {hang, fencelock.ErrUnavailable, ": no answer within 5s"},
		"the client's words": {
			late(func(ctx error) error { return fmt.Errorf("read: %w", ctx) }), fencelock.ErrUnavailable,
			": no answer within 5s: read: context deadline exceeded",
		},
		"the store's error": {late(func(error) error { return errStore }), errStore, errStore.Error()},
		"the store's answer": {
			late(func(ctx error) error { return fmt.Errorf("%w: %w", fencelock.ErrLost, ctx) }),
			fencelock.ErrLost, "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				le := lock(t, open(t, d, fencelock.WithManualRenew()).Mutex("n"))
				d.on("renew", tt.step)
				err := le.Renew(t.Context())
				wantErr(t, name, err, tt.want)
				wantNot(t, name, err, context.DeadlineExceeded)
				if !strings.HasSuffix(err.Error(), tt.text) {
					t.Errorf("got %q, want it to end in %q", err, tt.text)
				}
			})
		})
	}
}

// A store that refuses has answered: that is no outage.
func TestAnswersAreNoOutage(t *testing.T) {
	for _, answer := range []error{fencelock.ErrInvalid, fencelock.ErrUnsupported} {
		bubble(t, func(t *testing.T, d *fake) {
			le := lock(t, open(t, d, fencelock.WithManualRenew()).Mutex("n"))
			d.on("renew", refuse(answer))
			err := le.Renew(t.Context())
			wantErr(t, "renew", err, answer)
			wantNot(t, "renew", err, fencelock.ErrUnavailable)
		})
	}
}

// A batch is bounded by the shortest of its leases, wherever that stands in it.
func TestBatchIsBoundedByTheShortest(t *testing.T) {
	for name, order := range map[string][]time.Duration{
		"first": {900, 1000, 1100, 1200}, "last": {1200, 1100, 1000, 900}, "between": {1200, 900, 1100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				var largest atomic.Int64
				for _, op := range []string{"renew", "check"} {
					d.on(op, func(c call) error {
						limit, ok := c.ctx.Deadline()
						for _, r := range c.reqs {
							if left := time.Until(limit); !ok || left > max(r.TTL/3, 100*time.Millisecond) {
								t.Errorf("%s: a batch with a TTL of %v may take %v", op, r.TTL, left)
							}
						}
						largest.Store(max(largest.Load(), int64(len(c.reqs))))
						return c.apply()
					})
				}
				var leases []*fencelock.Lease
				for i, ttl := range order {
					for j := range 10 {
						leases = append(leases, lock(t,
							l.Mutex(fmt.Sprint(i, "/", j),
								fencelock.WithTTL(ttl*time.Millisecond))))
					}
				}
				time.Sleep(10 * time.Second)
				for _, le := range leases {
					wantHeld(t, name, le)
				}
				if largest.Load() <= 10 {
					t.Errorf("got %d leases in the largest batch, want those of similar TTLs together", largest.Load())
				}
			})
		})
	}
}

// Leases with a short TTL do not bound the renewals of others so tightly that they fail.
func TestShortLeasesBesideALongOne(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(6*time.Second))
		d.on("renew", slowThere(150*time.Millisecond)) // a store that is too far away for a TTL of 300 ms
		long := lock(t, l.Mutex("long"))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				for ctx.Err() == nil {
					le, err := l.Mutex(fmt.Sprint("short", i), fencelock.WithTTL(300*time.Millisecond)).Lock(ctx)
					if err != nil {
						return
					}
					<-le.Done()
				}
			})
		}
		time.Sleep(time.Minute)
		wantHeld(t, "the long lease", long)
		cancel()
		wg.Wait()
	})
}

// A driver may share sessions among holds that the engine renews without a bound, and is told which
// those are.
func TestAuto(t *testing.T) {
	tests := map[string]struct {
		opts []fencelock.Option
		want bool
	}{
		"by default":      {nil, true},
		"renewed by hand": {[]fencelock.Option{fencelock.WithManualRenew()}, false},
		"with a bound":    {[]fencelock.Option{fencelock.WithMaxHold(time.Minute)}, false},
		"with a grace":    {[]fencelock.Option{fencelock.WithGrace(time.Second)}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var got bool
				d.watch = func(r *backend.Request) { got = r.Auto }
				unlock(t, lock(t, open(t, d).Mutex("n", tt.opts...)))
				if got != tt.want {
					t.Errorf("Request.Auto: got %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// A renewal by hand that the store does not answer leaves the schedule time for another one.
func TestManualRenewThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(3*time.Second))
		le := lock(t, l.Mutex("n"))
		d.on("renew", first(1, hang))
		start := time.Now()
		wantErr(t, "renew", le.Renew(t.Context()), fencelock.ErrUnavailable)
		wantTook(t, "renew", start, time.Second, 2*time.Second)
		time.Sleep(10 * time.Second)
		wantHeld(t, "afterwards", le)
		unlock(t, le)
	})
}

// However short the TTL, some tries fit into what is left after one that failed, and they are not too many.
func TestTriesFitIntoAnyTTL(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 5 * time.Second, time.Minute} {
		bubble(t, func(t *testing.T, d *fake) {
			d.on("renew", refuse(errStore))
			<-lock(t, open(t, d, fencelock.WithTTL(ttl)).Mutex("n")).Done()
			if got := d.count("renew"); got < 8 || got > 80 {
				t.Errorf("TTL %v: got %d tries until the deadline, want 8 to 80", ttl, got)
			}
		})
	}
}

// A renewal that waits to be tried again is not tried with every batch of others.
func TestTriesKeepTheirPause(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		var tries atomic.Int64
		d.on("renew", about(func(name string) bool { return name == "failing" }, func(call) error {
			tries.Add(1)
			return errStore
		}))
		failing := lock(t, l.Mutex("failing", fencelock.WithTTL(time.Minute)))
		lock(t, l.Mutex("other", fencelock.WithTTL(300*time.Millisecond)))
		<-failing.Done()
		if got := tries.Load(); got > 90 {
			t.Errorf("got %d tries in 40 s, want one a second or little more", got)
		}
	})
}

// A short TTL leaves the store a tenth of a second for an answer all the same.
func TestShortTTLOfASlowStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.on("renew", slowThere(80*time.Millisecond))
		le := lock(t, open(t, d, fencelock.WithTTL(200*time.Millisecond)).Mutex("n"))
		time.Sleep(time.Minute)
		wantHeld(t, "a minute later", le)
	})
}

// Leases that end take none of the others out of the schedule.
func TestRenewedAmongOthers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		var kept, left []*fencelock.Lease
		for i := range 200 {
			le := lock(t, l.Mutex(fmt.Sprint(i), fencelock.WithTTL(time.Duration(1+i*7%20)*ttl)))
			if i%2 == 0 {
				kept = append(kept, le)
			} else {
				left = append(left, le)
			}
		}
		for _, le := range left {
			unlock(t, le)
		}
		time.Sleep(30 * ttl)
		for _, le := range kept {
			wantHeld(t, le.Name(), le)
		}
	})
}

// A renewal is an answer of the store, after which it is asked again for what it has not undone.
func TestCleanUpWhenARenewalIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		lock(t, l.Mutex("held"))
		d.on("acquire", loseReply)
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(20 * time.Minute)
		before := d.count("abandon")
		time.Sleep(10 * time.Minute)
		if got, least := d.count("abandon")-before, int(10*time.Minute/(ttl/3)); got < least {
			t.Errorf("got %d tries in ten minutes of renewals, want one with each of %d", got, least)
		}
		d.on("abandon", nil)
	})
}

// What Close has closed is nobody's any more, however long the TTL is.
func TestClosedLockerIsNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		kept := func() weak.Pointer[fencelock.Locker] {
			l := openLoose(t, d, fencelock.WithTTL(24*time.Hour))
			lock(t, l.Mutex("n"))
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			return weak.Make(l)
		}()
		time.Sleep(time.Minute)
		runtime.GC()
		runtime.GC()
		if kept.Value() != nil {
			t.Error("a Locker is still in memory after its Close")
		}
	})
}

// shortGrant is what the store promises to the holders of these tests until they have renewed.
const shortGrant = 2 * time.Second

func TestShortGrant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		l := open(t, d)
		for _, after := range []time.Duration{0, 5 * time.Millisecond} {
			le := lock(t, l.Mutex("n"))
			time.Sleep(after)
			unlock(t, le)
			time.Sleep(ttl)
			if n := d.count("renew"); n != 0 {
				t.Errorf("%d renewals of a lease that was unlocked after %v", n, after)
			}
		}
		le := lock(t, l.Mutex("n"))
		if left := time.Until(le.Deadline()); left > shortGrant-20*time.Millisecond || left < shortGrant/2 {
			t.Errorf("the deadline is in %v, the grant lasts %v", left, shortGrant)
		}
		time.Sleep(20 * time.Millisecond)
		if n, left := d.count("renew"), time.Until(le.Deadline()); n != 1 || left < ttl-ttl/20 {
			t.Errorf("after 20 ms: %d renewals, the deadline is in %v", n, left)
		}
		time.Sleep(10 * ttl)
		wantHeld(t, "after ten TTLs", le)
		unlock(t, le)

		le, before := lock(t, l.Mutex("n")), d.count("renew")
		le.Handle()
		synctest.Wait()
		if n := d.count("renew") - before; n != 1 {
			t.Errorf("for the handle: %d renewals at once, want 1", n)
		}
		unlock(t, le)
	})
}

// A store that is silent after a short grant ends it before its own expiry, with two tries at least.
func TestShortGrantOfASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		d.on("renew", hang)
		margins := make(chan time.Duration, 1)
		l := open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.Lost {
				margins <- e.Margin
			}
		})))
		began := time.Now()
		le := lock(t, l.Mutex("n"))
		<-le.Done()
		if margin := <-margins; margin <= 0 || margin > shortGrant/10 {
			t.Errorf("it was told %v before the store lets go, which is %v after its word", margin, shortGrant)
		}
		if took := time.Since(began); took >= shortGrant || took < shortGrant*9/10 {
			t.Errorf("lost after %v, the store's word was for %v", took, shortGrant)
		}
		var lost *fencelock.LostError
		if !errors.As(le.Err(), &lost) || lost.Reason != fencelock.Expired {
			t.Errorf("got %v, want Expired", le.Err())
		}
		if n := d.count("renew"); n < 2 {
			t.Errorf("%d renewals were tried, want 2", n)
		}
	})
}

// A store that vouches for less than the TTL is asked in time, and who it leaves without an answer is told in time.
func TestRenewedWhereTheStoreVouchesForLess(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		const most = ttl / 4
		d.grant = func(g *backend.Grant) { g.Max = most }
		margins := make(chan time.Duration, 1)
		le := lock(t, open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.Lost {
				margins <- e.Margin
			}
		}))).Mutex("n"))
		time.Sleep(10 * ttl)
		wantHeld(t, "after ten TTLs", le)
		d.on("renew", hang)
		<-le.Done()
		if margin := <-margins; margin <= 0 || margin > most/10 {
			t.Errorf("it was told %v before the store lets go, which is %v after its word", margin, most)
		}
	})
}

// One that answers the second try keeps it.
func TestShortGrantKept(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		d.on("renew", first(1, hang))
		le := lock(t, open(t, d).Mutex("n"))
		time.Sleep(10 * shortGrant)
		wantHeld(t, "after ten short grants", le)
		unlock(t, le)
	})
}
