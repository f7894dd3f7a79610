package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// errObserver is what an observer panics with.
var errObserver = errors.New("the observer of the simulation")

// call is one call of the engine. Its context leads its observer to it.
type call struct {
	c         *client
	who, what string
	name      string // of the lock; empty: it does not stand in line
	ctx       context.Context
	began     time.Time
	most      time.Duration // that it may take; 0: any

	// Guarded by w.mu.
	arrived  time.Time           // in its line
	got      bool                // it was given a lease
	ends     []fencelock.Event   // its ending events
	held     time.Duration       // how long the observer has held it up
	panicked fencelock.EventKind // the observer panicked at this
}

type callKey struct{}

// call begins a call of the engine. most: how long it may take; 0: any time.
func (w *world) call(ctx context.Context, c *client, who, what string, most time.Duration) *call {
	return &call{c: c, who: who, what: what, ctx: ctx, most: most}
}

// in puts the call into the line of a name.
func (k *call) in(name string) *call {
	k.name = name
	return k
}

// run makes the call, and checks how long it takes and what the observer has seen of it. It returns
// false if the observer's panic has ended it.
func (k *call) run(do func(ctx context.Context)) (returned bool) {
	w, key := k.c.w, k.who+" "+k.what
	k.began = time.Now()
	w.mu.Lock()
	w.called[key] = k.what
	if k.name != "" {
		w.inLine[k] = true
	}
	w.mu.Unlock()
	defer func() {
		if r := recover(); r != nil && r != errObserver {
			panic(r)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		returned = k.panicked == 0
		delete(w.called, key)
		delete(w.inLine, k)
		took := time.Since(k.began) - k.c.stood(k.began) - k.held
		if k.most > 0 && took > k.most+350*time.Millisecond {
			w.violation("%s: %s took %v, want %v at the most", k.who, k.what, took, k.most)
		}
		k.ended()
	}()
	do(context.WithValue(k.ctx, callKey{}, k))
	return true
}

// ended checks the events of a call that is over. w.mu is held.
func (k *call) ended() {
	want := 0
	switch k.what {
	case "Lock", "TryLock", "Lock again", "Unlock", "Unlock again":
		want = 1
	}
	if k.panicked >= fencelock.Locking {
		want = 0
	}
	if len(k.ends) != want {
		k.c.w.violation("%s: %s ended in the events %v, want %d", k.who, k.what, k.ends, want)
	}
}

// ending says whether an event of this kind ends a call.
func ending(k fencelock.EventKind) bool {
	switch k {
	case fencelock.Acquired, fencelock.Joined, fencelock.NotAcquired,
		fencelock.Released, fencelock.Left, fencelock.NotReleased:
		return true
	}
	return false
}

// Begin implements fencelock.Beginner. What it returns is what the call's event must come with.
func (s *saw) Begin(ctx context.Context, e fencelock.Event) context.Context {
	k, _ := ctx.Value(callKey{}).(*call)
	if k == nil {
		return ctx
	}
	s.misbehave(k, e)
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	k.arrived = time.Now()
	return ctx
}

// of takes in an event that ends a call, or that a call has brought about.
func (s *saw) of(k *call, e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if ending(e.Kind) {
		k.ends = append(k.ends, e)
	}
	if e.Kind == fencelock.Acquired {
		w.order(k)
		k.got = true
	}
	if e.Kind == fencelock.NotAcquired || e.Kind == fencelock.Joined {
		k.got = true // it stands in no line any more
	}
}

// misbehave makes the observer block or panic, as it was drawn for this event. k is the call that
// the event comes of, or nil.
func (s *saw) misbehave(k *call, e fencelock.Event) {
	m := s.c.w.plan.manners[s.c.i]
	if !m.slow && !m.panics {
		return
	}
	s.mu.Lock()
	key := fmt.Sprint(e.Kind, e.Owner, e.Token)
	s.times[key]++
	r := s.c.w.fate("observer", s.c.id, key, s.times[key])
	s.mu.Unlock()
	var long time.Duration
	switch r.IntN(40) {
	case 0:
		long = between(r, time.Second, 8*time.Second)
	case 1, 2, 3, 4, 5, 6, 7:
		long = between(r, time.Millisecond, 300*time.Millisecond)
	}
	if m.slow && long > 0 && e.Kind < fencelock.Locking { // Begin must not block
		s.block(k, long)
	}
	if m.panics && r.IntN(10) == 0 {
		s.panic(k, e.Kind)
	}
}

// block holds its caller up.
func (s *saw) block(k *call, long time.Duration) {
	w := s.c.w
	w.mu.Lock()
	s.blocked++
	w.mu.Unlock()
	time.Sleep(long)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.blocked--
	if k != nil {
		k.held += long
	}
}

// panic ends the call, or one event of no call.
func (s *saw) panic(k *call, kind fencelock.EventKind) {
	w := s.c.w
	w.mu.Lock()
	if k != nil {
		k.panicked = kind
	} else {
		s.panics++
	}
	w.mu.Unlock()
	panic(errObserver)
}
