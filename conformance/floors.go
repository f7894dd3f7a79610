package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// hostileFloors are rules K7: floors at the end of the number space.
var hostileFloors = []Rule{
	{
		Name: "K7", What: "a floor, or a guard's token, far ahead of the numbers in use is refused and spends nothing",
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
	guards := e.guards(ctx)
	for _, floor := range []fencelock.Token{near + farFloor, 1<<53 - 2} {
		for what, guard := range guards {
			check(want(guard.Check(ctx, name, floor), fencelock.ErrInvalid, what+", of a token far ahead"))
			check(want(guard.Check(ctx, name, t), nil, what+", of a holder after that"))
		}
		part(fmt.Sprintf("a floor of %d after the token %d", floor, t), func() error {
			return refusedFloor(ctx, a, b, name, fencelock.WithFloor(floor))
		})
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
	le, err := a.Mutex(name, bad).TryLock(ctx)
	check(errors.Join(want(err, fencelock.ErrInvalid, "TryLock"), unlockIf(ctx, le)))
	holder := must(try(ctx, b, name, "after a TryLock that was refused"))
	waiter := locking(ctx, a, name, bad)
	check(sleep(ctx, 100*time.Millisecond)) // it queues by then where the store judges a floor only when it grants
	check(unlock(ctx, holder, "the holder before it"))
	r := <-waiter
	return errors.Join(want(r.err, fencelock.ErrInvalid, "Lock"), unlockIf(ctx, r.lease))
}
