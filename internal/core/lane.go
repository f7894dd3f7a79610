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
)

// lane lets the calls of many goroutines go together. A claim that comes while few calls are under
// way is sent at once, on its caller's goroutine; others stand in a queue, and whose call is
// answered lets the first of them lead: it sends all that stand there. So a lone caller pays
// nothing, and many share the cost of a request. Where a store answers none of the calls, nobody stands there for
// longer than one of them may take: the patience of each is its own.
type lane struct {
	calls    backend.Calls
	call     func(context.Context, []*backend.Claim)
	outlived *group // calls that outlive their callers

	mu     sync.Mutex
	flying int       // calls under way
	began  time.Time // when the last one began
	heard  time.Time // when the last one was answered
	queue  []*claim
}

// errSilent is the error of those who were not sent.
var errSilent = backend.Refusal(fmt.Errorf("no answer to others within %v", promptMost))

// errPanicked is the error of those who went along with a claim whose caller now has a panic.
var errPanicked = errors.New("the call panicked")

// alone makes a call about c alone.
func (l *lane) alone(ctx context.Context, c *claim) {
	c.Err, c.Queued, c.Next = nil, false, 0
	l.call(ctx, c.alone[:])
}

// send sends c once, on this goroutine if others do not lead.
func (l *lane) send(ctx context.Context, c *claim) error {
	// Others shall not end with it, nor wait for one that the store does not answer.
	if l.calls.Most <= 1 || c.unsure || hurried(ctx) {
		return l.apart(ctx, c)
	}
	l.mu.Lock()
	n := l.calls.Abreast
	if l.flying < n || l.flying < wide*n && time.Since(l.began) > soon {
		l.flying++
	} else {
		c.turn = make(chan bool, 1)
		l.queue = append(l.queue, c)
		l.mu.Unlock()
		select {
		case leads := <-c.turn:
			switch {
			case !leads:
				return c.Err
			case hurried(ctx):
				l.next()
				return l.apart(ctx, c)
			}
			l.mu.Lock()
		case <-ctx.Done():
			if l.leave(c) {
				return backend.Refusal(ctx.Err())
			}
			return ctx.Err()
		}
	}
	began := time.Now()
	if !l.calls.Aside {
		none := false
		defer func() { l.over(began, none) }() // also if the program's own code panics in its client
		none = l.lead(ctx, c, began)
		return c.Err
	}
	l.mu.Unlock()
	return l.outlive(ctx, c, func() {
		timer := time.AfterFunc(promptMost, func() { l.over(began, true) }) // whenever the call returns
		l.mu.Lock()
		if none := l.lead(ctx, c, began); timer.Stop() {
			l.over(began, none)
		}
	})
}

// apart makes a call about c alone, beside the others.
func (l *lane) apart(ctx context.Context, c *claim) error {
	switch {
	case l.calls.Aside:
		return l.aside(ctx, c, promptMost)
	case hurried(ctx):
		l.alone(ctx, c)
		return c.Err
	}
	return l.promptly(ctx, c)
}

// aside makes a call about c alone on a goroutine of its own.
func (l *lane) aside(ctx context.Context, c *claim, most time.Duration) error {
	return l.outlive(ctx, c, func() {
		limited, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		l.alone(limited, c)
	})
}

// outlive makes a call about c, and perhaps others, on a goroutine of its own, so that its caller can go when ctx ends.
func (l *lane) outlive(ctx context.Context, c *claim, call func()) error {
	landed := make(chan bool, 1)
	c.flight = landed
	l.outlived.add()
	go func() {
		defer l.outlived.done()
		call()
		landed <- true
	}()
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

// promptly makes a call about c alone, within promptMost.
func (l *lane) promptly(ctx context.Context, c *claim) error {
	i := 0
	if c.Leaving {
		i = 1
	}
	limited := &c.first[i]
	if limited.Context != nil { // in use
		limited = &Deadline{}
	}
	limited.Context, limited.At = ctx, time.Now().Add(promptMost)
	defer limited.End()
	l.alone(limited, c)
	return c.Err
}

// lead sends c, with those in the queue, and reports whether nobody had an answer. l.mu is held, and let go.
func (l *lane) lead(ctx context.Context, c *claim, began time.Time) (none bool) {
	l.began = began
	n := min(len(l.queue), l.calls.Most-1)
	if n == 0 {
		l.mu.Unlock()
		return unanswered(l.promptly(ctx, c))
	}
	with := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.mu.Unlock()
	all := make([]*backend.Claim, 1, 1+n)
	all[0] = &c.Claim
	for _, o := range with {
		all = append(all, &o.Claim)
	}
	for _, o := range all {
		o.Err, o.Queued, o.Next = nil, false, 0
	}
	// Nobody else's end shall end it.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), promptMost)
	defer cancel()
	ended := false
	defer func() {
		for _, o := range with {
			if !ended {
				o.Err = errPanicked
			}
			o.turn <- false
		}
	}()
	l.call(limited, all)
	ended, none = true, true
	for _, o := range all {
		none = none && unanswered(o.Err)
	}
	return none
}

// over ends a call that began then, and has no answer for anybody, or some: another may lead.
func (l *lane) over(began time.Time, none bool) {
	if !none || time.Since(began) < promptMost {
		l.mu.Lock()
		l.heard = time.Now()
		l.mu.Unlock()
	} else {
		l.silent(began)
	}
	l.next()
}

// silent sends those in the queue back, unless the store has answered some call since began.
func (l *lane) silent(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard.After(began) {
		return
	}
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
