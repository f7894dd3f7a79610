package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// hostileFloors are rules K7: floors at the end of the number space.
var hostileFloors = []Rule{
	{
		Name: "K7", What: "a floor far ahead of the numbers in use is refused and spends nothing",
		Why:   "One bad number from one resource would leave the other names of the store without tokens for good.",
		Trait: noTokens, Check: farFloorsRefused,
	},
}

// farFloor is further ahead of the numbers in use than a floor may be.
const farFloor = 2 * backend.FloorAhead

func farFloorsRefused(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	t := must(cycle(ctx, a, name, "a round"))
	near := max(t, time.Now().UnixMicro()) // wherever the store's own number is between the two
	for _, floor := range []fencelock.Token{near + farFloor, 1<<53 - 2} {
		bad := fencelock.WithFloor(floor)
		if err := refusedFloor(ctx, a, b, name, bad); err != nil {
			return fmt.Errorf("a floor of %d after the token %d: %w", floor, t, err)
		}
		for i := range 20 {
			other := name
			if i > 0 {
				other = e.Name()
			}
			got := must(cycle(ctx, b, other, "after a floor that was refused"))
			if got >= near+farFloor {
				return fmt.Errorf("token of another name after a floor of %d was refused: "+
					"got %d, want one near %d", floor, got, near)
			}
		}
	}
	return nil
}

// refusedFloor asks with a floor that is too far ahead: for a free lock, and for one that another
// client releases meanwhile.
func refusedFloor(ctx context.Context, a, b *fencelock.Locker, name string, bad fencelock.Option) error {
	if le, err := a.Mutex(name, bad).TryLock(ctx); err == nil {
		_ = le.Unlock(ctx)
		return fmt.Errorf("TryLock: got a lease with the token %d, want ErrInvalid", le.Token())
	} else if err := want(err, fencelock.ErrInvalid, "TryLock"); err != nil {
		return err
	}
	holder, err := try(ctx, b, name, "after a TryLock that was refused")
	if err != nil {
		return err
	}
	waiter := locking(ctx, a, name, bad)
	// for it to queue, if the store refuses only what it would grant
	if err := sleep(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	if err := unlock(ctx, holder, "the holder before it"); err != nil {
		return err
	}
	r := <-waiter
	if r.err == nil {
		_ = r.lease.Unlock(ctx)
		return fmt.Errorf("Lock: got a lease with the token %d, want ErrInvalid", r.lease.Token())
	}
	return want(r.err, fencelock.ErrInvalid, "Lock")
}
