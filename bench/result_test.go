package bench

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// A ratio is that of the medians, and its spread that of the rounds.
func TestResult(t *testing.T) {
	round := func(ops int64) measure.Sample {
		s := measure.NewSample(1)
		s.Latency.Note(time.Millisecond)
		s.Each[0], s.Elapsed = ops, time.Second
		s.Spent = measure.Spent{Allocs: float64(10 * ops), Requests: float64(2 * ops), CPU: -1}
		return s
	}
	b := &bed{label: "x"}
	r := b.result(Case{Op: Cycle, Goroutines: 1}, rounds{
		ours:   []measure.Sample{round(100), round(300), round(200)},
		theirs: []measure.Sample{round(100), round(200), round(400)},
	}, 4)
	if r.Rate != 200 || *r.RawRate != 200 || *r.Ratio != 1 || *r.RatioLow != 0.5 || *r.RatioHigh != 1.5 {
		t.Errorf("got the rates %v and %v and the ratio %v (%v to %v), want 200, 200, 1 (0.5 to 1.5)",
			r.Rate, *r.RawRate, *r.Ratio, *r.RatioLow, *r.RatioHigh)
	}
	if *r.AllocsPerOp != 10 || *r.CommandsPerOp != 2 || r.CPUPerOp != nil || !r.Partial || len(r.Notes) != 1 {
		t.Errorf("got %+v, want 10 allocations, 2 commands, no CPU, a note on that, and partial", r)
	}
}
