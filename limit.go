package fencelock

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// limit is the context of the requests of one call of this package. It has the values of the caller's context. It ends
// with that, with the Locker, or at a time of its own. The channel, the timer and the entries
// with the contexts that end it are made when Done is first called: a driver that goes by Deadline and Err does not pay
// for them. It is context.WithDeadlineCause, merged with a second context, at a fraction of the cost.
type limit struct {
	context.Context // the caller's
	l               *Locker
	late            bool      // it ends when Close gives up, else when Close begins
	most            time.Time // it ends then; zero: it has no such bound
	why             error     // the cause then
	least           time.Time // the caller's end counts only from then on

	mu     sync.Mutex
	err    error         // nil: it goes on
	cause  error         // see Cause
	done   chan struct{} // nil until it is asked for
	timer  *time.Timer
	stop   func() bool
	afters []*func() // what is called at its end
}

// Deadline is when it ends at the latest, unless it goes on for as long as the caller's context.
func (c *limit) Deadline() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	if ok && at.Before(c.least) {
		at = c.least
	}
	if !c.most.IsZero() && (!ok || c.most.Before(at)) {
		return c.most, true
	}
	return at, ok
}

// Err looks at everything that may have ended it.
func (c *limit) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	return c.err
}

// Cause is why this package has ended it; nil if it has not. The cause of the caller's context may be an error of
// this package too, of another call.
func (c *limit) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	return c.cause
}

// Done is closed at its end.
func (c *limit) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked()
	return c.done
}

// AfterFunc is for package context: so contexts that are derived from this one cost no goroutine.
func (c *limit) AfterFunc(f func()) func() bool {
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

// end ends it, if it goes on yet: its user has what it wanted.
func (c *limit) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(context.Canceled, nil)
}

// watchLocked makes the channel and whatever closes it.
func (c *limit) watchLocked() {
	if c.done != nil {
		return
	}
	c.done = make(chan struct{})
	if c.err != nil {
		close(c.done)
		return
	}
	c.l.limits.add(c)
	if c.lookLocked(); c.err != nil {
		return
	}
	if c.Context.Done() != nil {
		c.stop = context.AfterFunc(c.Context, c.look)
	}
	at := c.most
	if bare, ok := c.bare(); ok && (at.IsZero() || bare.Before(at)) {
		at = bare
	}
	if !at.IsZero() {
		c.timer = time.AfterFunc(time.Until(at), c.look)
	}
}

// bare is when the caller's context ends that has a deadline and nothing that tells of it: one of an unusual kind.
func (c *limit) bare() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	if !ok || c.Context.Done() != nil {
		return at, false
	}
	if at.Before(c.least) {
		at = c.least
	}
	return at, true
}

// look is called when something may have ended it.
func (c *limit) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	if c.err == nil && c.Context.Err() != nil { // which counts from least on
		c.timer.Reset(min(time.Until(c.least), time.Until(c.most)))
	}
}

func (c *limit) lookLocked() {
	at, bare := c.bare()
	switch {
	case c.err != nil:
	case c.l.ctx.Err() != nil, !c.late && c.l.closing.Load():
		c.endLocked(context.Canceled, ErrClosed)
	case c.Context.Err() != nil && (c.least.IsZero() || !time.Now().Before(c.least)):
		c.endLocked(c.Context.Err(), nil)
	case bare && !time.Now().Before(at):
		c.endLocked(context.DeadlineExceeded, nil)
	case !c.most.IsZero() && !time.Now().Before(c.most):
		c.endLocked(context.DeadlineExceeded, c.why)
	}
}

func (c *limit) endLocked(err, cause error) {
	if c.err != nil {
		return
	}
	c.err, c.cause = err, cause
	if c.done != nil {
		close(c.done)
		c.l.limits.remove(c)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.stop != nil {
		c.stop()
	}
	for _, f := range c.afters {
		go (*f)()
	}
	c.afters = nil
}

// limits are the limits of a Locker that want to know when Close ends them.
type limits struct {
	mu  sync.Mutex
	all map[*limit]struct{}
}

func (ls *limits) add(c *limit) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.all == nil {
		ls.all = map[*limit]struct{}{}
	}
	ls.all[c] = struct{}{}
}

func (ls *limits) remove(c *limit) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.all, c)
}

// look makes each look at what may have ended it.
func (ls *limits) look() {
	ls.mu.Lock()
	all := slices.Collect(maps.Keys(ls.all))
	ls.mu.Unlock()
	for _, c := range all {
		c.look()
	}
}
