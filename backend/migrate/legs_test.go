package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

func TestTryOfABusyNewStore(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		h := w.acquire(to, request("x"))
		w.tryFails(both, "x", backend.ErrLocked)
		if i, err := w.old.Inspect(w.Context(), "x"); err != nil || i.Held {
			w.Errorf("the old store: got %+v, %v, want it free again", i, err)
		}
		w.release(to, h)
		w.cycle(both, "x")
	})
}

// unreleased is a store that answers a release with err.
type unreleased struct {
	store
	err error
}

func (s unreleased) Release(context.Context, *core.Hold) error { return s.err }

// TestTryGivesTheOldLegBack: a try of a lock that is held in the new store is ErrLocked only once the old store has
// nothing of it.
func TestTryGivesTheOldLegBack(t *testing.T) {
	for answer, want := range map[error]error{
		errors.New("no answer"): fencelock.ErrUnavailable, backend.ErrLost: fencelock.ErrLocked,
	} {
		bubble(t, func(w world) {
			o := w.options(backend.PhaseBoth)
			o.From = unreleased{client(w.old), answer}
			l := w.locker(o)
			w.acquire(w.new2(backend.PhaseBoth), request("x")) // in the new store alone
			_, err := l.Mutex("x").TryLock(w.Context())
			w.want("a try", err, want)
			if errors.Is(want, fencelock.ErrUnavailable) {
				time.Sleep(time.Second)
				w.tryFree(w.old)
			}
		})
	}
}

// TestOldLegIsKept: the lock of the old store outlasts a wait for the new one that is longer than the TTL.
func TestOldLegIsKept(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		h := w.acquire(to, request("x"))
		r := request("x")
		r.Wait = true
		granted := make(chan *core.Hold)
		go func() { granted <- w.acquire(both, r) }()
		for range 5 {
			time.Sleep(ttl / 2)
			w.want("renew", to.Renew(w.Context(), []*core.Hold{h})[0], nil)
			if i, err := w.old.Inspect(w.Context(), "x"); err != nil || !i.Held {
				w.Fatalf("the old store: got %+v, %v, want it held", i, err)
			}
		}
		w.release(to, h)
		at := backend.Now()
		got := <-granted
		if since := at.Sub(got.Asked); since < 0 || since > time.Second {
			w.Errorf("the grant counts from %v before it, want from just now", since)
		}
		if got.Max != 0 {
			w.Errorf("the grant is trusted for %v only", got.Max)
		}
		if got.Token <= h.Token {
			w.Errorf("token %d after %d", got.Token, h.Token)
		}
		w.release(both, got)
	})
}

// locks is a Lock under way.
func (w world) locks(ctx context.Context, m fencelock.Mutex) <-chan *fencelock.Lease {
	granted := make(chan *fencelock.Lease, 1)
	go func() {
		le, err := m.Lock(ctx)
		w.want("Lock", err, ctx.Err())
		granted <- le
	}()
	synctest.Wait()
	return granted
}

// TestOldLegIsLost: what was held in the old store is broken while the new one is waited for. The lock is asked for
// anew, and nothing is left of what was asked for before. A store that tells of no loss says so to the next renewal.
func TestOldLegIsLost(t *testing.T) {
	for by, from := range map[time.Duration]func(store) backend.Driver{
		time.Second:     func(s store) backend.Driver { return s },
		4 * time.Second: func(s store) backend.Driver { return lateNews{s, time.Hour} },
	} {
		bubble(t, func(w world) {
			o := w.options(backend.PhaseBoth)
			o.From = from(client(w.old))
			l := w.locker(o)
			w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
			to := w.start(backend.PhaseTo)
			h := w.acquire(to, request("x"))
			granted := w.locks(w.Context(), l.Mutex("x", fencelock.WithTTL(ttl)))
			w.want("break", w.old.Break(w.Context(), "x"), nil)
			time.Sleep(by)
			if i, err := w.old.Inspect(w.Context(), "x"); err != nil || !i.Held {
				w.Errorf("the old store: got %+v, %v, want it asked for again within %v", i, err, by)
			}
			w.release(to, h)
			le := <-granted
			for what, s := range map[string]core.Caller{"old": w.old, "new": w.new} {
				if i, err := s.Inspect(w.Context(), "x"); err != nil || !i.Held || i.Waiters != 0 {
					w.Errorf("the %s store: got %+v, %v, want it held and nobody waiting", what, i, err)
				}
			}
			w.want("the lease", le.Err(), nil)
			w.want("unlock", le.Unlock(w.Context()), nil)
		})
	}
}

// panics is a store whose client has a hook of the program, which panics.
type panics struct{ store }

func (panics) Acquire(context.Context, *backend.Request) (backend.Grant, error) { panic("a hook") }

// TestPanicEndsTheRenewals: what a hook of the new store's client ends in the middle renews nothing any more.
func TestPanicEndsTheRenewals(t *testing.T) {
	bubble(t, func(w world) {
		var calls []string
		o := w.options(backend.PhaseBoth)
		o.From, o.To = counted{client(w.old), &calls}, panics{client(w.new)}
		d := w.startWith(o)
		func() {
			defer func() { _ = recover() }()
			_, _ = d.Acquire(w.Context(), request("x"))
			w.Error("no panic")
		}()
		time.Sleep(time.Minute)
		if got := strings.Join(calls, " "); got != "acquire" {
			w.Errorf("got the calls %s, want acquire alone", got)
		}
	})
}

// slowGrant is a store whose grants take so long on their way.
type slowGrant struct {
	store
	takes time.Duration
}

func (s slowGrant) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	g, err := s.Gater.Acquire(ctx, r)
	time.Sleep(s.takes)
	return g, err
}

// TestSlowStoreEndsLock: where a grant is over before its answer has come nobody gets a lock, and a Lock without a
// deadline says so.
func TestSlowStoreEndsLock(t *testing.T) {
	bubble(t, func(w world) {
		o := w.options(backend.PhaseBoth)
		o.From = slowGrant{client(w.old), 2 * time.Second}
		l := w.locker(o)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		_, err := l.Mutex("x", fencelock.WithTTL(time.Second)).Lock(ctx)
		w.want("Lock", err, fencelock.ErrUnavailable)
		w.want("the ctx", ctx.Err(), nil)
	})
}

// expires is a store in which a lock has expired before its source is raised. Two calls about one request at once are
// an error.
type expires struct {
	store
	w     world
	mu    *sync.Mutex
	under map[*backend.Request]bool
}

func (expires) RaiseHeld(context.Context, *core.Hold, backend.Token) error { return backend.ErrLost }

func (s expires) Abandon(ctx context.Context, r *backend.Request) error {
	mark := func(begins bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if begins && s.under[r] {
			s.w.Error("two calls at once about one request")
		}
		s.under[r] = begins
	}
	mark(true)
	defer mark(false)
	time.Sleep(time.Millisecond)
	return s.Gater.Abandon(ctx, r)
}

// TestLostTryIsAbandoned: a try that has lost a leg is given up by its caller alone.
func TestLostTryIsAbandoned(t *testing.T) {
	bubble(t, func(w world) {
		o := w.options(backend.PhaseBoth)
		o.From = expires{client(w.old), w, &sync.Mutex{}, map[*backend.Request]bool{}}
		d := w.startWith(o)
		r := request("x")
		_, err := d.Acquire(w.Context(), r)
		w.want("a try", err, backend.ErrLost)
		w.want("abandon", d.Abandon(w.Context(), r), nil)
		time.Sleep(time.Second)
		w.cycle(w.start(backend.PhaseBoth), "x")
	})
}

// asked remembers the requests that a store was given.
type asked struct {
	store
	acquired, abandoned *[]*backend.Request
}

func (a asked) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	*a.acquired = append(*a.acquired, r)
	return a.Gater.Acquire(ctx, r)
}

func (a asked) Abandon(ctx context.Context, r *backend.Request) error {
	*a.abandoned = append(*a.abandoned, r)
	return a.Gater.Abandon(ctx, r)
}

// gives is a store that answers Abandon with these, and then as it is.
type gives struct {
	store
	errs []error
}

func (g *gives) Abandon(ctx context.Context, r *backend.Request) error {
	if len(g.errs) > 0 {
		err := g.errs[0]
		g.errs = g.errs[1:]
		return err
	}
	return g.Gater.Abandon(ctx, r)
}

// TestAbandonUnanswered: what one store refuses for good says nothing of the other, which has not answered.
func TestAbandonUnanswered(t *testing.T) {
	bubble(t, func(w world) {
		silent := errors.New("no answer")
		o := w.options(backend.PhaseBoth)
		o.From = &gives{client(w.old), []error{backend.Unsupported("no such call")}}
		o.To = &gives{client(w.new), []error{silent}}
		both := w.startWith(o)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		h := w.acquire(both, request("x"))
		if err := both.Abandon(w.Context(), h.Request); !errors.Is(err, silent) || backend.Final(err) {
			w.Errorf("abandon: got %v, want one that is tried again", err)
		}
		w.want("abandon, again", both.Abandon(w.Context(), h.Request), nil)
		w.cycle(both, "x")
	})
}

// TestRefusedAbandonIsRepeated: where a store may have something of a request, a refusal does not end the clean-up, for
// the rights may come back. It is the end in a store that has nothing.
func TestRefusedAbandonIsRepeated(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth} {
		bubble(t, func(w world) {
			refusal := backend.Invalid("no rights")
			from := &gives{client(w.old), slices.Repeat([]error{refusal}, 3)}
			to := &gives{client(w.new), slices.Repeat([]error{refusal}, 99)}
			o := w.options(phase)
			o.From, o.To = from, to
			l := w.locker(o)
			other := w.start(phase)
			h := w.acquire(other, request("x"))
			ctx, cancel := context.WithCancel(w.Context())
			failed := w.locks(ctx, l.Mutex("x"))
			cancel()
			<-failed
			time.Sleep(time.Second)
			if i, err := w.old.Inspect(w.Context(), "x"); err != nil || i.Waiters != 0 {
				w.Errorf("phase %s: got %+v, %v, want nobody waiting", phase, i, err)
			}
			w.release(other, h)
			synctest.Wait()
			left := len(to.errs)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := left - len(to.errs); n != 0 {
				w.Errorf("the store that was never asked for the lock was told to give it up %d times more", n)
			}
		})
	}
}

// TestAbandonsWhatWasAsked: the new store is told to give up the very request that it was given, also if the old leg
// is lost, and as the wait ends: by nothing else it may know the place in its queue, or the session.
func TestAbandonsWhatWasAsked(t *testing.T) {
	bubble(t, func(w world) {
		to := asked{client(w.new), &[]*backend.Request{}, &[]*backend.Request{}}
		o := w.options(backend.PhaseBoth)
		o.To = to
		both := w.startWith(o)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		w.acquire(w.start(backend.PhaseTo), request("x"))
		for _, end := range []error{backend.ErrLost, context.Canceled} {
			r := request("x")
			r.Wait = true
			ctx, cancel := context.WithCancel(w.Context())
			done := make(chan error)
			go func() {
				_, err := both.Acquire(ctx, r)
				done <- err
			}()
			synctest.Wait()
			if errors.Is(end, context.Canceled) {
				cancel()
			}
			w.want("break", w.old.Break(w.Context(), "x"), nil)
			w.want("the wait", <-done, end)
			w.want("abandon", both.Abandon(w.Context(), r), nil)
			if all := *to.acquired; !slices.Contains(*to.abandoned, all[len(all)-1]) {
				w.Errorf("%v: another request than the last one was abandoned", end)
			}
			cancel()
		}
	})
}

// TestEitherLegEndsIt: a hold of both is lost when it is lost in one store, by a push and by a renewal.
func TestEitherLegEndsIt(t *testing.T) {
	for _, side := range []string{"old", "new"} {
		bubble(t, func(w world) {
			d := w.start(backend.PhaseBoth)
			lost := make(chan error, 2)
			r := request("x")
			r.Lost = func(err error) { lost <- err }
			h := w.acquire(d, r)
			w.want("check", d.Check(w.Context(), []*core.Hold{h})[0], nil)
			s := map[string]store{"old": w.old, "new": w.new}[side]
			w.want("break", s.Break(w.Context(), "x"), nil)
			w.want("told", <-lost, backend.ErrLost)
			w.want("renew", d.Renew(w.Context(), []*core.Hold{h})[0], backend.ErrLost)
			w.want("release", d.Release(w.Context(), h), backend.ErrLost)
			w.cycle(d, "x")
		})
	}
}

// counted counts the calls that a leg's store answers.
type counted struct {
	store
	calls *[]string
}

func (c counted) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	*c.calls = append(*c.calls, "acquire")
	return c.Gater.Acquire(ctx, r)
}

func (c counted) RaiseHeld(ctx context.Context, h *core.Hold, floor backend.Token) error {
	*c.calls = append(*c.calls, "raise")
	return c.Gater.RaiseHeld(ctx, h, floor)
}

func (c counted) Renew(ctx context.Context, hs []*core.Hold) []error {
	*c.calls = append(*c.calls, "renew")
	return c.Gater.Renew(ctx, hs)
}

func (c counted) Check(context.Context, []*core.Hold) []error {
	*c.calls = append(*c.calls, "check")
	return nil
}

// A free lock costs three calls in phase both, in turn; and nothing is reserved for others of the process, whose
// tokens the old store would not know of.
func TestCallsOfAFreeLockInBoth(t *testing.T) {
	bubble(t, func(w world) {
		var calls []string
		o := w.options(backend.PhaseBoth)
		o.From, o.To = counted{client(w.old), &calls}, counted{client(w.new), &calls}
		d := w.startWith(o)
		w.cycle(d, "first") // the switch
		calls = nil
		r := request("n")
		r.Reserve = 63
		h := w.acquire(d, r)
		if got, want := strings.Join(calls, " "), "acquire acquire raise"; got != want {
			t.Errorf("got the calls %s, want %s", got, want)
		}
		if h.Reserved != 0 {
			t.Errorf("got %d reserved tokens, want none", h.Reserved)
		}
		w.release(d, h)
	})
}

// mute is a store that does not answer calls of one kind, or none.
type mute struct {
	store
	to string
}

const everything = "everything"

func (m *mute) silent(ctx context.Context, to string) error {
	if m.to != to && m.to != everything {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (m *mute) RaiseHeld(ctx context.Context, h *core.Hold, floor backend.Token) error {
	if err := m.silent(ctx, "RaiseHeld"); err != nil {
		return err
	}
	return m.Gater.RaiseHeld(ctx, h, floor)
}

func (m *mute) Raise(ctx context.Context, floor backend.Token) error {
	if err := m.silent(ctx, "Raise"); err != nil {
		return err
	}
	return m.Gater.Raise(ctx, floor)
}

func (m *mute) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	if err := m.silent(ctx, "Undrained"); err != nil {
		return nil, err
	}
	return m.Gater.Undrained(ctx, g)
}

func (m *mute) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	if err := m.silent(ctx, "Report"); err != nil {
		return err
	}
	return m.Gater.Report(ctx, c, keep)
}

func (m *mute) Withdraw(ctx context.Context, c backend.Client) error {
	if err := m.silent(ctx, "Withdraw"); err != nil {
		return err
	}
	return m.Gater.Withdraw(ctx, c)
}

func (m *mute) Gates(ctx context.Context) ([]backend.Gate, error) {
	if err := m.silent(ctx, "Gates"); err != nil {
		return nil, err
	}
	return m.Gater.Gates(ctx)
}

// TestSilentBetweenTheGrants: a store falls silent once it has granted, or the old one has. A Lock without a deadline
// ends all the same, and what it was granted is given back.
func TestSilentBetweenTheGrants(t *testing.T) {
	for what, falls := range map[string]func(w world, from, to *mute){
		"the old store, before its source is raised": func(_ world, from, _ *mute) { from.to = "RaiseHeld" },
		"the new store, before its source is raised": func(w world, _, to *mute) {
			w.want("raise", w.old.Raise(w.Context(), time.Now().AddDate(5, 0, 0).UnixMicro()), nil)
			to.to = "Raise"
		},
		"the old store, before the new one's gate is mended": func(w world, from, to *mute) {
			to.store = client(newStore(w.T))
			from.to = "Gates"
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(w world) {
				from, to := &mute{store: client(w.old)}, &mute{store: client(w.new)}
				o := w.options(backend.PhaseBoth)
				o.From, o.To = from, to
				d, err := migrate.New(w.Context(), o)
				if err != nil {
					w.Fatal(err)
				}
				l, err := fencelock.New(d)
				if err != nil {
					w.Fatal(err)
				}
				falls(w, from, to)
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				late := time.AfterFunc(11*time.Second, func() {
					w.Error("Lock has not returned within 11s")
					cancel()
				})
				_, err = l.Mutex("x").Lock(ctx)
				late.Stop()
				w.want("Lock", err, fencelock.ErrUnavailable)
				if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
					w.Errorf("Lock: got %v, want no end of a ctx that goes on", err)
				}
				short, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				_, err = l.Mutex("x").Lock(short)
				w.want("Lock with a deadline", err, context.DeadlineExceeded)
				from.to, to.to = "", ""
				le, err := l.Mutex("x").Lock(w.Context())
				if err != nil {
					w.Fatal(err)
				}
				w.want("unlock", le.Unlock(w.Context()), nil)
				w.want("close", l.Close(), nil)
			})
		})
	}
}

// TestSilenceBehindARepair: who waits for another to look at the gates waits no longer than its ctx.
func TestSilenceBehindARepair(t *testing.T) {
	bubble(t, func(w world) {
		from, to := &mute{store: client(w.old)}, &mute{store: client(w.new)}
		o := w.options(backend.PhaseBoth)
		o.From, o.To = from, to
		d := w.startWith(o)
		to.store, from.to = client(newStore(w.T)), "Gates"
		first := make(chan error)
		go func() {
			_, err := d.Acquire(w.Context(), request("x"))
			first <- err
		}()
		synctest.Wait()
		began := time.Now()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, err := d.Acquire(ctx, request("y"))
		w.want("the second", err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			w.Errorf("the second took %v, want 1s", took)
		}
		w.want("the first", <-first, backend.ErrUnavailable)
		from.to = ""
	})
}

// TestSilenceEndsTheWholeLine: those who stand behind one that has waited for a silent store do not wait as long again.
func TestSilenceEndsTheWholeLine(t *testing.T) {
	bubble(t, func(w world) {
		from := &mute{store: client(w.old)}
		o := w.options(backend.PhaseBoth)
		o.From = from
		l := w.locker(o)
		from.to = "RaiseHeld"
		began := time.Now()
		var line sync.WaitGroup
		for range 3 {
			line.Go(func() {
				_, err := l.Mutex("x").Lock(w.Context())
				w.want("Lock", err, fencelock.ErrUnavailable)
				if took := time.Since(began); took > 11*time.Second {
					w.Errorf("Lock took %v, want no more than 11s", took)
				}
			})
		}
		line.Wait()
	})
}

// frail is a store of which some calls fail.
type frail struct {
	store
	abandons *int // how many are made
	failing  int  // of those, the first ones, fail
	renews   error
	acquired *[]time.Time
	handle   any
}

func (f frail) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	*f.acquired = append(*f.acquired, time.Now())
	g, err := f.Gater.Acquire(ctx, r)
	g.Handle = f.handle
	return g, err
}

func (f frail) Renew(ctx context.Context, hs []*core.Hold) []error {
	if f.renews != nil {
		return slices.Repeat([]error{f.renews}, len(hs))
	}
	return f.Gater.Renew(ctx, hs)
}

func (f frail) Abandon(ctx context.Context, r *backend.Request) error {
	if *f.abandons++; *f.abandons <= f.failing {
		return errors.New("connection refused")
	}
	return f.Gater.Abandon(ctx, r)
}

// TestUnrenewedLegIsGivenUp while it surely stands yet: who waits for the new store asks the old one anew before the
// leg's time there is over. What the new store was asked for is given up in the background until it has answered, and
// not again.
func TestUnrenewedLegIsGivenUp(t *testing.T) {
	bubble(t, func(w world) {
		down := errors.New("connection refused")
		from := frail{store: client(w.old), abandons: new(int), acquired: new([]time.Time), renews: down}
		to := frail{store: client(w.new), abandons: new(int), acquired: new([]time.Time), failing: 3}
		o := w.options(backend.PhaseBoth)
		o.From, o.To = from, to
		l := w.locker(o)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		other := w.start(backend.PhaseTo)
		began, long := time.Now(), request("x")
		long.TTL = time.Minute
		h := w.acquire(other, long)
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		given := w.locks(ctx, l.Mutex("x", fencelock.WithTTL(ttl)))
		time.Sleep(ttl + ttl/2)
		synctest.Wait()
		if n := len(*from.acquired); n != 2 || (*from.acquired)[1].Sub(began) >= ttl {
			w.Errorf("asked the old store at %v, want twice, and within %v of %v", *from.acquired, ttl, began)
		}
		if *to.abandons != 4 {
			w.Errorf("gave up at the new store %d times, want 4: three that fail, and one", *to.abandons)
		}
		cancel()
		<-given
		w.release(other, h)
	})
}

// TestHandleOfBothStores is the new one's, and the old one's where that has none.
func TestHandleOfBothStores(t *testing.T) {
	for _, tt := range []struct{ from, to, want any }{{"old", "new", "new"}, {"old", nil, "old"}, {nil, nil, nil}} {
		bubble(t, func(w world) {
			o := w.options(backend.PhaseBoth)
			o.From = frail{store: client(w.old), acquired: new([]time.Time), handle: tt.from}
			o.To = frail{store: client(w.new), acquired: new([]time.Time), handle: tt.to}
			d := w.startWith(o)
			h := w.acquire(d, request("x"))
			if got := h.Grant.Handle.(interface{ Handle() any }).Handle(); got != tt.want {
				w.Errorf("handles %v and %v: got %v, want %v", tt.from, tt.to, got, tt.want)
			}
			w.release(d, h)
		})
	}
}

// TestNeedsItsStores: a phase has the drivers of its stores, and a way to the other one.
func TestNeedsItsStores(t *testing.T) {
	bubble(t, func(w world) {
		for phase, lacks := range map[backend.Phase][]string{
			backend.PhaseFrom: {"old", "new"}, backend.PhaseBoth: {"old", "new"}, backend.PhaseTo: {"new", "old"},
		} {
			for _, side := range lacks {
				o := w.options(phase)
				if side == "old" {
					o.From = nil
				} else {
					o.To = nil
				}
				_, err := migrate.New(w.Context(), o)
				w.want(fmt.Sprintf("phase %s without the %s store", phase, side), err, backend.ErrInvalid)
			}
		}
	})
}

// failing is a store whose conditional raise fails so often, at once.
type failing struct {
	store
	raises *int
	nonces *[]string
}

func (s failing) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	*s.nonces = append(*s.nonces, r.Nonce)
	return s.store.Acquire(ctx, r)
}

func (s failing) RaiseHeld(ctx context.Context, h *core.Hold, floor backend.Token) error {
	if *s.raises--; *s.raises >= 0 {
		return errDead
	}
	return s.Gater.RaiseHeld(ctx, h, floor)
}

// TestOutageBetweenTheGrants: a store that fails for a moment once both have granted costs who waits neither the lock
// nor his place. A try does not wait. The stores know the two legs by different nonces: a server may be in both.
func TestOutageBetweenTheGrants(t *testing.T) {
	bubble(t, func(w world) {
		raises := 0
		from := failing{client(w.old), &raises, new([]string)}
		to := failing{client(w.new), &raises, new([]string)}
		o := w.options(backend.PhaseBoth)
		o.From, o.To = from, to
		d := w.startWith(o)
		raises = 3
		w.tryFails(d, "x", errDead)
		r := request("y")
		r.Wait = true
		w.release(d, w.acquire(d, r))
		if a, b := *from.nonces, *to.nonces; len(a) != 2 || len(b) != 2 || a[1] != r.Nonce || b[1] == r.Nonce {
			t.Errorf("asked as %q in the old store and as %q in the new one", a, b)
		}
	})
}

// breaking is an old store that breaks the lock of the new one once, before its own source is raised, and tells of the
// loss of what is abandoned.
type breaking struct {
	store
	w      world
	breaks *int
}

func (b breaking) RaiseHeld(ctx context.Context, h *core.Hold, floor backend.Token) error {
	if *b.breaks--; *b.breaks >= 0 {
		b.w.want("break", b.w.new.Break(ctx, h.Name), nil)
		synctest.Wait() // it is told
	}
	return b.Gater.RaiseHeld(ctx, h, floor)
}

func (b breaking) Abandon(ctx context.Context, r *backend.Request) error {
	defer r.Lost(backend.ErrLost)
	return b.Gater.Abandon(ctx, r)
}

// TestDroppedLegIsNoLoss: a leg that was handed out, and given up because the other one was lost just before, is lost
// itself then. The lock is asked for anew, and is not that leg.
func TestDroppedLegIsNoLoss(t *testing.T) {
	bubble(t, func(w world) {
		o := w.options(backend.PhaseBoth)
		breaks := 1
		o.From = breaking{client(w.old), w, &breaks}
		le, err := w.locker(o).Mutex("x").Lock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want("the lease", le.Err(), nil)
		if breaks >= 0 {
			w.Error("no lock was broken")
		}
		w.want("unlock", le.Unlock(w.Context()), nil)
	})
}

// proved is a store that trusts a grant by what it was told a while before, such as the renewal of a session, and for
// so long at the most.
type proved struct {
	store
	before, most time.Duration
}

func (p proved) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	asked := backend.Now().Add(-p.before)
	g, err := p.Gater.Acquire(ctx, r)
	g.Asked, g.Sent, g.Max = asked, p.before, p.most
	return g, err
}

func (p proved) Renew(context.Context, []*core.Hold) []error {
	return []error{errors.New("a renewal that nobody needs")}
}

// TestOlderProof: a lock that was free, and is trusted by something older, was not waited for. It is trusted no longer
// than that, and costs no renewal.
func TestOlderProof(t *testing.T) {
	const before = 3 * time.Second
	for _, side := range []string{"old", "new"} {
		bubble(t, func(w world) {
			o := w.options(backend.PhaseBoth)
			var calls []string
			if side == "old" {
				o.From = counted{store{w.old.driver, proved{client(w.old), before, 0}}, &calls}
			} else {
				o.From, o.To = counted{client(w.old), &calls}, proved{client(w.new), before, 0}
			}
			d := w.startWith(o)
			h := w.acquire(d, request("x"))
			if since := h.Asked.Elapsed(); since != before || h.Max != 0 {
				w.Errorf("the %s store's: the grant counts from %v before, for %v, want %v", side, since, h.Max, before)
			}
			if got, want := strings.Join(calls, " "), "acquire raise"; got != want {
				w.Errorf("the %s store's: the old store got the calls %s, want %s", side, got, want)
			}
			w.release(d, h)
		})
	}
	bubble(t, func(w world) {
		o := w.options(backend.PhaseFrom)
		o.From = proved{client(w.old), before, 0}
		d := w.startWith(o)
		h := w.acquire(d, request("x"))
		if since := h.Asked.Elapsed(); since != before || h.Sent != before {
			w.Errorf("phase from: the grant counts from %v before, sent %v after, want %v", since, h.Sent, before)
		}
		w.release(d, h)
	})
}

// TestLeastTrustLasts: where one store trusts less than the TTL, so does the lease, after a renewal too, though that
// store was asked later than the other one.
func TestLeastTrustLasts(t *testing.T) {
	const most = ttl - time.Second
	bubble(t, func(w world) {
		o := w.options(backend.PhaseBoth)
		o.From, o.To = proved{client(w.old), 2 * time.Second, 0}, proved{client(w.new), 0, most}
		d := w.startWith(o)
		h := w.acquire(d, request("x"))
		if h.Max != most {
			w.Errorf("the grant is trusted for %v, want %v", h.Max, most)
		}
		w.release(d, h)
	})
}
