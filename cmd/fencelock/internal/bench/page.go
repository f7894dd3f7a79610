package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("bench").Parse(pageText))

// pageBlock is one row of the bench, with all backends.
type pageBlock struct {
	Row, What, Unit      string
	Speed, Latency       chart
	SpeedText, LaterText string // the charts in words
	HasRaw               bool
	Lines                []pageLine
}

type pageLine struct {
	Label, Rate, Ratio, Spread, P50, P99, Allocs, Commands string
	Partial                                                bool
	Words                                                  []string // the promises
}

type pageData struct {
	When     string
	Blocks   []pageBlock
	Promises []pagePromise
	Columns  []string
}

// pagePromise is what one backend promises: the word of its tokens and a yes or no for each column.
type pagePromise struct {
	Label, Fencing string
	Kept           []bool
}

var whatRows = map[bench.Op]string{
	bench.Cycle:     "Lock and unlock of free names, one for each goroutine.",
	bench.Contended: "One name, wanted by 16 goroutines of one process. The time is the wait.",
	bench.Handover:  "From Unlock to the grant of another client that waits.",
	bench.Held:      "Leases that are held and renewed. The time is that of a renewal.",
	bench.Readers:   "One name, read by 200 goroutines. The raw store has a name for each.",
	bench.Turns:     "From Unlock to the grant of another client, of a reader and a writer in turns.",
	bench.Permits:   "One of 10 permits, wanted by 100 goroutines of one process. The time is the wait.",
}

// WritePage writes the page of a run that ended at a time.
func WritePage(w io.Writer, rows []bench.Result, when time.Time) error {
	data := pageData{
		When: when.UTC().Format("2 January 2006, 15:04 UTC"),
		Columns: []string{
			"First come, first served", "Clock-free", "Survives a node", "Transactional", "Grace",
		},
	}
	for _, r := range rows {
		p, label := r.Promises, cli.Safe(r.Label)
		known := func(p pagePromise) bool { return p.Label == label }
		if !slices.ContainsFunc(data.Promises, known) {
			kept := []bool{p.FIFO, p.ClockFree, p.SurvivesNode, p.Transactional, p.Grace}
			data.Promises = append(data.Promises, pagePromise{label, p.Fencing, kept})
		}
	}
	for _, of := range bench.Blocks(rows) {
		data.Blocks = append(data.Blocks, blockOf(of))
	}
	return page.Execute(w, data)
}

func blockOf(rows []bench.Result) pageBlock {
	b := pageBlock{Row: rows[0].Row, Unit: rows[0].Unit, What: whatRows[rows[0].Op]}
	var speeds, times []dumbbell
	for _, r := range rows {
		raw := math.NaN()
		if r.RawRate != nil {
			raw, b.HasRaw = *r.RawRate, true
		}
		speeds = append(speeds, dumbbell{r.Label, r.Rate, raw})
		times = append(times, dumbbell{r.Label, r.P50, r.P99})
		l := pageLine{
			Label: cli.Safe(r.Label), Rate: bench.Figure(&r.Rate), Ratio: bench.Figure(r.Ratio),
			P50: bench.Micros(r.P50), P99: bench.Micros(r.P99),
			Allocs: bench.Figure(r.AllocsPerOp), Commands: bench.Figure(r.CommandsPerOp),
			Partial: r.Partial, Words: r.Promises.Words(),
		}
		if r.Ratio != nil {
			l.Spread = bench.Figure(r.RatioLow) + " to " + bench.Figure(r.RatioHigh)
		}
		b.Lines = append(b.Lines, l)
	}
	b.SpeedText = "The rate of " + strconv.Itoa(len(rows)) + " backends, as in the table"
	b.LaterText = "The median and the 99th percentile of the time, as in the table"
	b.Speed, b.Latency = newChart(speeds, perSecond), newChart(times, ofTime)
	return b
}

// pageFile is a page that is written when the run is over. Its file is made before, so that a bad path
// fails early.
type pageFile struct {
	path string
	part *os.File
}

func newPageFile(path string) (*pageFile, error) {
	if path == "" {
		return nil, nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, cli.Usagef("--html %s: it is a directory: want a file", path)
	}
	part, err := os.CreateTemp(filepath.Dir(path), ".fencelock-bench-")
	if err != nil {
		return nil, cli.Usagef("--html: %v", err)
	}
	return &pageFile{path, part}, nil
}

// finish writes the page, or leaves none if nothing was measured.
func (p *pageFile) finish(rows []bench.Result) error {
	if p == nil {
		return nil
	}
	var err error
	if len(rows) > 0 {
		err = WritePage(p.part, rows, time.Now())
	}
	if closed := p.part.Close(); err == nil {
		err = closed
	}
	if err == nil && len(rows) > 0 {
		if err = os.Chmod(p.part.Name(), 0o644); err == nil { //nolint:gosec // a page to show to others
			err = os.Rename(p.part.Name(), p.path)
		}
		if err == nil {
			return nil
		}
	}
	_ = os.Remove(p.part.Name()) // the first error is the one to report
	return err
}

// A dumbbell is one line of a chart: two figures on one axis. A NaN is none.
type dumbbell struct {
	label string
	a, b  float64
}

// labelMost is how many characters of a label a chart shows. The table under it has the whole label.
const labelMost = 16

// The places of a chart, in the units of its SVG.
const (
	chartLeft, chartRight = 156, 400
	chartTop, chartLine   = 8, 32
)

// A chart has lines from top to bottom on one logarithmic axis.
type chart struct {
	Width, Height, Left, Right, Bottom int
	Ticks                              []chartTick
	Lines                              []chartRow
}

type chartTick struct {
	X     int
	Label string // empty for a tick without one
}

type chartRow struct {
	Y, Text int // of the line, and of the foot of its label
	Label   string
	A, B    int // 0: no figure
}

// newChart places the lines. unit makes the words of a power of ten.
func newChart(lines []dumbbell, unit func(float64) string) chart {
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, v := range []float64{l.a, l.b} {
			if v > 0 { // and no NaN
				low, high = min(low, math.Log10(v)), max(high, math.Log10(v))
			}
		}
	}
	if math.IsInf(low, 0) {
		low, high = 0, 0
	}
	low, high = math.Floor(low), math.Ceil(high)
	high = max(high, low+1)
	at := func(exponent float64) int {
		return chartLeft + int(math.Round((exponent-low)/(high-low)*(chartRight-chartLeft)))
	}
	c := chart{
		Width: chartRight + 16, Height: chartTop + len(lines)*chartLine + 36,
		Left: chartLeft, Right: chartRight, Bottom: chartTop + len(lines)*chartLine + 4,
	}
	step := math.Ceil((high - low) / 5) // six words at the most
	for e := low; e <= high; e++ {
		t := chartTick{X: at(e)}
		if math.Mod(e-low, step) == 0 {
			t.Label = unit(math.Pow(10, e))
		}
		c.Ticks = append(c.Ticks, t)
	}
	for i, l := range lines {
		y := chartTop + i*chartLine + chartLine/2
		row := chartRow{Y: y, Text: y + 5, Label: shortLabel(l.label)}
		if l.a > 0 {
			row.A = at(math.Log10(l.a))
		}
		if l.b > 0 {
			row.B = at(math.Log10(l.b))
		}
		c.Lines = append(c.Lines, row)
	}
	return c
}

func shortLabel(label string) string {
	r := []rune(cli.Safe(label))
	if len(r) > labelMost {
		return string(r[:labelMost-1]) + "…"
	}
	return string(r)
}

// perSecond shows a power of ten of a rate.
func perSecond(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}

// ofTime shows a power of ten of microseconds.
func ofTime(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%gs", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%gms", us/1e3)
	case us < 1:
		return fmt.Sprintf("%gns", math.Round(us*1e3))
	}
	return fmt.Sprintf("%gµs", us)
}
