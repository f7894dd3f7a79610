package redis

import (
	"context"
	"slices"
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
// that stand there in one pipeline. So a lone caller pays nothing, and many share the cost of a request.
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
	return c.cmd.Err()
}

// lead sends c, with all that stand in the queue, and gives the lead to another. l.mu is held, and let go.
func (l *lane) lead(c *call) error {
	l.began = time.Now()
	n := min(len(l.queue), laneMost-1)
	others := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.mu.Unlock()
	if n == 0 {
		err := l.d.client.Process(&c.ctx, c.ready(&c.ctx))
		l.next(err)
		return err
	}
	ctx := &deadlineCtx{Context: context.Background(), at: c.ctx.at} // nobody else's end shall end it
	if oldest := others[0].ctx.at; oldest.Before(ctx.at) {
		ctx.at = oldest
	}
	p := l.d.client.Pipeline()
	_ = p.Process(ctx, c.ready(ctx)) // queues it
	for _, o := range others {
		_ = p.Process(ctx, o.ready(ctx))
	}
	_, err := p.Exec(ctx)
	for _, o := range others {
		o.turn <- false
	}
	l.next(err)
	return c.cmd.Err()
}

// next gives the lead to the first in the queue. If the server did not answer the last one in time, all are told so, for
// they have waited as long.
func (l *lane) next(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if timedOut(err) {
		for _, c := range l.queue {
			c.cmd = c.ready(&c.ctx)
			c.cmd.SetErr(err)
			c.turn <- false
		}
		l.queue = nil
	}
	if len(l.queue) == 0 || l.flying > abreast {
		l.flying--
		return
	}
	first := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	first.turn <- true
}
