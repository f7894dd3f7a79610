package core

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Deadline is a context that ends with another one, of which it has the values, or at a time of its own, or with an
// owner. What has its channel is made when Done is first called: most calls are over before, and a driver that goes by
// Deadline and Err never calls it.
type Deadline struct {
	context.Context
	At    time.Time       // it ends then; zero: it has no such bound
	Owner context.Context // ends it with the cause backend.ErrClosed; nil: it has none. The rest is for one that has
	Why   error           // the cause at At
	Least time.Time       // the end of Context counts only from then on

	mu     sync.Mutex
	err    error           // nil: it goes on
	cause  error           // see Cause
	real   context.Context // has the channel; nil until that is asked for
	cancel context.CancelFunc
	timer  *time.Timer
	stop   func() bool
}

// before makes c end with ctx, which is not ended by End meanwhile, or at a time before that.
func (c *Deadline) before(ctx context.Context, at time.Time) {
	c.Context, c.At = ctx, at
	if p, ok := ctx.(*Deadline); ok { // one level of contexts and timers less
		c.Context, c.Owner, c.Least = p.Context, p.Owner, p.Least
		if !p.At.IsZero() && p.At.Before(at) {
			c.At = p.At
		}
	}
}

// Deadline is when it ends at the latest; false: it goes on for as long as Context.
func (c *Deadline) Deadline() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	if ok && at.Before(c.Least) {
		at = c.Least
	}
	if !c.At.IsZero() && (!ok || c.At.Before(at)) {
		return c.At, true
	}
	return at, ok
}

// Err looks at everything that may have ended it.
func (c *Deadline) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	return c.err
}

// Cause is why it has ended by itself or with its owner; nil if it has not.
func (c *Deadline) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	return c.cause
}

// Done is closed at its end.
func (c *Deadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked()
	return c.real.Done()
}

// Value asks the context that has the channel, once there is one. Package context finds that one by it, so what it
// derives of this one costs no goroutine, also through contexts that carry values.
func (c *Deadline) Value(key any) any {
	c.mu.Lock()
	real := c.real
	c.mu.Unlock()
	if real != nil {
		if v := real.Value(key); v != nil || c.Owner == nil {
			return v
		}
	}
	return c.Context.Value(key)
}

// End ends it, if it goes on yet: its user has what it wanted.
func (c *Deadline) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(context.Canceled, nil)
}

// watchLocked makes what has the channel, and whatever ends it.
func (c *Deadline) watchLocked() {
	if c.real != nil {
		return
	}
	parent := c.Owner
	if parent == nil {
		parent = c.Context
	}
	if c.At.IsZero() {
		c.real, c.cancel = context.WithCancel(parent)
	} else {
		c.real, c.cancel = context.WithDeadline(parent, c.At)
	}
	at, bare := c.bare()
	switch c.lookLocked(); {
	case c.err != nil:
		c.cancel()
	case bare:
		c.timer = time.AfterFunc(time.Until(at), c.look)
	case c.Owner != nil && c.Context.Done() != nil:
		c.stop = context.AfterFunc(c.Context, c.look)
	}
}

// bare is when Context ends if it has a deadline and nothing that tells of it: one of an unusual kind.
func (c *Deadline) bare() (time.Time, bool) {
	if c.Owner == nil { // its channel may not be made yet
		return time.Time{}, false
	}
	at, ok := c.Context.Deadline()
	if !ok || c.Context.Done() != nil {
		return at, false
	}
	if at.Before(c.Least) {
		at = c.Least
	}
	return at, true
}

// look is called when something may have ended it.
func (c *Deadline) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	if c.err == nil && c.Context.Err() != nil { // which counts from least on
		c.timer = time.AfterFunc(time.Until(c.Least), c.look)
	}
}

func (c *Deadline) lookLocked() {
	at, bare := c.bare()
	switch {
	case c.err != nil:
	case c.Owner != nil && c.Owner.Err() != nil:
		c.endLocked(context.Canceled, backend.ErrClosed)
	case c.Context.Err() != nil && (c.Least.IsZero() || !time.Now().Before(c.Least)):
		c.endLocked(c.Context.Err(), nil)
	case bare && !time.Now().Before(at):
		c.endLocked(context.DeadlineExceeded, nil)
	case !c.At.IsZero() && !time.Now().Before(c.At):
		c.endLocked(context.DeadlineExceeded, c.Why)
	}
}

func (c *Deadline) endLocked(err, cause error) {
	if c.err != nil {
		return
	}
	c.err, c.cause = err, cause
	if c.real != nil {
		c.cancel()
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.stop != nil {
		c.stop()
	}
}
