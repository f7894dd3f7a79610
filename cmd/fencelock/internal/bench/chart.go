package bench

import (
	"fmt"
	"math"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

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
