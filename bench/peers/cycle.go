package peers

import (
	"context"
	"fmt"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// cycles locks and unlocks for d, each goroutine a name of its own.
func cycles(ctx context.Context, all []mutex, d time.Duration, requests func() int64) (figures, error) {
	ctx, cancel := context.WithTimeout(ctx, d+orderMost)
	defer cancel()
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	asked, allocs, cpu := requests(), allocated(), cpuTime()
	began := time.Now()
	for _, m := range all {
		wg.Go(func() {
			for first := true; first || time.Since(began) < d; first = false {
				err := m.lock(ctx)
				if err == nil {
					err = m.unlock(ctx)
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	done := float64(n.Load())
	return figures{
		Rate: done / took.Seconds(), Allocs: float64(allocated()-allocs) / done, CPU: float64(cpuTime()-cpu) / done / 1e3,
		Requests: float64(requests()-asked) / done,
	}, nil
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// mutexes returns one for each of n names.
func mutexes(ctx context.Context, l locker, n int) ([]mutex, error) {
	all := make([]mutex, n)
	for i := range all {
		var err error
		if all[i], err = l.mutex(ctx, fmt.Sprint("free-", i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}
