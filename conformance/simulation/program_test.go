package simulation

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

var errEnough = errors.New("enough of waiting")

// answered checks what Lock or TryLock came to, and returns the hold if there is one.
func (p *program) answered(k *call, o ask, le *fencelock.Lease, err error) *hold {
	w := p.w
	var mine *acq
	var done <-chan struct{}
	if le != nil {
		mine, _ = le.Handle().(*acq)
		done = le.Done() // which looks at the lease: not with w.mu held
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: lock %s wait=%v: %v", p.key, o.name, o.wait, err)
	for _, a := range w.byOwner[p.key] {
		if a != mine {
			a.over = time.Now()
		}
	}
	if err != nil {
		p.refused(k.ctx, o, err)
		return nil
	}
	if k.panicked != 0 {
		return nil
	}
	if le == nil || mine == nil {
		w.violation("%s: Lock returned no error and no lease of this store", p.key)
		return nil
	}
	h := &hold{a: mine, le: le, asked: o, granted: time.Now(), done: done}
	if !slices.Contains(mine.tokens, le.Token()) {
		w.violation("%s: its token is %d, it was granted %v", p.key, le.Token(), mine.tokens)
	}
	w.taken(k, h)
	return h
}

// taken takes in a lease that a call has returned. w.mu is held.
func (w *world) taken(k *call, h *hold) {
	le := h.le
	w.handed[lease{h.a, le.Token()}] = h
	h.written = written{process: k.who, called: k.began, until: le.Deadline()}
	if h.closed = h.a.c.closing; h.closed {
		h.gaveUp(k.began)
	}
	if le.Token() <= h.asked.floor {
		w.violation("%s: its token is %d, its floor %d", h.a.id, le.Token(), h.asked.floor)
	}
	if at := le.Deadline(); !time.Now().Before(at) && k.held == 0 {
		w.violation("%s: its lease was handed out %v after its deadline", h.a.id, time.Since(at))
	}
	if h.isDone() { // it may have been taken away meanwhile
		return
	}
	if h.a.c.closing {
		h.unlocked = true
	}
	w.holds = append(w.holds, h)
	w.look()
}

// refused checks the error of Lock or TryLock. w.mu is held.
func (p *program) refused(ctx context.Context, o ask, err error) {
	w := p.w
	ended := ctxEnded(ctx, err)
	well := w.plan.temper == calm
	switch {
	case errors.Is(err, fencelock.ErrClosed):
		if !p.c.closing {
			w.violation("%s: %v, and nobody closed it", p.key, err)
		}
	case errors.Is(err, fencelock.ErrLocked):
		if o.wait && !ended {
			w.violation("%s: a Lock whose ctx goes on returned %v", p.key, err)
		}
	case ended:
	case errors.Is(err, fencelock.ErrUnavailable):
		if well {
			w.violation("%s: %v, and all is well", p.key, err)
		}
	default:
		w.violation("%s: %v is no answer of Lock", p.key, err)
	}
	if ctx.Err() != nil && !ended && !backend.Final(err) && !errors.Is(err, fencelock.ErrUnavailable) {
		w.violation("%s: %v, and its ctx ended with %v", p.key, err, context.Cause(ctx))
	}
}

// use does what programs do with a lock.
func (p *program) use(m fencelock.Mutex, h *hold) {
	for range 1 + p.rnd.IntN(4) {
		switch p.rnd.IntN(9) {
		case 0, 1:
			p.rest(0, time.Second)
		case 2:
			p.rest(0, h.asked.ttl)
		case 3:
			if p.chance(1, 3) {
				p.rest(h.asked.ttl, 2*h.asked.ttl) // what a long collection of garbage does
			}
		case 4, 5:
			p.write(h)
		case 6:
			p.renew(h)
		case 7:
			p.again(m, h)
		case 8:
			p.write(h)
			p.rest(0, h.asked.ttl/2)
		}
	}
}

// write writes to the resource that the lock guards, over the network, which may be slow.
func (p *program) write(h *hold) {
	w, c := p.w, p.c
	if err := h.le.Err(); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()
	t := h.le.Token()
	_, _ = c.send(ctx, c.next("write of "+p.key), func() reply {
		err := w.store.write(h.a.name, t)
		switch {
		case err == nil && t < w.accepted[h.a.name]:
			w.violation("a write of %s with token %d was accepted after one with %d", h.a.id, t, w.accepted[h.a.name])
		case err == nil:
			w.accepted[h.a.name] = t
		case h.trusts() && h.a.excused == "":
			w.violation("a write of %s, which has the lock, was refused: %v", h.a.id, err)
		}
		return reply{err: err}
	})
}

// renew renews by hand.
func (p *program) renew(h *hold) {
	w := p.w
	most := between(p.rnd, 10*time.Millisecond, 8*time.Second)
	ctx, cancel := context.WithTimeout(w.ctx, most)
	defer cancel()
	before := h.le.Deadline()
	var err error
	if !w.call(ctx, p.c, p.id, "Renew", most).run(func(ctx context.Context) { err = h.le.Renew(ctx) }) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: renew: %v", h.a.id, err)
	switch {
	case err == nil && h.asked.maxHold == 0 && h.le.Deadline().Before(before):
		w.violation("%s: a renewal moved its deadline back by %v", h.a.id, before.Sub(h.le.Deadline()))
	case err == nil:
	case errors.Is(err, fencelock.ErrLost):
		if !h.isDone() {
			w.violation("%s: %v from Renew, and Done is open", h.a.id, err)
		}
	case errors.Is(err, fencelock.ErrReleased), errors.Is(err, fencelock.ErrClosed):
		if !p.c.closing && !h.unlocked {
			w.violation("%s: %v from Renew, and nobody released it", h.a.id, err)
		}
	case ctxEnded(ctx, err):
	case !errors.Is(err, fencelock.ErrUnavailable), w.plan.temper == calm:
		w.violation("%s: %v from Renew", h.a.id, err)
	}
	w.look()
}

// again locks what it has, with a ctx that says so.
func (p *program) again(m fencelock.Mutex, h *hold) {
	w := p.w
	ctx, cancel := h.le.Context(w.ctx)
	defer cancel()
	before := h.le.Err() == nil
	short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	k := w.call(short, p.c, p.id, "Lock again", 100*time.Millisecond)
	var le *fencelock.Lease
	var err error
	wait := p.chance(1, 2)
	returned := k.run(func(ctx context.Context) {
		if wait {
			le, err = m.Lock(ctx)
		} else {
			le, err = m.TryLock(ctx)
		}
	})
	if !returned {
		return
	}
	live := before && h.le.Err() == nil
	w.mu.Lock()
	w.note("%s: lock again: %v", h.a.id, err)
	switch {
	case !before && errors.Is(err, fencelock.ErrDeadlock):
		w.violation("%s: %v, and the lease that its ctx carries had ended", h.a.id, err)
	case !live || p.c.closing:
	case h.asked.reenter && err != nil:
		w.violation("%s: re-entry: %v", h.a.id, err)
	case h.asked.reenter && (le.Token() != h.le.Token() || le.Handle() != h.le.Handle()):
		w.violation("%s: re-entry gave another hold", h.a.id)
	case !h.asked.reenter && wait && !errors.Is(err, fencelock.ErrDeadlock):
		w.violation("%s: Lock of what it has: %v, want ErrDeadlock", h.a.id, err)
	case !h.asked.reenter && !wait && !errors.Is(err, fencelock.ErrLocked):
		w.violation("%s: TryLock of what it has: %v, want ErrLocked", h.a.id, err)
	}
	own := le != nil && le.Handle() == h.le.Handle()
	w.mu.Unlock()
	if le == nil {
		return
	}
	p.rest(0, 500*time.Millisecond)
	un := w.call(w.ctx, p.c, p.id, "Unlock", 0)
	returned = un.run(func(ctx context.Context) { err = le.Unlock(ctx) })
	for tries := 0; !returned && un.panicked == fencelock.Unlocking && tries < 20; tries++ { // nothing was done
		un = w.call(w.ctx, p.c, p.id, "Unlock", 0)
		returned = un.run(func(ctx context.Context) { err = le.Unlock(ctx) })
	}
	if !own || !returned { // not own: the lease had ended, and this is a new one
		return
	}
	first := h.le.Err()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && errors.Is(first, fencelock.ErrReleased) && !p.c.closing {
		w.violation("%s: the Unlock of its second handle ended the first: %v", h.a.id, first)
	}
}

// finish unlocks, or forgets to.
func (p *program) finish(h *hold) {
	if (h.asked.manual || h.asked.maxHold > 0) && p.chance(1, 5) {
		p.w.call(p.w.ctx, p.c, p.id, "Done", p.patienceOf(h)).run(func(ctx context.Context) {
			select {
			case <-h.done:
			case <-ctx.Done():
			}
		})
		return
	}
	ctx := p.w.ctx
	most := 5 * time.Second
	if p.chance(1, 6) {
		done, cancel := context.WithCancel(ctx)
		cancel()
		ctx, most = done, time.Second
	}
	for tries := 0; ; tries++ {
		if p.unlock(ctx, h, most) || tries > 20 {
			return
		}
		p.rest(10*time.Millisecond, 2*time.Second)
	}
}

// patienceOf is how long a lease that nobody unlocks may last yet: a renewal may be under way.
func (p *program) patienceOf(h *hold) time.Duration {
	most := h.asked.ttl + h.asked.maxHold
	if h.a.shared {
		most += 2 * time.Second
	}
	return most
}

// unlock unlocks once, and reports whether that is the end of it.
func (p *program) unlock(ctx context.Context, h *hold, most time.Duration) bool {
	w := p.w
	w.mu.Lock()
	if !h.a.unlocking {
		h.a.unlocking, h.a.unlockAt = true, time.Now()
	}
	h.unlocked = true
	h.gaveUp(time.Now())
	w.mu.Unlock()
	k := w.call(ctx, p.c, p.id, "Unlock", most)
	var err error
	if !k.run(func(ctx context.Context) { err = h.le.Unlock(ctx) }) {
		return p.interrupted(k, h)
	}
	again := fencelock.ErrReleased
	if err == nil {
		w.call(ctx, p.c, p.id, "Unlock again", most).run(func(ctx context.Context) { again = h.le.Unlock(ctx) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: unlock: %v", h.a.id, err)
	h.freed(k.began, err)
	switch {
	case err == nil:
		if h.a.ended == released || !h.a.shared {
			h.a.over = time.Now()
		} else {
			h.passes = true
		}
		if h.a.ended != released && !h.a.shared {
			w.violation("%s: Unlock was nil, and the lock had ended: %q", h.a.id, h.a.ended)
		}
		if !errors.Is(again, fencelock.ErrReleased) {
			w.violation("%s: a second Unlock: %v, want ErrReleased", h.a.id, again)
		}
	case errors.Is(err, fencelock.ErrLost):
		if !h.isDone() {
			w.violation("%s: %v from Unlock, and Done is open", h.a.id, err)
		}
		if time.Now().Before(h.le.Deadline()) && h.a.ended == released && h.a.excused == "" && !p.c.closing {
			w.violation("%s: %v from Unlock, and it was released by this very call", h.a.id, err)
		}
	case errors.Is(err, fencelock.ErrReleased):
		if !p.c.closing {
			w.violation("%s: %v from the first Unlock", h.a.id, err)
		}
	case errors.Is(err, fencelock.ErrUnavailable) || ctxEnded(ctx, err):
		if w.plan.temper == calm && !p.c.closing {
			w.violation("%s: %v from Unlock, and all is well", h.a.id, err)
		}
		return false
	default:
		w.violation("%s: %v is no answer of Unlock", h.a.id, err)
	}
	return true
}

// interrupted checks what an Unlock has done that ended in the observer's panic, and reports whether that was the end
// of it.
func (p *program) interrupted(k *call, h *hold) bool {
	err := h.le.Err()
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: the observer panicked in Unlock, at %q: %v", h.a.id, k.panicked, err)
	h.freed(k.began, errObserver)
	if k.panicked == fencelock.Released && !errors.Is(err, fencelock.ErrReleased) {
		w.violation("%s: the observer was told that it is released, and its Err is %v", h.a.id, err)
	}
	if k.panicked == fencelock.Unlocking { // nothing was done
		h.a.unlocking = false
	}
	return err != nil
}

// operate is an operator at work.
func (p *program) operate() {
	w := p.w
	name := names[p.rnd.IntN(len(names))]
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
	defer cancel()
	var err error
	what := []string{"Break", "Break", "Inspect", "List"}[p.rnd.IntN(4)]
	w.call(ctx, p.c, p.id, what, 3*time.Second).run(func(ctx context.Context) {
		switch what {
		case "Break":
			err = p.c.locker.Break(ctx, name)
		case "Inspect":
			_, err = p.c.locker.Inspect(ctx, name)
		case "List":
			for _, e := range p.c.locker.List(ctx, "") {
				err = e
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: %s of %q: %v", p.id, what, name, err)
	switch {
	case err == nil, errors.Is(err, fencelock.ErrClosed) && p.c.closing:
	case w.plan.temper == calm, !errors.Is(err, fencelock.ErrUnavailable) && !ctxEnded(ctx, err):
		w.violation("%s: %s: %v", p.id, what, err)
	}
}
