package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// watchEvery is how often a process that waits looks whether the server is there and its waiting sessions are.
const watchEvery = 2 * time.Second

// What ends a wait from outside.
var (
	errSilent = errors.New("the server does not answer")
	errGone   = errors.New("the waiting session has ended")
)

// watch looks after the waiters of a process: one blocked in the server's queue hears nothing of a server that
// is gone. One request asks for all of them, as long as there are any.
type watch struct {
	r *row

	mu      sync.Mutex
	waiters map[*session]context.CancelCauseFunc
	stop    context.CancelFunc // nil while nobody waits
}

// add puts a waiter under watch.
func (w *watch) add(s *session, end context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop == nil {
		var ctx context.Context
		ctx, w.stop = context.WithCancel(context.Background())
		w.waiters = map[*session]context.CancelCauseFunc{}
		w.r.st.flying.Go(func() { w.run(ctx) })
	}
	w.waiters[s] = end
}

// remove takes it out.
func (w *watch) remove(s *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, s)
	if len(w.waiters) == 0 && w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// run looks until nobody waits any more.
func (w *watch) run(ctx context.Context) {
	var failed time.Time // since when there was no answer
	for {
		timer := time.NewTimer(watchEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		began := time.Now()
		err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = time.Time{}
			continue
		case failed.IsZero():
			failed = began
		}
		if time.Since(failed) >= backend.Patience {
			w.end(ctx, fmt.Errorf("%w: %s", errSilent, err.Error())) // its timeout is none of the caller's
		}
	}
}

// end ends every wait.
func (w *watch) end(ctx context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() == nil { // else the waiters are those of another run
		for _, end := range w.waiters {
			end(err)
		}
	}
}

// look asks which of the sessions are there, and ends the waits of the others.
func (w *watch) look(ctx context.Context) error {
	w.mu.Lock()
	if ctx.Err() != nil {
		w.mu.Unlock()
		return ctx.Err()
	}
	waiters := make(map[*session]context.CancelCauseFunc, len(w.waiters))
	pids := make([]int32, 0, len(w.waiters))
	for s, end := range w.waiters {
		waiters[s] = end
		pids = append(pids, int32(s.pid))
	}
	w.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	there := map[int32]bool{}
	err := w.r.st.query(limited, "SELECT pid FROM pg_stat_activity WHERE pid=ANY($1)", []any{pids}, func(row pgx.CollectableRow) error {
		var pid int32
		err := row.Scan(&pid)
		there[pid] = true
		return err
	})
	if err != nil {
		return err
	}
	for s, end := range waiters {
		if !there[int32(s.pid)] {
			end(errGone)
		}
	}
	return nil
}
