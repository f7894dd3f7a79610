package bench

import (
	"runtime/metrics"
	"slices"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// A sample is what one side did in one round.
type sample struct {
	ops      int64
	elapsed  time.Duration
	latency  *hdr.Histogram // ns
	longest  time.Duration  // exact
	allocs   int64
	cpu      time.Duration
	commands int64
	// What cost could be told.
	knowsAllocs, knowsCPU, knowsCommands bool
	perGoroutine                         []int64
	held                                 float64 // leases times seconds; 0 for what is no holding
}

// longestKept bounds a histogram; what took longer counts as that.
const longestKept = int64(10 * time.Minute)

// newHistogram keeps two digits: percentiles are right to one percent. Each goroutine has one, so they must be small.
func newHistogram() *hdr.Histogram { return hdr.New(1, longestKept, 2) }

// clerk keeps the latencies of one goroutine.
type clerk struct {
	latency *hdr.Histogram
	longest time.Duration
	ops     int64
}

func newClerk() *clerk { return &clerk{latency: newHistogram()} }

func (c *clerk) note(d time.Duration) {
	c.ops++
	c.longest = max(c.longest, d)
	_ = c.latency.RecordValue(min(int64(d), longestKept)) // within what it was made for
}

// meter reads what the process has spent so far.
type meter struct {
	allocs   int64
	cpu      time.Duration
	cpuTold  bool
	commands int64
	cmdTold  bool
}

func readMeter(commands func() (int64, bool)) meter {
	var m meter
	if commands != nil {
		m.commands, m.cmdTold = commands()
	}
	of := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(of)
	m.allocs = int64(of[0].Value.Uint64())
	m.cpu, m.cpuTold = cpuTime()
	return m
}

// since sets what was spent from m until now.
func (s *sample) since(m, now meter) {
	s.allocs, s.knowsAllocs = now.allocs-m.allocs, true
	s.cpu, s.knowsCPU = now.cpu-m.cpu, now.cpuTold && m.cpuTold
	s.commands, s.knowsCommands = now.commands-m.commands, now.cmdTold && m.cmdTold
}

// gather sums the clerks of a round.
func gather(clerks []*clerk) sample {
	s := sample{latency: newHistogram()}
	for _, c := range clerks {
		s.ops += c.ops
		s.longest = max(s.longest, c.longest)
		s.latency.Merge(c.latency)
		s.perGoroutine = append(s.perGoroutine, c.ops)
	}
	return s
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

// median of values, which is not empty; the mean of the middle two of an even number.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
