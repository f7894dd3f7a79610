package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// hung compares lock, renew and unlock with one node of five stopped to all healthy.
func hung(ctx context.Context, s *store, lib Library, at place, d time.Duration) (figures, error) {
	l, err := lib.open(ctx, at)
	if err != nil {
		return nil, err
	}
	defer l.close()
	m, err := l.mutex(ctx, "hung")
	if err != nil {
		return nil, err
	}
	if _, err := steps(ctx, m, 0); err != nil { // connections
		return nil, err
	}
	healthy, err := steps(ctx, m, d)
	if err != nil {
		return nil, err
	}
	node := s.servers[len(s.servers)-1]
	if err := node.Pause(); err != nil {
		return nil, err
	}
	ill, err := steps(ctx, m, d)
	if err := errors.Join(err, node.Resume()); err != nil {
		return nil, err
	}
	worst := 0.0
	for i := range healthy {
		worst = max(worst, ill[i]/healthy[i])
	}
	return figures{Slower: worst}, nil
}

// steps returns the p50 of lock, renew and unlock.
func steps(ctx context.Context, m measure.Mutex, d time.Duration) ([3]float64, error) {
	var took [3][]float64
	for began := time.Now(); len(took[0]) < 3 || time.Since(began) < d; {
		for i, step := range []func(context.Context) error{m.Lock, m.Renew, m.Unlock} {
			t := time.Now()
			if err := step(ctx); err != nil {
				return [3]float64{}, err
			}
			took[i] = append(took[i], time.Since(t).Seconds())
		}
	}
	var p50 [3]float64
	for i := range took {
		p50[i] = measure.Median(took[i])
	}
	return p50, nil
}

const holeTTL = 2 * time.Second

// blackHole holds n names through a proxy that then passes nothing on, and says by how much the
// holder that was told last of its loss was told before the next one's grant.
func blackHole(ctx context.Context, at place, n int) (figures, error) {
	ctx, cancel := context.WithTimeout(ctx, orderMost)
	defer cancel()
	proxy, err := faultproxy.New(at.Addrs[0])
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	dial := func(addr string) (*fencelock.Locker, error) {
		u := "redis://" + addr + "/0?prefix=" + at.Prefix + ":"
		return fencelock.Open(ctx, u, fencelock.WithTTL(holeTTL))
	}
	behind, err := dial(proxy.Addr())
	if err != nil {
		return nil, err
	}
	defer func() { proxy.Set(faultproxy.Mode{}); _ = behind.Close() }()
	before, err := dial(at.Addrs[0])
	if err != nil {
		return nil, err
	}
	defer before.Close()
	leases := make([]*fencelock.Lease, n)
	for i := range leases {
		if leases[i], err = behind.Mutex(fmt.Sprint("hole-", i)).Lock(ctx); err != nil {
			return nil, err
		}
	}
	proxy.Set(faultproxy.BlackHole)
	margins, errs := make([]float64, n), make([]error, n)
	var wg sync.WaitGroup
	for i, le := range leases {
		wg.Go(func() {
			told := make(chan time.Time, 1)
			go func() { <-le.Done(); told <- time.Now() }()
			next, err := before.Mutex(le.Name()).Lock(ctx)
			granted := time.Now()
			if err != nil {
				errs[i] = err
				return
			}
			margins[i] = float64(granted.Sub(<-told).Microseconds())
			errs[i] = next.Unlock(ctx)
		})
	}
	wg.Wait()
	worst := margins[0]
	for _, m := range margins {
		worst = min(worst, m)
	}
	return figures{Margin: worst}, errors.Join(errs...)
}
