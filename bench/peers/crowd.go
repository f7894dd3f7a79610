package peers

import (
	"context"
	"slices"
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// crowd is what the goroutines of a process did with one name.
type crowd struct {
	Each    []int64       // grants of each goroutine within the time
	Drained int64         // grants after it, of those who were waiting then
	Stuck   int64         // who waited on and got no grant before the drain was over
	Waits   *hdr.Snapshot // ns, of all grants
}

// longest bounds a histogram; what took longer counts as that.
const longest = int64(10 * time.Minute)

func newHistogram() *hdr.Histogram { return hdr.New(1, longest, 2) }

// drainMost is how long a goroutine that waits when the time is over waits on, so that a queue is left in order.
const drainMost = 5 * time.Second

// gatherCrowd locks and unlocks for d.
func gatherCrowd(ctx context.Context, all []mutex, d, section time.Duration) (crowd, error) {
	ctx, cancel := context.WithTimeout(ctx, d+drainMost)
	defer cancel()
	c := crowd{Each: make([]int64, len(all))}
	waits := newHistogram()
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i, m := range all {
		wg.Go(func() {
			mine := newHistogram()
			late := int64(0)
			for asked := time.Now(); asked.Before(end); asked = time.Now() {
				err := m.lock(ctx)
				granted := time.Now()
				if err == nil {
					for section > 0 && time.Since(granted) < section { // work; a sleep is as long as timers are coarse
					}
					err = m.unlock(context.WithoutCancel(ctx))
				}
				if err != nil {
					mu.Lock()
					if ctx.Err() != nil {
						c.Stuck++
					} else {
						failed = err
					}
					mu.Unlock()
					break
				}
				_ = mine.RecordValue(min(int64(granted.Sub(asked)), longest)) // within what it was made for
				if granted.Before(end) {
					c.Each[i]++
				} else {
					late++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			c.Drained += late
			waits.Merge(mine)
		})
	}
	wg.Wait()
	c.Waits = waits.Export()
	return c, failed
}

// fleet is the processes of one library that want one name.
type fleet struct{ all []*child }

func startFleet(lib Library, at place, processes, goroutines int) (*fleet, error) {
	f := &fleet{}
	for range processes {
		c, err := start(lib, at, "contended", goroutines)
		if err != nil {
			f.close()
			return nil, err
		}
		f.all = append(f.all, c)
	}
	return f, nil
}

func (f *fleet) close() {
	for _, c := range f.all {
		_ = c.end() // it has answered all that was asked of it
	}
}

// contend lets all processes at the name for d.
func (f *fleet) contend(d, section time.Duration, requests func() int64) (figures, error) {
	before := requests()
	var failed error
	for _, c := range f.all {
		if err := c.send(order{Op: "crowd", For: d, Section: section}); err != nil {
			failed = err
		}
	}
	waits := newHistogram()
	var each []int64
	var drained, stuck int64
	for _, c := range f.all {
		if failed != nil {
			break
		}
		a, err := c.receive()
		if err != nil {
			failed = err
			break
		}
		each = append(each, a.Crowd.Each...)
		drained += a.Crowd.Drained
		stuck += a.Crowd.Stuck
		waits.Merge(hdr.Import(a.Crowd.Waits))
	}
	if failed != nil {
		return nil, failed
	}
	var sum int64
	for _, n := range each {
		sum += n
	}
	return figures{
		Rate: float64(sum) / d.Seconds(), Fair: jain(each), Stuck: float64(stuck), Requests: float64(requests()-before) / float64(max(1, sum+drained)),
		P50: float64(waits.ValueAtQuantile(50)) / 1e3, P99: float64(waits.ValueAtQuantile(99)) / 1e3,
	}, nil
}

// jain is the fairness index of Jain, Chiu and Hawe (DEC-TR-301, 1984): 1 if all have the same, 1/n if one has all.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// median of values, which is not empty.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
