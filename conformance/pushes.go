package conformance

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fencelock/fencelock"
)

// hostilePushes are rules K8: a push channel that dies with several names waited for.
var hostilePushes = []Rule{
	{
		Name: "K8", What: "after its connections were cut with several names waited for, a process is woken as before",
		Why: "A subscription that comes back for one name only, or not at all, makes every " +
			"later hand-over wait for a timer.",
		Needs: Needs{Wire: true}, Check: pushesComeBack,
	},
}

func pushesComeBack(ctx context.Context, e *Env) error {
	const names = 3
	a := must(e.Open(ctx))
	b, link := must2(e.OpenThrough(ctx))
	name := e.Name()
	for round := range 3 {
		var held [names]*fencelock.Lease
		var waits [names]<-chan result
		for i := range names {
			held[i] = must(try(ctx, a, name+strconv.Itoa(i), "a free lock"))
			waits[i] = locking(ctx, b, held[i].Name())
			check(waiting(ctx, a, held[i].Name(), 1))
		}
		most := time.Second + e.Slack()
		if round == 1 { // what is pushed now is lost, and a timer makes up for it
			link.Cut()
			most = 5*time.Second + e.traits.DeadWaiter + e.Slack()
		}
		for i := range names {
			check(unlock(ctx, held[i], "the holder"))
			r := must(granted(
				ctx, waits[i], most,
				fmt.Sprintf("round %d (the cut is in 2), waiter %d", round+1, i+1),
			))
			check(unlock(ctx, r.lease, "the waiter"))
		}
	}
	return nil
}
