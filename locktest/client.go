package locktest

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// errOutage is what calls get during an Outage. It is none of the driver's sentinels, so the engine
// takes the outcome for unknown and reports ErrUnavailable.
var errOutage = errors.New("locktest: an Outage of the store")

// client is the Caller of a Store's Driver. An outage has an answer at once, as that of a server
// which refuses connections: a test need not wait for what a client tries again.
type client struct {
	core.Caller
	s *Store
}

// Acquire asks the store. One that waits asks again after an outage, and finds its place or its
// grant.
func (c *client) Acquire(ctx context.Context, r *backend.Request) (g backend.Grant, err error) {
	if !r.Wait {
		if err := c.s.outage(); err != nil {
			return backend.Grant{}, err
		}
		return c.Caller.Acquire(ctx, r)
	}
	err = core.Wait(ctx, r.Nonce, nil, func(look context.Context) (bool, time.Duration, error) {
		if err := c.s.outage(); err != nil {
			return false, 0, err
		}
		var err error
		g, err = c.Caller.Acquire(look, r)
		out := c.s.outage()
		switch {
		case out != nil: // the answer was lost on its way
			return false, 0, out
		case err != nil && look.Err() != nil: // not yet
			return false, 0, nil
		}
		return err == nil, 0, err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return g, nil
}

func (c *client) Outage(string) error { return c.s.outage() }

func (c *client) Renew(ctx context.Context, hs []*core.Hold) []error {
	if err := c.s.outage(); err != nil {
		return slices.Repeat([]error{err}, len(hs))
	}
	return c.Caller.Renew(ctx, hs)
}

func (c *client) Release(ctx context.Context, h *core.Hold) error {
	if err := c.s.outage(); err != nil {
		return err
	}
	return c.Caller.Release(ctx, h)
}

func (c *client) Abandon(ctx context.Context, r *backend.Request) error {
	if err := c.s.outage(); err != nil {
		return err
	}
	return c.Caller.Abandon(ctx, r)
}

func (c *client) Inspect(ctx context.Context, name string) (backend.Info, error) {
	if err := c.s.outage(); err != nil {
		return backend.Info{}, err
	}
	return c.Caller.Inspect(ctx, name)
}

func (c *client) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		if err := c.s.outage(); err != nil {
			yield(backend.Info{}, err)
			return
		}
		c.Caller.List(ctx, prefix)(yield)
	}
}

func (c *client) Break(ctx context.Context, name string) error {
	if err := c.s.outage(); err != nil {
		return err
	}
	return c.Caller.Break(ctx, name)
}

func (c *client) Close() error { return nil }
