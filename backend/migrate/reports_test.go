package migrate_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

func TestReports(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(w world) {
		d := w.start(backend.PhaseFrom)
		time.Sleep(10 * time.Minute)
		status := func() migrate.Status {
			w.Helper()
			st, err := w.pair().Status(w.Context())
			w.want("status", err, nil)
			return st
		}
		st := status()
		if len(st.Clients) != 1 {
			w.Fatalf("got %d clients, want 1", len(st.Clients))
		}
		c := st.Clients[0]
		if c.Phase != backend.PhaseFrom || c.MaxTTL != 30*time.Second || !c.Alive(time.Now()) ||
			!c.InFrom || !c.InTo || time.Since(c.Since) < 10*time.Minute || c.PID == 0 ||
			c.Host != host {
			w.Errorf("got %+v", c)
		}
		// A longer TTL is reported before it is asked for.
		r := request("x")
		r.TTL = time.Hour
		h := w.acquire(d, r)
		if got := status().Clients[0].MaxTTL; got != time.Hour {
			w.Errorf("longest TTL: got %v, want 1h", got)
		}
		if why := status().Blockers(backend.PhaseTo); len(why) != 2 ||
			!strings.Contains(why[0], "is in phase from") ||
			!strings.Contains(why[1], `"x" by me`) {
			w.Errorf("blockers of to: %q", why)
		}
		if why := status().Blockers(backend.PhaseBoth); len(why) != 0 {
			w.Errorf("blockers of both: %q", why)
		}
		w.release(d, h)
		w.stop(d)
		if why := status().Blockers(backend.PhaseTo); len(why) != 0 {
			w.Errorf("blockers of to after Close: %q", why)
		}
	})
}

// TestSilentClient: one that was killed is waited for until its longest lease is surely over.
func TestSilentClient(t *testing.T) {
	bubble(t, func(w world) {
		w.want("prepare", w.pair().Prepare(w.Context()), nil)
		killed := backend.Client{
			ID: "1", Move: "m", Phase: backend.PhaseFrom, Host: "h", PID: 7, MaxTTL: time.Minute,
			Reported: time.Now(),
		}
		w.want("report", w.old.Report(w.Context(), killed, 30*time.Second+killed.MaxTTL), nil)
		time.Sleep(31 * time.Second)
		st, err := w.pair().Status(w.Context())
		w.want("status", err, nil)
		if why := st.Blockers(backend.PhaseTo); len(why) != 1 ||
			!strings.Contains(why[0], "h:7 was, when it last reported 31s ago, in phase from") {
			w.Errorf("blockers: %q", why)
		}
		// It locks nobody out: what it may hold is waited for.
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		time.Sleep(time.Minute)
		st, err = w.pair().Status(w.Context())
		w.want("status", err, nil)
		if why := st.Blockers(backend.PhaseTo); len(why) != 0 {
			w.Errorf("blockers at the end: %q", why)
		}
	})
}

func TestFinish(t *testing.T) {
	bubble(t, func(w world) {
		w.start(backend.PhaseBoth)
		err := w.pair().Finish(w.Context())
		w.want("too early", err, backend.ErrInvalid)
		for _, why := range []string{"old store is not closed", "new store is not open", "reported phase both"} {
			if err == nil || !strings.Contains(err.Error(), why) {
				w.Errorf("got %v, want it to say %q", err, why)
			}
		}
	})
	bubble(t, func(w world) {
		d := w.start(backend.PhaseTo)
		synctest.Wait() // the spare store is told by a goroutine of its own
		w.cycle(d, "x")
		w.want("finish", w.pair().Finish(w.Context()), nil)
		if cs, err := w.old.Clients(w.Context(), "m"); err != nil || len(cs) != 0 {
			w.Errorf("in the old store: got %v, %v, want nobody", cs, err)
		}
		w.tryFails(client(w.old), "x", backend.ErrUnsupported)
	})
}

// TestCloseLeavesNothing: goroutines are waited for, and what was dropped is dropped.
func TestCloseLeavesNothing(t *testing.T) {
	bubble(t, func(w world) {
		d := w.start(backend.PhaseBoth)
		w.cycle(d, "x")
		w.stop(d)
		synctest.Wait()
		if cs, err := w.pair().Clients(w.Context()); err != nil || len(cs) != 0 {
			w.Errorf("clients after Close: got %v, %v, want none", cs, err)
		}
	})
}

// far is a store that takes a while to get a report or to withdraw one, also where the client does not wait for that.
type far struct {
	store
	report, withdraw atomic.Int64
}

func (f *far) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	return f.after(ctx, &f.report, func() error { return f.Gater.Report(context.WithoutCancel(ctx), c, keep) })
}

func (f *far) Withdraw(ctx context.Context, c backend.Client) error {
	return f.after(ctx, &f.withdraw, func() error { return f.Gater.Withdraw(context.WithoutCancel(ctx), c) })
}

func (f *far) after(ctx context.Context, takes *atomic.Int64, do func() error) error {
	done := make(chan error, 1)
	time.AfterFunc(time.Duration(takes.Load()), func() { done <- do() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestCloseDuringAReport: what a report under way writes is withdrawn too, and Close waits for
// neither store longer than it must.
func TestCloseDuringAReport(t *testing.T) {
	const wait = 700 * time.Millisecond
	for name, tt := range map[string]struct {
		report, withdraw time.Duration // of both stores
		least, most      time.Duration // of Close
		left             bool
	}{
		"slow":               {wait, wait, 2 * wait, 2 * wait, false},
		"silent to a report": {time.Hour, 0, time.Second, time.Second, false},
		"silent":             {time.Hour, time.Hour, 3 * time.Second, 3 * time.Second, true}, // from before
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w world) {
				from, to := &far{store: client(w.old)}, &far{store: client(w.new)}
				o := w.options(backend.PhaseBoth)
				o.From, o.To = from, to
				d := w.startWith(o)
				for _, f := range []*far{from, to} {
					f.report.Store(int64(tt.report))
					f.withdraw.Store(int64(tt.withdraw))
				}
				time.Sleep(10*time.Second + 10*time.Millisecond) // the next report is on its way
				began := time.Now()
				w.stop(d)
				if took := time.Since(began); took < tt.least-10*time.Millisecond || took > tt.most {
					w.Errorf("Close took %v, want %v to %v", took, tt.least, tt.most)
				}
				for _, f := range []*far{from, to} {
					f.withdraw.Store(0) // for the test's own Close
				}
				time.Sleep(2 * time.Second)
				if cs, err := w.pair().Clients(w.Context()); err != nil || (len(cs) > 0) != tt.left {
					w.Errorf("clients after Close: got %v, %v, want some: %v", cs, err, tt.left)
				}
			})
		})
	}
}

// TestReportsFollowEachOther: one that took long does not take the place of a newer one, and nobody
// locks with a TTL that is still being reported.
func TestReportsFollowEachOther(t *testing.T) {
	bubble(t, func(w world) {
		stores := []*far{{store: client(w.old)}, {store: client(w.new)}}
		o := w.options(backend.PhaseFrom)
		o.From, o.To = stores[0], stores[1]
		d := w.startWith(o)
		takes := func(t time.Duration) {
			for _, s := range stores {
				s.report.Store(int64(t))
			}
		}
		takes(700 * time.Millisecond)
		time.Sleep(10*time.Second + 10*time.Millisecond) // the next report is on its way
		takes(0)
		var asking sync.WaitGroup
		for _, name := range []string{"x", "y"} {
			asking.Go(func() {
				r := request(name)
				r.TTL = time.Hour
				g, err := d.Acquire(w.Context(), r)
				w.want("acquire", err, nil)
				st, err := w.pair().Status(w.Context())
				w.want("status", err, nil)
				if len(st.Clients) != 1 || st.Clients[0].MaxTTL != time.Hour {
					w.Errorf("%s is held for an hour, and reported was %+v", name, st.Clients)
				}
				w.want("release", d.Release(w.Context(), &core.Hold{Request: r, Grant: g}), nil)
			})
		}
		asking.Wait()
		time.Sleep(time.Second)
		st, err := w.pair().Status(w.Context())
		w.want("status", err, nil)
		if len(st.Clients) != 1 || st.Clients[0].MaxTTL != time.Hour {
			w.Errorf("a second later: %+v", st.Clients)
		}
	})
}

// TestOneReportForMany: of many who ask for a longer TTL at once, one reports it, and nobody waits for another report.
func TestOneReportForMany(t *testing.T) {
	bubble(t, func(w world) {
		from := &far{store: client(w.old)}
		o := w.options(backend.PhaseFrom)
		o.From = from
		l := w.locker(o)
		from.report.Store(int64(50 * time.Millisecond))
		began := time.Now()
		var asking sync.WaitGroup
		for i := range 1000 {
			asking.Go(func() {
				_, err := l.Mutex("x"+strconv.Itoa(i), fencelock.WithTTL(time.Minute)).Lock(w.Context())
				w.want("lock", err, nil)
			})
		}
		asking.Wait()
		if took := time.Since(began); took > 100*time.Millisecond {
			w.Errorf("a thousand locks took %v, want the time of two reports", took)
		}
	})
}

// down is a store that refuses reports while it is down.
type down struct {
	store
	is atomic.Bool
}

func (s *down) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	if s.is.Load() {
		return errors.New("connection refused")
	}
	return s.Gater.Report(ctx, c, keep)
}

// locker opens a Locker over a client, which is closed with the test.
func (w world) locker(o migrate.Options) *fencelock.Locker {
	w.Helper()
	d, err := migrate.New(w.Context(), o)
	if err != nil {
		w.Fatalf("a client in phase %s: %v", o.Phase, err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.want("close", l.Close(), nil) })
	return l
}

// TestReportInAnOutage: a Lock whose TTL must be reported first waits for that as it waits for a lock.
func TestReportInAnOutage(t *testing.T) {
	bubble(t, func(w world) {
		from := &down{store: client(w.old)}
		o := w.options(backend.PhaseFrom)
		o.From = from
		m := w.locker(o).Mutex("x", fencelock.WithTTL(time.Minute))
		from.is.Store(true)
		time.AfterFunc(time.Second, func() { from.is.Store(false) })
		le, err := m.Lock(w.Context())
		if err != nil {
			w.Fatalf("Lock in an outage of a second: %v", err)
		}
		w.want("unlock", le.Unlock(w.Context()), nil)
	})
}

// TestSilenceToAReport: the error says that the store did not answer. It is not that of a ctx which goes on.
func TestSilenceToAReport(t *testing.T) {
	for what, lock := range map[string]func(fencelock.Mutex, context.Context) (*fencelock.Lease, error){
		"Lock": fencelock.Mutex.Lock, "TryLock": fencelock.Mutex.TryLock,
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(w world) {
				from := &far{store: client(w.old)}
				o := w.options(backend.PhaseFrom)
				o.From = from
				m := w.locker(o).Mutex("x", fencelock.WithTTL(time.Minute))
				from.report.Store(int64(time.Hour))
				began := time.Now()
				_, err := lock(m, w.Context())
				w.want("no deadline", err, backend.ErrUnavailable)
				if errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within") {
					w.Errorf("got %v, want it to say that there was no answer", err)
				}
				if took := time.Since(began); took > 6*time.Second {
					w.Errorf("it took %v, want no more than 6s", took)
				}
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				_, err = lock(m, ctx)
				w.want("a deadline", err, context.DeadlineExceeded)
			})
		})
	}
}
