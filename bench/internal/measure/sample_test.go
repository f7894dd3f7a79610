package measure

import (
	"encoding/json"
	"testing"
	"time"
)

func TestFairness(t *testing.T) {
	for _, tt := range []struct {
		shares []int64
		want   float64
	}{
		{[]int64{5, 5, 5, 5}, 1},
		{[]int64{8, 0, 0, 0}, 0.25},
		{[]int64{3, 1}, 0.8},
		{[]int64{0, 0}, 0},
	} {
		if got := (Sample{Each: tt.shares}).Fairness(); got != tt.want {
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
		if got := Median(tt.values); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

// Percentiles are right to one percent and never beyond the longest, which is exact. A round's figures
// are those of all its goroutines, also of other processes.
func TestPercentiles(t *testing.T) {
	one, two := NewSample(1), NewSample(1)
	for i := range 50 {
		one.Latency.Note(time.Duration(2*i+1) * time.Millisecond)
		two.Latency.Note(time.Duration(2*i+2) * time.Millisecond)
	}
	one.Each[0], two.Each[0] = 50, 50
	b, err := json.Marshal(two)
	if err != nil {
		t.Fatal(err)
	}
	var travelled Sample
	if err := json.Unmarshal(b, &travelled); err != nil {
		t.Fatal(err)
	}
	s := Merge(one, travelled)
	p50, p99, longest := s.Latency.Micros(50), s.Latency.Micros(99), s.Latency.Micros(100)
	if p50 < 49_500 || p50 > 50_500 || p99 < 98_000 || p99 > 100_000 || longest != 100_000 {
		t.Errorf("got p50 %v, p99 %v, max %v µs, want 50,000, 99,000 and 100,000", p50, p99, longest)
	}
	if s.Ops() != 100 || len(s.Each) != 2 {
		t.Errorf("got %v of %d goroutines, want 100 of 2", s.Ops(), len(s.Each))
	}
}
