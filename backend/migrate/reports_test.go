package migrate_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

func TestReports(t *testing.T) {
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
		if c.Phase != backend.PhaseFrom || c.MaxTTL != 30*time.Second || !c.Alive(time.Now()) || !c.InFrom || !c.InTo || time.Since(c.Since) < 10*time.Minute || c.PID == 0 || c.Host == "" {
			w.Errorf("got %+v", c)
		}
		// A longer TTL is reported before it is asked for.
		r := request("x")
		r.TTL = time.Hour
		h := w.acquire(d, r)
		if got := status().Clients[0].MaxTTL; got != time.Hour {
			w.Errorf("longest TTL: got %v, want 1h", got)
		}
		if why := status().Blockers(backend.PhaseTo); len(why) != 2 || !strings.Contains(why[0], "is in phase from") || !strings.Contains(why[1], `"x" by me`) {
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
		killed := backend.Client{ID: "1", Move: "m", Phase: backend.PhaseFrom, Host: "h", PID: 7, MaxTTL: time.Minute, Reported: time.Now()}
		w.want("report", w.old.Report(w.Context(), killed, 30*time.Second+killed.MaxTTL), nil)
		time.Sleep(31 * time.Second)
		st, err := w.pair().Status(w.Context())
		w.want("status", err, nil)
		if why := st.Blockers(backend.PhaseTo); len(why) != 1 || !strings.Contains(why[0], "h:7 was, when it last reported 31s ago, in phase from") {
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
