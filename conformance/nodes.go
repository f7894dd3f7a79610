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
		Why:   "A member may confirm a renewal that the others have not heard of, and they free the lock too soon.",
		Needs: Needs{Member: true}, Alone: true, Check: memberHangs,
	},
}

func memberHangs(ctx context.Context, e *Env) error {
	b := must(e.Open(ctx, e.kept()))
	link, member := must2(e.h.Member(ctx))
	e.onClose(link.Close)
	for i := range e.count(3, 5, 10) {
		// Another client each time, which has learnt nothing from the trial before.
		a := must(e.open(ctx, Client{Prefix: e.prefix, Link: link}, e.kept()))
		part(fmt.Sprintf("trial %d", i+1), func() error { return e.memberHangs(ctx, a, b, link, member) })
	}
	return nil
}

// memberHangs lets a hold and b wait, and takes the member away.
func (e *Env) memberHangs(ctx context.Context, a, b *fencelock.Locker, link Link, member Server) error {
	le, line := lined(ctx, a, e.Name(), b)
	ch := line[0]
	for range 2 {
		check(renewed(ctx, le))
	}
	link.Set(blackHole)
	check(member.Pause())
	var r result
	var err error
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
	check(err)
	return unlock(ctx, r.lease, "the waiter")
}

// renewed returns just after the next renewal.
func renewed(ctx context.Context, le *fencelock.Lease) error {
	for old := le.Deadline(); le.Deadline().Equal(old); {
		check(live(le, "while it waits for a renewal"))
		check(sleep(ctx, time.Millisecond))
	}
	return nil
}
