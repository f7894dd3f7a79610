package fencelock_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// ledger is a Handle that the holder writes through, and its store: the first release commits what was written, or
// rolls it back, and an abandon rolls it back.
type ledger struct {
	mu        sync.Mutex
	cause     error // why it is to be rolled back
	over      bool
	committed bool
	told      error // what a release says once it is over
}

// Undo implements backend.Undoer.
func (x *ledger) Undo(cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over && x.cause == nil {
		x.cause = cmp.Or(cause, errors.New("undone for no reason"))
	}
}

// end ends the transaction, if it is not over, and returns what a release says.
func (x *ledger) end(c call) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
	case c.op == "abandon":
		x.over, x.told = true, fencelock.ErrLost
		return c.apply()
	default:
		x.over, x.committed, x.told = true, x.cause == nil, c.apply()
		if x.cause != nil {
			x.told = &fencelock.UndoneError{Err: x.cause}
		}
	}
	if c.op == "abandon" {
		return nil
	}
	return x.told
}

// why is why it is to be rolled back.
func (x *ledger) why() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cause
}

// wantCommitted checks what became of what was written.
func (x *ledger) wantCommitted(t *testing.T, want bool) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.committed != want {
		t.Errorf("committed: got %v (cause %v), want %v", x.committed, x.cause, want)
	}
}

// written makes the locks of d transactional, locks one and writes.
func written(t *testing.T, d *fake, m fencelock.Mutex) (*fencelock.Lease, *ledger) {
	t.Helper()
	x := &ledger{}
	d.grant = func(g *backend.Grant) { g.Handle = x }
	d.on("release", x.end)
	d.on("abandon", x.end)
	le := lock(t, m)
	if le.Handle() != x {
		t.Fatal("the lease has no transaction")
	}
	return le, x
}

// lostReply ends the transaction, and says that the connection broke.
func (x *ledger) lostReply(c call) error {
	_ = x.end(c)
	return errStore
}

// wantLostOnce checks the events of a lease that was lost while its Unlock was under way, or after it.
func wantLostOnce(t *testing.T, seen *record) {
	t.Helper()
	lost, released := len(seen.of(fencelock.Lost)), len(seen.of(fencelock.Released))
	if lost != 1 || released != 0 || len(seen.of(fencelock.NotReleased)) == 0 {
		t.Errorf("got %s, want lost once, not released, and never released", seen.kinds())
	}
}

// A Deadline that passes while the commit is under way does not make Unlock say that it was not done.
func TestDeadlinePassesDuringACommit(t *testing.T) {
	fault := errors.New("the holder's own")
	tests := map[string]struct {
		cause error // the holder's, before
		hangs bool  // until Unlock gives up
		want  []error
	}{
		"it commits":                     {nil, false, nil},
		"it rolls back":                  {fault, false, []error{fault}},
		"it commits, and Unlock is gone": {nil, true, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := open(t, d, fencelock.WithManualRenew(), fencelock.WithObserver(&seen))
				le, x := written(t, d, l.Mutex("n"))
				if tt.cause != nil {
					x.Undo(tt.cause)
				}
				time.Sleep(trusted - time.Second)
				d.on("release", func(c call) error {
					err := x.end(c)
					if tt.hangs {
						err = hang(c)
					} else if late := pause(c.ctx, 2*time.Second); late != nil {
						return late
					}
					return err
				})
				err := le.Unlock(t.Context())
				wantLost(t, "after it", le, fencelock.Expired)
				if tt.hangs {
					wantErr(t, "unlock", err, fencelock.ErrUnavailable)
					wantNot(t, "unlock", err, fencelock.ErrLost)
					d.on("release", x.end)
					err = le.Unlock(t.Context())
				}
				wantErr(t, "unlock", err, tt.want...)
				undone := errors.As(err, new(*fencelock.UndoneError))
				if undone != (tt.want != nil) || !undone && err != nil {
					t.Errorf("unlock: got %v, want %v", err, tt.want)
				}
				x.wantCommitted(t, tt.cause == nil)
				wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
				wantLost(t, "after that", le, fencelock.Expired) // as before
				wantLostOnce(t, &seen)
				for _, e := range seen.of(fencelock.NotReleased) {
					if e.Err == nil {
						t.Error("an event that the lock was not released says not why")
					}
				}
				wantFree(t, l, "n")
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				wantErr(t, "unlock after close", le.Unlock(t.Context()), fencelock.ErrReleased)
			})
		})
	}
}

// Unlock called again after the Deadline finds out what became of a commit whose answer was lost, before the janitor
// has asked and after it.
func TestUnlockAsksAfterTheDeadline(t *testing.T) {
	tests := map[string]struct {
		arrived bool // the first release
		cleaned bool // before Unlock is called again
	}{
		"committed":               {true, false},
		"committed, cleaned up":   {true, true},
		"not arrived":             {false, false},
		"not arrived, cleaned up": {false, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := open(t, d, fencelock.WithObserver(&seen))
				le, x := written(t, d, l.Mutex("n"))
				d.on("release", refuse(errStore))
				if tt.arrived {
					d.on("release", x.lostReply)
				}
				if !tt.cleaned {
					d.on("abandon", refuse(errStore))
				}
				wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
				<-le.Done()
				time.Sleep(time.Second)
				if got := len(seen.of(fencelock.CleanedUp)); got > 0 != tt.cleaned {
					t.Fatalf("got %d clean-ups", got)
				}
				err := le.Unlock(t.Context())
				wantErr(t, "unlock without an answer", err, fencelock.ErrUnavailable)
				wantNot(t, "unlock without an answer", err, fencelock.ErrLost)
				d.on("release", refuse(fencelock.ErrInvalid)) // no answer either
				wantNot(t, "unlock that the store refuses", le.Unlock(t.Context()), fencelock.ErrLost)
				d.on("release", x.end)
				err = le.Unlock(t.Context())
				x.wantCommitted(t, tt.arrived)
				if tt.arrived {
					if err != nil {
						t.Errorf("unlock of what was committed: %v", err)
					}
					wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
				} else {
					wantErr(t, "unlock of what was not", err, fencelock.ErrLost)
					wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrLost)
				}
				wantLost(t, "at the end", le, fencelock.Expired)
				wantLostOnce(t, &seen)
				d.on("abandon", x.end)
				time.Sleep(time.Minute)
				wantFree(t, l, "n")
			})
		})
	}
}

// An Unlock that waits for another one matches the end of its ctx.
func TestUnlockBesideAnother(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		le := lock(t, open(t, d).Mutex("n"))
		d.on("release", slowBack(2*time.Second))
		first := make(chan error, 1)
		go func() { first <- le.Unlock(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "Unlock beside another", le.Unlock(ctx), fencelock.ErrUnavailable, context.Canceled)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// An Unlock that asks in vain after the Deadline does not match the end of a ctx, and one that has found out the loss
// needs the store no more.
func TestUnlockInDoubtAndAfterIt(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, x := written(t, d, l.Mutex("n"))
		d.on("release", refuse(errStore))
		d.on("abandon", refuse(errStore))
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		<-le.Done()
		time.Sleep(time.Second)
		d.on("release", hang)
		err := le.Unlock(t.Context())
		wantErr(t, "unlock in doubt", err, fencelock.ErrUnavailable)
		wantNot(t, "unlock in doubt", err, context.DeadlineExceeded)
		d.on("release", refuse(fencelock.ErrLost))
		wantErr(t, "unlock that finds out", le.Unlock(t.Context()), fencelock.ErrLost)
		d.on("release", refuse(errStore))
		err = le.Unlock(t.Context())
		wantErr(t, "unlock after it", err, fencelock.ErrLost)
		wantNot(t, "unlock after it", err, fencelock.ErrUnavailable)
		d.on("abandon", x.end)
	})
}

// Neither overtakes the other: fake says so if one does.
func TestCleanUpOfADoubtAndUnlockTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, x := written(t, d, l.Mutex("n"))
		d.on("release", x.lostReply)
		slow := func(c call) error {
			_ = pause(c.ctx, 300*time.Millisecond)
			return x.end(c)
		}
		d.on("abandon", slow)
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("release", slow)
		<-le.Done()
		time.Sleep(100 * time.Millisecond) // the janitor is at it
		if d.count("abandon") == 0 {
			t.Fatal("nothing is cleaned up")
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Errorf("unlock: %v", err)
		}
		x.wantCommitted(t, true)
	})
}

// A clean-up whose turn an Unlock has for long comes after it.
func TestCleanUpOfADoubtWaitsForUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := open(t, d, fencelock.WithGrace(time.Second), fencelock.WithObserver(&seen))
		le, _ := written(t, d, l.Mutex("n"))
		d.on("release", hang)
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		<-le.Done()
		wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		if d.count("abandon") != 0 {
			t.Fatal("it was cleaned up while Unlock asked")
		}
		time.Sleep(3 * time.Second)
		if got := len(seen.of(fencelock.CleanedUp)); got != 1 {
			t.Errorf("got %d events of clean-up, want 1", got)
		}
	})
}

// A loss that leaves nothing in doubt is told at once, though the clean-up hangs.
func TestUnlockOfALossDoesNotWaitForTheCleanUp(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithManualRenew())
		le, _ := written(t, d, l.Mutex("n"))
		d.on("abandon", hang)
		<-le.Done()
		time.Sleep(100 * time.Millisecond)
		if d.count("abandon") == 0 {
			t.Fatal("nothing is cleaned up")
		}
		start := time.Now()
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		wantTook(t, "unlock", start, 0, 0)
		d.on("abandon", nil)
		_ = l.Close()
	})
}

// Nothing is committed once the lease is lost, whenever its holder has asked for the transaction.
func TestLossUndoesWhatIsWritten(t *testing.T) {
	for name, early := range map[string]bool{"asked for before": true, "asked for after": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithMaxHold(time.Second), fencelock.WithGrace(time.Minute))
				x := &ledger{}
				d.grant = func(g *backend.Grant) { g.Handle = x }
				le := lock(t, l.Mutex("n"))
				if early {
					le.Handle()
				}
				<-le.Done()
				if !early {
					wantErr(t, "before anybody could write", x.why(), nil)
					le.Handle()
				}
				wantErr(t, "undone by", x.why(), fencelock.ErrLost)
			})
		})
	}
}

// Unlock after a Close that could not find out does not say that what was written was rolled back.
func TestUnlockAfterCloseInDoubt(t *testing.T) {
	tests := map[string]struct {
		unlocked bool // Unlock was called before
		late     bool // and the Deadline has passed
		want     error
	}{
		"unlocked":             {true, false, fencelock.ErrUnavailable},
		"unlocked long before": {true, true, fencelock.ErrUnavailable},
		"not unlocked":         {false, false, fencelock.ErrLost},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := openLoose(t, d, fencelock.WithObserver(&seen))
				le, x := written(t, d, l.Mutex("n"))
				d.on("release", x.lostReply)
				d.on("abandon", refuse(errStore))
				reason := fencelock.Revoked
				if tt.unlocked {
					wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
				}
				if tt.late {
					<-le.Done()
					reason = fencelock.Expired
				}
				err := l.Close()
				if !tt.late {
					wantErr(t, "close", err, fencelock.ErrUnavailable)
				}
				err = le.Unlock(context.WithoutCancel(t.Context()))
				wantErr(t, "unlock after close", err, tt.want)
				if tt.want != fencelock.ErrLost {
					wantNot(t, "unlock after close", err, fencelock.ErrLost)
				}
				x.wantCommitted(t, tt.unlocked)
				wantLost(t, "after close", le, reason)
				wantLostOnce(t, &seen)
			})
		})
	}
}

// Close that finds out tells the end of the hold once, whatever time it takes for it.
func TestCloseThatTakesTooLongTellsOneEnd(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := openLoose(t, d, fencelock.WithObserver(&seen), fencelock.WithManualRenew())
		le, x := written(t, d, l.Mutex("n"))
		time.Sleep(trusted - time.Second)
		d.on("release", func(c call) error {
			err := x.end(c)
			_ = pause(c.ctx, 2*time.Second)
			return err
		})
		if err := l.Close(); !errors.As(err, new(*fencelock.UndoneError)) {
			t.Errorf("close: got %v, want an UndoneError", err)
		}
		x.wantCommitted(t, false)
		wantErr(t, "unlock after close", le.Unlock(t.Context()), fencelock.ErrLost)
		wantLostOnce(t, &seen)
	})
}

// A Close that the store does not answer commits nothing, also where the Deadline passes meanwhile.
func TestCloseWithoutAnswerLeavesNoDoubt(t *testing.T) {
	for _, early := range []time.Duration{time.Second, trusted - time.Second} {
		bubble(t, func(t *testing.T, d *fake) {
			l := openLoose(t, d, fencelock.WithManualRenew())
			le, _ := written(t, d, l.Mutex("n"))
			time.Sleep(early)
			d.on("release", hang)
			if err := l.Close(); err == nil {
				t.Error("close: got no error from a store that does not answer")
			}
			wantErr(t, "unlock after close", le.Unlock(t.Context()), fencelock.ErrLost)
		})
	}
}
