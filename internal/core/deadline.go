package core

import (
	"context"
	"slices"
	"sync"
	"time"
)

// deadline is a ctx with an earlier deadline. Its channel and its timer are made for somebody who
// waits for its end, and for nobody else: most calls are over before.
type deadline struct {
	context.Context
	at time.Time

	mu     sync.Mutex
	err    error         // nil: it goes on
	done   chan struct{} // nil until it is asked for
	timer  *time.Timer
	stop   func() bool
	afters []*func() // what is called at its end
}

// Deadline returns the earlier deadline.
func (c *deadline) Deadline() (time.Time, bool) { return c.at, true }

// Done is closed at its end.
func (c *deadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked()
	return c.done
}

// Err is never nil once Done is closed: package context relies on that.
func (c *deadline) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	return c.err
}

// AfterFunc is for package context: so contexts that are derived from this one cost no goroutine.
func (c *deadline) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.afters = append(c.afters, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.afters, &f)
		if i >= 0 {
			c.afters = slices.Delete(c.afters, i, i+1)
		}
		return i >= 0
	}
}

// end ends it.
func (c *deadline) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(context.Canceled)
}

// watchLocked makes the channel and what closes it.
func (c *deadline) watchLocked() {
	if c.done != nil {
		return
	}
	c.done = make(chan struct{})
	if c.err != nil {
		close(c.done)
		return
	}
	c.timer = time.AfterFunc(time.Until(c.at), c.look)
	if of, ok := c.Context.(interface{ AfterFunc(func()) func() bool }); ok { // as package context does
		c.stop = of.AfterFunc(c.look)
	} else {
		c.stop = context.AfterFunc(c.Context, c.look)
	}
}

// look is called when something may have ended it.
func (c *deadline) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
}

func (c *deadline) lookLocked() {
	switch {
	case c.err != nil:
	case c.Context.Err() != nil:
		c.endLocked(c.Context.Err())
	case !time.Now().Before(c.at):
		c.endLocked(context.DeadlineExceeded)
	}
}

func (c *deadline) endLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.done == nil {
		return
	}
	close(c.done)
	c.timer.Stop()
	c.stop()
	for _, f := range c.afters {
		go (*f)()
	}
	c.afters = nil
}
