package core

import (
	"context"
	"sync"
	"time"
)

// deadline is a ctx with an earlier deadline. Its channel and its timer are made for somebody who
// waits for its end, and for nobody else: most calls are over before.
type deadline struct {
	context.Context
	at time.Time

	mu     sync.Mutex
	over   bool
	real   context.Context
	cancel context.CancelFunc
}

// Deadline returns the earlier deadline.
func (c *deadline) Deadline() (time.Time, bool) { return c.at, true }

// Done is closed at its end.
func (c *deadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		c.real, c.cancel = context.WithDeadline(c.Context, c.at)
		if c.over {
			c.cancel()
		}
	}
	return c.real.Done()
}

// Err is never nil once Done is closed: package context relies on that.
func (c *deadline) Err() error {
	c.mu.Lock()
	over, real := c.over, c.real
	c.mu.Unlock()
	switch {
	case real != nil && real.Err() != nil:
		return real.Err()
	case over:
		return context.Canceled
	}
	if err := c.Context.Err(); err != nil || time.Now().Before(c.at) {
		return err
	}
	return context.DeadlineExceeded
}

// Value asks the context that has the channel, once there is one. Package context finds that one by it, so what it
// derives of this one costs no goroutine, also through contexts that carry values.
func (c *deadline) Value(key any) any {
	c.mu.Lock()
	real := c.real
	c.mu.Unlock()
	if real != nil {
		return real.Value(key)
	}
	return c.Context.Value(key)
}

// end ends it.
func (c *deadline) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}
