package bench

import (
	"testing"
	"time"
)

func TestJain(t *testing.T) {
	for _, tt := range []struct {
		shares []int64
		want   float64
	}{
		{[]int64{5, 5, 5, 5}, 1},
		{[]int64{8, 0, 0, 0}, 0.25},
		{[]int64{3, 1}, 0.8},
		{[]int64{0, 0}, 0},
	} {
		if got := jain(tt.shares); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.shares, got, tt.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

// Percentiles are right to one percent and never beyond the longest, which is exact. A round's figures are those of all its goroutines.
func TestPercentiles(t *testing.T) {
	one, two := newClerk(), newClerk()
	for i := range 50 {
		one.note(time.Duration(2*i+1) * time.Millisecond)
		two.note(time.Duration(2*i+2) * time.Millisecond)
	}
	s := gather([]*clerk{one, two})
	p50, p99, longest := percentiles([]sample{s})
	if p50 < 49_500 || p50 > 50_500 || p99 < 98_000 || p99 > 100_000 || longest != 100_000 || s.ops != 100 {
		t.Errorf("got p50 %v, p99 %v, max %v µs of %d, want 50,000, 99,000 and 100,000 of 100", p50, p99, longest, s.ops)
	}
}

// A ratio is that of the medians, and its spread that of the rounds.
func TestResult(t *testing.T) {
	round := func(ops int64) sample {
		c := newClerk()
		c.note(time.Millisecond)
		s := gather([]*clerk{c})
		s.ops, s.elapsed = ops, time.Second
		s.since(meter{cmdTold: true}, meter{allocs: 10 * ops, commands: 2 * ops, cmdTold: true})
		return s
	}
	b := &bed{label: "x"}
	r := b.result(Case{Op: Cycle, Goroutines: 1}, rounds{
		ours:   []sample{round(100), round(300), round(200)},
		theirs: []sample{round(100), round(200), round(400)},
	}, 4)
	if r.Rate != 200 || *r.RawRate != 200 || *r.Ratio != 1 || *r.RatioLow != 0.5 || *r.RatioHigh != 1.5 {
		t.Errorf("got the rates %v and %v and the ratio %v (%v to %v), want 200, 200, 1 (0.5 to 1.5)", r.Rate, *r.RawRate, *r.Ratio, *r.RatioLow, *r.RatioHigh)
	}
	if *r.AllocsPerOp != 10 || *r.CommandsPerOp != 2 || r.CPUPerOp != nil || !r.Partial || len(r.Notes) != 1 {
		t.Errorf("got %+v, want 10 allocations, 2 commands, no CPU, a note on that, and partial", r)
	}
}
