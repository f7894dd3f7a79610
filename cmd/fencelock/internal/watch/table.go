package watch

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// marked returns the view's rows, and among them the rows that were released a moment ago. A row without a
// recent change has no Event.
func (s *screen) marked(v *view.View, now time.Time) []view.Change {
	for name, c := range s.marks {
		if now.Sub(c.At) >= max(markFor, v.Every) {
			delete(s.marks, name)
		}
	}
	rows := make([]view.Change, 0, len(v.Rows)+len(s.marks))
	there := map[string]bool{}
	for _, r := range v.Rows {
		there[r.Name] = true
		rows = append(rows, view.Change{Event: s.marks[r.Name].Event, Row: r})
	}
	for name, c := range s.marks {
		if !there[name] {
			rows = append(rows, c)
		}
	}
	slices.SortFunc(rows, func(x, y view.Change) int { return strings.Compare(x.Name, y.Name) })
	return rows
}

// The marks and colours of events. The marks tell events apart without colours.
var (
	signs  = map[string]string{view.Acquired: "+", view.Changed: "~", view.Released: "-"}
	styles = map[string]string{view.Acquired: green, view.Changed: yellow, view.Released: faint}
)

// A column of the table.
type column struct {
	head  string
	right bool // numbers
	text  func(r view.Change) string
}

// table returns the head and the rows, each of width cells at the most. On a narrow screen columns
// are left out.
func (s *screen) table(v *view.View, rows []view.Change, now time.Time, width int) []string {
	unlessEnded := func(text func(view.Change) string) func(view.Change) string {
		return func(r view.Change) string {
			if r.Event == view.Released && !r.Held {
				return ""
			}
			return text(r)
		}
	}
	columns := []column{
		{"NAME", false, func(r view.Change) string { return cli.Safe(r.Name) }},
		{"OWNER", false, func(r view.Change) string { return cli.Owner(r.Info) }},
		{"TOKEN", true, func(r view.Change) string { return cli.Token(r.Info) }},
		{"SEEN", true, unlessEnded(func(r view.Change) string { return r.SeenFor(now) })},
		{"EXPIRES IN", true, unlessEnded(func(r view.Change) string {
			return expiry(v, r.Row, now)
		})},
		{"WAITERS", true, unlessEnded(func(r view.Change) string { return cli.Waiters(r.Info) })},
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

// expiry is cli.Expiry as of now in whole seconds, rounded up: after 1s comes 0s, which means that the
// lease has ended unless it was renewed.
func expiry(v *view.View, r view.Row, now time.Time) string {
	if r.Leaked || !r.Held || r.ExpiresIn <= 0 {
		return cli.Expiry(r.Info)
	}
	return view.Brief(max(r.ExpiresIn-now.Sub(v.At), 0) + time.Second - 1)
}

const (
	gap       = 2  // cells between columns
	leastText = 12 // cells that a column of text must have, if its text is longer
)

// layout returns the columns' widths, and whether they fit: the columns of text give way.
func layout(columns []column, rows []view.Change, width int) ([]int, bool) {
	widths := make([]int, len(columns))
	left := width - 2 + gap // the sign
	for i, c := range columns {
		widths[i] = cells(c.head)
		for _, r := range rows {
			widths[i] = max(widths[i], cells(c.text(r)))
		}
		left -= widths[i] + gap
	}
	// Cells are taken from the widest column of text, one by one.
	for ; left < 0; left++ {
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
	}
	return widths, true
}

func (s *screen) rows(columns []column, widths []int, rows []view.Change) []string {
	line := func(style, sign string, text func(c column) string) string {
		for i, c := range columns {
			t := fit(text(c), widths[i])
			if free := strings.Repeat(" ", widths[i]-cells(t)); c.right {
				t = free + t
			} else {
				t += free
			}
			sign += t + strings.Repeat(" ", gap)
		}
		return s.paint(style, strings.TrimRight(sign, " "))
	}
	lines := []string{line(bold, "  ", func(c column) string { return c.head })}
	for _, r := range rows {
		style := styles[r.Event]
		if r.Leaked {
			style = alarm
		}
		lines = append(lines, line(style, pad(signs[r.Event], 2),
			func(c column) string { return c.text(r) }))
	}
	return lines
}

// pad fills text up to n cells.
func pad(text string, n int) string { return text + strings.Repeat(" ", max(n-cells(text), 0)) }

// fit cuts text to n cells. It keeps both ends of a long name, which tell more than its first half.
func fit(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	if n <= 1 {
		return strings.Repeat("…", max(n, 0))
	}
	runes := []rune(text)
	from, to := 0, len(runes)
	for used := cells(string(runes[0])); used <= n/2; used += cells(string(runes[from])) {
		from++
	}
	for used := cells(string(runes[to-1])); used <= n-1-n/2; used += cells(string(runes[to-1])) {
		to--
	}
	return string(runes[:from]) + "…" + string(runes[to:])
}

// cells is how many places of a terminal printable text takes.
func cells(text string) int {
	n := 0
	for _, r := range text {
		switch kind := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case kind == width.EastAsianWide, kind == width.EastAsianFullwidth:
			n += 2
		default:
			n++
		}
	}
	return n
}
