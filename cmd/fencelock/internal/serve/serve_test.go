package serve

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

func TestServeKeepsTheLastChanges(t *testing.T) {
	t.Parallel()
	locks, err := fencelock.Open(t.Context(), "memory://")
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	s := &server{a: &cli.App{Out: io.Discard, Err: io.Discard}, locks: locks}
	for i := range 2 * keepChanges {
		var infos []fencelock.Info
		if i%2 == 1 {
			infos = []fencelock.Info{{Name: "n", Held: true, Token: fencelock.Token(i)}}
		}
		s.take(view.Look{At: time.Now(), Infos: infos})
	}
	got := s.state(time.Now()).Changes
	if len(got) != keepChanges || got[keepChanges-1].ID != 2*keepChanges-1 {
		t.Errorf("got %d changes, the last of them %+v", len(got), got[len(got)-1])
	}
}

func TestServeIsReadyWithTheFirstAnswer(t *testing.T) {
	t.Parallel()
	s := &server{a: &cli.App{Out: io.Discard, Err: io.Discard}, started: time.Now()}
	health := func() int {
		w := httptest.NewRecorder()
		s.serveHealth(w, nil)
		return w.Code
	}
	if got := health(); got != http.StatusServiceUnavailable {
		t.Errorf("before the first look: got %d, want 503", got)
	}
	s.take(view.Look{At: time.Now()})
	if got := health(); got != http.StatusOK {
		t.Errorf("after it: got %d, want 200", got)
	}
}

// The holder unlocks while the break is under way, and a waiter follows: that one is not meant.
func TestBreakSparesTheNextHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		client := func() *fencelock.Locker {
			c, err := d.Client(backend.DefaultPrefix)
			if err != nil {
				t.Fatal(err)
			}
			l, err := fencelock.New(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			return l
		}
		first, err := client().Mutex("n").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waiter, waits := client(), make(chan *fencelock.Lease, 1)
		go func() {
			le, err := waiter.Mutex("n").Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			waits <- le
		}()
		synctest.Wait()
		s := &server{a: &cli.App{Out: io.Discard, Err: io.Discard}, locks: client()}
		time.AfterFunc(30*time.Millisecond, func() {
			if err := first.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		status, reply, err := s.breakHold(t.Context(), "n", first.Token())
		if status != http.StatusConflict || err == nil || reply.Broken {
			t.Errorf("got %d, %+v, %v, want %d", status, reply, err, http.StatusConflict)
		}
		next := <-waits
		time.Sleep(waiter.Traits().Revoked)
		if err := next.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		status, reply, err = s.breakHold(t.Context(), "n", next.Token())
		if status != http.StatusOK || err != nil || reply.Token != next.Token() {
			t.Errorf("of the one that holds: got %d, %+v, %v, want %d", status, reply, err, http.StatusOK)
		}
		status, reply, err = s.breakHold(t.Context(), "n", next.Token())
		if status != http.StatusOK || err != nil || reply.Broken {
			t.Errorf("again: got %d, %+v, %v, want that it was free", status, reply, err)
		}
	})
}
