package natskv

import (
	"context"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// atOnce is how many holds of one batch are under way at once.
const atOnce = 32

// Renew implements backend.Driver: one publish for each hold, many at once.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return each(hs, func(h *backend.Hold) error {
		return d.change(ctx, h.Name, false, func(rec *record, c clock) (bool, error) {
			if !rec.holds(h.Nonce, c.now()) {
				return false, backend.ErrLost
			}
			rec.Holder.Since, rec.Holder.Keep = 0, (h.TTL + h.Grace).Microseconds()
			return true, nil
		})
	})
}

// Check implements backend.Checker.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	return each(hs, func(h *backend.Hold) error {
		rec, now, err := d.look(ctx, h.Name)
		if err == nil && !rec.holds(h.Nonce, now) {
			err = backend.ErrLost
		}
		return err
	})
}

func each(hs []*backend.Hold, do func(*backend.Hold) error) []error {
	errs := make([]error, len(hs))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, h := range hs {
		places <- struct{}{}
		wg.Go(func() {
			errs[i] = do(h)
			<-places
		})
	}
	wg.Wait()
	return errs
}

// Release implements backend.Driver. What it publishes wakes the first in the queue.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	return d.change(ctx, h.Name, false, func(rec *record, c clock) (bool, error) {
		if rec.holds(h.Nonce, c.now()) {
			rec.Holder = nil
			rec.end(h.Nonce, true)
			return true, nil
		}
		if e := rec.outcome(h.Nonce); e != nil && e.Released {
			return false, nil
		}
		return false, backend.ErrLost
	})
}

// Abandon implements backend.Driver. The record remembers it for a request of the same nonce that is still under way.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	return d.change(ctx, r.Name, false, func(rec *record, _ clock) (bool, error) {
		if rec.outcome(r.Nonce) != nil {
			return false, nil
		}
		if rec.Holder != nil && rec.Holder.Nonce == r.Nonce {
			rec.Holder = nil
		}
		rec.leave(r.Nonce)
		rec.end(r.Nonce, false)
		return true, nil
	})
}

// Break implements backend.Driver.
func (d *Driver) Break(ctx context.Context, name string) error {
	return d.change(ctx, name, false, func(rec *record, _ clock) (bool, error) {
		if rec.Holder == nil {
			return false, nil
		}
		rec.end(rec.Holder.Nonce, false)
		rec.Holder = nil
		return true, nil
	})
}
