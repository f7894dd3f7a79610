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

	mu    sync.Mutex
	err   error  // nil: it goes on
	watch *watch // nil until somebody waits for it
}

// watch is what tells of a deadline's end.
type watch struct {
	done   chan struct{}
	timer  *time.Timer
	stop   func() bool
	afters []*func()
}

// Deadline returns the earlier deadline.
func (c *deadline) Deadline() (time.Time, bool) { return c.at, true }

// Done is closed at its end.
func (c *deadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watchLocked().done
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
	w := c.watchLocked()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	w.afters = append(w.afters, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(w.afters, &f)
		if i >= 0 {
			w.afters = slices.Delete(w.afters, i, i+1)
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

// watchLocked makes what tells of the end.
func (c *deadline) watchLocked() *watch {
	if c.watch != nil {
		return c.watch
	}
	c.watch = &watch{done: make(chan struct{})}
	if c.err != nil {
		close(c.watch.done)
		return c.watch
	}
	c.watch.timer = time.AfterFunc(time.Until(c.at), c.look)
	if of, ok := c.Context.(interface{ AfterFunc(func()) func() bool }); ok { // as package context does
		c.watch.stop = of.AfterFunc(c.look)
	} else {
		c.watch.stop = context.AfterFunc(c.Context, c.look)
	}
	return c.watch
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
	w := c.watch
	if w == nil {
		return
	}
	close(w.done)
	w.timer.Stop()
	w.stop()
	for _, f := range w.afters {
		go (*f)()
	}
	w.afters = nil
}
