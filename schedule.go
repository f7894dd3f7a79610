package fencelock

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// maxBatch is how many holds one call of the driver is about at most.
const maxBatch = 2000

// schedule renews and checks every hold of a Locker. It has one timer and, while
// a batch is with the driver, a goroutine for that batch: none per hold. Holds that come
// due close to each other go into one batch.
type schedule struct {
	l *Locker

	mu     sync.Mutex
	holds  dueHeap
	timer  *time.Timer
	at     time.Time // what the timer is set to; zero when it is not
	closed bool
	flying sync.WaitGroup
}

// due is a hold's place in the schedule; the schedule's mutex guards it.
type due struct {
	at    time.Time
	early time.Duration // how much before at it may go into a batch
	renew bool          // renew, else check
	index int           // in the heap, from 1; 0 when not in it
}

// plan puts h into the schedule: its next renewal, counted from the last one
// that was confirmed, or its next check, counted from the last answer at from, whichever is
// first. failed: a renewal was not answered and is tried again.
func (s *schedule) plan(h *hold, from time.Time, failed bool) {
	d := s.next(h, from, failed)
	if d.at.IsZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.mu.Lock()
	over := h.err != nil || h.leaving
	h.mu.Unlock()
	if s.closed || over || h.due.index != 0 {
		return
	}
	h.due = d
	heap.Push(&s.holds, h)
	s.arm()
}

// next says what h needs, and when; nothing at the zero time.
func (s *schedule) next(h *hold, from time.Time, failed bool) due {
	h.mu.Lock()
	asked, left := h.asked.Time(), h.span-h.asked.Elapsed()
	h.mu.Unlock()
	if failed && !h.set.manual {
		// A few tries fit into what is left, whatever that is.
		pause := min(max(left/6, 10*time.Millisecond), time.Second)
		return due{at: time.Now().Add(jitter(pause)), early: pause / 4, renew: true}
	}
	var d due
	if !h.set.manual {
		every := h.TTL / 3
		d = due{at: asked.Add(jitter(every)), early: every / 8, renew: true}
	}
	if h.route.checker != nil {
		every := h.route.traits.Revoked * 6 / 10
		if at := from.Add(jitter(every)); d.at.IsZero() || at.Before(d.at) {
			d = due{at: at, early: every / 8}
		}
	}
	return d
}

// jitter takes up to a tenth off d, so that holders do not march in step.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d/10)+1))
}

// remove takes h out.
func (s *schedule) remove(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.due.index != 0 {
		heap.Remove(&s.holds, h.due.index-1)
	}
	// The timer stays as it is: it fires at most once for nothing, and a program that
	// locks and unlocks does not pay for it each time.
}

// arm sets the timer to the first hold; s.mu is held.
func (s *schedule) arm() {
	if len(s.holds) == 0 || s.closed {
		return
	}
	first := s.holds[0].due.at
	if !s.at.IsZero() && !first.Before(s.at) {
		return
	}
	s.at = first
	wait := max(time.Until(first), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.fire)
	} else {
		s.timer.Reset(wait)
	}
}

// fire sends off what is due.
func (s *schedule) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = time.Time{}
	now := time.Now()
	batches := map[batch][]*hold{}
	for len(s.holds) > 0 && !s.closed {
		h := s.holds[0]
		if now.Before(h.due.at.Add(-h.due.early)) {
			break
		}
		heap.Pop(&s.holds)
		b := batch{h.route.lot, h.due.renew}
		batches[b] = append(batches[b], h)
		if len(batches[b]) == maxBatch {
			s.send(b, batches[b])
			delete(batches, b)
		}
	}
	for b, hs := range batches {
		s.send(b, hs)
	}
	s.arm()
}

// batch is what holds that go to their driver in one call have in common.
type batch struct {
	lot   int
	renew bool // renew, else check
}

// send gives a batch to a goroutine of its own, so that a store which does not
// answer for one holds up no other.
func (s *schedule) send(b batch, hs []*hold) {
	if b.renew {
		s.flying.Go(func() { s.renew(hs) })
	} else {
		s.flying.Go(func() { s.check(hs) })
	}
}

// renew renews a batch and plans what comes next.
func (s *schedule) renew(hs []*hold) {
	hs, bhs, limit := s.board(hs, true)
	if len(hs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.l.ctx, limit)
	defer cancel()
	asked := backend.Now()
	for i, err := range hs[0].route.driver.Renew(ctx, bhs) {
		h := hs[i]
		switch err = h.renewed(context.Background(), asked, err); {
		case err == nil:
			s.plan(h, asked.Time(), false)
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrReleased):
			s.plan(h, asked.Time(), true)
		}
	}
}

// check looks whether the holds of a batch are still ours.
func (s *schedule) check(hs []*hold) {
	hs, bhs, limit := s.board(hs, false)
	if len(hs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.l.ctx, limit)
	defer cancel()
	at := time.Now()
	for i, err := range hs[0].route.checker.Check(ctx, bhs) {
		hs[i].checked(err)
		s.plan(hs[i], at, false)
	}
}

// board keeps of hs those that may fly now, as the driver sees them, and says
// how long the call may take: a third of the shortest TTL, so that there is time
// for another try.
func (s *schedule) board(hs []*hold, renew bool) ([]*hold, []*backend.Hold, time.Duration) {
	limit := backend.Patience
	bhs := make([]*backend.Hold, 0, len(hs))
	fly := hs[:0]
	for _, h := range hs {
		flying, err := h.fly(nil)
		if err != nil {
			continue
		}
		if flying != nil { // the program is renewing it by hand just now: look again a little later
			s.plan(h, time.Now(), renew)
			continue
		}
		fly, bhs = append(fly, h), append(bhs, h.bh)
		limit = min(limit, max(h.TTL/3, 100*time.Millisecond))
	}
	return fly, bhs, limit
}

// stop ends the schedule; batches that are under way go on.
func (s *schedule) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// dueHeap orders holds by when they are due.
type dueHeap []*hold

func (q dueHeap) Len() int           { return len(q) }
func (q dueHeap) Less(i, j int) bool { return q[i].due.at.Before(q[j].due.at) }
func (q dueHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].due.index, q[j].due.index = i+1, j+1
}

func (q *dueHeap) Push(x any) {
	h := x.(*hold)
	h.due.index = len(*q) + 1
	*q = append(*q, h)
}

func (q *dueHeap) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	h.due.index = 0
	return h
}
