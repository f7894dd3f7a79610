package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// Options of [Run].
type Options struct {
	Rounds   int
	Duration time.Duration // of each library in each round
	Held     int           // leases that are held
	// Only are beginnings of the goals' ids: "R", "R3", "E". "G" is what no goal needs: how cost
	// grows. Default all.
	Only     []string
	Progress func(line string)
}

// A Measured is what one library did in one experiment: a figure for each round.
type Measured struct {
	Experiment string               `json:"experiment"`
	Library    string               `json:"library"`
	Rounds     map[Metric][]float64 `json:"rounds"`
}

// Median of a metric over the rounds; false if it was not measured.
func (m Measured) Median(of Metric) (float64, bool) {
	v := m.Rounds[of]
	if len(v) == 0 {
		return 0, false
	}
	return measure.Median(v), true
}

// A Score is a goal with what was measured. Figure is the median of the rounds' ratios, Low and
// High the least and the greatest.
type Score struct {
	Goal
	Figure float64 `json:"figure"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Rounds int     `json:"rounds"` // 0: it was not measured, and State says why
	State  string  `json:"state"`
}

// A Report is what came of a run.
type Report struct {
	Rounds    int           `json:"rounds"`
	Duration  time.Duration `json:"duration"` // nanoseconds
	Held      int           `json:"held"`
	Scores    []Score       `json:"scores"`
	Measured  []Measured    `json:"measured"`
	Libraries []Library     `json:"libraries"`
	Others    []Report      `json:"-"` // of which the goals' figures are shown beside
}

// Run measures what the goals need. An error of one experiment is in the scores of its goals and
// does not end the others.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	var goals []Goal
	for _, g := range Goals() {
		named := func(p string) bool { return p != "" && strings.HasPrefix(g.ID, p) }
		if len(o.Only) == 0 || slices.ContainsFunc(o.Only, named) {
			goals = append(goals, g)
		}
	}
	grow := len(o.Only) == 0 || slices.Contains(o.Only, "G")
	if len(goals) == 0 && !grow {
		return Report{}, fmt.Errorf("no goal begins with one of %q: they are R1 to R9, E1 to E4, "+
			"Z1 to Z4, P1 to P7, F1, F2 and C1; G is how cost grows", o.Only)
	}
	rep := Report{Rounds: o.Rounds, Duration: o.Duration, Held: o.Held, Libraries: Libraries()}
	failed := map[string]error{}
	var s *store
	for _, e := range Experiments(o.Held) {
		needs := func(g Goal) bool { return g.Experiment == e.Name || g.Base == e.Name }
		if e.growth && !grow || !e.growth && !slices.ContainsFunc(goals, needs) {
			continue
		}
		if s == nil || s.name != e.on {
			if err := s.stop(); err != nil {
				return rep, err
			}
			var err error
			if s, err = startStore(ctx, e.on); err != nil {
				return rep, err
			}
		}
		measured, err := e.run(ctx, s, o)
		rep.Measured = append(rep.Measured, measured...)
		if failed[e.Name] = err; err != nil {
			o.Progress(fmt.Sprintf("%s: %v", e.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	err := errors.Join(s.stop(), ctx.Err())
	for _, g := range goals {
		rep.Scores = append(rep.Scores, rep.score(g, cmp.Or(failed[g.Experiment], failed[g.Base])))
	}
	for name, f := range failed {
		if f != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, f))
		}
	}
	return rep, err
}

// run measures the rounds of one experiment. The library that begins is another one in each.
func (e Experiment) run(ctx context.Context, s *store, o Options) (all []Measured, err error) {
	var ready []contender
	defer func() {
		for _, c := range ready {
			c.close()
		}
	}()
	for _, name := range e.Libraries {
		lib, err := find(name)
		if err != nil {
			return nil, err
		}
		c, err := e.prepare(ctx, s, lib)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		ready = append(ready, c)
		all = append(all, Measured{e.Name, name, map[Metric][]float64{}})
		if e.kind == cycling || e.kind == crowding { // connections, scripts, watches
			if _, err := c.round(ctx, min(o.Duration, 200*time.Millisecond)); err != nil {
				return all, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for r := range o.Rounds {
		o.Progress(fmt.Sprintf("%s: round %d of %d", e.Name, r+1, o.Rounds))
		for i := range ready {
			i = (i + r) % len(ready)
			f, err := ready[i].round(ctx, o.Duration)
			if err != nil {
				return all, fmt.Errorf("%s: %w", all[i].Library, err)
			}
			for m, v := range f {
				all[i].Rounds[m] = append(all[i].Rounds[m], v)
			}
		}
	}
	return all, ctx.Err()
}

// score holds what was measured against a goal.
func (r Report) score(g Goal, failed error) Score {
	s := Score{Goal: g, State: "not measured"}
	if failed != nil {
		s.State = "not measured: " + failed.Error()
		return s
	}
	figures := r.of(g.Experiment, g.Ours, g.Metric)
	if g.Theirs != "" {
		base := r.of(cmp.Or(g.Base, g.Experiment), g.Theirs, g.Metric)
		if len(base) != len(figures) {
			return s
		}
		ratios := make([]float64, len(base))
		for i := range base {
			ratios[i] = figures[i] / base[i]
		}
		figures = ratios
	}
	if len(figures) == 0 {
		return s
	}
	s.Low, s.High, s.Rounds = slices.Min(figures), slices.Max(figures), len(figures)
	s.Figure = measure.Median(figures)
	if g.Metric == Margin {
		s.Figure = s.Low // the worst is what counts
	}
	s.State = g.State(s.Figure)
	return s
}

func (r Report) of(experiment, library string, m Metric) []float64 {
	for _, x := range r.Measured {
		if x.Experiment == experiment && x.Library == library {
			return x.Rounds[m]
		}
	}
	return nil
}

func (s *store) stop() error {
	if s == nil || s.close == nil {
		return nil
	}
	return s.close()
}
