package watch

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// hostile are names that would steer a terminal, or look like others.
var hostile = []string{
	"\x1b[2J\x1b[31mred", "\x9b31m", "\x1b]0;title\a", "a\nb", "a\rb", "\u202egnp.exe", "zero\u200bwidth", "tab\tbed",
	" leading", `"quoted"`, "漢字かな交じり文の長い名前", "e\u0301", strings.Repeat("long/", 100), "\U000e0041tag",
}

// sgr are the colours.
var sgr = regexp.MustCompile(`\x1b\[[\d;]*m`)

func manyLooks(n int) (*view.View, *screen, time.Time) {
	v := &view.View{Every: time.Second, Prefix: "\x1b[5m"}
	s := &screen{colour: true, marks: map[string]view.Change{}}
	var infos []fencelock.Info
	for i, name := range hostile {
		infos = append(infos, fencelock.Info{
			Name: name, Owner: hostile[len(hostile)-1-i], Held: true, Token: 1_790_000_000_000_000,
			ExpiresIn: 30 * time.Second,
		})
	}
	for i := range n {
		infos = append(infos, fencelock.Info{
			Name: fmt.Sprintf("jobs/%03d", i), Owner: "host-1:4711", Held: true, Token: 7,
			ExpiresIn: time.Minute, Waiters: 3,
		})
	}
	slices.SortFunc(infos, func(x, y fencelock.Info) int { return strings.Compare(x.Name, y.Name) })
	changes, now := taking(v, time.Unix(1000, 0), infos, infos[1:])
	s.note(changes)
	return v, s, now
}

// Whatever the size and the names are, the lines fit, and nothing but colours steers the terminal.
func TestScreenFits(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 5, 60} {
		v, s, now := manyLooks(n)
		for _, size := range [][2]int{
			{1, 1},
			{2, 2},
			{5, 3},
			{12, 4},
			{20, 10},
			{40, 12},
			{60, 24},
			{80, 24},
			{120, 40},
			{300, 90},
		} {
			lines := s.compose(v, now, size[0], size[1])
			if len(lines) > size[1] {
				t.Errorf("%d locks on %v: %d lines", n, size, len(lines))
			}
			for _, line := range lines {
				text := sgr.ReplaceAllString(line, "")
				if cells(text) > size[0] || strings.ContainsFunc(text, func(r rune) bool {
					return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' || r == '\u200b'
				}) {
					t.Errorf("%d locks on %v: %d cells: %q", n, size, cells(text), line)
				}
			}
		}
	}
}

func TestScreenColumns(t *testing.T) {
	t.Parallel()
	v, s, now := manyLooks(60)
	s.colour = false
	for _, c := range []struct {
		width int
		head  []string
	}{
		{120, []string{"NAME", "OWNER", "TOKEN", "SEEN", "EXPIRES", "IN", "WAITERS"}},
		{60, []string{"NAME", "OWNER", "SEEN", "EXPIRES", "IN", "WAITERS"}},
		{50, []string{"NAME", "OWNER", "EXPIRES", "IN", "WAITERS"}},
		{40, []string{"NAME", "EXPIRES", "IN", "WAITERS"}},
		{30, []string{"NAME", "EXPIRES", "IN"}},
		{20, []string{"NAME"}},
		{5, []string{"N…E"}},
	} {
		if got := strings.Fields(s.compose(v, now, c.width, 24)[3]); !slices.Equal(got, c.head) {
			t.Errorf("width %d: got %q, want %q", c.width, got, c.head)
		}
	}
}

func TestScreenMarks(t *testing.T) {
	t.Parallel()
	v, s := &view.View{Every: time.Second}, &screen{marks: map[string]view.Change{}}
	held := func(name string, token fencelock.Token) fencelock.Info {
		return fencelock.Info{Name: name, Held: true, Token: token, ExpiresIn: time.Minute}
	}
	changes, now := taking(v, time.Unix(1000, 0),
		[]fencelock.Info{held("a", 1), held("b", 1), held("c", 1)},
		[]fencelock.Info{held("a", 1), held("b", 2), held("d", 1)})
	s.note(changes)
	rows := func(now time.Time) (got []string) {
		for _, line := range s.compose(v, now, 80, 12)[4:11] {
			if line != "" {
				got = append(got, line[:3])
			}
		}
		return got
	}
	if got, want := rows(now), []string{"  a", "~ b", "- c", "+ d"}; !slices.Equal(got, want) {
		t.Errorf("at once: got %q, want %q", got, want)
	}
	if got, want := rows(now.Add(markFor)), []string{"  a", "  b", "  d"}; !slices.Equal(got, want) {
		t.Errorf("later: got %q, want %q", got, want)
	}
	s.note(changes)
	plain := strings.Join(s.compose(v, now, 80, 12), "\n")
	s.colour = true
	coloured := strings.Join(s.compose(v, now, 80, 12), "\n")
	if strings.Contains(plain, "\x1b") || sgr.ReplaceAllString(coloured, "") != plain ||
		!strings.Contains(coloured, "\x1b["+green+"m+ d") {
		t.Errorf("colours: got %q and %q", plain, coloured)
	}
}

func TestScreenOutage(t *testing.T) {
	t.Parallel()
	v, s := &view.View{Every: time.Second}, &screen{marks: map[string]view.Change{}}
	_, now := taking(v, time.Unix(1000, 0), []fencelock.Info{{Name: "a", Held: true, Token: 1}}, nil, nil)
	text := strings.Join(s.compose(v, now, 80, 12), "\n")
	if !strings.Contains(text, "NO ANSWER for 1s: down") || !strings.Contains(text, "\n  a ") {
		t.Errorf("got %q, want the outage and what was seen last", text)
	}
}

func TestScreenScrolls(t *testing.T) {
	t.Parallel()
	v, s := &view.View{Every: time.Second}, &screen{marks: map[string]view.Change{}}
	var infos []fencelock.Info
	for i := range 30 {
		infos = append(infos, fencelock.Info{Name: fmt.Sprintf("n%02d", i), Held: true, Token: 1})
	}
	_, now := taking(v, time.Unix(1000, 0), infos)
	first := func() string { return strings.Fields(s.compose(v, now, 80, 15)[4])[0] } // of ten
	for _, c := range []struct {
		typed, want string
	}{
		{"", "n00"},
		{"k", "n00"},
		{"j", "n01"},
		{"\x1b[B\x1bOB", "n03"},
		{"\x1b[A", "n02"},
		{" ", "n12"},
		{"\x1b[6~", "n20"},
		{"\x1b[5~", "n10"},
		{"G", "n20"},
		{"j", "n20"},
		{"g", "n00"},
		{"\x1b[99~j", "n00"},
		{"xj", "n01"},
	} {
		first()
		for _, k := range keysIn(c.typed) {
			if err := s.press(k); err != nil {
				t.Fatal(err)
			}
		}
		if got := first(); got != c.want {
			t.Errorf("after %q: first row %s, want %s", c.typed, got, c.want)
		}
	}
	if foot := s.compose(v, now, 80, 15)[14]; !strings.Contains(foot, "2-11 of 30") {
		t.Errorf("foot: got %q", foot)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"jobs/nightly", 12, "jobs/nightly"},
		{"jobs/nightly", 7, "job…tly"},
		{"jobs/nightly", 2, "j…"},
		{"jobs/nightly", 1, "…"},
		{"jobs/nightly", 0, ""},
		{"漢字漢字", 8, "漢字漢字"},
		{"漢字漢字", 6, "漢…字"},
		{"漢字漢字", 5, "漢…字"},
	} {
		if got := fit(c.text, c.n); got != c.want || cells(got) > c.n {
			t.Errorf("fit(%q, %d): got %q of %d cells, want %q", c.text, c.n, got, cells(got), c.want)
		}
	}
}

// taking feeds a view with looks a second apart; nil is an outage.
func taking(v *view.View, start time.Time, looks ...[]fencelock.Info) (changes []view.Change, now time.Time) {
	for i, infos := range looks {
		now = start.Add(time.Duration(i) * time.Second)
		l := view.Look{At: now, Infos: infos}
		if infos == nil {
			l.Err = errors.New("down")
		}
		changes = append(changes, v.Take(l)...)
	}
	return changes, now
}

func TestViewCountsDown(t *testing.T) {
	t.Parallel()
	v := &view.View{Every: time.Second}
	_, now := taking(v, time.Unix(1000, 0), []fencelock.Info{
		{Name: "a", Held: true, ExpiresIn: 10 * time.Second, Waiters: 2},
		{Name: "b", Held: true, Leaked: true, Waiters: 1},
	})
	for _, c := range []struct {
		row   int
		after time.Duration
		want  string
	}{
		{0, 0, "10s"},
		{0, 2500 * time.Millisecond, "8s"},
		{0, 9999 * time.Millisecond, "1s"},
		{0, 20 * time.Second, "0s"}, // the store has the word, at the next look
		{1, 20 * time.Second, "never"},
	} {
		if got := expiry(v, v.Rows[c.row], now.Add(c.after)); got != c.want {
			t.Errorf("row %d after %v: got %q, want %q", c.row, c.after, got, c.want)
		}
	}
	s := &screen{}
	if got := s.status(v, now, 80); got != "2 held, 3 waiting" {
		t.Errorf("got %q, want 2 held, 3 waiting", got)
	}
	v.Rows[0].Waiters = -1
	if got := s.status(v, now, 80); got != "2 held" {
		t.Errorf("got %q, want no number of who waits: it is unknown", got)
	}
}
