package watch

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// Sequences for the terminal. A name is quoted by cli.Safe first.
const (
	// The other screen, no cursor, no wrapping, empty.
	toScreen   = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	fromScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home       = "\x1b[H"
	lineStart  = "\x1b[2K" // before the text: behind it the sequence would clear the last cell too
	screenEnd  = "\x1b[J"
)

// markFor is how long a change stays marked, at the least until the next look.
const markFor = 3 * time.Second

// A screen draws a view on a terminal.
type screen struct {
	in      *os.File // nil: the keyboard is not ours
	out     *os.File
	colour  bool
	keys    <-chan key
	signals chan os.Signal

	was   *term.State // the keyboard's state before raw mode; nil outside of raw mode
	drawn bool        // between toScreen and fromScreen
	top   int         // the first row that is shown
	fits  int         // rows that the last drawing had place for
	marks map[string]view.Change
}

// open takes the terminal over.
func (s *screen) open() error {
	s.signals = make(chan os.Signal, 16)
	signal.Notify(s.signals, resized, continued)
	if err := s.enter(); err != nil {
		return err
	}
	if s.in != nil {
		s.keys = readKeys(s.in)
	}
	return nil
}

// close restores the terminal. A second close does nothing.
func (s *screen) close() {
	signal.Stop(s.signals)
	s.leave()
}

func (s *screen) enter() error {
	if s.in != nil && s.was == nil {
		was, err := term.MakeRaw(int(s.in.Fd()))
		if err != nil {
			return err
		}
		s.was = was
	}
	s.drawn = true
	_, err := s.out.WriteString(toScreen)
	return err
}

func (s *screen) leave() {
	if s.drawn {
		_, _ = s.out.WriteString(fromScreen) // the terminal may be gone
		s.drawn = false
	}
	if s.was != nil {
		_ = term.Restore(int(s.in.Fd()), s.was)
		s.was = nil
	}
}

// note marks changes.
func (s *screen) note(changes []view.Change) {
	for _, c := range changes {
		if c.Event != view.Held {
			s.marks[c.Name] = c
		}
	}
}

// press obeys a key.
func (s *screen) press(k key) error {
	page := max(s.fits, 1)
	switch k {
	case keySuspend:
		s.leave()
		cli.Suspend()
		return s.enter()
	case keyUp:
		s.top--
	case keyDown:
		s.top++
	case keyPageUp:
		s.top -= page
	case keyPageDown:
		s.top += page
	case keyTop:
		s.top = 0
	case keyBottom:
		s.top = 1 << 30
	case keyQuit:
	}
	return nil
}

// draw shows a view as of now, and reports whether the terminal is still there.
func (s *screen) draw(v *view.View, now time.Time) bool {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	var b bytes.Buffer
	b.WriteString(home)
	for i, line := range s.compose(v, now, width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(lineStart + line)
	}
	b.WriteString(screenEnd)
	_, err = s.out.Write(b.Bytes()) // at once, so that it does not flicker
	return err == nil
}

// compose returns the lines of the screen: height at the most, of width cells at the most.
func (s *screen) compose(v *view.View, now time.Time, width, height int) []string {
	rows := s.marked(v, now)
	lines := []string{s.title(v, now, width), s.status(v, now, width)}
	const around = 5 // the two above, an empty line, the table's head, the foot
	s.fits = max(height-around, 1)
	s.top = max(min(s.top, len(rows)-s.fits), 0)
	shown := rows[s.top:min(s.top+s.fits, len(rows))]
	lines = append(lines, "")
	lines = append(lines, s.table(v, shown, now, width)...)
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, s.foot(len(rows), len(shown), width))
	// On a screen that is too low, the rows and the foot.
	return lines[max(len(lines)-max(height, 1), 0):]
}

func (s *screen) title(v *view.View, now time.Time, width int) string {
	what := "locks"
	if v.Prefix != "" {
		what = "locks " + cli.Safe(v.Prefix) + "*"
	}
	clock := now.Format(time.TimeOnly)
	left := fmt.Sprintf("%s, every %v", what, v.Every)
	if width < len(clock)+10 {
		return s.paint(bold, fit(left, width))
	}
	return s.paint(bold, pad(fit(left, width-len(clock)-2), width-len(clock))+clock)
}

func (s *screen) status(v *view.View, now time.Time, width int) string {
	if v.Outage != nil {
		text := fmt.Sprintf("NO ANSWER for %s: %s", view.Brief(now.Sub(v.Outage.Since)),
			cli.Safe(cli.Message(v.Outage.Err)))
		return s.paint(alarm, fit(text, width))
	}
	held, waiting := 0, 0
	for _, r := range v.Rows {
		if r.Held {
			held++
		}
		if waiting += r.Waiters; r.Waiters < 0 {
			waiting = -1 << 62 // the store cannot tell
		}
	}
	text := fmt.Sprintf("%d held", held)
	if waiting >= 0 {
		text += fmt.Sprintf(", %d waiting", waiting)
	}
	return fit(text, width)
}

func (s *screen) foot(all, shown, width int) string {
	text := "q quit"
	if s.in == nil {
		text = "Ctrl-C quit"
	}
	if shown < all {
		text += fmt.Sprintf("   %d-%d of %d, arrow keys scroll", s.top+1, s.top+shown, all)
	}
	return s.paint(faint, fit(text, width))
}

// The colours.
const (
	bold   = "1"
	faint  = "2"
	green  = "32"
	yellow = "33"
	alarm  = "1;31"
)

func (s *screen) paint(style, text string) string {
	if !s.colour || style == "" || strings.TrimSpace(text) == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// A key is a command of the user to the screen.
type key int

const (
	keyQuit key = iota
	keySuspend
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyTop
	keyBottom
)

// keyCodes are the bytes that terminals send for a key. In raw mode Ctrl-C is a byte too.
var keyCodes = map[key][]string{
	keyQuit:     {"q", "Q", "\x03", "\x1c"},
	keySuspend:  {"\x1a"},
	keyUp:       {"k", "\x1b[A", "\x1bOA"},
	keyDown:     {"j", "\x1b[B", "\x1bOB"},
	keyPageUp:   {"\x1b[5~", "\x02"},
	keyPageDown: {"\x1b[6~", "\x06", " "},
	keyTop:      {"g", "\x1b[H", "\x1bOH", "\x1b[1~"},
	keyBottom:   {"G", "\x1b[F", "\x1bOF", "\x1b[4~"},
}

// readKeys returns a channel of the typed keys, which is closed when the keyboard is gone. Its goroutine
// ends with the process: a read of a terminal cannot be ended.
func readKeys(in *os.File) <-chan key {
	keys := make(chan key)
	go func() {
		defer close(keys)
		buf := make([]byte, 256)
		for {
			n, err := in.Read(buf)
			if err != nil {
				return
			}
			for _, k := range keysIn(string(buf[:n])) {
				keys <- k
			}
		}
	}()
	return keys
}

// keysIn returns the known keys in typed bytes.
func keysIn(typed string) []key {
	var keys []key
next:
	for typed != "" {
		for k, codes := range keyCodes {
			for _, code := range codes {
				if rest, ok := strings.CutPrefix(typed, code); ok {
					keys, typed = append(keys, k), rest
					continue next
				}
			}
		}
		if typed[0] == '\x1b' {
			break // an unknown sequence: its letters are no keys
		}
		typed = typed[1:]
	}
	return keys
}
