package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// soon is when an answer is expected: a claim that comes later after the last call began does
	// not wait for its answer.
	soon = time.Millisecond
	// wide is how many times Calls.Abreast may be under way if they are not answered soon.
	wide = 4
	// few is how many claims go together in a call to a store that does not answer.
	few = 16
	// tick is how long a claim stands in the queue without a timer of its own. No claim in that queue ends sooner.
	tick = 100 * time.Millisecond
)

// lane lets the calls of many goroutines go together. A claim that comes while few calls are under
// way is sent at once, on its caller's goroutine. Other claims stand in a queue. When a call is answered, the first
// of them leads: its caller sends all that stand there. So a lone caller pays nothing, and many share the cost of a
// request. Where a store answers none of the calls, nobody stands there for longer than one of them may take: the
// patience of each is its own.
//
// Some claims go alone, beside the others: those that had no answer once, for they may be about what the store hangs
// at, and those whose ctx ends soon. While the store answers nobody these go by a second lane, the trickle. It sends
// few calls at a time, however many claims there are.
type lane struct {
	calls    backend.Calls
	call     func(context.Context, []*backend.Claim)
	outlived *Group // calls that outlive their callers
	trickle  *lane  // nil where calls are about one claim, and in a trickle
	of       *lane  // the lane that this is the trickle of

	mu     sync.Mutex
	flying int       // calls under way
	began  time.Time // when the last one began
	heard  time.Time // when the last one was answered
	queue  []*claim
	ticked chan struct{} // closed a tick after it was made, for all who stand there then; nil: nobody has come since
	silent bool          // a call had no answer, and nothing was answered since it began
	taken  int           // calls of a trickle so far
}

// errSilent is the error of claims that were not sent.
var errSilent = backend.Refusal(fmt.Errorf("no answer to others within %v", promptMost))

// errPanicked is the error of claims that went along with one whose caller now has a panic.
var errPanicked = errors.New("the call panicked")

// alone makes a call about c alone.
func (l *lane) alone(ctx context.Context, c *claim) {
	c.Err, c.Queued, c.Next = nil, false, 0
	l.call(ctx, c.alone[:])
}

// newLane returns one for calls of a driver's Ask or Leave.
func newLane(calls backend.Calls, call func(context.Context, []*backend.Claim), outlived *Group) *lane {
	l := &lane{calls: calls, call: call, outlived: outlived}
	if calls.Most > 1 {
		calls.Most, calls.Abreast, calls.Aside = min(calls.Most, few), wide*calls.Abreast, true
		l.trickle = &lane{calls: calls, call: call, outlived: outlived, of: l}
	}
	return l
}

// again sends c once, which had no answer, on another goroutine.
func (l *lane) again(ctx context.Context, c *claim, most time.Duration) error {
	if l.mute() {
		return l.trickle.send(ctx, c, most)
	}
	return l.aside(ctx, c, most)
}

// send sends c once, alone or with others, on this goroutine if none of them leads and c may not take longer than
// promptMost. most is how long the call may take; it is longer if one of the others may take longer.
func (l *lane) send(ctx context.Context, c *claim, most time.Duration) error {
	if l.of == nil {
		switch {
		case l.trickle == nil:
			return l.apart(ctx, c, most)
		case !c.unsure && !hurried(ctx):
		case l.mute():
			return l.trickle.send(ctx, c, most)
		default: // others shall not wait for it, nor it for others
			return l.apart(ctx, c, most)
		}
	}
	c.most = most
	l.mu.Lock()
	n := l.calls.Abreast
	if l.flying < n || l.of == nil && l.flying < wide*n && time.Since(l.began) > soon {
		l.flying++
	} else {
		c.turn = make(chan bool, 1)
		l.queue = append(l.queue, c)
		ticked := l.tickLocked()
		l.mu.Unlock()
		switch leads, came := l.await(ctx, c, ticked); {
		case !came && l.leave(c):
			return backend.Refusal(ctx.Err())
		case !came:
			return ctx.Err()
		case !leads:
			return c.Err
		case l.of == nil && hurried(ctx):
			l.next()
			return l.send(ctx, c, most)
		}
		l.mu.Lock()
	}
	if !l.calls.Aside && most <= promptMost {
		with, _ := l.take(c)
		began := time.Now()
		l.lead(ctx, c, with, most, func(none bool) { l.over(began, none) })
		return c.Err
	}
	l.mu.Unlock()
	return l.outlive(ctx, c, func() {
		if l.of != nil && !endsWithin(ctx, 10*soon) { // others that had no answer with it come now
			time.Sleep(soon)
			if ctx.Err() != nil {
				c.Err = backend.Refusal(ctx.Err())
				l.next()
				return
			}
		}
		l.mu.Lock()
		with, most := l.take(c)
		began := time.Now()
		timer := time.AfterFunc(most+1, func() { l.over(began, true) }) // if the call is not over then
		l.lead(ctx, c, with, most, func(none bool) {
			if timer.Stop() {
				l.over(began, none)
			}
		})
	})
}

// tickLocked returns what is closed within a tick. l.mu is held.
func (l *lane) tickLocked() <-chan struct{} {
	if l.ticked == nil {
		ticked := make(chan struct{})
		l.ticked = ticked
		time.AfterFunc(tick, func() {
			l.mu.Lock()
			l.ticked = nil
			l.mu.Unlock()
			close(ticked)
		})
	}
	return l.ticked
}

// await waits for the turn of c, and returns what it is; came is false if ctx ends before. Most turns come within a
// tick, and the channel of a Deadline costs a tenth of a whole cycle.
func (l *lane) await(ctx context.Context, c *claim, ticked <-chan struct{}) (leads, came bool) {
	if d, ok := ctx.(*Deadline); ok && l.of == nil && d.Owner != nil {
		select {
		case leads = <-c.turn:
			return leads, true
		case <-d.Context.Done():
		case <-d.Owner.Done():
		case <-ticked:
		}
	}
	select {
	case leads = <-c.turn:
		return leads, true
	case <-ctx.Done():
		return false, false
	}
}

// apart makes a call about c alone, beside the others.
func (l *lane) apart(ctx context.Context, c *claim, most time.Duration) error {
	switch {
	case l.calls.Aside:
		return l.aside(ctx, c, most)
	case hurried(ctx):
		l.alone(ctx, c)
	default:
		l.promptly(ctx, c, most)
	}
	if !unanswered(c.Err) {
		l.hear()
	}
	return c.Err
}

// aside makes a call about c alone on a goroutine of its own.
func (l *lane) aside(ctx context.Context, c *claim, most time.Duration) error {
	return l.outlive(ctx, c, func() {
		limited, cancel := context.WithTimeout(ctx, most+1) // an end of ctx at that instant is one of ctx
		defer cancel()
		if l.alone(limited, c); !unanswered(c.Err) {
			l.hear()
		}
	})
}

// outlive makes a call about c, and perhaps others, on a goroutine of its own, so that its caller can go when ctx ends.
func (l *lane) outlive(ctx context.Context, c *claim, call func()) error {
	landed := make(chan bool, 1)
	c.flight = landed
	l.outlived.Go(func() {
		call()
		landed <- true
	})
	select {
	case <-landed:
		c.flight = nil
		return c.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hurried reports whether ctx ends before a call that others share may.
func hurried(ctx context.Context) bool { return endsWithin(ctx, promptMost) }

// endsWithin reports whether ctx ends before so long.
func endsWithin(ctx context.Context, d time.Duration) bool {
	end, ok := ctx.Deadline()
	return ok && time.Until(end) < d
}

// promptly makes a call about c alone, within that time.
func (l *lane) promptly(ctx context.Context, c *claim, most time.Duration) {
	i := 0
	if c.Leaving {
		i = 1
	}
	limited := &c.first[i]
	if limited.Context != nil { // in use
		limited = &Deadline{}
	}
	limited.before(ctx, time.Now().Add(most))
	defer limited.End()
	l.alone(limited, c)
}

// take takes the claims that go with c out of the queue, and says how long the call may take. l.mu is held, and let go.
func (l *lane) take(c *claim) (with []*claim, most time.Duration) {
	defer l.mu.Unlock()
	l.began, most = time.Now(), c.most
	n := min(len(l.queue), l.calls.Most-1)
	if l.of != nil {
		// One call of each round is about one claim: it has an answer where the store hangs at some claims only, and
		// every batch has one of these.
		if l.taken++; l.taken%l.calls.Abreast == 1 {
			n = 0
		}
	}
	if n == 0 {
		return nil, most
	}
	with = slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	for _, o := range with {
		most = max(most, o.most)
	}
	return with, most
}

// lead sends c, with others. It calls over, with whether nobody had an answer, before it tells the others of theirs,
// and also if the program's own code panics in its client.
func (l *lane) lead(ctx context.Context, c *claim, with []*claim, most time.Duration, over func(none bool)) {
	none, ended := false, false
	defer func() {
		over(none)
		for _, o := range with {
			if !ended {
				o.Err = errPanicked
			}
			o.turn <- false
		}
	}()
	if len(with) == 0 {
		l.promptly(ctx, c, most)
		none = unanswered(c.Err)
		return
	}
	all := make([]*backend.Claim, 1, 1+len(with))
	all[0] = &c.Claim
	for _, o := range with {
		all = append(all, &o.Claim)
	}
	for _, o := range all {
		o.Err, o.Queued, o.Next = nil, false, 0
	}
	// Nobody else's end shall end it.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	l.call(limited, all)
	ended = true
	none = !slices.ContainsFunc(all, func(o *backend.Claim) bool { return !unanswered(o.Err) })
}

// over ends a call that began then, and has no answer for anybody, or some: others may lead.
func (l *lane) over(began time.Time, none bool) {
	switch {
	case !none:
		l.main().hear()
	case time.Since(began) >= promptMost && l.main().silence(began):
		l.turnBack()
	}
	l.next()
}

// main is the lane that this is the trickle of, or this one.
func (l *lane) main() *lane {
	if l.of != nil {
		return l.of
	}
	return l
}

// hear notes an answer.
func (l *lane) hear() {
	l.mu.Lock()
	l.heard, l.silent = time.Now(), false
	l.mu.Unlock()
}

// silence notes that a call that began then had no answer, and reports whether the store has answered nobody since.
func (l *lane) silence(began time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard.After(began) {
		return false
	}
	l.silent = true
	return true
}

// mute reports whether claims that would go alone go by the trickle.
func (l *lane) mute() bool {
	if l.trickle == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// turnBack sends those in the queue back.
func (l *lane) turnBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.queue {
		c.Err, c.Queued, c.Next = errSilent, false, 0
		c.turn <- false
	}
	l.queue = nil
}

// next gives the lead to the first in the queue.
func (l *lane) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 || l.flying > l.calls.Abreast {
		l.flying--
		return
	}
	first := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	first.turn <- true
}

// leave takes out a claim whose caller has gone, and reports whether it was not sent. If its turn has come
// meanwhile, the next one leads. One that is under way with others stays.
func (l *lane) leave(c *claim) (unsent bool) {
	l.mu.Lock()
	i := slices.Index(l.queue, c)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return true
	}
	select {
	case leads := <-c.turn:
		if leads {
			l.next()
		}
		return leads
	default:
		c.flight = c.turn
		return false
	}
}
