package measure

import (
	"encoding/json"
	"runtime/metrics"
	"slices"
	"strconv"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// A Sample is the result of one round of one side.
type Sample struct {
	Each    []int64 // cycles or grants of each goroutine
	Late    int64   // grants after the time: Load.Drain
	Stuck   int64   // goroutines that were still waiting at the end
	Elapsed time.Duration
	Latency *Latency
	Spent
}

// NewSample returns an empty sample of a number of goroutines.
func NewSample(goroutines int) Sample {
	return Sample{Each: make([]int64, goroutines), Latency: &Latency{kept: hdr.New(1, longestKept, 2)}}
}

// Merge adds up samples of the same round.
func Merge(all ...Sample) Sample {
	sum := NewSample(0)
	for _, s := range all {
		sum.Each = append(sum.Each, s.Each...)
		sum.Late += s.Late
		sum.Stuck += s.Stuck
		sum.Elapsed = max(sum.Elapsed, s.Elapsed)
		sum.Latency.Merge(s.Latency)
	}
	return sum
}

// Ops is the number of cycles or grants of all goroutines.
func (s Sample) Ops() float64 {
	sum := int64(0)
	for _, n := range s.Each {
		sum += n
	}
	return float64(sum)
}

// Rate is Ops a second.
func (s Sample) Rate() float64 { return s.Ops() / s.Elapsed.Seconds() }

// Fairness is the index of Jain, Chiu and Hawe (DEC-TR-301, 1984): 1 if all have the same, 1/n if
// one has all.
func (s Sample) Fairness() float64 {
	squares := 0.0
	for _, n := range s.Each {
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0
	}
	return s.Ops() * s.Ops() / (float64(len(s.Each)) * squares)
}

// longestKept bounds a histogram. A longer time counts as this one.
const longestKept = int64(10 * time.Minute)

// Latency keeps two digits: percentiles are right to one percent. The longest time is exact. Each
// goroutine has a Latency, so it must be small. It can be sent as JSON.
type Latency struct {
	kept    *hdr.Histogram // ns
	longest int64
}

// Note adds a time.
func (l *Latency) Note(d time.Duration) {
	l.longest = max(l.longest, int64(d))
	_ = l.kept.RecordValue(min(int64(d), longestKept)) // within what it was made for
}

// Merge adds the times of another Latency.
func (l *Latency) Merge(other *Latency) {
	l.longest = max(l.longest, other.longest)
	l.kept.Merge(other.kept)
}

// Micros is a percentile in microseconds; 100 is the longest time. A bucket may end beyond the longest time.
func (l *Latency) Micros(percentile float64) float64 {
	if percentile == 100 {
		return float64(l.longest) / 1e3
	}
	return float64(min(l.kept.ValueAtQuantile(percentile), l.longest)) / 1e3
}

type latencyJSON struct {
	Kept    *hdr.Snapshot
	Longest int64
}

// MarshalJSON implements json.Marshaler.
func (l *Latency) MarshalJSON() ([]byte, error) {
	return json.Marshal(latencyJSON{l.kept.Export(), l.longest})
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Latency) UnmarshalJSON(b []byte) error {
	var from latencyJSON
	if err := json.Unmarshal(b, &from); err != nil {
		return err
	}
	l.kept, l.longest = hdr.Import(from.Kept), from.Longest
	return nil
}

// Spent is the cost of a round. An unknown figure is below 0.
type Spent struct {
	Allocs   float64 // objects of this process
	CPU      float64 // µs of this process, user and system
	Requests float64 // of the server, of all its clients
}

// A Counter returns how many requests a server has served so far; false if it is not known. A nil Counter
// knows nothing.
type Counter func() (int64, bool)

func (c Counter) read() (int64, bool) {
	if c == nil {
		return 0, false
	}
	return c()
}

// Meter starts counting, and returns a function that returns the cost since then.
func Meter(c Counter) func() Spent {
	asked, told := c.read()
	objects := allocated()
	cpu, known := CPUTime()
	return func() Spent {
		s := Spent{CPU: -1, Requests: -1}
		if now, ok := CPUTime(); ok && known {
			s.CPU = float64((now - cpu).Nanoseconds()) / 1e3
		}
		s.Allocs = float64(allocated() - objects)
		if now, ok := c.read(); ok && told {
			s.Requests = float64(now - asked)
		}
		return s
	}
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// Median returns the median of values, or the mean of the middle two. values must not be empty.
func Median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Figure shows three digits.
func Figure(v float64) string {
	show := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	switch {
	case v >= 1e7:
		return show(v/1e6, 0) + "M"
	case v >= 1e4:
		return show(v/1e3, 1) + "k"
	case v >= 100:
		return show(v, 0)
	case v >= 10:
		return show(v, 1)
	}
	return show(v, 2)
}
