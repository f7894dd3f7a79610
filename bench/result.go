package bench

import (
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Result is one row. Rates are medians over the rounds; low and high are the least and the greatest of them. Greater is
// better everywhere in Rate and Ratio. A null is a figure that there is not; Notes says why. Times are in microseconds.
type Result struct {
	Label      string `json:"label"`   // the name in the configuration, or the backend's
	Backend    string `json:"backend"` // the name in its Traits
	Op         Op     `json:"op"`
	Row        string `json:"row"`        // Case.Name
	Goroutines int    `json:"goroutines"` // for held, one
	Leases     int    `json:"leases"`     // held at a time; 0 but for held
	SectionUS  int64  `json:"section_us"` // the critical section of contended

	// Unit of the rates: "cycles/s", "grants/s", "1/p50" (per second, of handover) or "renewals/s".
	Unit      string   `json:"unit"`
	Rate      float64  `json:"rate"`
	RateLow   float64  `json:"rate_low"`
	RateHigh  float64  `json:"rate_high"`
	RawRate   *float64 `json:"raw_rate"`
	Ratio     *float64 `json:"ratio"`     // Rate to RawRate
	RatioLow  *float64 `json:"ratio_low"` // of one round
	RatioHigh *float64 `json:"ratio_high"`

	// Over all rounds. What is timed: cycle, the cycle; contended, the wait for the lock; handover, from Unlock's call
	// to the other's grant; held, a renewal. 0: nothing was timed.
	P50    float64  `json:"p50"`
	P99    float64  `json:"p99"`
	Max    float64  `json:"max"`
	RawP50 *float64 `json:"raw_p50"`
	RawP99 *float64 `json:"raw_p99"`
	RawMax *float64 `json:"raw_max"`

	// An op is a cycle, or for held one lease held for one second. Not for handover, whose cost is mostly that of waiting.
	AllocsPerOp      *float64 `json:"allocs_per_op"`
	RawAllocsPerOp   *float64 `json:"raw_allocs_per_op"`
	CPUPerOp         *float64 `json:"cpu_us_per_op"` // of this process, user and system
	RawCPUPerOp      *float64 `json:"raw_cpu_us_per_op"`
	CommandsPerOp    *float64 `json:"commands_per_op"` // that the server counted, whoever sent them
	RawCommandsPerOp *float64 `json:"raw_commands_per_op"`

	Fairness    *float64 `json:"fairness"` // of contended: Jain's index of the grants of a round's goroutines, the median
	RawFairness *float64 `json:"raw_fairness"`

	Rounds   int      `json:"rounds"`  // that were measured
	Partial  bool     `json:"partial"` // fewer than asked: the run was ended
	Notes    []string `json:"notes"`
	Promises Promises `json:"promises"`
}

// Promises are what a backend promises, beside how fast it is.
type Promises struct {
	Fencing       string `json:"fencing"`
	FIFO          bool   `json:"fifo"`
	ClockFree     bool   `json:"clock_free"`
	SurvivesNode  bool   `json:"survives_a_node"`
	Transactional bool   `json:"transactional"`
	Grace         bool   `json:"grace"`
}

func promisesOf(t backend.Traits) Promises {
	return Promises{t.Fencing.String(), t.FIFO, t.ClockFree, t.SurvivesNode, t.Transactional, t.Grace}
}

// units are those of the rates.
var units = map[Op]string{Cycle: "cycles/s", Contended: "grants/s", Handover: "1/p50", Held: "renewals/s"}

// rounds are the samples of one row; theirs is empty where there is no raw side.
type rounds struct{ ours, theirs []sample }

// result makes a row of its rounds, of which there is at least one.
func (b *bed) result(c Case, r rounds, wanted int) Result {
	n := len(r.ours)
	res := Result{
		Label: b.label, Backend: b.traits.Name, Op: c.Op, Row: c.Name(), Goroutines: c.Goroutines, SectionUS: c.Section.Microseconds(),
		Unit: units[c.Op], Rounds: n, Partial: n < wanted, Notes: []string{}, Promises: promisesOf(b.traits),
	}
	if c.Op == Held {
		res.Goroutines, res.Leases = 1, c.Goroutines
	}
	var rates []float64
	rates, res.Rate, res.RateLow, res.RateHigh = spread(r.ours)
	res.P50, res.P99, res.Max = percentiles(r.ours)
	res.AllocsPerOp, res.CPUPerOp, res.CommandsPerOp = costs(c, r.ours)
	res.Fairness = fairness(c, r.ours)
	if len(r.theirs) == n {
		base, rate, _, _ := spread(r.theirs)
		p50, p99, longest := percentiles(r.theirs)
		res.RawRate, res.RawP50, res.RawP99, res.RawMax = &rate, &p50, &p99, &longest
		ratio := res.Rate / rate
		low, high := ratio, ratio
		for i := range rates {
			low, high = min(low, rates[i]/base[i]), max(high, rates[i]/base[i])
		}
		res.Ratio, res.RatioLow, res.RatioHigh = &ratio, &low, &high
		res.RawAllocsPerOp, res.RawCPUPerOp, res.RawCommandsPerOp = costs(c, r.theirs)
		res.RawFairness = fairness(c, r.theirs)
	}
	res.explain(c)
	return res
}

// explain says why a figure is missing.
func (res *Result) explain(c Case) {
	add := func(note string) { res.Notes = append(res.Notes, note) }
	switch {
	case c.Op == Held:
		add("no raw side: a raw store renews nothing")
	case res.RawRate == nil:
		add("no raw side: this store has none here")
	}
	if c.Op == Handover {
		add("costs are not counted: most of them are of the waiting")
		return
	}
	if res.CommandsPerOp == nil {
		add("commands are not counted: the server does not tell, or not cheaply, or there is none")
	}
	if res.CPUPerOp == nil {
		add("CPU is not counted: this system does not tell")
	}
	if c.Op == Held && res.P50 == 0 {
		add("no renewal was seen: the store needs none, or none was due")
	}
}

func spread(all []sample) (rates []float64, mid, low, high float64) {
	for _, s := range all {
		rates = append(rates, float64(s.ops)/s.elapsed.Seconds())
	}
	low, high = rates[0], rates[0]
	for _, r := range rates {
		low, high = min(low, r), max(high, r)
	}
	return rates, median(rates), low, high
}

// percentiles of all rounds, in microseconds. A bucket's end is never beyond the exact longest.
func percentiles(all []sample) (p50, p99, longest float64) {
	h := newHistogram()
	var most time.Duration
	for _, s := range all {
		h.Merge(s.latency)
		most = max(most, s.longest)
	}
	us := func(ns int64) float64 { return float64(min(ns, int64(most))) / 1000 }
	return us(h.ValueAtQuantile(50)), us(h.ValueAtQuantile(99)), us(int64(most))
}

// costs are per op, the medians of the rounds; nil where they were not counted.
func costs(c Case, all []sample) (allocs, cpu, commands *float64) {
	if c.Op == Handover {
		return nil, nil, nil
	}
	of := func(known func(sample) bool, spent func(sample) float64) *float64 {
		var each []float64
		for _, s := range all {
			ops := float64(s.ops)
			if c.Op == Held {
				ops = s.held
			}
			if known(s) {
				each = append(each, spent(s)/ops)
			}
		}
		if len(each) < len(all) {
			return nil
		}
		m := median(each)
		return &m
	}
	allocs = of(func(s sample) bool { return s.knowsAllocs }, func(s sample) float64 { return float64(s.allocs) })
	cpu = of(func(s sample) bool { return s.knowsCPU }, func(s sample) float64 { return float64(s.cpu.Nanoseconds()) / 1000 })
	commands = of(func(s sample) bool { return s.knowsCommands }, func(s sample) float64 { return float64(s.commands) })
	return allocs, cpu, commands
}

func fairness(c Case, all []sample) *float64 {
	if c.Op != Contended {
		return nil
	}
	var each []float64
	for _, s := range all {
		each = append(each, jain(s.perGoroutine))
	}
	m := median(each)
	return &m
}
