package fencelock

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// renew is Lease.Renew.
func (h *hold) renew(ctx context.Context, le *Lease) error {
	if le.Err() == nil && ctx.Err() != nil {
		return leaseError(ctx, nil)
	}
	for {
		flying, err := h.fly(le)
		if err != nil {
			return err
		}
		if flying == nil {
			break
		}
		select { // one call about a request at a time
		case <-flying:
		case <-h.ending():
		case <-ctx.Done():
			return leaseError(ctx, nil)
		}
	}
	if err := h.l.enter(); err != nil {
		h.give(&h.renewing)
		return err
	}
	defer h.l.exit()
	h.mu.Lock()
	left := h.span - h.asked.Elapsed()
	h.mu.Unlock()
	most := min(left, core.Patience)
	if !h.set.manual { // the schedule waits for this call, and must have time for another try
		most = min(most, max(left-callMost(h), callMost(h)))
	}
	limited := &core.Deadline{Context: ctx, Owner: h.l.waits, At: time.Now().Add(most), Why: noAnswer(most)}
	defer limited.End()
	e, err := h.extend(limited)
	h.l.emit(ctx, e)
	switch {
	case err == nil, backend.Final(err), errors.Is(err, ErrReleased):
	case errors.Is(limited.Cause(), ErrClosed):
		return ErrClosed
	case over(ctx):
		return leaseError(ctx, err)
	}
	return err
}

// extend calls the driver for a renewal of h, and takes in its answer. It gives the turn for that back, also if the
// program's own code panics in its client.
func (h *hold) extend(ctx *core.Deadline) (Event, error) {
	back, asked := false, backend.Now()
	defer func() {
		if !back {
			h.give(&h.renewing)
		}
	}()
	err := h.route.caller.Renew(ctx, []*core.Hold{h.bh})[0]
	back = true
	return h.renewed(asked, own(ctx.Cause(), err))
}

// fly marks h as with the driver, for a renewal. If it is there already, fly returns
// the channel that is closed when that call is done. le is the handle that asks;
// nil for the schedule.
func (h *hold) fly(le *Lease) (<-chan struct{}, error) {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case le != nil && (le.released || le.counted):
		return nil, ErrReleased
	case h.err != nil:
		return nil, h.err
	case h.state != held:
		return nil, ErrReleased
	case h.renewing.taken:
		return h.renewing.freeLocked(), nil
	}
	h.renewing.taken = true
	return nil, nil
}

// renewed takes in the store's answer to a renewal that was called for at
// asked, and returns what became of it, with the event of that.
func (h *hold) renewed(asked backend.Instant, answer error) (Event, error) {
	now := backend.Now()
	h.mu.Lock()
	h.renewing.giveLocked()
	ended := h.lookAtLocked(now)
	switch {
	case h.err != nil:
		// Too late, whatever the store said: the deadline is moved only before it.
		answer = h.err
	case answer == nil:
		h.asked, h.span, h.overdue, h.Short = asked, h.trust(asked), false, 0
		h.armLocked(now) // or it would fire at each deadline that has moved
	case errors.Is(answer, ErrLost) && h.state != held:
		answer = ErrReleased // Unlock overtook the renewal
	case errors.Is(answer, ErrLost):
		answer = asLost(answer)
		h.endLocked(answer)
		ended = true
	default:
		answer = answered(answer)
	}
	took := now.Sub(asked)
	h.mu.Unlock()
	if ended {
		h.ended()
	}
	e := h.event(Renewed)
	e.Took = took
	if answer != nil {
		e.Kind, e.Err = RenewFailed, answer
	}
	return e, answer
}

// answered returns the driver's error as users see it: what is not one of the
// sentinels means that the store did not answer.
func answered(err error) error {
	if err == nil || backend.Final(err) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return backend.Unavailable(err)
}

// noAnswer is why a call ends that the store has not answered for so long.
type noAnswer time.Duration

func (d noAnswer) Error() string { return "no answer within " + time.Duration(d).String() }

// own returns err without the end of a context in it, if cause, of the context of a call, says that
// this package has ended that: users must not take it for the end of their own.
func own(cause, err error) error {
	var mine noAnswer
	switch {
	case !errors.As(cause, &mine) || !errors.Is(err, context.DeadlineExceeded) || backend.Final(err):
		return err
	case err == context.DeadlineExceeded:
		return mine
	}
	return fmt.Errorf("%w: %v", mine, err)
}

// shortWait is when a hold with a short grant is renewed: what is unlocked before need not be.
const shortWait = 10 * time.Millisecond

// maxBatch is how many holds one call of the driver is about at most, unless that looks (backend.Calls.Looks).
const maxBatch = 2000

// schedule renews every hold of a Locker. It has one timer and, while
// a batch is with the driver, a goroutine for that batch: none per hold. Holds that come
// due close to each other go into one batch.
type schedule struct {
	l *Locker

	mu     sync.Mutex
	holds  pile[*hold] // what is due first comes first
	timer  *time.Timer
	at     time.Time // what the timer is set to; zero when it is not
	flying core.Group
}

// due is a hold's place in the schedule; the schedule's mutex guards it.
type due struct {
	at    time.Time
	early time.Duration // how much before at it may go into a batch
	index int           // in the heap, from 1; 0 when not in it
}

// plan puts holds into the schedule: their next renewal, counted from the last one
// that was confirmed. failed: a renewal was not answered, or could not be sent yet, and is tried again.
func (s *schedule) plan(failed bool, hs ...*hold) {
	if len(hs) == 0 {
		return
	}
	var now backend.Instant
	if failed {
		now = backend.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hs {
		if h.due.index == 0 && s.next(h, now, failed) {
			heap.Push(&s.holds, h)
		}
	}
	s.arm()
}

// next says when h is to be renewed; false if it is not. s.mu is held.
func (s *schedule) next(h *hold, now backend.Instant, failed bool) bool {
	if h.set.manual {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held {
		return false
	}
	if failed {
		// A few tries fit into what is left, whatever that is.
		pause := min(max((h.span-now.Sub(h.asked))/6, 10*time.Millisecond), time.Second)
		h.due.at, h.due.early = now.Time().Add(h.dice.jitter(pause)), pause/4
	} else if h.Short > 0 {
		h.due.at, h.due.early = h.granted.Add(shortWait), 0
	} else {
		every := h.vouchedLocked() / 3
		h.due.at, h.due.early = h.asked.Time().Add(h.dice.jitter(every)), every/8
	}
	h.renewal, h.overdue = h.due.at, failed
	return true
}

// soon renews a hold with a short grant now: what its holder does by the handle may wait for that.
func (s *schedule) soon(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Short == 0 || h.due.index == 0 {
		return
	}
	h.due.at = time.Now()
	h.renewal = h.due.at
	heap.Fix(&s.holds, h.due.index-1)
	s.arm()
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
	if len(s.holds.all) == 0 {
		return
	}
	first := s.holds.all[0].due.at
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
	type alike struct{ lot, span int }
	batches := map[alike][]*hold{}
	for len(s.holds.all) > 0 {
		h := s.holds.all[0]
		if now.Before(h.due.at.Add(-h.due.early)) {
			break
		}
		heap.Pop(&s.holds)
		a := alike{h.route.lot, alikeSpan(h)}
		batches[a] = append(batches[a], h)
		if len(batches[a]) == maxBatch {
			s.send(batches[a])
			delete(batches, a)
		}
	}
	for _, hs := range batches {
		s.send(hs)
	}
	s.arm()
}

// send gives a batch to a goroutine of its own, so that a store which does not
// answer for one holds up no other.
func (s *schedule) send(hs []*hold) { s.flying.Go(func() { s.renew(hs) }) }

// renew renews a batch and plans what comes next.
func (s *schedule) renew(hs []*hold) {
	hs, bhs, limit := s.board(hs)
	if len(hs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(s.l.ctx, limit, noAnswer(limit))
	defer cancel()
	asked := backend.Now()
	var failed []*hold
	confirmed := hs[:0]
	for i, err := range hs[0].route.caller.Renew(ctx, bhs) {
		h := hs[i]
		e, err := h.renewed(asked, own(context.Cause(ctx), err))
		h.tell(e)
		if err == nil {
			confirmed = append(confirmed, h)
		} else {
			failed = append(failed, h)
		}
	}
	if len(confirmed) > 0 {
		confirmed[0].route.janitor.heard()
	}
	s.plan(false, confirmed...)
	s.plan(true, failed...) // but for those that have ended
}

// board keeps of hs those that may fly now, as the driver sees them, and says
// how long the call may take.
func (s *schedule) board(hs []*hold) ([]*hold, []*core.Hold, time.Duration) {
	limit := core.Patience
	bhs := make([]*core.Hold, 0, len(hs))
	fly := hs[:0]
	var later []*hold
	for _, h := range hs {
		flying, err := h.fly(nil)
		if err != nil {
			continue
		}
		if flying != nil { // it is being looked at, or the program is renewing it by hand
			later = append(later, h)
			continue
		}
		fly, bhs = append(fly, h), append(bhs, h.bh)
		limit = min(limit, callMost(h))
	}
	s.plan(true, later...)
	return fly, bhs, limit
}

// alikeSpan is the same number for holds whose calls may take about as long: the shortest bounds a
// call about many, and must not make it too short for the others.
func alikeSpan(h *hold) int {
	return bits.Len64(uint64(min(callMost(h), core.Patience)))
}

// callMost bounds a call about h in the background: a third of its TTL, so that there is time for another try.
func callMost(h *hold) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.vouchedLocked()/3, 100*time.Millisecond)
}

// woken makes up for a sleep of the machine: what is due is due so much earlier.
func (s *schedule) woken(slept time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds.all { // all by the same, so that the heap stays one
		h.due.at = h.due.at.Add(-slept)
		h.mu.Lock()
		h.renewal = h.due.at
		h.mu.Unlock()
	}
	s.arm()
}

// stop ends a schedule in which no hold is left.
func (s *schedule) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// pile is a heap, for package container/heap, of things that know their place in it.
type pile[T any] struct {
	all    []T
	before func(a, b T) bool
	place  func(T) *int // from 1; 0 when it is in none
}

func (p *pile[T]) Len() int           { return len(p.all) }
func (p *pile[T]) Less(i, j int) bool { return p.before(p.all[i], p.all[j]) }
func (p *pile[T]) Swap(i, j int) {
	p.all[i], p.all[j] = p.all[j], p.all[i]
	*p.place(p.all[i]), *p.place(p.all[j]) = i+1, j+1
}

func (p *pile[T]) Push(x any) {
	p.all = append(p.all, x.(T))
	*p.place(x.(T)) = len(p.all)
}

func (p *pile[T]) Pop() any {
	last := len(p.all) - 1
	x := p.all[last]
	p.all = slices.Delete(p.all, last, last+1)
	*p.place(x) = 0
	return x
}
