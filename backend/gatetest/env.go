package gatetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// name is a name of this rule alone; all of them are in the rule's scope but stays/….
func (e *env) name(s string) string { return e.move + "/" + s }

func (e *env) client() core.Gater {
	e.Helper()
	raw := e.open(e.T)
	d, ok := core.Of(raw).(core.Gater)
	if !ok {
		e.Fatalf("%T is no backend.Mover", raw)
	}
	e.Cleanup(func() {
		if err := d.Close(); err != nil {
			e.Errorf("closing the driver: %v", err)
		}
	})
	return d
}

// request is a try by a client of this migration in this phase; by a plain one if phase is empty.
func (e *env) request(name string, phase backend.Phase) *backend.Request {
	r := &backend.Request{
		Name: name, Nonce: core.Nonce(), Owner: "gatetest", TTL: ttl, Phase: phase,
		Lost: func(error) {},
	}
	if phase != "" {
		r.Move = e.move
	}
	return r
}

func (e *env) acquire(d core.Gater, r *backend.Request) (*core.Hold, error) {
	ctx, cancel := context.WithTimeout(e.Context(), patient)
	defer cancel()
	g, err := d.Acquire(ctx, r)
	if err != nil {
		if !errors.Is(err, backend.ErrLocked) || r.Wait {
			_ = d.Abandon(ctx, r) // as the engine does
		}
		return nil, err
	}
	return &core.Hold{Request: r, Grant: g}, nil
}

// held is a request that must be granted; it is released with the test.
func (e *env) held(d core.Gater, r *backend.Request) *core.Hold {
	e.Helper()
	h, err := e.acquire(d, r)
	if err != nil {
		e.Fatalf("acquire %q in phase %q: got %v, want a grant", r.Name, r.Phase, err)
	}
	return h
}

func (e *env) release(d core.Gater, h *core.Hold) {
	e.Helper()
	if err := d.Release(e.Context(), h); err != nil {
		e.Fatalf("release %q: %v", h.Name, err)
	}
}

// passes acquires and releases.
func (e *env) passes(name string, phase backend.Phase) backend.Grant {
	e.Helper()
	h := e.held(e.d, e.request(name, phase))
	e.release(e.d, h)
	return h.Grant
}

// refused expects a gate's refusal.
func (e *env) refused(r *backend.Request, epoch int64) {
	e.Helper()
	_, err := e.acquire(e.d, r)
	e.wantGate(err, epoch)
}

func (e *env) wantGate(err error, epoch int64) {
	e.Helper()
	var refusal *backend.GateError
	if !errors.As(err, &refusal) {
		e.Fatalf("got %v, want a *backend.GateError", err)
	}
	if refusal.Move != e.move || refusal.Epoch != epoch {
		e.Errorf("refusal: got %+v, want Move %q and Epoch %d", refusal, e.move, epoch)
	}
}

// set writes the rule's gate, which must be possible.
func (e *env) set(state backend.GateState, was int64) backend.Gate {
	e.Helper()
	g := backend.Gate{Move: e.move, Scope: e.scope, State: state, Epoch: max(time.Now().UnixMicro(), was+1)}
	if err := e.d.SetGate(e.Context(), g, was); err != nil {
		e.Fatalf("SetGate %s: %v", state, err)
	}
	return g
}

func (e *env) gate(d core.Gater) (backend.Gate, bool) {
	e.Helper()
	gates, err := d.Gates(e.Context())
	if err != nil {
		e.Fatalf("Gates: %v", err)
	}
	for _, g := range gates {
		if g.Move == e.move {
			return g, true
		}
	}
	return backend.Gate{}, false
}

func (e *env) undrained(g backend.Gate) []string {
	e.Helper()
	infos, err := e.d.Undrained(e.Context(), g)
	if err != nil {
		e.Fatalf("Undrained: %v", err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// until looks until ok or for too long.
func (e *env) until(what string, ok func() bool) {
	e.Helper()
	end := time.Now().Add(patient)
	for !ok() {
		if time.Now().After(end) {
			e.Fatalf("not within %v: %s", patient, what)
		}
		time.Sleep(5 * time.Millisecond) // the pause of a bounded poll
	}
}

func (e *env) answer(what string, c <-chan error) error {
	e.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patient):
		e.Fatalf("no answer within %v: %s", patient, what)
		return nil
	}
}
