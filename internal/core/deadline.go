package core

import (
	"context"
	"sync"
	"time"
)

// Deadline is a ctx with an earlier deadline, At. Its channel and its timer are made only when Done is
// called: most calls are over before.
type Deadline struct {
	context.Context
	At time.Time

	mu     sync.Mutex
	over   bool
	real   context.Context
	cancel context.CancelFunc
}

// Deadline returns the earlier deadline.
func (c *Deadline) Deadline() (time.Time, bool) { return c.At, true }

// Done is closed at its end.
func (c *Deadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		c.real, c.cancel = context.WithDeadline(c.Context, c.At)
		if c.over {
			c.cancel()
		}
	}
	return c.real.Done()
}

// Err is never nil once Done is closed: package context relies on that.
func (c *Deadline) Err() error {
	c.mu.Lock()
	over, real := c.over, c.real
	c.mu.Unlock()
	switch {
	case real != nil && real.Err() != nil:
		return real.Err()
	case over:
		return context.Canceled
	}
	if err := c.Context.Err(); err != nil || time.Now().Before(c.At) {
		return err
	}
	return context.DeadlineExceeded
}

// Value asks the context that has the channel, once there is one. Package context finds that one by it, so what it
// derives of this one costs no goroutine, also through contexts that carry values.
func (c *Deadline) Value(key any) any {
	c.mu.Lock()
	real := c.real
	c.mu.Unlock()
	if real != nil {
		return real.Value(key)
	}
	return c.Context.Value(key)
}

// End ends it.
func (c *Deadline) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}
