package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// undrainedMost is how many locks Undrained describes.
const undrainedMost = 100

// Undrained implements backend.Gater. What it reads is at least as new as the call. Once the gate stands, no multi that knows
// an older one is done, so no holder's node comes that it would not admit, and the reads need not be of one moment.
func (d *Driver) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	s, err := d.any(ctx)
	if err != nil {
		return nil, err
	}
	defer s.unuse()
	all, err := s.names(ctx, "")
	if err != nil {
		return nil, err
	}
	var moved []string
	for _, name := range all {
		if g.Scope.Moves(name) {
			moved = append(moved, name)
		}
	}
	var infos []backend.Info
	for len(moved) > 0 && len(infos) < undrainedMost {
		some := moved[:min(len(moved), maxLooks)]
		moved = moved[len(some):]
		found, errs := make([]*backend.Info, len(some)), make([]error, len(some))
		var wg sync.WaitGroup
		for i, name := range some {
			wg.Go(func() { found[i], errs[i] = s.outside(ctx, g, name) })
		}
		wg.Wait()
		for i, info := range found {
			if errs[i] != nil {
				return infos, errs[i]
			}
			if info != nil {
				infos = append(infos, *info)
			}
		}
	}
	return infos, nil
}

// outside describes a name that is held by somebody whom g would not admit; nil for any other.
func (s *session) outside(ctx context.Context, g backend.Gate, name string) (*backend.Info, error) {
	i, r, err := s.inspect(ctx, name)
	switch {
	case err != nil || !i.Held:
		return nil, err
	case r.both && g.Admits(r.move, backend.PhaseBoth), !r.both && g.Admits("", ""):
		return nil, nil
	}
	return &i, nil
}

// Source implements backend.Gater: the greatest of the counters.
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	s, err := d.any(ctx)
	if err != nil {
		return 0, err
	}
	defer s.unuse()
	if err := s.sync(ctx); err != nil {
		return 0, err
	}
	if err := d.eachBucket(func(b *bucket) error {
		err := b.read(ctx, s)
		if errors.Is(err, zk.ErrNoNode) { // no name has used it
			err = nil
		}
		return err
	}); err != nil {
		return 0, err
	}
	var most backend.Token
	for _, b := range d.buckets {
		most = max(most, b.state().last)
	}
	return most, nil
}

// eachBucket calls do for every counter, several at once, and returns one of its errors.
func (d *Driver) eachBucket(do func(*bucket) error) error {
	places := make(chan struct{}, maxLooks)
	errs := make([]error, len(d.buckets))
	var wg sync.WaitGroup
	for i, b := range d.buckets {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			errs[i] = do(b)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// RaiseHeld implements backend.Gater: one multi, unless others draw tokens of the same counter meanwhile.
func (d *Driver) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("the floor %d: want 0 to 2^53-2", floor)
	}
	e := d.find(h.Nonce)
	if e == nil || e.grant == nil || e.lapsed() {
		return backend.ErrLost
	}
	b := d.bucket(h.Name)
	for cuts := 0; ; {
		if err := b.load(ctx, e.s); err != nil {
			return ended(err)
		}
		now := b.state()
		t := max(now.last, floor)
		i, err := e.s.multi(ctx,
			&zk.CheckVersionRequest{Path: e.held, Version: -1},
			&zk.SetDataRequest{Path: b.path, Data: number(t), Version: now.version})
		if err == nil {
			b.set(draws{version: now.version + 1, last: t, next: t + 1})
			return nil
		}
		b.forget()
		switch {
		case i == 0 && errors.Is(err, zk.ErrNoNode):
			return backend.ErrLost
		case i == 1 && (errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)):
		case cutOff(err) && cuts == 0: // once more, on the next connection
			cuts++
		default:
			return ended(err)
		}
	}
}

// ended returns an error of a holder's session as its holder sees it.
func ended(err error) error {
	if errors.Is(err, errEnded) {
		return &backend.LostError{Reason: backend.SessionLost}
	}
	return err
}
