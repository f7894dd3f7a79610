package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

func grace(ctx context.Context, e *Env) error {
	b, err := e.Open(ctx)
	if err != nil {
		return err
	}
	for _, renewed := range []bool{false, true} {
		if err := e.graceOnce(ctx, b, renewed); err != nil {
			return err
		}
	}
	// An Unlock and a Break free it without grace.
	a, err := e.Open(ctx, e.short(), fencelock.WithGrace(e.TTL()))
	if err != nil {
		return err
	}
	name := e.Name()
	le, err := try(ctx, a, name, "a free lock")
	if err != nil {
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	next, err := try(ctx, b, name, "after an Unlock under WithGrace")
	if err != nil {
		return err
	}
	if err := unlock(ctx, next, "the next"); err != nil {
		return err
	}
	if _, err = try(ctx, a, name, "a free lock"); err != nil {
		return err
	}
	if err := b.Break(ctx, name); err != nil {
		return fmt.Errorf("Break: got %w, want nil", err)
	}
	r, err := granted(ctx, locking(ctx, b, name), e.TTL()/2+e.Slack(), "the next, after a Break under WithGrace")
	if err != nil {
		return err
	}
	return unlock(ctx, r.lease, "the next, after a Break under WithGrace")
}

// graceOnce lets a lease with a grace be lost, which was renewed before or not, while b waits for its lock.
func (e *Env) graceOnce(ctx context.Context, b *fencelock.Locker, renewed bool) error {
	delay := e.TTL()
	// By hand: a renewal on its way would set the expiry anew.
	a, link, err := e.OpenThrough(ctx, e.short(), fencelock.WithGrace(delay), fencelock.WithManualRenew())
	if err != nil {
		return err
	}
	name := e.Name()
	le, err := try(ctx, a, name, "a free lock")
	if err != nil {
		return err
	}
	if renewed {
		if err := le.Renew(ctx); err != nil {
			return fmt.Errorf("Renew: got %w, want nil", err)
		}
	}
	next := locking(ctx, b, name)
	link.Set(blackHole)
	if _, err := ended(ctx, le, e.TTL()+e.Slack()); err != nil {
		return err
	}
	if !e.traits.LeasePerConn { // a cut connection would end that lease for good, and with it its grace
		link.Cut()
		link.Set(passAll) // the old holder's clean-up must respect the grace too
	}
	r, err := granted(ctx, next, delay+e.TTL()+time.Second+e.Slack(), "the next")
	if err != nil {
		return err
	}
	if got := r.at.Sub(le.Deadline()); got < delay-e.traits.Resolution {
		return fmt.Errorf("granted %v after the old holder's Deadline (renewed before: %v), "+
			"want at least the grace, %v", got, renewed, delay)
	}
	link.Cut()
	link.Set(passAll)
	return unlock(ctx, r.lease, "the next")
}

func ownTTL(ctx context.Context, e *Env) error {
	a, err := e.Open(ctx, fencelock.WithManualRenew())
	if err != nil {
		return err
	}
	name := e.Name()
	long, err := try(ctx, a, name, "a free lock", fencelock.WithTTL(10*e.TTL()))
	if err != nil {
		return err
	}
	short, err := try(ctx, a, e.Name(), "a free lock", e.short())
	if err != nil {
		return err
	}
	if _, err := ended(ctx, short, e.TTL()+e.Slack()); err != nil {
		return fmt.Errorf("the short lease: %w", err)
	}
	if err := sleep(ctx, e.TTL()/2); err != nil {
		return err
	}
	if err := long.Err(); err != nil {
		return fmt.Errorf("the long lease: got %w, want it held", err)
	}
	b, err := e.Open(ctx)
	if err != nil {
		return err
	}
	if err := held(ctx, b, name, "the long lease"); err != nil {
		return err
	}
	return unlock(ctx, long, "the long lease")
}

func maxHold(ctx context.Context, e *Env) error {
	most := e.TTL() * 4 / 3
	for _, opts := range [][]fencelock.Option{nil, {fencelock.WithManualRenew()}} {
		// The TTL is so much longer that its expiry cannot pass for the freeing.
		a, b, err := e.Two(ctx, append(opts, fencelock.WithTTL(4*e.TTL()))...)
		if err != nil {
			return err
		}
		name := e.Name()
		began := time.Now()
		le, err := try(ctx, a, name, "a free lock", fencelock.WithMaxHold(most))
		if err != nil {
			return err
		}
		grantedBy := time.Now()
		next := locking(ctx, b, name)
		if len(opts) > 0 {
			if err := sleep(ctx, e.TTL()/2); err != nil {
				return err
			}
			if err := le.Renew(ctx); err != nil {
				return fmt.Errorf("Renew: got %w, want nil", err)
			}
		}
		told, err := ended(ctx, le, 2*e.TTL()+e.Slack())
		if err != nil {
			return err
		}
		if err := lostBy(le, "at the bound", fencelock.MaxHold); err != nil {
			return err
		}
		if le.Deadline().After(grantedBy.Add(most)) {
			return fmt.Errorf("the Deadline lies %v after the grant, want at most %v",
				le.Deadline().Sub(grantedBy), most)
		}
		if got := told.Sub(began); got < most/2 {
			return fmt.Errorf("ended after %v, want about %v", got, most)
		}
		r, err := granted(ctx, next, time.Second+e.Slack(), "the next, after the bound")
		if err != nil {
			return err
		}
		if err := unlock(ctx, r.lease, "the next"); err != nil {
			return err
		}
	}
	return nil
}

func minHold(ctx context.Context, e *Env) error {
	least := e.TTL()
	for _, w := range []struct {
		when   string
		closes bool
		ttl    time.Duration
		most   time.Duration
	}{
		// The TTL is so much longer that its expiry cannot pass for the freeing.
		{"after an Unlock", false, 4 * least, least + e.Slack()},
		{"after an Unlock and a Close", true, least, 2*least + time.Second + e.Slack()},
	} {
		a, b, err := e.Two(ctx, fencelock.WithTTL(w.ttl))
		if err != nil {
			return err
		}
		name := e.Name()
		began := time.Now()
		le, err := try(ctx, a, name, "a free lock", fencelock.WithMinHold(least))
		if err != nil {
			return err
		}
		by := time.Now()
		if err := unlock(ctx, le, "the first"); err != nil {
			return err
		}
		if w.closes {
			if err := a.Close(); err != nil {
				return fmt.Errorf("Close: got %w, want nil", err)
			}
		}
		if err := held(ctx, b, name, w.when); err != nil {
			return err
		}
		r, err := granted(ctx, locking(ctx, b, name), w.most, "the next, "+w.when)
		if err != nil {
			return err
		}
		if kept := r.at.Sub(began); kept < least-e.traits.Resolution-time.Millisecond {
			return fmt.Errorf("%s: kept others out for %v, want at least %v", w.when, kept, least)
		}
		took := r.at.Sub(by).Round(time.Millisecond)
		e.Notef("%s: kept others out for %v, of %v asked for", w.when, took, least)
		if err := unlock(ctx, r.lease, "the next"); err != nil {
			return err
		}
	}
	return nil
}

func acquireCtxEnds(ctx context.Context, e *Env) error {
	a, b, err := e.Two(ctx, e.kept())
	if err != nil {
		return err
	}
	name := e.Name()
	first, err := try(ctx, b, name, "a free lock")
	if err != nil {
		return err
	}
	acquire, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := locking(acquire, a, name)
	if err := waiting(ctx, b, name, 1); err != nil {
		return err
	}
	if err := unlock(ctx, first, "the first holder"); err != nil {
		return err
	}
	r, err := granted(ctx, ch, time.Second+e.Slack(), "the waiter")
	if err != nil {
		return err
	}
	cancel()
	if err := sleep(ctx, e.Kept()*3/2); err != nil {
		return err
	}
	if err := r.lease.Err(); err != nil {
		return fmt.Errorf("after the acquire ctx ended: got %w, want the lease held", err)
	}
	if err := held(ctx, b, name, "after the acquire ctx ended"); err != nil {
		return err
	}
	return unlock(ctx, r.lease, "the holder")
}

func lateGrant(ctx context.Context, e *Env) error {
	a, link, err := e.OpenThrough(ctx, e.short())
	if err != nil {
		return err
	}
	b, err := e.Open(ctx)
	if err != nil {
		return err
	}
	if _, err := cycle(ctx, a, e.Name(), "before"); err != nil { // a held first reply must be the grant
		return err
	}
	name := e.Name()
	m := passAll
	m.HoldReplies = true
	link.Set(m)
	late := trying(ctx, a, name)
	if err := sleep(ctx, e.TTL()+e.Slack()); err != nil {
		return err
	}
	link.Set(passAll)
	r := <-late
	if r.err == nil {
		left := r.lease.Deadline().Sub(r.at)
		alone := held(ctx, b, name, "handed out late")
		_ = r.lease.Unlock(ctx)
		if alone != nil {
			return alone
		}
		if left <= 0 {
			return fmt.Errorf("handed out %v after its own deadline", -left)
		}
		e.Notef("asked again: granted with %v left", left.Round(time.Millisecond))
	} else if err := want(r.err, fencelock.ErrUnavailable, "TryLock with a late reply"); err != nil {
		return err
	}
	// Given back, or undone: nothing is left.
	if err := until(ctx, time.Second+e.TTL()+e.Slack(), "the late grant is given back",
		freeFor(ctx, b, name)); err != nil {
		return err
	}
	return e.noGhost(ctx, a, b, link)
}
