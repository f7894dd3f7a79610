package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// hostileNodes are rules K1: the holder's own node hangs or is cut off together with it.
var hostileNodes = []Rule{
	{
		Name: "K1", What: "the member that a holder is connected to hangs with it, just after a renewal",
		Why:   "A member may confirm what those that go on have not heard of, and they free the lock too soon.",
		Needs: Needs{Member: true}, Alone: true, Check: memberHangs,
	},
}

func memberHangs(ctx context.Context, e *Env) error {
	b := must(e.Open(ctx, e.kept()))
	link, member, err := e.h.Member(ctx)
	if err != nil {
		return fmt.Errorf("a way to one member: %w", err)
	}
	e.onClose(link.Close)
	for i := range e.count(3, 5, 10) {
		// Another client each time: what it does not know yet is part of it.
		a := must(e.open(ctx, Client{Prefix: e.prefix, Link: link}, e.kept()))
		if err := e.memberHangs(ctx, a, b, link, member); err != nil {
			return fmt.Errorf("trial %d: %w", i+1, err)
		}
	}
	return nil
}

// memberHangs lets a hold and b wait, and takes the member away.
func (e *Env) memberHangs(ctx context.Context, a, b *fencelock.Locker, link Link, member Server) error {
	name := e.Name()
	le, err := try(ctx, a, name, "the holder")
	if err != nil {
		return err
	}
	ch := locking(ctx, b, name)
	if err := waiting(ctx, b, name, 1); err != nil {
		return err
	}
	for range 2 {
		if err := renewed(ctx, le); err != nil {
			return err
		}
	}
	link.Set(blackHole)
	if err := member.Pause(); err != nil {
		return err
	}
	var r result
	select {
	case <-le.Done():
		r, err = granted(ctx, ch, e.Kept()+e.Slack()+10*time.Second, "the waiter")
	case r = <-ch:
		if err = r.err; err == nil {
			err = fmt.Errorf("another client had the lock (token %d) %v before the holder's Deadline",
				r.lease.Token(), time.Until(le.Deadline()))
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	err = errors.Join(err, member.Resume())
	link.Cut()
	link.Set(passAll)
	if err != nil {
		return err
	}
	return unlock(ctx, r.lease, "the waiter")
}

// renewed returns just after the next renewal.
func renewed(ctx context.Context, le *fencelock.Lease) error {
	for old := le.Deadline(); le.Deadline().Equal(old); {
		if err := le.Err(); err != nil {
			return fmt.Errorf("while it waits for a renewal: %w", err)
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
