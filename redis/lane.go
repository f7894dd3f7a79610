package redis

import (
	"context"
	"sync"
	"time"
)

const (
	// abreast is how many requests of a lane are with the server at a time, if they are answered soon, and abreastMost if not.
	abreast, abreastMost = 2, 8
	// soon is when an answer is expected. A call that comes later after the last request does not wait for its answer, and
	// takes the queue along.
	soon = time.Millisecond
	// laneMost is how many calls go in one request.
	laneMost = 100
)

// lane lets calls of many goroutines go together. A call that comes while few are under way is sent at once, on its
// caller's goroutine; the others stand in a queue, and whose request is answered lets the first of them lead: it sends all
// that stand there in one command. So a lone caller pays nothing, and many share the cost of a request.
type lane struct {
	d *Driver

	mu     sync.Mutex
	flying int       // requests that are with the server
	began  time.Time // when the last one was sent
	queue  []*call
}

// send sends a call and returns its error, within promptMost: not even the end of its ctx takes it out of the queue.
func (l *lane) send(c *call) error {
	l.mu.Lock()
	if l.flying < abreast || l.flying < abreastMost && time.Since(l.began) > soon {
		l.flying++
		return l.lead(c)
	}
	c.turn = make(chan bool, 1)
	l.queue = append(l.queue, c)
	l.mu.Unlock()
	if leads := <-c.turn; leads {
		l.mu.Lock()
		return l.lead(c)
	}
	return c.err
}

// lead sends c, with those in the queue that can go with it, and gives the lead to another. l.mu is held, and let go.
func (l *lane) lead(c *call) error {
	l.began = time.Now()
	if len(l.queue) == 0 {
		l.mu.Unlock()
		err := l.d.sendAlone(&c.ctx, c)
		l.next(err)
		return err
	}
	all, r := l.fill(c)
	l.mu.Unlock()
	ctx := &deadlineCtx{Context: context.Background(), at: c.ctx.at} // nobody else's end shall end it
	for _, o := range all {
		if o.ctx.at.Before(ctx.at) {
			ctx.at = o.ctx.at
		}
	}
	err := l.d.carry(ctx, all, r)
	for _, o := range all {
		if o != c {
			o.turn <- false
		}
	}
	l.next(err)
	return c.err
}

// fill takes from the queue what can go with c. The first r of all are the releases.
func (l *lane) fill(c *call) (all []*call, r int) {
	all = make([]*call, 1, min(1+len(l.queue), laneMost))
	all[0] = c
	r = 1 - flag(c.op.acquires)
	with := [2]*operation{} // of each kind one
	with[flag(c.op.acquires)] = &c.op
	left := l.queue[:0]
	for _, o := range l.queue {
		kind := flag(o.op.acquires)
		if len(all) == laneMost || with[kind] != nil && with[kind].shared != o.op.shared {
			left = append(left, o)
			continue
		}
		with[kind] = &o.op
		all = append(all, o)
		if kind == 0 {
			last := len(all) - 1
			all[r], all[last] = all[last], all[r]
			r++
		}
	}
	clear(l.queue[len(left):])
	l.queue = left
	return all, r
}

// next gives the lead to the first in the queue. If the server did not answer the last one in time, all are told so, for
// they have waited as long.
func (l *lane) next(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if timedOut(err) {
		for _, c := range l.queue {
			c.err = err
			c.turn <- false
		}
		l.queue = nil
	}
	if len(l.queue) == 0 || l.flying > abreast {
		l.flying--
		return
	}
	first := l.queue[0]
	l.queue = append(l.queue[:0], l.queue[1:]...)
	first.turn <- true
}
