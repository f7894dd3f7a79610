package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes results for a terminal: a block for each row's name, with the backends one under the other, and what
// each backend promises.
func WriteTable(w io.Writer, all []Result) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, block := range Blocks(all) {
		if i > 0 {
			fmt.Fprintln(t)
		}
		fmt.Fprintf(t, "%s\t%s\traw\tratio\tspread\tp50\tp99\tmax\tallocs\tCPU\tcommands\tfair\t\n", block[0].Row, block[0].Unit)
		for _, r := range block {
			label := r.Label
			if r.Partial {
				label += " (partial)"
			}
			spread := "-"
			if r.Ratio != nil {
				spread = Figure(r.RatioLow) + ".." + Figure(r.RatioHigh)
			}
			fmt.Fprintln(t, strings.Join([]string{
				label, Figure(&r.Rate), Figure(r.RawRate), Figure(r.Ratio), spread, Micros(r.P50), Micros(r.P99), Micros(r.Max),
				Figure(r.AllocsPerOp), cpu(r.CPUPerOp), Figure(r.CommandsPerOp), Figure(r.Fairness),
			}, "\t")+"\t")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range promised(all) {
		b.WriteString(line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Blocks groups results by row, in the order of the operations.
func Blocks(all []Result) [][]Result {
	var names []string
	byRow := map[string][]Result{}
	for _, op := range Ops() {
		for _, r := range all {
			if r.Op != op {
				continue
			}
			if byRow[r.Row] == nil {
				names = append(names, r.Row)
			}
			byRow[r.Row] = append(byRow[r.Row], r)
		}
	}
	var out [][]Result
	for _, n := range names {
		out = append(out, byRow[n])
	}
	return out
}

// promised says in a line each what the backends promise.
func promised(all []Result) []string {
	lines := []string{}
	var seen []string
	for _, r := range all {
		if slices.Contains(seen, r.Label) {
			continue
		}
		seen = append(seen, r.Label)
		lines = append(lines, fmt.Sprintf("%s promises: %s\n", r.Label, strings.Join(r.Promises.Words(), ", ")))
	}
	if len(lines) > 0 {
		lines[0] = "\n" + lines[0]
	}
	return lines
}

// Words are the promises that are kept.
func (p Promises) Words() []string {
	words := []string{p.Fencing + " tokens"}
	for _, f := range []struct {
		has  bool
		word string
	}{
		{p.FIFO, "first come first served"},
		{p.ClockFree, "clock-free"},
		{p.SurvivesNode, "survives a node"},
		{p.Transactional, "transactional"},
		{p.Grace, "grace"},
	} {
		if f.has {
			words = append(words, f.word)
		}
	}
	return words
}

// Figure shows three digits, or a dash for what there is not.
func Figure(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v >= 1e7:
		return strconv.FormatFloat(*v/1e6, 'f', 0, 64) + "M"
	case *v >= 1e4:
		return strconv.FormatFloat(*v/1e3, 'f', 1, 64) + "k"
	case *v >= 100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	case *v >= 10:
		return strconv.FormatFloat(*v, 'f', 1, 64)
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// Micros shows a time given in microseconds, or a dash where nothing was timed.
func Micros(us float64) string {
	switch {
	case us == 0:
		return "-"
	case us < 1:
		return strconv.FormatFloat(us*1000, 'f', 0, 64) + "ns"
	case us < 1000:
		return strconv.FormatFloat(us, 'f', 1, 64) + "µs"
	case us < 1e6:
		return strconv.FormatFloat(us/1e3, 'f', 2, 64) + "ms"
	}
	return strconv.FormatFloat(us/1e6, 'f', 2, 64) + "s"
}

func cpu(us *float64) string {
	if us == nil {
		return "-"
	}
	return Micros(*us)
}
