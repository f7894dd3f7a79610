package fencelock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

func isBad(name string) bool { return strings.HasPrefix(name, "bad") }

// Hung clean-ups of other names, however many, do not hold up that of a cancelled Lock.
func TestCleanUpBesideHungOnes(t *testing.T) {
	for _, bad := range []int{64, 65, 300, 1000, 10_000} {
		for _, after := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprint(bad, " after ", after), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					a, l := open(t, d.other()), open(t, d)
					held := lock(t, a.Mutex("good"))
					d.on("acquire", about(isBad, loseReply))
					d.on("abandon", about(isBad, hang))
					for i := range bad {
						_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
						wantErr(t, "trylock", err, fencelock.ErrUnavailable)
					}
					time.Sleep(after)
					ctx, cancel := context.WithCancel(t.Context())
					w := background(ctx, l.Mutex("good"))
					start := time.Now()
					cancel()
					wantErr(t, "lock", (<-w).err, context.Canceled)
					for {
						info, err := a.Inspect(t.Context(), "good")
						if err != nil {
							t.Fatal(err)
						}
						if info.Waiters == 0 {
							break
						}
						time.Sleep(10 * time.Millisecond)
					}
					wantTook(t, "until the waiter has left the queue", start, 0, time.Second)
					unlock(t, held)
					d.on("abandon", nil)
				})
			})
		}
	}
}

// A second try, after one that failed, comes in time beside the hung clean-ups of others.
func TestCleanUpAgainBesideHungOnes(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", about(isBad, hang))
		for i := range 300 {
			_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(5 * time.Second)
		once := first(1, refuse(errStore))
		d.on("abandon", func(c call) error {
			if isBad(c.reqs[0].Name) {
				return hang(c)
			}
			return once(c)
		})
		_, err := l.Mutex("good").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Second)
		wantFree(t, l, "good")
		d.on("abandon", nil)
	})
}

// A store that is down is not asked for all that it was ever asked for in vain, every second.
func TestCleanUpSparesAStoreThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(24*time.Hour))
		d.on("acquire", refuse(errStore))
		d.on("abandon", refuse(errStore))
		for i := range 10_000 {
			_, _ = l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
		}
		for _, wait := range []time.Duration{time.Minute, time.Hour} {
			time.Sleep(wait)
			before := d.count("abandon")
			time.Sleep(10 * time.Second)
			if got := (d.count("abandon") - before) / 10; got > 110 {
				t.Errorf("%v later: got %d calls of Abandon a second, want at most 110", wait, got)
			}
		}
		d.on("abandon", nil) // the store is back: each answer makes room for more
		before := d.count("abandon")
		time.Sleep(30 * time.Second)
		if got := d.count("abandon") - before; got < 9_900 {
			t.Errorf("got %d clean-ups within 30 s of the store's return, want nearly all", got)
		}
	})
}

// What is done counts as overdue no more: there is room for as many after each outage.
func TestCleanUpAfterManyOutages(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(time.Second))
		for range 5 {
			d.on("acquire", loseReply)
			d.on("abandon", refuse(errStore))
			for i := range 3000 {
				_, _ = l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			}
			time.Sleep(11*time.Second - time.Millisecond) // back just when they become overdue
			d.on("acquire", nil)
			d.on("abandon", nil)
			time.Sleep(5 * time.Minute)
		}
		d.on("acquire", first(1, loseReply))
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Hour)
		d.on("abandon", nil)
		time.Sleep(time.Minute)
		before := d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - before; got != 0 {
			t.Errorf("got %d tries an hour after the store's return, want none", got)
		}
		d.on("abandon", refuse(errStore))
		d.on("acquire", first(1, loseReply))
		_, err = l.Mutex("m").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Minute)
		before = d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - before; got < 60 {
			t.Errorf("got %d tries in an hour of one that is overdue, want them to go on", got)
		}
		d.on("abandon", nil)
		time.Sleep(time.Minute)
	})
}

// Close does not use up its time on a store that refuses at once.
func TestCloseWithAStoreThatRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		lock(t, l.Mutex("held"))
		for _, op := range []string{"acquire", "abandon", "release"} {
			d.on(op, refuse(errStore))
		}
		for i := range 300 {
			_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(time.Minute)
		start := time.Now()
		wantErr(t, "close", l.Close(), errStore)
		wantTook(t, "close", start, 0, time.Second)
	})
}

// Releases that hang, however many, do not keep Close from the others.
func TestCloseBesideHungReleases(t *testing.T) {
	for _, bad := range []int{64, 65, 300, 5000} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d), open(t, d.other())
				var good []string
				for i := range bad {
					lock(t, l.Mutex(fmt.Sprint("bad", i)))
					if i%50 == 0 {
						good = append(good, fmt.Sprint("good", i))
						lock(t, l.Mutex(good[len(good)-1]))
					}
				}
				good = append(good, "good")
				lock(t, l.Mutex("good"))
				d.on("release", func(c call) error {
					if isBad(c.reqs[0].Name) {
						return hang(c)
					}
					return slowThere(time.Millisecond)(c) // as a store behind a network, which heeds the ctx
				})
				d.on("abandon", slowThere(time.Millisecond))
				start := time.Now()
				wantErr(t, "close", l.Close(), fencelock.ErrUnavailable)
				wantTook(t, "close", start, 0, 5*time.Second)
				wantFree(t, other, good...)
			})
		})
	}
}
