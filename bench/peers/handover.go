package peers

import (
	"math/rand/v2"
	"time"
)

// A hand-over begins when the waiter has stood in the queue for so long: its watch or subscription is there. Each takes another time
// of that, so that none falls into step with a library that looks again and again.
const (
	settleLeast = 10 * time.Millisecond
	settleMost  = 60 * time.Millisecond // shorter than the 100 ms on which etcd serves some watches
)

// handOver passes a name from one process to the other and back, for d and at least twice.
func (f *fleet) handOver(d time.Duration) (figures, error) {
	holder, waiter := f.all[0], f.all[1]
	if _, err := holder.ask(order{Op: "lock"}); err != nil {
		return nil, err
	}
	var took []float64
	for began := time.Now(); len(took) < 2 || time.Since(began) < d; {
		if err := waiter.send(order{Op: "lock"}); err != nil {
			return nil, err
		}
		<-time.After(settleLeast + rand.N(settleMost-settleLeast))
		freed, err := holder.ask(order{Op: "unlock"})
		if err != nil {
			return nil, err
		}
		granted, err := waiter.receive()
		if err != nil {
			return nil, err
		}
		took = append(took, float64(granted.When-freed.When)/1e3)
		holder, waiter = waiter, holder
	}
	_, err := holder.ask(order{Op: "unlock"})
	return figures{P50: median(took)}, err
}
