package guarantees

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// NotRun is what stands in the place of a promise that nobody has tried.
const NotRun = "not run"

// of returns what was found of a cell.
func of(c Cell, found []Found) (f Found, ran bool) {
	i := slices.IndexFunc(found, func(f Found) bool {
		return f.Fault == c.Fault && f.Backend == c.Backend && f.Trials > 0
	})
	if i < 0 {
		return f, false
	}
	return found[i], true
}

// promise is what a cell keeps, if it was seen to.
func promise(c Cell, found []Found) string {
	f, ran := of(c, found)
	switch s := c.Holds.String(); {
	case c.Holds == NA:
		return s
	case !ran:
		return NotRun
	case f.Broken > 0:
		return "**broken**"
	case c.Refuses:
		return s + ", R"
	default:
		return s
	}
}

// trials is how often that was tried.
func trials(c Cell, found []Found) string {
	f, ran := of(c, found)
	switch {
	case c.Holds == NA:
		return c.Holds.String()
	case !ran:
		return NotRun
	case f.Broken > 0:
		return fmt.Sprintf("**%d of %d broken**", f.Broken, f.Trials)
	case c.Holds == Tokens:
		return fmt.Sprintf("%d, second holder in %d", f.Trials, f.Second)
	}
	return fmt.Sprint(f.Trials)
}

// RenderMatrix makes the table of the promises: a row for each fault, a column for each backend.
func RenderMatrix(found []Found) string { return render(promise, found) }

// RenderTrials makes the table of how often they were tried.
func RenderTrials(found []Found) string { return render(trials, found) }

func render(cell func(Cell, []Found) string, found []Found) string {
	var b strings.Builder
	b.WriteString("| fault |")
	for _, k := range Backends() {
		b.WriteString(" " + k.Is + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(Backends())) + "\n")
	for _, f := range Faults() {
		b.WriteString("| " + string(f.Fault) + " |")
		for _, k := range Backends() {
			b.WriteString(" " + cell(Of(f.Fault, k.Backend), found) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// RenderLegend makes the list of the faults.
func RenderLegend() string {
	var b strings.Builder
	b.WriteString("| fault | what is done |\n|---|---|\n")
	for _, f := range Faults() {
		fmt.Fprintf(&b, "| %s | %s |\n", f.Fault, f.Is)
	}
	return b.String()
}

// RenderBounds makes the list of what was measured against a bound.
func RenderBounds(found []Found) string {
	var b strings.Builder
	b.WriteString("| fault | backend | there again within | slowest seen |\n|---|---|---|---|\n")
	for _, c := range Table() {
		if c.Within == 0 {
			continue
		}
		bound := c.Within.String()
		if c.PlusTTL {
			bound = "TTL + " + bound
		}
		seen := NotRun
		for _, f := range found {
			if f.Fault == c.Fault && f.Backend == c.Backend && f.Trials > 0 {
				seen = (time.Duration(f.Slowest) * time.Millisecond).Round(10 * time.Millisecond).String()
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Fault, c.Backend, bound, seen)
	}
	return b.String()
}

// RenderReasons makes the list of the cells without a promise, and of the second holders that cannot be shown.
func RenderReasons() string {
	var order []string
	cells := map[string][]string{}
	for _, c := range Table() {
		if c.Why == "" {
			continue
		}
		if cells[c.Why] == nil {
			order = append(order, c.Why)
		}
		cells[c.Why] = append(cells[c.Why], string(c.Fault)+" of "+c.Backend)
	}
	var b strings.Builder
	for _, why := range order {
		fmt.Fprintf(&b, "- %s: %s.\n", strings.ToUpper(why[:1])+why[1:], strings.Join(cells[why], ", "))
	}
	return b.String()
}

// RenderRuns makes the list of what ran: dates, versions, trials, and what no failure in so many trials means.
func RenderRuns(found []Found) string {
	var b strings.Builder
	b.WriteString("| backend | servers | last run | trials | locks granted | broken | so at 95 % " +
		"a trial breaks its promise in fewer than |\n|---|---|---|---|---|---|---|\n")
	for _, k := range Backends() {
		var trials, locks, broken int
		servers, date := NotRun, ""
		for _, f := range found {
			if f.Backend == k.Backend {
				trials, locks, broken = trials+f.Trials, locks+f.Locks, broken+f.Broken
				servers, date = f.Servers, max(date, f.Date)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %s |\n",
			k.Backend, servers, date, trials, locks, broken, AtMost(trials, broken))
	}
	return b.String()
}

// AtMost says how often a trial fails at the most, at 95 % confidence, when none of n has: by the
// rule of three, 3 of n. It says nothing if one has failed, or if n is below 4.
func AtMost(n, failed int) string {
	if failed > 0 || n < 4 {
		return "–"
	}
	return fmt.Sprintf("1 of %d", int(math.Floor(float64(n)/3)))
}

// Parts are the rendered parts of the documents, by the names of their markers.
func Parts(found []Found, soak Soak) map[string]string {
	return map[string]string{
		"matrix":  RenderMatrix(found),
		"trials":  RenderTrials(found),
		"faults":  RenderLegend(),
		"bounds":  RenderBounds(found),
		"reasons": RenderReasons(),
		"runs":    RenderRuns(found),
		"soak":    RenderSoak(soak),
	}
}
