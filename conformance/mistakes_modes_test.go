package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// mistakesOfModes are made for holds of one mode alone, over package memory: the toy has no such modes.
var mistakesOfModes = []mistake{
	{name: "try waits", alter: slowTry, catches: "A5"},
	{name: "wait looks at its ctx late", alter: looksLate, catches: "A6"},
	{name: "nil, nil on cancel", alter: nilOnCancel, catches: "A6 A8"},
	{name: "release error swallowed", alter: swallowed, catches: "B5"},
	{name: "release of a lost hold: nil", alter: lostIsReleased, catches: "B8"},
	{name: "late release frees anybody", alter: lostFreesAll, catches: "B2 B8"},
	{name: "renewals not sent", alter: renewsNobody, catches: "C2 C3 C4"},
	{name: "one renewal a name", alter: renewsOneOfAName, catches: "C2"},
	{name: "failed renewal is a loss", alter: unknownIsLost, catches: "C5"},
	{name: "sent again: another hold", alter: anotherNonce, catches: "C5 K10"},
	{name: "counted from the reply", alter: askedLate, catches: "C13"},
	{name: "no renewal after a wait", alter: renewsWhoTried, catches: "C11"},
	{name: "no grace", alter: without(func(r *backend.Request) { r.Grace = 0 }), catches: "C8"},
	{name: "no grace after a wait", catches: "C8", alter: without(func(r *backend.Request) {
		if r.Wait {
			r.Grace = 0
		}
	})},
	{name: "TTLs cut at 20 s", catches: "C9", alter: without(func(r *backend.Request) {
		r.TTL = min(r.TTL, 20*time.Second)
	})},
	{name: "no floor", alter: without(func(r *backend.Request) { r.Floor = 0 }), catches: "E9"},
	{name: "nameless holder", alter: without(func(r *backend.Request) { r.Owner = "" }), catches: "A10 F8"},
	{name: "short TTL after a wait", catches: "F8", alter: without(func(r *backend.Request) {
		if r.Wait {
			r.TTL = min(r.TTL, 2*time.Second)
		}
	})},
}

// without gives each request another one in its place, with something left out.
func without(leave func(*backend.Request)) alteration {
	return func(_ *rig, d core.Caller, _ Client) core.Caller {
		var all sync.Map
		of := func(r *backend.Request) *backend.Request {
			mine := *r
			mine.Claim = nil
			leave(&mine)
			got, _ := all.LoadOrStore(r.Nonce, &mine)
			return got.(*backend.Request)
		}
		hold := func(h *core.Hold) *core.Hold { return &core.Hold{Request: of(h.Request), Grant: h.Grant} }
		return &changed{
			Caller: d,
			acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
				return d.Acquire(ctx, of(r))
			},
			release: func(ctx context.Context, h *core.Hold) error { return d.Release(ctx, hold(h)) },
			abandon: func(ctx context.Context, r *backend.Request) error { return d.Abandon(ctx, of(r)) },
			renew: func(ctx context.Context, hs []*core.Hold) []error {
				mine := make([]*core.Hold, len(hs))
				for i, h := range hs {
					mine[i] = hold(h)
				}
				return d.Renew(ctx, mine)
			},
		}
	}
}

// lostIsReleased takes the release of what was lost for one that was done.
func lostIsReleased(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, release: func(ctx context.Context, h *core.Hold) error {
		if err := d.Release(ctx, h); !errors.Is(err, backend.ErrLost) {
			return err
		}
		return nil
	}}
}

// lostFreesAll frees whoever holds, where it is asked to release what was lost.
func lostFreesAll(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, release: func(ctx context.Context, h *core.Hold) error {
		err := d.Release(ctx, h)
		if errors.Is(err, backend.ErrLost) {
			return d.Break(ctx, h.Name)
		}
		return err
	}}
}

// renewsWhoTried answers renewals of locks that were waited for, and does not send them.
func renewsWhoTried(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, renew: func(ctx context.Context, hs []*core.Hold) []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			if !h.Wait {
				errs[i] = d.Renew(ctx, []*core.Hold{h})[0]
			}
		}
		return errs
	}}
}

// renewsNobody answers renewals, and does not send them.
func renewsNobody(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, renew: func(_ context.Context, hs []*core.Hold) []error {
		return make([]error, len(hs))
	}}
}

// renewsOneOfAName keeps its holds by their names, and the first one is in the place of all others.
func renewsOneOfAName(_ *rig, d core.Caller, _ Client) core.Caller {
	var names sync.Map
	return &changed{Caller: d, renew: func(ctx context.Context, hs []*core.Hold) []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			if first, _ := names.LoadOrStore(h.Name, h.Nonce); first == h.Nonce {
				errs[i] = d.Renew(ctx, []*core.Hold{h})[0]
			}
		}
		return errs
	}}
}

// anotherNonce takes a request that was granted, and is sent again, for another one.
func anotherNonce(_ *rig, d core.Caller, _ Client) core.Caller {
	var granted sync.Map
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		if _, again := granted.Load(r.Nonce); again {
			mine := *r
			mine.Claim, mine.Nonce = nil, nonce()
			r = &mine
		}
		g, err := d.Acquire(ctx, r)
		if err == nil {
			granted.Store(r.Nonce, true)
		}
		return g, err
	}}
}

// of returns d, with one behaviour changed where it is about a hold of the mode.
func (m *mistake) of(mode backend.Mode, d core.Caller, c Client) core.Caller {
	bad := m.alter(nil, d, c)
	by := func(r *backend.Request) core.Caller {
		if r.Mode == mode {
			return bad
		}
		return d
	}
	return &changed{
		Caller:  d,
		acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) { return by(r).Acquire(ctx, r) },
		release: func(ctx context.Context, h *core.Hold) error { return by(h.Request).Release(ctx, h) },
		abandon: func(ctx context.Context, r *backend.Request) error { return by(r).Abandon(ctx, r) },
		renew: func(ctx context.Context, hs []*core.Hold) []error {
			errs := make([]error, len(hs))
			for _, d := range []core.Caller{d, bad} {
				var some []*core.Hold
				for _, h := range hs {
					if by(h.Request) == d {
						some = append(some, h)
					}
				}
				for i, err := range d.Renew(ctx, some) {
					errs[slices.Index(hs, some[i])] = err
				}
			}
			return errs
		},
	}
}

// TestMistakesOfModes shows that each is caught, as a reader and as a permit.
func TestMistakesOfModes(t *testing.T) {
	for i := range mistakesOfModes {
		m := &mistakesOfModes[i]
		for _, mode := range []backend.Mode{backend.Reader, backend.Permit} {
			o := inMemoryInVirtualTime(t, func(d core.Caller, c Client) core.Caller { return m.of(mode, d, c) },
				strings.Fields(m.catches)...)
			if missed, _, _ := m.verdict(o); len(missed) > 0 {
				t.Errorf("%s, of a %v: not caught by %v", m, mode, missed)
			}
		}
	}
}

// inMemoryInVirtualTime checks the rules that only names over package memory, whose driver is altered.
func inMemoryInVirtualTime(t *testing.T, alter func(core.Caller, Client) core.Caller, only ...string) outcome {
	t.Helper()
	o := outcome{}
	synctest.Test(t, func(t *testing.T) {
		h, err := inMemory()
		if err != nil {
			t.Fatal(err)
		}
		open := h.Driver
		h.Driver = func(ctx context.Context, c Client) (backend.Driver, error) {
			d, err := open(ctx, c)
			if err != nil {
				return nil, err
			}
			return core.Composite{Caller: alter(core.Of(d), c)}, nil
		}
		h.Short, h.tiny = true, true
		for res := range Report(t.Context(), h, only...) {
			o[res.Rule] = res
		}
	})
	return o
}
