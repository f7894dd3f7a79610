package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/servers"
)

// What a screen sends to its terminal.
const (
	toScreen   = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	fromScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home       = "\x1b[H"
	lineStart  = "\x1b[2K"
	screenEnd  = "\x1b[J"
)

// sgr are the colours.
var sgr = regexp.MustCompile(`\x1b\[[\d;]*m`)

// frame is what the terminal shows since it was last drawn on, as lines without colours.
func (p *pty) frame() []string {
	all := p.text()
	end := strings.LastIndex(all, screenEnd)
	start := strings.LastIndex(all[:max(end, 0)], home)
	if end < 0 || start < 0 {
		return nil
	}
	lines := strings.Split(sgr.ReplaceAllString(all[start+len(home):end], ""), "\r\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, lineStart)
	}
	return lines
}

// draws waits until a frame has a line that matches.
func (p *pty) draws(line string) {
	p.t.Helper()
	re := regexp.MustCompile(line)
	await(p.t, "the terminal shows a line "+line, func() bool {
		for _, l := range p.frame() {
			if re.MatchString(l) {
				return true
			}
		}
		return false
	})
}

// resize changes the terminal's size.
func (p *pty) resize(cols, rows uint16) {
	p.t.Helper()
	must(p.t, unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}))
}

func (p *pty) termios() unix.Termios {
	p.t.Helper()
	got, err := unix.IoctlGetTermios(int(p.master.Fd()), unix.TCGETS)
	must(p.t, err)
	return *got
}

func TestTerminalWatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how string
		end func(p *pty)
	}{
		{"q", func(p *pty) { p.types("q") }},
		{"Ctrl-C", func(p *pty) { p.types("\x03") }},
		{"TERM", func(p *pty) { must(p.t, p.cmd.Process.Signal(syscall.SIGTERM)) }},
	} {
		url := fileStore(t)
		hold(t, url, "jobs/\x1b[2Ja")
		p := onTerminal(t, url, "watch", "--interval", "20ms", "jobs/")
		p.draws(`^locks jobs/\*, every 20ms .*\d\d:\d\d:\d\d$`)
		p.draws(`^1 held`)
		p.draws(`^  "jobs/\\x1b\[2Ja" +\S+ +\d+ +>\ds +\d+s`)
		// Raw from then on.
		was := p.termios()
		if was.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
			t.Errorf("%s: the keyboard is not raw", c.how)
		}
		lease := hold(t, url, "jobs/b")
		p.draws(`^\+ jobs/b `)
		must(t, lease.Unlock(t.Context()))
		p.draws(`^- jobs/b `)
		p.resize(40, 10)
		p.draws(`^  NAME +EXPIRES IN +WAITERS$`)
		if n := len(p.frame()); n != 10 {
			t.Errorf("%s: %d lines drawn on a screen of 10", c.how, n)
		}
		p.resize(200, 50)
		p.draws(`^  NAME +OWNER +TOKEN +SEEN +EXPIRES IN +WAITERS$`)
		c.end(p)
		p.exits(0)
		if now := p.termios(); now.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != unix.ICANON|unix.ECHO|unix.ISIG {
			t.Errorf("%s: the keyboard was left as %b", c.how, now.Lflag)
		}
		await(t, c.how+": the screen is given back last", func() bool {
			return strings.HasSuffix(p.text(), fromScreen)
		})
		if n := strings.Count(p.text(), toScreen); n != 1 {
			t.Errorf("%s: the screen was entered %d times", c.how, n)
		}
	}
}

// Without a shell that could continue us, Ctrl-Z only draws anew.
func TestTerminalWatchSuspend(t *testing.T) {
	t.Parallel()
	p := onTerminal(t, fileStore(t), "watch", "--interval", "20ms")
	p.draws(`^0 held`)
	p.types("\x1a")
	await(t, "the screen is entered again", func() bool { return strings.Contains(p.text(), fromScreen+toScreen) })
	p.types("q")
	p.exits(0)
}

// A shell gets its terminal back on Ctrl-Z, and fg continues the screen.
func TestTerminalWatchJobControl(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here:", err)
	}
	script := `set -m; "$0" watch --interval 20ms; echo "stopped with $?"; ` +
		`stty -a | grep -o " icanon"; read x; fg; echo "ended with $?"`
	p := commandOnTerminal(t, fileStore(t), exec.Command(shell, "-c", script, os.Args[0]))
	p.draws(`^0 held`)
	p.types("\x1a")
	p.shows(fromScreen)
	p.shows("stopped with 148")
	p.shows(" icanon")
	p.types("\n")
	await(t, "the screen is entered again", func() bool { return strings.Count(p.text(), toScreen) >= 2 })
	p.types("q")
	p.shows("ended with 0")
	p.exits(0)
}

func TestTerminalWatchCount(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	hold(t, url, "jobs/a")
	p := onTerminal(t, url, "watch", "--interval", "20ms", "--count", "2")
	p.exits(0)
	await(t, "the last table is shown after the screen", func() bool {
		_, after, _ := strings.Cut(p.text(), fromScreen)
		return strings.Contains(after, "jobs/a")
	})
}

func TestTerminalWatchPlain(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	hold(t, url, "jobs/a")
	p := onTerminal(t, url, "watch", "--plain", "--count", "1")
	p.exits(0)
	p.shows("held      jobs/a")
	if got := p.text(); strings.Contains(got, "\x1b") {
		t.Errorf("got %q, want lines", got)
	}
}

func TestTerminalWatchOutage(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	hold(t, s.URL(), "jobs/a")
	p := onTerminal(t, s.URL(), "watch", "--interval", "20ms")
	p.draws(`^  jobs/a `)
	must(t, s.Stop())
	p.draws(`^NO ANSWER for \ds: `)
	p.draws(`^  jobs/a `)
	must(t, s.Start())
	p.draws(`^0 held`)
	p.types("q")
	p.exits(0)
	p.shows(fromScreen)
	if got := p.text(); strings.Contains(got, "fencelock: ") {
		t.Errorf("the error was printed over the screen: %q", got)
	}
}
