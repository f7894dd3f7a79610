package fencelock

import (
	"context"
	"slices"
	"time"
)

// wantedEvery is the pause between looks at who waits elsewhere.
const wantedEvery = time.Second

// Wanted returns a channel that is closed when somebody waits for the lock: in this process at once,
// in others within about a second. A holder whose work can be interrupted lets go then. It says
// nothing of what they want, and stays closed if they give up; a TryLock does not wait. Once asked
// for, it costs a look at the store each second while the lease is held. It stays open after the end
// of the lease, and where the store cannot tell who waits (Info.Waiters is -1).
func (le *Lease) Wanted() <-chan struct{} {
	h, l := le.h, le.h.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.wanted != nil {
		return h.wanted
	}
	h.wanted = make(chan struct{})
	if q := l.lines[h.Name]; q != nil && q.holder == h {
		q.wantLocked()
	}
	if !h.isWanted {
		l.wants = append(l.wants, h)
		l.armWantsLocked()
	}
	return h.wanted
}

// wantLocked tells the holder if somebody of this process wants the lock. Locker.mu is held.
func (q *line) wantLocked() {
	if h := q.holder; h != nil && q.first != nil {
		h.wantLocked()
	}
}

// wantLocked closes what Wanted has returned. Locker.mu is held.
func (h *hold) wantLocked() {
	if h.wanted != nil && !h.isWanted {
		h.isWanted = true
		close(h.wanted)
	}
}

// armWantsLocked plans the next look, unless one is planned or under way. l.mu is held.
func (l *Locker) armWantsLocked() {
	l.wants = slices.DeleteFunc(l.wants, func(h *hold) bool { return h.isWanted || !l.hasLocked(h) })
	if l.wanting || l.closed || len(l.wants) == 0 {
		return
	}
	l.wanting = true
	time.AfterFunc(wantedEvery, l.lookWanted)
}

// hasLocked reports whether h has not ended. l.mu is held.
func (l *Locker) hasLocked(h *hold) bool {
	return h.place <= len(l.holds) && l.holds[h.place-1] == h
}

// lookWanted asks the store who waits for what Wanted was called for.
func (l *Locker) lookWanted() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	asked := slices.Clone(l.wants)
	l.schedule.flying.Add(1)
	l.mu.Unlock()
	defer l.schedule.flying.Done()
	ctx, cancel := context.WithTimeout(l.ctx, 2*wantedEvery)
	defer cancel()
	waited := make([]bool, len(asked))
	atOnce(len(asked), func(i int) {
		info, err := asked[i].route.caller.Inspect(ctx, asked[i].Name)
		waited[i] = err == nil && info.Waiters > 0
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range asked {
		if waited[i] {
			h.wantLocked()
		}
	}
	l.wanting = false
	l.armWantsLocked()
}
