package peers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const grabbers = 32 // goroutines that lock what is then held

// hold locks n names, which are renewed from then on.
func (w *worker) hold(ctx context.Context, n int) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range grabbers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n) && failed.Load() == nil; i = next.Add(1) {
				if err := w.l.hold(ctx, fmt.Sprint("held-", i)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// holding lets a process hold n locks for d and says what that costs it, beside what it costs to be there.
func (f *fleet) holding(n int, d time.Duration, requests func() int64) (figures, error) {
	c := f.all[0]
	idle, err := c.ask(order{Op: "meter"})
	if err == nil {
		_, err = c.ask(order{Op: "hold", N: n})
	}
	if err != nil {
		return nil, err
	}
	began, err := c.ask(order{Op: "meter"})
	if err != nil {
		return nil, err
	}
	before := requests()
	<-time.After(d)
	asked := requests() - before
	ended, err := c.ask(order{Op: "meter"})
	if err != nil {
		return nil, err
	}
	return figures{
		CPU:        (ended.Use.CPU - began.Use.CPU).Seconds(),
		Bytes:      float64(max(ended.Use.Bytes, idle.Use.Bytes+1) - idle.Use.Bytes),
		Goroutines: float64(ended.Use.Goroutines - idle.Use.Goroutines),
		Requests:   float64(asked) / d.Seconds(),
	}, nil
}
