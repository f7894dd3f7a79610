package bench

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// The colours of a chart stand for the page's own, which follow the light and the dark: chart
// replaces them.
var (
	chartText   = color.RGBA{R: 1, G: 1, B: 1, A: 255}
	chartLine   = color.RGBA{R: 2, G: 2, B: 2, A: 255}
	chartFirst  = color.RGBA{R: 3, G: 3, B: 3, A: 255}
	chartSecond = color.RGBA{R: 4, G: 4, B: 4, A: 255}
)

var (
	themed = strings.NewReplacer(
		"#010101", "var(--text)", "#020202", "var(--line)",
		"#030303", "var(--first)", "#040404", "var(--second)",
		"Liberation Sans", "Liberation Sans,Arial,Helvetica,sans-serif", // all as wide
	)
	preamble = regexp.MustCompile(`(?s)^.*?<svg width="[^"]*" height="[^"]*"`)
)

// A dumbbell is one line of a chart: two figures on one axis. A NaN is none.
type dumbbell struct {
	label string
	a, b  float64
}

// labelMost is how much of a label a chart shows, in characters. The table under it has the whole.
const labelMost = 16

// chart draws the lines from top to bottom on a logarithmic axis, as SVG for the middle of a page.
// unit makes the words of a power of ten.
func chart(lines []dumbbell, unit func(float64) string) (string, error) {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	low, high := math.Inf(1), math.Inf(-1)
	var as, bs plotter.XYs
	names := make([]string, len(lines))
	grid := plotter.NewGrid()
	grid.Horizontal.Width, grid.Vertical.Color = 0, chartLine
	p.Add(grid)
	for i, l := range lines {
		y := float64(len(lines) - 1 - i)
		names[len(lines)-1-i] = shortLabel(l.label)
		for _, at := range []struct {
			v  float64
			to *plotter.XYs
		}{{l.a, &as}, {l.b, &bs}} {
			if !math.IsNaN(at.v) && at.v > 0 {
				low, high = min(low, at.v), max(high, at.v)
				*at.to = append(*at.to, plotter.XY{X: at.v, Y: y})
			}
		}
		if l.a > 0 && l.b > 0 {
			between, err := plotter.NewLine(plotter.XYs{{X: l.a, Y: y}, {X: l.b, Y: y}})
			if err != nil {
				return "", err
			}
			between.Color, between.Width = chartText, vg.Points(1)
			p.Add(between)
		}
	}
	err := errors.Join(dots(p, bs, chartSecond, draw.RingGlyph{}),
		dots(p, as, chartFirst, draw.CircleGlyph{}))
	if err != nil {
		return "", err
	}
	if math.IsInf(low, 0) {
		low, high = 1, 1
	}
	p.NominalY(names...)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades(&low, &high, unit)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = low, high, -0.6, float64(len(lines))-0.4
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 12}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font, a.Tick.Label.Color = sans, chartText
		a.Color, a.Tick.Color = chartLine, chartLine
	}
	c := vgsvg.New(vg.Points(330), vg.Points(36+24*float64(len(lines))))
	p.Draw(draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return "", err
	}
	svg := themed.Replace(out.String())
	return preamble.ReplaceAllLiteralString(svg, `<svg aria-hidden="true"`), nil
}

// dots adds the figures of one kind.
func dots(p *plot.Plot, at plotter.XYs, of color.Color, shape draw.GlyphDrawer) error {
	if len(at) == 0 {
		return nil
	}
	points, err := plotter.NewScatter(at)
	if err != nil {
		return err
	}
	points.GlyphStyle = draw.GlyphStyle{Color: of, Radius: vg.Points(4.5), Shape: shape}
	p.Add(points)
	return nil
}

// decades widens the range to powers of ten and returns their ticks, at most six with a label.
func decades(low, high *float64, unit func(float64) string) plot.ConstantTicks {
	from, to := math.Floor(math.Log10(*low)), math.Ceil(math.Log10(*high))
	to = max(to, from+1)
	*low, *high = math.Pow(10, from), math.Pow(10, to)
	step := math.Ceil((to - from) / 5)
	var ticks plot.ConstantTicks
	for e := from; e <= to; e++ {
		t := plot.Tick{Value: math.Pow(10, e)}
		if math.Mod(e-from, step) == 0 {
			t.Label = unit(t.Value)
		}
		ticks = append(ticks, t)
	}
	return ticks
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
