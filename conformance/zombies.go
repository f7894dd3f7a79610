package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
)

// tokenOfTheGrant checks that a token comes with its grant: one that is read by a second
// request, when the lock was lost in between, is the next holder's.
func (e *Env) tokenOfTheGrant(ctx context.Context) error {
	link, err := e.Link(ctx)
	if err != nil {
		return err
	}
	d, err := e.h.Driver(ctx, Client{Prefix: e.prefix, Link: link})
	if err != nil {
		return fmt.Errorf("a new client: %w", err)
	}
	e.onClose(d.Close)
	b, err := e.Open(ctx)
	if err != nil {
		return err
	}
	first := e.Request(e.Name(), false)
	g, err := d.Acquire(ctx, first) // it is connected, and a held reply is that of the grant
	if err != nil {
		return fmt.Errorf("Acquire: %w", err)
	}
	if err := d.Release(ctx, &backend.Hold{Request: first, Grant: g}); err != nil {
		return fmt.Errorf("Release: %w", err)
	}
	r := e.Request(first.Name, false) // of a store of several nodes, it is at the same one
	r.TTL = 10 * e.TTL()
	m := passAll
	m.HoldReplies = true
	link.Set(m)
	late := make(chan error, 1)
	go func() {
		var err error
		g, err = d.Acquire(ctx, r)
		late <- err
	}()
	if err := until(ctx, time.Second+e.Slack(), "the grant whose reply is held", func() (bool, error) {
		info, err := b.Inspect(ctx, r.Name)
		return info.Held, err
	}); err != nil {
		return err
	}
	if err := b.Break(ctx, r.Name); err != nil {
		return err
	}
	next, err := try(ctx, b, r.Name, "after Break")
	if err != nil {
		return err
	}
	link.Set(passAll)
	if err := <-late; err == nil && g.Token >= next.Token() {
		return fmt.Errorf("a grant that was lost before its reply came: its token is %d, the next holder's %d", g.Token, next.Token())
	}
	return unlock(ctx, next, "the next")
}

func guardRefuses(ctx context.Context, e *Env) error {
	l, err := e.Open(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	var ts []fencelock.Token
	for range 8 {
		t, err := cycle(ctx, l, name, "a round")
		if err != nil {
			return err
		}
		ts = append(ts, t)
	}
	// Writers with all these tokens at once: the values that are accepted never go back.
	var guard fence.Memory
	written := fencelock.Token(0)
	var wg sync.WaitGroup
	errs := make(chan error, 100*len(ts))
	for _, t := range ts {
		wg.Go(func() {
			for range 100 {
				err := guard.Do(ctx, name, t, func() error {
					if t < written {
						return fmt.Errorf("token %d was let through after %d", t, written)
					}
					written = t
					return nil
				})
				if err != nil && !errors.Is(err, fencelock.ErrStale) {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		return err
	}
	last := ts[len(ts)-1]
	if err := guard.Check(ctx, name, last); err != nil {
		return fmt.Errorf("the newest token again: got %w, want nil", err)
	}
	var stale *fencelock.StaleError
	if err := guard.Check(ctx, name, ts[0]); !errors.As(err, &stale) || stale.Max != last {
		return fmt.Errorf("the oldest token: got %v, want a StaleError with Max %d", err, last)
	}
	return nil
}

func zombieWriter(ctx context.Context, e *Env) error {
	p, err := e.Process(ctx)
	if err != nil {
		return err
	}
	b, err := e.Open(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	var guard fence.Memory // of a resource in this process, to which the holder's writes come
	old, err := p.Lock(ctx, name, e.TTL())
	if err != nil {
		return err
	}
	if err := guard.Check(ctx, name, old); err != nil {
		return fmt.Errorf("the first holder's write: %w", err)
	}
	if err := p.Stop(); err != nil {
		return err
	}
	r, err := granted(ctx, locking(ctx, b, name), 2*e.TTL()+time.Second+e.Slack(), "the next")
	if err != nil {
		return err
	}
	if err := guard.Check(ctx, name, r.lease.Token()); err != nil {
		return fmt.Errorf("the next holder's write: %w", err)
	}
	if err := p.Continue(); err != nil {
		return err
	}
	if err := want(guard.Check(ctx, name, old), fencelock.ErrStale, "the resumed holder's write"); err != nil {
		return err
	}
	// Its late Unlock frees nobody.
	if _, err := p.Ask(ctx, "unlock", name); err == nil || !strings.Contains(err.Error(), backend.ErrLost.Error()) {
		return fmt.Errorf("the resumed holder's Unlock: got %v, want a loss", err)
	}
	if err := held(ctx, b, name, "after the resumed holder's Unlock"); err != nil {
		return err
	}
	return unlock(ctx, r.lease, "the next")
}
