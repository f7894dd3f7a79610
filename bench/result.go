package bench

import (
	"slices"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// A Result is one row. Rates are medians over the rounds; low and high are the least and the
// greatest round. A greater Rate or Ratio is better. A null is a figure that does not exist; Notes
// says why. Times are in microseconds.
type Result struct {
	Label      string `json:"label"`   // the name in the configuration, or the backend's
	Backend    string `json:"backend"` // the name in its Traits
	Op         Op     `json:"op"`
	Row        string `json:"row"`        // Case.Name
	Goroutines int    `json:"goroutines"` // for held, one
	Leases     int    `json:"leases"`     // held at a time; 0 but for held
	SectionUS  int64  `json:"section_us"` // the critical section of contended

	// Unit of the rates: "cycles/s", "grants/s", "1/p50" (per second, of handover and turns) or "renewals/s".
	Unit      string   `json:"unit"`
	Rate      float64  `json:"rate"`
	RateLow   float64  `json:"rate_low"`
	RateHigh  float64  `json:"rate_high"`
	RawRate   *float64 `json:"raw_rate"`
	Ratio     *float64 `json:"ratio"`     // Rate to RawRate
	RatioLow  *float64 `json:"ratio_low"` // of one round
	RatioHigh *float64 `json:"ratio_high"`

	// Over all rounds. The time is of the cycle (cycle, readers), of the wait for the lock (contended,
	// permits), from Unlock's call to the other client's grant (handover, turns), or of a renewal (held). 0:
	// nothing was timed.
	P50    float64  `json:"p50"`
	P99    float64  `json:"p99"`
	Max    float64  `json:"max"`
	RawP50 *float64 `json:"raw_p50"`
	RawP99 *float64 `json:"raw_p99"`
	RawMax *float64 `json:"raw_max"`

	// An op is a cycle, or for held one lease held for one second. Handover and turns have none of these
	// figures, since waiting is most of their cost.
	AllocsPerOp      *float64 `json:"allocs_per_op"`
	RawAllocsPerOp   *float64 `json:"raw_allocs_per_op"`
	CPUPerOp         *float64 `json:"cpu_us_per_op"` // of this process, user and system
	RawCPUPerOp      *float64 `json:"raw_cpu_us_per_op"`
	CommandsPerOp    *float64 `json:"commands_per_op"` // counted by the server, of all its clients
	RawCommandsPerOp *float64 `json:"raw_commands_per_op"`

	// Jain's index of the grants of a round's goroutines, the median; of contended only.
	Fairness    *float64 `json:"fairness"`
	RawFairness *float64 `json:"raw_fairness"`

	Rounds   int      `json:"rounds"`  // the number of measured rounds
	Partial  bool     `json:"partial"` // fewer rounds than asked: the run was ended
	Notes    []string `json:"notes"`
	Promises Promises `json:"promises"`
}

// Promises are the promises of a backend, to be read beside its speed.
type Promises struct {
	Fencing       string `json:"fencing"`
	FIFO          bool   `json:"fifo"`
	ClockFree     bool   `json:"clock_free"`
	SurvivesNode  bool   `json:"survives_a_node"`
	Transactional bool   `json:"transactional"`
	Grace         bool   `json:"grace"`
}

// units are the units of the rates.
var units = map[Op]string{
	Cycle: "cycles/s", Contended: "grants/s", Handover: "1/p50", Held: "renewals/s",
	Readers: "cycles/s", Turns: "1/p50", Permits: "grants/s",
}

// rounds are the samples of one row; theirs is empty where there is no raw side.
type rounds struct{ ours, theirs []measure.Sample }

// result makes a row of its rounds. There must be at least one.
func (b *bed) result(c Case, r rounds, wanted int) Result {
	n, t := len(r.ours), b.traits
	ours := c.sum(r.ours)
	res := Result{
		Label: b.label, Backend: b.traits.Name, Op: c.Op, Row: c.Name(), Unit: units[c.Op],
		Goroutines: c.Goroutines, SectionUS: c.Section.Microseconds(),
		Rate:    measure.Median(ours.rates),
		RateLow: slices.Min(ours.rates), RateHigh: slices.Max(ours.rates),
		P50: ours.p50, P99: ours.p99, Max: ours.longest, Fairness: ours.fairness,
		AllocsPerOp: ours.allocs, CPUPerOp: ours.cpu, CommandsPerOp: ours.commands,
		Rounds: n, Partial: n < wanted, Notes: []string{}, Promises: Promises{
			t.Fencing.String(), t.FIFO, t.ClockFree, t.SurvivesNode, t.Transactional, t.Grace,
		},
	}
	if c.Op == Held {
		res.Goroutines, res.Leases = 1, c.Goroutines
	}
	if len(r.theirs) == n {
		raw := c.sum(r.theirs)
		rate := measure.Median(raw.rates)
		ratio := res.Rate / rate
		low, high := ratio, ratio
		for i, base := range raw.rates {
			low, high = min(low, ours.rates[i]/base), max(high, ours.rates[i]/base)
		}
		res.RawRate, res.Ratio, res.RatioLow, res.RatioHigh = &rate, &ratio, &low, &high
		res.RawP50, res.RawP99, res.RawMax = &raw.p50, &raw.p99, &raw.longest
		res.RawAllocsPerOp, res.RawCPUPerOp = raw.allocs, raw.cpu
		res.RawCommandsPerOp, res.RawFairness = raw.commands, raw.fairness
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
	if c.Op.handsOver() {
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

// figures are the figures of one side: the rates of the rounds, the latencies over all rounds in
// microseconds, and the medians of the rounds of the others. Nil is a figure that does not exist.
type figures struct {
	rates                           []float64
	p50, p99, longest               float64
	allocs, cpu, commands, fairness *float64
}

func (c Case) sum(all []measure.Sample) figures {
	var f figures
	mid := func(has bool, of func(measure.Sample) float64) *float64 {
		var each []float64
		for _, s := range all {
			each = append(each, of(s))
		}
		if m := measure.Median(each); has && slices.Min(each) >= 0 {
			return &m
		}
		return nil
	}
	ops := func(s measure.Sample) float64 {
		if c.Op == Held {
			return float64(c.Goroutines) * s.Elapsed.Seconds()
		}
		return s.Ops()
	}
	for _, s := range all {
		f.rates = append(f.rates, s.Rate())
	}
	l := measure.Merge(all...).Latency
	f.p50, f.p99, f.longest = l.Micros(50), l.Micros(99), l.Micros(100)
	spends := !c.Op.handsOver()
	f.allocs = mid(spends, func(s measure.Sample) float64 { return s.Allocs / ops(s) })
	f.cpu = mid(spends, func(s measure.Sample) float64 { return s.CPU / ops(s) })
	f.commands = mid(spends, func(s measure.Sample) float64 { return s.Requests / ops(s) })
	f.fairness = mid(c.Op == Contended, measure.Sample.Fairness)
	return f
}
