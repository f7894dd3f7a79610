package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// WriteTable writes results for a terminal: a block for each row's name, with the backends one
// under the other, and the promises of each backend.
func WriteTable(w io.Writer, all []Result) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") }
	for i, block := range Blocks(all) {
		if i > 0 {
			fmt.Fprintln(t)
		}
		line(
			block[0].Row, block[0].Unit, "raw", "ratio", "spread", "p50", "p99", "max",
			"allocs", "CPU", "commands", "fair",
		)
		for _, r := range block {
			label, spread := r.Label, "-"
			if r.Partial {
				label += " (partial)"
			}
			if r.Ratio != nil {
				spread = Figure(r.RatioLow) + ".." + Figure(r.RatioHigh)
			}
			cpu := "-"
			if r.CPUPerOp != nil {
				cpu = Micros(*r.CPUPerOp)
			}
			line(
				label, Figure(&r.Rate), Figure(r.RawRate), Figure(r.Ratio), spread,
				Micros(r.P50), Micros(r.P99), Micros(r.Max),
				Figure(r.AllocsPerOp), cpu, Figure(r.CommandsPerOp), Figure(r.Fairness),
			)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, p := range promised(all) {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(p)
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

// promised returns a line with the promises of each backend.
func promised(all []Result) []string {
	var lines []string
	for _, r := range all {
		words := strings.Join(r.Promises.Words(), ", ")
		line := fmt.Sprintf("%s promises: %s\n", r.Label, words)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Words returns the promises that the backend keeps.
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

// Figure shows three digits, or a dash for a figure that does not exist.
func Figure(v *float64) string {
	if v == nil {
		return "-"
	}
	return measure.Figure(*v)
}

// Micros shows a time given in microseconds, or a dash if nothing was timed.
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
