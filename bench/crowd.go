package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// cycles runs the cycle of each goroutine for d, and once at least. waits: the latency is from the call to the
// grant, otherwise to the end of the cycle. section is spent in the critical section, as work of the CPU.
func cycles(ctx context.Context, all []cycle, d, section time.Duration, waits bool, commands func() (int64, bool)) (sample, error) {
	clerks := make([]*clerk, len(all))
	for i := range clerks {
		clerks[i] = newClerk()
	}
	errs := make([]error, len(all))
	whole := ctx
	ctx, cancel := context.WithCancel(ctx) // the first error ends all: with a dead store they would wait one after the other
	defer cancel()
	var over atomic.Bool
	defer context.AfterFunc(ctx, func() { over.Store(true) })()
	var wg sync.WaitGroup
	before := readMeter(commands)
	began := time.Now()
	for i, do := range all {
		wg.Go(func() {
			c := clerks[i]
			var granted time.Time
			held := func() {
				granted = time.Now()
				for section > 0 && time.Since(granted) < section { // a sleep would be as long as the timers are coarse
				}
			}
			for {
				t := time.Now()
				if errs[i] = do(ctx, held); errs[i] != nil {
					cancel()
					return
				}
				end := time.Now()
				if waits {
					c.note(granted.Sub(t))
				} else {
					c.note(end.Sub(t))
				}
				if over.Load() || end.Sub(began) >= d {
					return
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	after := readMeter(commands)
	if whole.Err() != nil {
		return sample{}, whole.Err()
	}
	if err := first(errs); err != nil {
		return sample{}, err
	}
	s := gather(clerks)
	s.elapsed = elapsed
	s.since(before, after)
	return s, nil
}

// first returns the first error that is not of the end of what another one ended.
func first(errs []error) error {
	var some error
	for _, err := range errs {
		if err != nil && (some == nil || errors.Is(some, context.Canceled)) {
			some = err
		}
	}
	return some
}
