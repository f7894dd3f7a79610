package main

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// A markedRow is a row of the screen's table with what has happened to it.
type markedRow struct {
	row
	mark string // the event; empty for nothing new
}

// marked returns the view's rows and, among them, those that were released a moment ago.
func (s *screen) marked(v *view, now time.Time) []markedRow {
	for name, c := range s.marks {
		if now.Sub(c.at) >= max(markFor, v.every) {
			delete(s.marks, name)
		}
	}
	rows := make([]markedRow, 0, len(v.rows)+len(s.marks))
	there := map[string]bool{}
	for _, r := range v.rows {
		there[r.Name] = true
		rows = append(rows, markedRow{r, s.marks[r.Name].event})
	}
	for name, c := range s.marks {
		if !there[name] {
			rows = append(rows, markedRow{c.row, c.event})
		}
	}
	slices.SortFunc(rows, func(x, y markedRow) int { return strings.Compare(x.Name, y.Name) })
	return rows
}

// The marks and colours of events, so that each is told from the others without colours too.
var (
	signs  = map[string]string{acquired: "+", changed: "~", released: "-"}
	styles = map[string]string{acquired: green, changed: yellow, released: faint}
)

// A column of the table.
type column struct {
	head  string
	right bool // numbers
	text  func(r markedRow) string
}

// table returns the head and the rows, each of width cells at the most. On a narrow screen columns are left out.
func (s *screen) table(v *view, rows []markedRow, now time.Time, width int) []string {
	unlessEnded := func(text func(row) string) func(markedRow) string {
		return func(r markedRow) string {
			if r.mark == released && !r.Held {
				return ""
			}
			return text(r.row)
		}
	}
	columns := []column{
		{"NAME", false, func(r markedRow) string { return safe(r.Name) }},
		{"OWNER", false, func(r markedRow) string { return owner(r.Info) }},
		{"TOKEN", true, func(r markedRow) string { return token(r.Info) }},
		{"SEEN", true, unlessEnded(func(r row) string { return r.seenFor(now) })},
		{"EXPIRES IN", true, unlessEnded(func(r row) string { return expiryBrief(v, r, now) })},
		{"WAITERS", true, unlessEnded(func(r row) string { return waiters(r.Info) })},
	}
	// The least important first.
	for _, head := range []string{"", "TOKEN", "SEEN", "OWNER", "WAITERS", "EXPIRES IN"} {
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.head == head })
		if widths, ok := layout(columns, rows, width); ok {
			return s.rows(columns, widths, rows)
		}
	}
	return s.rows(columns, []int{max(width-2, 0)}, rows)
}

// expiryBrief is expiry as of now, without the jitter of its fractions: rounded up, so that 1s is the last one, and 0s says that
// the time is over for all that is known.
func expiryBrief(v *view, r row, now time.Time) string {
	if r.Leaked || !r.Held || r.ExpiresIn <= 0 {
		return expiry(r.Info)
	}
	return brief(max(r.ExpiresIn-now.Sub(v.at), 0) + time.Second - 1)
}

const (
	gap       = 2  // cells between columns
	leastText = 12 // cells that a column of text must have, if its text is longer
)

// layout returns the columns' widths, and whether they fit: the first two columns, if they are text, give way.
func layout(columns []column, rows []markedRow, width int) ([]int, bool) {
	widths := make([]int, len(columns))
	left := width - 2 // the sign
	for i, c := range columns {
		widths[i] = cells(c.head)
		for _, r := range rows {
			widths[i] = max(widths[i], cells(c.text(r)))
		}
		left -= widths[i]
		if i > 0 {
			left -= gap
		}
	}
	// What is too much is taken from the widest text, until it is not the widest any more.
	for left < 0 {
		widest := -1
		for i, c := range columns {
			if !c.right && widths[i] > leastText && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return nil, false
		}
		widths[widest]--
		left++
	}
	return widths, true
}

func (s *screen) rows(columns []column, widths []int, rows []markedRow) []string {
	head := "  "
	for i, c := range columns {
		head += cell(c.head, widths[i], c.right, i == len(columns)-1)
	}
	lines := []string{s.paint(bold, strings.TrimRight(head, " "))}
	for _, r := range rows {
		sign := signs[r.mark]
		if sign == "" {
			sign = " "
		}
		line := sign + " "
		for i, c := range columns {
			line += cell(c.text(r), widths[i], c.right, i == len(columns)-1)
		}
		style := styles[r.mark]
		if r.Leaked {
			style = alarm
		}
		lines = append(lines, s.paint(style, strings.TrimRight(line, " ")))
	}
	return lines
}

// cell is one field, with the gap to the next.
func cell(text string, width int, right, last bool) string {
	text = fit(text, width)
	if right {
		text = strings.Repeat(" ", width-cells(text)) + text
	} else {
		text = pad(text, width)
	}
	if last {
		return text
	}
	return text + strings.Repeat(" ", gap)
}

// pad fills text up to n cells.
func pad(text string, n int) string { return text + strings.Repeat(" ", max(n-cells(text), 0)) }

// fit cuts text to n cells: of a long name both ends tell more than the first half.
func fit(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	if n <= 1 {
		return strings.Repeat("…", max(n, 0))
	}
	runes := []rune(text)
	head, tail := n/2, n-1-n/2
	from, used := 0, 0
	for used+cellsOf(runes[from]) <= head {
		used += cellsOf(runes[from])
		from++
	}
	to, used := len(runes), 0
	for used+cellsOf(runes[to-1]) <= tail {
		used += cellsOf(runes[to-1])
		to--
	}
	return string(runes[:from]) + "…" + string(runes[to:])
}

// cells is how many places of a terminal printable text takes.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}
