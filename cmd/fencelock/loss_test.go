//go:build unix

package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// beating is a script that ignores TERM and writes the time into a file, again
// and again; its grandchild does so too. Should nothing end it, it ends by itself.
func beating(beats string) string {
	return fmt.Sprintf(
		`trap "" TERM; beat() { i=0; while [ $((i+=1)) -lt 20000 ]; do date +%%s%%N >>%s; done; }; beat & beat`, beats)
}

// lastBeat returns the last time in the file.
func lastBeat(t *testing.T, beats string) time.Time {
	t.Helper()
	var last int64
	for _, line := range lines(beats) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			t.Fatalf("beat %q: %v", line, err)
		}
		last = max(last, ns)
	}
	return time.Unix(0, last)
}

// endOf returns until when a lease of this TTL may have been trusted that was
// granted at granted and not renewed since at: the first renewal is later than a
// quarter of the TTL.
func endOf(granted, at time.Time, ttl time.Duration) time.Time {
	if at.Sub(granted) < ttl/4 {
		return granted.Add(ttl)
	}
	return at.Add(ttl)
}

// deadBy checks that the command beat, but not after end, and says how long before it was dead.
func deadBy(t *testing.T, beats string, end time.Time) {
	t.Helper()
	before := end.Sub(lastBeat(t, beats))
	if before <= 0 {
		t.Errorf("the command was alive %v after the end of the lease", -before)
	}
	t.Logf("dead %v before the end of the lease", before.Round(time.Millisecond))
	count := len(lines(beats))
	time.Sleep(50 * time.Millisecond) // nothing to wait for: a beat would be the fault
	if got := len(lines(beats)); got != count {
		t.Errorf("it beats on: %d lines, then %d", count, got)
	}
}

// lostWith checks how the run of a lost lease ended.
func lostWith(t *testing.T, p *proc, reason string) {
	t.Helper()
	p.exits(cli.ExitLost)
	if e := p.await("lost"); e.Reason != reason {
		t.Errorf("lost with reason %q, want %q", e.Reason, reason)
	}
	if want := "lease lost: " + reason + "; the command was ended"; !strings.Contains(p.text(), want) {
		t.Errorf("stderr lacks %q", want)
	}
	if e := p.await("exit"); *e.Code != cli.ExitLost {
		t.Errorf("exit event with code %d, want %d", *e.Code, cli.ExitLost)
	}
}

func TestLossServerPaused(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a TTL and for a server that does not answer")
	}
	t.Parallel()
	const ttl = 2 * time.Second
	s := servers.Redis(t, servers.RedisOptions{})
	beats := filepath.Join(t.TempDir(), "beats")
	p := running(t, s.URL(), beating(beats), "--ttl", ttl.String(), "n")
	granted := p.await("acquired").At
	awaitLines(t, beats, 1)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	end := endOf(granted, time.Now(), ttl)
	lostWith(t, p, "expired")
	deadBy(t, beats, end)
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestLossRunStopped(t *testing.T) {
	t.Parallel()
	const ttl = 2500 * time.Millisecond
	beats := filepath.Join(t.TempDir(), "beats")
	p := running(t, fileStore(t), beating(beats), "--ttl", ttl.String(), "n")
	granted := p.await("acquired").At
	awaitLines(t, beats, 1)
	p.signal(syscall.SIGSTOP)
	end := endOf(granted, time.Now(), ttl)
	await(t, "the end of the lease", func() bool { return time.Now().After(end) })
	deadBy(t, beats, end) // while run still stands
	p.signal(syscall.SIGCONT)
	lostWith(t, p, "expired")
}

// The lock of a command that run has ended is free at once, unless others are to be kept out after a loss.
func TestLossMaxHold(t *testing.T) {
	t.Parallel()
	const most = 4 * time.Second // time enough for a shell to start on a busy machine
	for grace, next := range map[string]int{"0": 0, "1m": 75} {
		t.Run("grace "+grace, func(t *testing.T) {
			t.Parallel()
			url, beats := fileStore(t), filepath.Join(t.TempDir(), "beats")
			p := running(t, url, beating(beats), "--max-hold", most.String(), "--grace", grace, "n")
			granted := p.await("acquired").At
			awaitLines(t, beats, 1)
			lostWith(t, p, "maximum hold reached")
			deadBy(t, beats, granted.Add(most))
			if got := invoke(t, on(url), "run", "--wait", "0", "n", "--", "true"); got.code != next {
				t.Errorf("the next: got %+v, want code %d", got, next)
			}
		})
	}
}

func TestLossBroken(t *testing.T) {
	t.Parallel()
	const killAfter = 600 * time.Millisecond
	eachStore(t, func(t *testing.T, url string) {
		beats := filepath.Join(t.TempDir(), "beats")
		p := running(t, url, beating(beats), "--kill-after", killAfter.String(), "n")
		awaitLines(t, beats, 1)
		broken := time.Now()
		if got := invoke(t, on(url), "break", "--yes", "n"); got.code != 0 {
			t.Fatalf("break: %+v", got)
		}
		lostWith(t, p, "revoked")
		if lived := p.await("exit").At.Sub(broken); lived < killAfter {
			t.Errorf("the command was killed %v after the break, it has %v from TERM on", lived, killAfter)
		}
	})
}

// A command that does not end by itself has a third of the TTL at most.
func TestLossBrokenOfAStubbornCommand(t *testing.T) {
	t.Parallel()
	url, beats := fileStore(t), filepath.Join(t.TempDir(), "beats")
	p := running(t, url, beating(beats), "--ttl", "9s", "--kill-after", "9s", "n")
	awaitLines(t, beats, 1)
	if got := invoke(t, on(url), "break", "--yes", "n"); got.code != 0 {
		t.Fatalf("break: %+v", got)
	}
	lostWith(t, p, "revoked")
	if lived := p.await("exit").At.Sub(p.await("lost").At); lived > 5*time.Second {
		t.Errorf("the command was killed %v after the loss, want a third of 9 s", lived)
	}
}

func TestLossGentleEnd(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	dir := t.TempDir()
	ready, ended := filepath.Join(dir, "ready"), filepath.Join(dir, "ended")
	script := fmt.Sprintf(`trap "echo >%s; exit 0" TERM; echo >%s; while :; do sleep .02; done`, ended, ready)
	p := running(t, url, script, "--kill-after", "10s", "n")
	awaitLines(t, ready, 1)
	if got := invoke(t, on(url), "break", "--yes", "n"); got.code != 0 {
		t.Fatalf("break: %+v", got)
	}
	lostWith(t, p, "revoked") // sooner than after 10 s: it does not wait for what has ended
	if got := len(lines(ended)); got != 1 {
		t.Errorf("the command was not asked to end before it was killed")
	}
}
