package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// sharers are those of one client.
const sharers = 3

// shared is a lease on the name that a program trusts.
type shared struct {
	c        *client
	le       *fencelock.Lease
	done     <-chan struct{}
	mode     backend.Mode
	limit    int
	unlocked bool
}

func (h *shared) trusts() bool {
	select {
	case <-h.done:
		return false
	default:
		return !h.unlocked
	}
}

// on returns the acquisitions that the lease may be one on, and whether one of them was taken away. Readers of a
// process share one, and those of an era have one token.
func (h *shared) on() (as []*acq, excused bool) {
	for _, a := range h.c.common {
		if a.r.Mode == h.mode && slices.Contains(a.tokens, h.le.Token()) {
			as = append(as, a)
			excused = excused || a.excused != ""
		}
	}
	return as, excused
}

// lookShared checks every lease on the name that is trusted. w.mu is held.
func (w *world) lookShared() {
	g := w.store.group
	w.shared = slices.DeleteFunc(w.shared, func(h *shared) bool { return !h.trusts() })
	held := map[*acq]bool{}
	mode, most := backend.Exclusive, backend.MostPermits
	for i, h := range w.shared {
		left := time.Until(h.le.Deadline())
		if left < 0 {
			w.violation("Done of a %v of %s is still open %v after its deadline", h.mode, h.c.id, -left)
		}
		as, excused := h.on()
		if excused {
			continue
		}
		i0 := slices.IndexFunc(g.shares, func(s *share) bool {
			return slices.Contains(as, s.a) && !s.pending && time.Until(s.expires) >= left+h.margin()
		})
		if i0 < 0 {
			w.violation("a %v of %s trusts its lease with token %d for another %v, and the store does not keep it "+
				"so long", h.mode, h.c.id, h.le.Token(), left)
			continue
		}
		if len(held) > 0 && (h.mode != mode || h.mode == backend.Exclusive) {
			w.violation("a %v and a %v (%s, token %d) trust leases at once", mode, h.mode, h.c.id, h.le.Token())
		}
		mode, held[g.shares[i0].a] = h.mode, true
		if h.mode == backend.Permit {
			most = min(most, h.limit)
			if len(held) > most {
				w.violation("%d permits are trusted, and one is of %d", len(held), most)
			}
		}
		for _, o := range w.shared[:i] {
			if o.mode == backend.Permit && h.mode == o.mode && o.le.Slot() == h.le.Slot() && !o.isExcused() {
				w.violation("two permits with slot %d are trusted, of %s and %s", h.le.Slot(), o.c.id, h.c.id)
			}
		}
	}
	for i, s := range g.shares {
		if slices.ContainsFunc(g.shares[:i], func(o *share) bool { return o.a == s.a }) {
			w.violation("the store has two shares of %s", s.a.id)
		}
		late := s.expires.Sub(s.a.applied.Add(s.a.r.TTL + s.a.r.Grace))
		if !s.pending && late > 0 {
			w.violation("the store keeps %s for %v longer than TTL and grace", s.a.id, late)
		}
	}
}

func (h *shared) isExcused() bool {
	_, excused := h.on()
	return excused
}

func (h *shared) margin() time.Duration { return ask{ttl: h.c.w.plan.ttl}.margin() }

// joined checks that a reader has joined the hold of another one soon after the store's grant. w.mu is held.
func (w *world) joined(c *client, e fencelock.Event) {
	for _, a := range c.common {
		if slices.Contains(a.tokens, e.Token) && e.At.Sub(a.seen.Time()) < passOn {
			return
		}
	}
	w.violation("a reader of %s has joined a hold with token %d %v or more after the store's grant",
		c.id, e.Token, passOn)
}

// sharer takes the name in one way and another.
type sharer struct {
	*program
}

func (c *client) sharer(i int) *sharer {
	p := &program{c: c, w: c.w, id: fmt.Sprintf("%s/s%d", c.id, i)}
	p.rnd = c.w.fate("sharer", p.id)
	return &sharer{p}
}

func (s *sharer) run() {
	for range 2 * turns {
		s.rest(0, 2*time.Second)
		if s.w.ctx.Err() != nil {
			return
		}
		s.n++
		if s.chance(1, 15) {
			s.breaks()
			continue
		}
		s.turn()
	}
}

// turn takes the name once. Readers of a process that are to share a hold have one owner.
func (s *sharer) turn() {
	w, opts := s.w, []fencelock.Option{fencelock.WithTTL(s.w.plan.ttl), fencelock.WithOwner(s.c.id + " shares")}
	h := &shared{c: s.c, limit: 2 + s.rnd.IntN(2)}
	m := s.c.locker.RWMutex(common, opts...)
	sem := s.c.locker.Semaphore(common, h.limit, opts...)
	calls := [2]func(context.Context) (*fencelock.Lease, error){m.Lock, m.TryLock}
	switch s.rnd.IntN(6) {
	case 0, 1, 2:
		h.mode, calls[0], calls[1] = backend.Reader, m.RLock, m.TryRLock
	case 3, 4:
		h.mode, calls[0], calls[1] = backend.Permit, sem.Acquire, sem.TryAcquire
	}
	o := ask{name: common, ttl: w.plan.ttl, wait: s.chance(4, 5)}
	ctx, cancel, most := s.patience()
	defer cancel()
	k, call := s.lock(ctx, o, most), calls[0]
	if !o.wait {
		k.name, call = "", calls[1] // a try of a reader goes beside those who wait
	}
	var err error
	k.run(func(ctx context.Context) { h.le, err = call(ctx) })
	if h.le != nil {
		h.done = h.le.Done()
	}
	w.mu.Lock()
	w.note("%s: a %v, wait=%v: %v", s.id, h.mode, o.wait, err)
	switch {
	case err != nil:
		s.refused(k.ctx, o, err)
	case k.panicked != 0:
	case h.le.Mode() != h.mode:
		w.violation("%s asked as %v and has a lease as %v", s.id, h.mode, h.le.Mode())
	default:
		h.unlocked = s.c.closing
		w.shared = append(w.shared, h)
		w.look()
	}
	ok := err == nil && k.panicked == 0
	w.mu.Unlock()
	if ok {
		s.rest(0, []time.Duration{time.Millisecond, time.Second, 2 * w.plan.ttl}[s.rnd.IntN(3)])
		s.unlock(h)
	}
}

// unlock gives a lease back, again while the store does not answer.
func (s *sharer) unlock(h *shared) {
	w := s.w
	for range 20 {
		w.mu.Lock()
		h.unlocked = true
		w.mu.Unlock()
		var err error
		k := w.call(w.ctx, s.c, s.id, "Unlock", 5*time.Second)
		returned := k.run(func(ctx context.Context) { err = h.le.Unlock(ctx) })
		w.mu.Lock()
		w.note("%s: unlock of a %v: %v", s.id, h.mode, err)
		as, excused := h.on()
		broken := excused || s.c.closing || len(as) > 1 || w.plan.temper != calm
		switch {
		case !returned, err == nil, errors.Is(err, fencelock.ErrReleased):
		case errors.Is(err, fencelock.ErrLost):
			if !broken {
				w.violation("%s: %v from Unlock of a %v, and all is well", s.id, err, h.mode)
			}
		case errors.Is(err, fencelock.ErrUnavailable) && w.plan.temper != calm:
			returned = false
		case !s.c.closing && !ctxEnded(w.ctx, err):
			w.violation("%s: %v from Unlock of a %v", s.id, err, h.mode)
		}
		w.mu.Unlock()
		if returned || w.ctx.Err() != nil {
			return
		}
		s.rest(10*time.Millisecond, time.Second)
	}
}

// breaks is an operator who ends all of it.
func (s *sharer) breaks() {
	ctx, cancel := context.WithTimeout(s.w.ctx, 3*time.Second)
	defer cancel()
	var err error
	k := s.w.call(ctx, s.c, s.id, "Break", 3*time.Second)
	k.run(func(ctx context.Context) { err = s.c.locker.Break(ctx, common) })
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.note("%s: Break of %q: %v", s.id, common, err)
	if err != nil && s.w.plan.temper == calm && !s.c.closing {
		s.w.violation("%s: Break: %v", s.id, err)
	}
}
