package gatetest

import (
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// waiting starts a request that waits, and returns once it is in the queue.
func (e *env) waiting(d core.Gater, r *backend.Request) <-chan error {
	e.Helper()
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		h, err := e.acquire(d, r)
		if err == nil {
			err = d.Release(e.Context(), h)
		}
		done <- err
	}()
	e.until("the waiter is in the queue", func() bool {
		info, err := e.d.Inspect(e.Context(), r.Name)
		return err == nil && info.Waiters != 0
	})
	return done
}

func waiterIsRefused(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	done := e.waiting(e.client(), e.request(e.name("a"), backend.PhaseFrom))
	g := e.set(backend.GateBoth, 0)
	e.release(e.d, h)
	e.wantGate(e.answer("the waiter", done), g.Epoch)
	both := e.request(e.name("a"), backend.PhaseBoth)
	both.Wait = true
	e.release(e.d, e.held(e.d, both))
}

func waiterInBothPasses(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	done := e.waiting(e.client(), e.request(e.name("a"), backend.PhaseBoth))
	e.set(backend.GateBoth, 0)
	e.release(e.d, h)
	if err := e.answer("the waiter", done); err != nil {
		e.Errorf("got %v, want the lock", err)
	}
}
