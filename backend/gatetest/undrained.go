package gatetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func undrained(e *env) {
	plain := e.held(e.d, e.request(e.name("plain"), ""))
	from := e.held(e.client(), e.request(e.name("from"), backend.PhaseFrom))
	both := e.held(e.d, e.request(e.name("both"), backend.PhaseBoth))
	alien := e.request(e.name("alien"), backend.PhaseBoth)
	alien.Move = "another"
	other := e.held(e.d, alien)
	stays := e.held(e.d, e.request(e.name("stays/a"), ""))
	g := e.set(backend.GateBoth, 0)
	late := e.held(e.d, e.request(e.name("late"), backend.PhaseBoth))
	if got, want := e.undrained(g), []string{
		e.name("alien"), e.name("from"), e.name("plain"),
	}; !slices.Equal(got, want) {
		e.Errorf("got %v, want %v", got, want)
	}
	infos, err := e.d.Undrained(e.Context(), g)
	if err != nil {
		e.Fatal(err)
	}
	for _, i := range infos {
		if !i.Held || i.Owner != "gatetest" {
			e.Errorf("got %+v, want Held and its owner", i)
		}
	}
	for _, h := range []*core.Hold{plain, from, other} {
		if err := e.d.Break(e.Context(), h.Name); err != nil {
			e.Fatal(err)
		}
	}
	e.until("the single-phase holders are gone", func() bool { return len(e.undrained(g)) == 0 })
	for _, h := range []*core.Hold{both, stays, late} {
		e.release(e.d, h)
	}
}

// undrainedRace closes the gate while clients come and go: when the store says that it is drained, none of them holds.
func undrainedRace(e *env) {
	var holding, grants atomic.Int32
	ctx, cancel := context.WithCancel(e.Context())
	var wg sync.WaitGroup
	busy := make(chan struct{}, 64)
	for i := range 4 {
		d := e.client()
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := e.request(e.name(fmt.Sprint(i, "-", n%3)), []backend.Phase{"", backend.PhaseFrom}[n%2])
				h, err := e.acquire(d, r)
				if err != nil {
					return // refused by the gate, or the end
				}
				holding.Add(1)
				if grants.Add(1) == 40 {
					close(busy)
				}
				holding.Add(-1)
				if err := d.Release(e.Context(), h); err != nil {
					e.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	select {
	case <-busy:
	case <-time.After(patient):
		e.Errorf("only %d grants within %v", grants.Load(), patient)
	}
	g := e.set(backend.GateBoth, 0)
	e.until("drained", func() bool { return len(e.undrained(g)) == 0 })
	before := grants.Load()
	if n := holding.Load(); n != 0 {
		e.Errorf("%d clients hold a lock after the store said that it is drained", n)
	}
	both := e.request(e.name("0-0"), backend.PhaseBoth)
	both.Wait = true // a try of another phase may be on its way to its refusal
	e.release(e.d, e.held(e.d, both))
	cancel()
	wg.Wait()
	if after := grants.Load(); after != before {
		e.Errorf("%d grants after the store said that it is drained", after-before)
	}
}
