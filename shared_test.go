package fencelock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

// got is what became of a call on a goroutine of its own.
type got struct {
	le  *fencelock.Lease
	err error
}

// call begins a call such as RLock or Acquire, and returns once it waits or is over.
func calls(ctx context.Context, lock func(context.Context) (*fencelock.Lease, error)) <-chan got {
	ch := make(chan got, 1)
	go func() {
		le, err := lock(ctx)
		ch <- got{le, err}
	}()
	synctest.Wait()
	return ch
}

// lease is what a call such as RLock returns, which must be a lease, of this mode.
func lease(t *testing.T, mode fencelock.Mode, lock func(context.Context) (*fencelock.Lease, error)) *fencelock.Lease {
	t.Helper()
	le, err := lock(t.Context())
	if err != nil {
		t.Fatalf("a %v: %v", mode, err)
	}
	if le.Mode() != mode {
		t.Errorf("got a %v, want a %v", le.Mode(), mode)
	}
	return le
}

// arrived is the lease of a call that has returned by now.
func arrived(t *testing.T, what string, ch <-chan got) *fencelock.Lease {
	t.Helper()
	synctest.Wait()
	select {
	case g := <-ch:
		if g.err != nil {
			t.Fatalf("%s: %v", what, g.err)
		}
		return g.le
	default:
		t.Fatalf("%s waits yet", what)
	}
	return nil
}

func TestReadersOfAProcessShareAHold(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		writer := lock(t, other.Mutex("n"))
		var all []<-chan got
		for range 50 {
			all = append(all, calls(t.Context(), l.RWMutex("n").RLock))
		}
		unlock(t, writer)
		leases := []*fencelock.Lease{}
		for _, ch := range all {
			leases = append(leases, arrived(t, "a reader", ch))
		}
		if n := d.count("acquire"); n != 1 {
			t.Errorf("the store was asked %d times, want once", n)
		}
		info, err := other.Inspect(t.Context(), "n")
		if err != nil || info.Mode != fencelock.Reader || info.Holders != 1 || info.Token != leases[7].Token() {
			t.Errorf("got %+v, %v, want one reader", info, err)
		}
		time.Sleep(3 * time.Millisecond) // who comes now asks the store, or a writer there would wait for ever
		late := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		if n := d.count("acquire"); n != 2 {
			t.Errorf("the store was asked %d times with a late reader, want twice", n)
		}
		if late.Token() != leases[0].Token() {
			t.Errorf("a late reader has token %d, want that of the others, %d", late.Token(), leases[0].Token())
		}
		for i, le := range leases {
			unlock(t, le)
			wantErr(t, "Err", le.Err(), fencelock.ErrReleased)
			if i+1 < len(leases) {
				wantHeld(t, "the next", leases[i+1])
			}
		}
		if n := d.count("release"); n != 1 {
			t.Errorf("the store was told %d times that all are done, want once", n)
		}
		_, err = other.Mutex("n").TryLock(t.Context())
		wantErr(t, "a writer beside the late reader", err, fencelock.ErrLocked)
		unlock(t, late)
		unlock(t, lock(t, other.Mutex("n")))
	})
}

// A hold that is bounded for one reader, or is of other options, is not another's.
func TestReadersWithOptionsOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		first := lease(t, fencelock.Reader, l.RWMutex("n", fencelock.WithMaxHold(time.Minute)).RLock)
		second := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		third := lease(t, fencelock.Reader, l.RWMutex("n", fencelock.WithOwner("other")).RLock)
		if n := d.count("acquire"); n != 3 {
			t.Errorf("the store was asked %d times, want 3", n)
		}
		floor := lease(t, fencelock.Reader, l.RWMutex("n", fencelock.WithFloor(third.Token())).RLock)
		if floor.Token() <= third.Token() {
			t.Errorf("got token %d, want more than the floor, %d", floor.Token(), third.Token())
		}
		time.Sleep(time.Minute)
		wantLost(t, "the bounded reader", first, fencelock.MaxHold)
		wantHeld(t, "the one beside it", second)
	})
}

func TestReadersAndWritersTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		m := l.RWMutex("n")
		reader := lease(t, fencelock.Reader, m.RLock)
		writer := calls(t.Context(), m.Lock)
		late := calls(t.Context(), m.RLock)
		_, err := m.TryRLock(t.Context())
		wantErr(t, "a try while a writer waits", err, fencelock.ErrLocked)
		unlock(t, reader)
		w := arrived(t, "the writer", writer)
		if len(late) > 0 {
			t.Error("a reader that came after the writer was granted beside it")
		}
		unlock(t, w)
		r := arrived(t, "the late reader", late)
		if r.Mode() != fencelock.Reader || r.Token() <= w.Token() || w.Token() <= reader.Token() {
			t.Errorf("got a %v with token %d after %d and %d", r.Mode(), r.Token(), w.Token(), reader.Token())
		}
		unlock(t, r)
	})
}

// A try goes to the store while others of its mode are on their way there.
func TestTryBesideOthersOnTheirWay(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		m := l.RWMutex("n")
		gate := make(chan struct{})
		d.on("acquire", first(1, until(gate)))
		slow := calls(t.Context(), m.RLock)
		fast := lease(t, fencelock.Reader, m.TryRLock)
		_, err := m.TryLock(t.Context())
		wantErr(t, "a writer's try", err, fencelock.ErrLocked)
		close(gate)
		unlock(t, arrived(t, "the slow reader", slow))
		unlock(t, fast)
	})
}

func TestSharedLeasesInOneContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		plain, again := open(t, d), open(t, d.other(), fencelock.WithReentrancy())
		type locks struct {
			write, read, permit func(context.Context) (*fencelock.Lease, error)
		}
		of := func(l *fencelock.Locker, name string) locks {
			m := l.RWMutex(name)
			return locks{m.Lock, m.RLock, l.Semaphore(name, 3).Acquire}
		}
		for _, c := range []struct {
			outer, inner string
			joins        bool
		}{
			{"write", "write", true},
			{"write", "read", true},
			{"write", "permit", false},
			{"read", "read", true},
			{"read", "write", false},
			{"read", "permit", false},
			{"permit", "permit", true},
			{"permit", "read", false},
			{"permit", "write", false},
		} {
			name := c.outer + " in " + c.inner
			for _, l := range []*fencelock.Locker{plain, again} {
				all := of(l, name)
				by := map[string]func(context.Context) (*fencelock.Lease, error){
					"write": all.write, "read": all.read, "permit": all.permit,
				}
				outer, err := by[c.outer](t.Context())
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := outer.Context(t.Context())
				inner, err := by[c.inner](ctx)
				if l == again && c.joins {
					if err != nil || inner.Token() != outer.Token() || inner.Slot() != outer.Slot() {
						t.Errorf("%s: got %v, want another lease on the same hold", name, err)
						continue
					}
					unlock(t, inner)
				} else {
					wantErr(t, name, err, fencelock.ErrDeadlock)
				}
				cancel()
				unlock(t, outer)
			}
		}
	})
}

func TestSharedWithoutTheTraits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *fencelock.Traits) { tr.Readers, tr.Permits = false, 2 }
		l := open(t, d)
		var op *fencelock.OpError
		_, err := l.RWMutex("n").RLock(t.Context())
		wantErr(t, "RLock", err, fencelock.ErrUnsupported)
		if !errors.As(err, &op) || op.Op != "rlock" {
			t.Errorf("got %v, want the operation rlock", err)
		}
		_, err = l.Semaphore("n", 3).TryAcquire(t.Context())
		wantErr(t, "TryAcquire of 3", err, fencelock.ErrUnsupported)
		unlock(t, lease(t, fencelock.Permit, l.Semaphore("n", 2).Acquire))
		unlock(t, lock(t, l.RWMutex("n")))
		_, err = fencelock.New(d.other(), fencelock.Require(fencelock.Need{Permits: 2000}))
		wantErr(t, "a Need of 2000", err, fencelock.ErrUnsupported)
		_, err = fencelock.New(d.other(), fencelock.Require(fencelock.Need{Permits: -1}))
		wantErr(t, "a Need of -1", err, fencelock.ErrInvalid)
	})
}

func TestSemaphoreOf(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		for _, n := range []int{-1, 0, 1025} {
			_, err := l.Semaphore("n", n).Acquire(t.Context())
			wantErr(t, "Acquire", err, fencelock.ErrInvalid)
		}
		one := lease(t, fencelock.Exclusive, l.Semaphore("n", 1).Acquire)
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "the Mutex of the one", err, fencelock.ErrLocked)
		unlock(t, one)
	})
}

// Goroutines of one process have as many permits as there are, and not one more.
func TestPermitsWithinAProcess(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		const n = 10
		l := open(t, d)
		s := l.Semaphore("n", n)
		var mu sync.Mutex
		now, most := map[int]bool{}, 0
		var wg sync.WaitGroup
		began := time.Now()
		for range 10 * n {
			wg.Go(func() {
				le, err := s.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if now[le.Slot()] {
					t.Errorf("slot %d is out twice", le.Slot())
				}
				now[le.Slot()] = true
				most = max(most, len(now))
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				delete(now, le.Slot())
				mu.Unlock()
				unlock(t, le)
			})
		}
		wg.Wait()
		if took := time.Since(began); most != n || took != 10*time.Second {
			t.Errorf("got %d at once in %v, want %d in 10 s", most, took, n)
		}
	})
}

func TestWantedOfAReader(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		le := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		beside := lease(t, fencelock.Reader, other.RWMutex("n").RLock)
		wanted := le.Wanted()
		time.Sleep(5 * time.Second)
		if closed(wanted) {
			t.Error("a reader is wanted while nobody waits")
		}
		writer := calls(t.Context(), other.Mutex("n").Lock)
		time.Sleep(2 * time.Second)
		if !closed(wanted) {
			t.Error("a reader is not told of a writer that waits")
		}
		unlock(t, beside)
		unlock(t, le)
		unlock(t, arrived(t, "the writer", writer))
	})
}

// All permits of a process are told of who waits for one.
func TestWantedOfPermits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		first := lease(t, fencelock.Permit, l.Semaphore("n", 2).Acquire)
		second := lease(t, fencelock.Permit, l.Semaphore("n", 2).Acquire)
		one, two := first.Wanted(), second.Wanted()
		third := calls(t.Context(), other.Semaphore("n", 2).Acquire)
		time.Sleep(2 * time.Second)
		if !closed(one) || !closed(two) {
			t.Errorf("told are the first: %v, the second: %v", closed(one), closed(two))
		}
		unlock(t, first)
		unlock(t, arrived(t, "the third", third))
		unlock(t, second)
	})
}

// The loss of a hold is that of its readers, and of no other hold.
func TestLossOfAReader(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l, other := open(t, d, fencelock.WithObserver(&seen), fencelock.WithManualRenew()), open(t, d.other())
		first := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		second := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		beside := lease(t, fencelock.Reader, other.RWMutex("n").RLock)
		time.Sleep(trusted)
		wantLost(t, "the first", first, fencelock.Expired)
		wantLost(t, "the second", second, fencelock.Expired)
		wantHeld(t, "the one elsewhere", beside)
		synctest.Wait()
		time.Sleep(time.Second)
		if got := seen.kinds(); got != "acquired, joined, lost, cleaned up" {
			t.Errorf("got the events %s", got)
		}
		for _, e := range seen.events {
			if e.Mode != fencelock.Reader {
				t.Errorf("%v is of a %v", e.Kind, e.Mode)
			}
		}
		unlock(t, beside)
	})
}

// What Unlock says of a reader who shares its hold is the store's word, as it is of one who does not; whoever unlocks
// last frees the lock.
func TestUnlockOfAReaderAmongOthers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.deaf = true
		l, other := open(t, d), open(t, d.other())
		read := func() *fencelock.Lease { return lease(t, fencelock.Reader, l.RWMutex("n").RLock) }
		for range 2 { // whoever has asked the store, and whoever came along
			first, second := read(), read()
			if err := other.Break(t.Context(), "n"); err != nil {
				t.Error(err)
			}
			writer := lock(t, other.Mutex("n"))
			wantErr(t, "a reader after the loss", first.Unlock(t.Context()), fencelock.ErrLost)
			wantErr(t, "the other", second.Unlock(t.Context()), fencelock.ErrLost)
			unlock(t, writer)
		}

		free := func() {
			t.Helper()
			le, err := other.Mutex("n").TryLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			unlock(t, le)
		}
		all := []*fencelock.Lease{read(), read(), read(), read()}
		time.Sleep(time.Second)
		d.on("renew", slowBack(time.Second))
		had, freed := d.count("renew"), d.count("release")
		errs := make(chan error, len(all))
		for _, le := range all {
			go func() { errs <- le.Unlock(t.Context()) }()
		}
		for range all {
			if err := <-errs; err != nil {
				t.Errorf("one of several at once: %v", err)
			}
		}
		if n := d.count("renew") - had; n > 1 {
			t.Errorf("the store was asked %d times for readers who unlock at once, want once", n)
		}
		if n := d.count("release") - freed; n != 1 {
			t.Errorf("got %d releases, want 1", n)
		}

		first, second := read(), read()
		unlock(t, first)
		if !closed(first.Done()) {
			t.Error("Done of a reader that is unlocked, while another reads, is open")
		}
		wantHeld(t, "the other", second)
		unlock(t, second)

		first, second = read(), read()
		time.Sleep(time.Second)
		d.on("renew", refuse(errStore))
		wantErr(t, "an outage", first.Unlock(t.Context()), fencelock.ErrUnavailable)
		wantErr(t, "Renew after it", first.Renew(t.Context()), fencelock.ErrReleased)
		wantErr(t, "an outage still", first.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("renew", nil)
		unlock(t, second) // frees the lock though the first is not done yet
		free()
		unlock(t, first)
		wantErr(t, "Unlock again", first.Unlock(t.Context()), fencelock.ErrReleased)

		first, second = read(), read()
		time.Sleep(time.Second)
		d.on("renew", hang)
		errs = make(chan error, 1)
		go func() { errs <- first.Unlock(t.Context()) }()
		synctest.Wait()
		unlock(t, second) // waits for nobody's question
		free()
		if err := <-errs; err != nil {
			t.Errorf("a question that hangs while another frees the lock: %v", err)
		}

		first, second = read(), read()
		time.Sleep(time.Second)
		d.on("release", hang)
		go func() { errs <- first.Unlock(t.Context()) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, "a store that hangs", second.Unlock(short), fencelock.ErrUnavailable)
		wantErr(t, "the other", <-errs, fencelock.ErrUnavailable)
		d.on("renew", nil)
		time.Sleep(time.Minute) // nobody calls Unlock again
		wantLost(t, "what nobody wants any more", second, fencelock.Expired)
		free()
	})
}

// Unlock of a reader whose ctx is done waits for no renewal of the hold that it shares for longer than a second.
func TestUnlockOfAReaderBesideARenewalThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d).RWMutex("n")
		first, second := lease(t, fencelock.Reader, m.RLock), lease(t, fencelock.Reader, m.RLock)
		d.on("renew", hang)
		renewed := make(chan error)
		go func() { renewed <- second.Renew(t.Context()) }()
		synctest.Wait()
		done, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantErr(t, "unlock", first.Unlock(done), fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, time.Second, time.Second)
		wantErr(t, "renew", <-renewed, fencelock.ErrUnavailable)
		d.on("renew", nil)
		unlock(t, first)
		unlock(t, second)
	})
}

// One of several is broken by what Inspect shows of it.
func TestBreakHold(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d, fencelock.WithOwner("here")), open(t, d.other())
		here := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		there := lease(t, fencelock.Reader, other.RWMutex("n").RLock)
		info, err := l.Inspect(t.Context(), "n")
		if err != nil || len(info.Holds) != 2 || len(info.Holds[0].ID) != 12 {
			t.Fatalf("got %+v, %v, want two holds", info, err)
		}
		i := slices.IndexFunc(info.Holds, func(h fencelock.Held) bool { return h.Owner == "here" })
		if err := l.BreakHold(t.Context(), "n", strings.ToUpper(info.Holds[i].ID)); err != nil {
			t.Fatal(err)
		}
		wantLost(t, "the one that was broken", here, fencelock.Revoked)
		wantHeld(t, "the other", there)
		_, err = l.Mutex("n").TryLock(t.Context())
		wantErr(t, "a writer beside the other", err, fencelock.ErrLocked)
		if err := l.BreakHold(t.Context(), "n", info.Holds[i].ID); err != nil {
			t.Errorf("again: %v", err)
		}
		for _, id := range []string{"", "here", info.Holds[i].ID[1:], info.Holds[i].ID + "00"} {
			wantErr(t, id, l.BreakHold(t.Context(), "n", id), fencelock.ErrInvalid)
		}
		unlock(t, there)
		unlock(t, lock(t, l.Mutex("n")))
	})
}

// Of more holds than are shown one may be among the others: that is not the same as having ended.
func TestBreakHoldOfMany(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		last := lease(t, fencelock.Permit, l.Semaphore("n", 200, fencelock.WithTTL(time.Hour)).Acquire)
		info, err := l.Inspect(t.Context(), "n")
		if err != nil || len(info.Holds) != 1 {
			t.Fatalf("got %+v, %v, want one hold", info, err)
		}
		for range 100 {
			lease(t, fencelock.Permit, l.Semaphore("n", 200).Acquire)
		}
		wantErr(t, "a hold that is not shown", l.BreakHold(t.Context(), "n", info.Holds[0].ID),
			fencelock.ErrUnsupported)
		wantHeld(t, "it", last)
	})
}

// A reader with a floor has a greater token, also right behind one of the same process.
func TestFloorOfAReaderBehindAnother(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		one := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
		two := lease(t, fencelock.Reader, l.RWMutex("n", fencelock.WithFloor(one.Token())).RLock)
		if two.Token() <= one.Token() {
			t.Errorf("got token %d with a floor of %d", two.Token(), one.Token())
		}
	})
}

// A reader whose grant was long on its way takes no other in: it may have been broken meanwhile.
func TestLateReaderTakesNobodyIn(t *testing.T) {
	for delay, want := range map[time.Duration]int{50 * time.Millisecond: 1, 200 * time.Millisecond: 2} {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			d.on("acquire", slowBack(delay))
			lease(t, fencelock.Reader, l.RWMutex("n").RLock)
			lease(t, fencelock.Reader, l.RWMutex("n").RLock)
			if info, err := l.Inspect(t.Context(), "n"); err != nil || info.Holders != want {
				t.Errorf("a grant that took %v: got %+v, %v, want %d holds", delay, info, err, want)
			}
		})
	}
}

// A lease that is given back while another one on its hold is being unlocked leaves nothing behind.
func TestGivenBackBesideAnUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d, fencelock.WithReentrancy()), open(t, d.other())
		taken := lock(t, other.Mutex("b"))
		outer := lock(t, l.Mutex("a"))
		ctx, cancel := outer.Context(t.Context())
		all := make(chan error, 1)
		go func() {
			_, err := fencelock.LockAll(ctx, l.Mutex("a"), l.Mutex("b"))
			all <- err
		}()
		synctest.Wait() // it has a, and waits for b
		slow := &slowly{Context: t.Context(), stopping: make(chan struct{}), stop: make(chan struct{})}
		outer.Context(slow) //nolint:govet // it ends with the lease
		done := make(chan struct{})
		go func() { unlock(t, outer); close(done) }()
		<-slow.stopping
		cancel()
		wantErr(t, "LockAll", <-all, context.Canceled)
		close(slow.stop)
		<-done
		unlock(t, taken)
		free, err := other.Mutex("a").Lock(within(t, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, free)
	})
}

// slowly is a context from which another is slow to part.
type slowly struct {
	context.Context
	once           sync.Once
	stopping, stop chan struct{}
}

func (s *slowly) Done() <-chan struct{} { return make(chan struct{}) }

func (s *slowly) AfterFunc(func()) func() bool {
	return func() bool { s.once.Do(func() { close(s.stopping) }); <-s.stop; return true }
}

func TestLockAllOfModes(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		ls, err := fencelock.LockAll(t.Context(), l.RWMutex("b"), l.RWMutex("a").RLocker(), l.Mutex("c"))
		if err != nil {
			t.Fatal(err)
		}
		if m := ls.Lease("a").Mode(); m != fencelock.Reader {
			t.Errorf("got a %v of what was to be read", m)
		}
		unlock(t, lease(t, fencelock.Reader, other.RWMutex("a").TryRLock))
		_, err = other.RWMutex("b").TryRLock(t.Context())
		wantErr(t, "a reader beside the writer", err, fencelock.ErrLocked)
		if err := ls.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
