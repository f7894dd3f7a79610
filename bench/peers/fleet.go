package peers

import (
	"context"
	"net/rpc"
	"time"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// fleet is the processes of one library that want one name.
type fleet struct{ all []*child }

func startFleet(processes int, o Order) (*fleet, error) {
	f := &fleet{}
	o.Name = "contended"
	for range processes {
		c, err := start(o)
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

// contend lets all processes at the name, or at new names.
func (f *fleet) contend(o Order, requests measure.Counter) (figures, error) {
	spent := measure.Meter(requests)
	samples, calls := make([]measure.Sample, len(f.all)), make([]*rpc.Call, len(f.all))
	for i, c := range f.all {
		calls[i] = c.begin("Crowd", o, &samples[i])
	}
	for i, c := range f.all {
		if err := c.result(calls[i]); err != nil {
			return nil, err
		}
	}
	s := measure.Merge(samples...)
	return figures{
		Rate: s.Rate(), Fair: s.Fairness(), Stuck: float64(s.Stuck),
		P50: s.Latency.Micros(50), P99: s.Latency.Micros(99), Longest: s.Latency.Micros(100),
		Requests: max(0, spent().Requests) / max(1, s.Ops()+float64(s.Late)),
	}, nil
}

// handOver passes the name from one process to the other and back.
func (f *fleet) handOver(ctx context.Context, d time.Duration) (figures, error) {
	s, err := measure.HandOver(ctx, f.all[0], f.all[1], d)
	return figures{P50: s.Latency.Micros(50)}, err
}

// holding lets a process hold n locks for d and says what that costs it, beside what it costs to be
// there.
func (f *fleet) holding(n int, d time.Duration, requests measure.Counter) (figures, error) {
	c := f.all[0]
	var idle, began, ended Use
	err := c.call("Meter", true, &idle)
	if err == nil {
		err = c.call("Hold", n, &struct{}{})
	}
	if err == nil {
		err = c.call("Meter", false, &began)
	}
	if err != nil {
		return nil, err
	}
	spent := measure.Meter(requests)
	<-time.After(d)
	asked := max(0, spent().Requests)
	if err := c.call("Meter", true, &ended); err != nil {
		return nil, err
	}
	return figures{
		CPU:        (ended.CPU - began.CPU).Seconds(),
		Bytes:      float64(max(ended.Bytes, idle.Bytes+1) - idle.Bytes),
		Goroutines: float64(ended.Goroutines - idle.Goroutines),
		Requests:   asked / d.Seconds(),
	}, nil
}

// cycles locks and unlocks for d, each goroutine a name of its own.
func cycles(
	ctx context.Context, all []measure.Mutex, d time.Duration, requests measure.Counter,
) (figures, error) {
	ctx, cancel := context.WithTimeout(ctx, d+orderMost)
	defer cancel()
	s, err := measure.Crowd(ctx, all, measure.Load{For: d, Requests: requests})
	if err != nil {
		return nil, err
	}
	return figures{
		Rate: s.Rate(), P50: s.Latency.Micros(50),
		Allocs: s.Allocs / s.Ops(), CPU: s.CPU / s.Ops(),
		Requests: max(0, s.Requests) / s.Ops(),
	}, nil
}
