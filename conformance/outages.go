package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

func serverRestarts(ctx context.Context, e *Env) error {
	s := e.h.Server
	for _, lose := range []func() error{nil, s.Wipe} {
		a, b := must2(e.Two(ctx, fencelock.WithTTL(max(15*time.Second, 5*e.TTL()))))
		name := must(e.unraised(ctx, a))
		le := must(try(ctx, a, name, "a free lock"))
		check(restart(s, lose))
		kept := s.KeepsData() && lose == nil
		if kept {
			check(sleep(ctx, 2*e.TTL()))
			check(live(le, "a restart with all data"))
			check(held(ctx, b, name, "after a restart with all data"))
			check(unlock(ctx, le, "after a restart with all data"))
		} else if _, err := ended(ctx, le, cmp.Or(e.traits.Revoked, ample)+5*time.Second+e.Slack()); err != nil {
			return fmt.Errorf("a restart without the data: %w", err)
		}
		// Either way the lock works on, with a higher token.
		r := must(granted(ctx, locking(ctx, b, name), 10*time.Second, "after the restart"))
		check(e.above(r.lease.Token(), le.Token(), fmt.Sprintf("after a restart (data lost: %v)", !kept)))
		check(unlock(ctx, r.lease, "after the restart"))
	}
	return nil
}

// unraised returns a name whose tokens no floor has moved ahead of the clock. Names share their source with a few
// others, and a floor that another rule has asked of one of those is lost with the data.
func (e *Env) unraised(ctx context.Context, l *fencelock.Locker) (string, error) {
	for range 10 {
		name := e.Name()
		token, err := cycle(ctx, l, name, "before")
		if err != nil || token < time.Now().Add(time.Minute).UnixMicro() {
			return name, err
		}
	}
	return "", errors.New("the tokens of ten names are all ahead of the clock")
}

// restart kills the server and starts it again. meanwhile, if there is one, is called in between.
func restart(s Server, meanwhile func() error) error {
	err := s.Kill()
	if err == nil && meanwhile != nil {
		err = meanwhile()
	}
	return errors.Join(err, s.Start())
}

func waiterCutOff(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	ttl := 2 * e.TTL() // of the waiter, whose place and session may end while it is cut off
	b, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
	c := must(e.Open(ctx))
	name := e.Name()
	le, line := lined(ctx, a, name, b)
	waiter := line[0]
	link.Set(blackHole)
	check(sleep(ctx, 2*ttl))
	link.Set(passAll)
	link.Cut()
	told := false
	select {
	case r := <-waiter:
		if r.err == nil {
			return errors.New("a waiter that was cut off was granted a lock that another holds")
		}
		told = true // an error is allowed
	case <-time.After(ttl):
	}
	check(live(le, "the holder"))
	check(unlock(ctx, le, "the holder"))
	var lease *fencelock.Lease
	if !told {
		select {
		case r := <-waiter:
			lease = r.lease
		case <-time.After(5*time.Second + e.traits.DeadWaiter + ttl + e.Slack()):
			return errors.New("the waiter that was cut off got neither the lock nor an error")
		}
	}
	if lease != nil {
		check(held(ctx, c, name, "granted to the waiter that was cut off"))
		return unlock(ctx, lease, "the waiter that was cut off")
	}
	r := must(granted(ctx, locking(ctx, c, name), e.traits.DeadWaiter+time.Second+e.Slack(),
		"the next, after a waiter that was cut off"))
	return unlock(ctx, r.lease, "the next")
}
