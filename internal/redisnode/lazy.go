package redisnode

import (
	"context"
	"sync/atomic"
)

// Lazy is a ctx whose Done is nil at the first call. go-redis 9.23 looks there once before it takes a
// connection, which Err answers as well, and waits there only if the pool has none: so a request that
// finds one needs neither the channel nor the timer of its deadline. It is for clients that the driver
// has opened: a hook of the program's may look first, to derive a ctx of its own, which would never
// end.
type Lazy struct {
	context.Context
	looked atomic.Bool
}

// Of makes c a new one over ctx, and returns it.
func (c *Lazy) Of(ctx context.Context) context.Context {
	c.Context = ctx
	c.looked.Store(false)
	return c
}

// Done implements context.Context.
func (c *Lazy) Done() <-chan struct{} {
	if !c.looked.Swap(true) && c.Err() == nil {
		return nil
	}
	return c.Context.Done()
}
