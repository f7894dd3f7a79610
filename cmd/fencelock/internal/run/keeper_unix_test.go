//go:build unix

package run

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

func TestKeeperReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		chunks []string
		group  int
		until  time.Duration
	}{
		{nil, 0, 0},
		{[]string{"until 5\ngroup 7\n"}, 7, 5},
		{[]string{"group 7\nuntil 5\nuntil 9\n"}, 7, 9},
		{[]string{"gro", "up 71", "2\nunt", "il 5\n"}, 712, 5},
		{[]string{"group 7\n", "until 12"}, 7, 0},
		{[]string{"nonsense\n\ngroup x\nuntil 5\n"}, 0, 5},
	} {
		var w watch
		for _, chunk := range c.chunks {
			w.read([]byte(chunk))
		}
		if w.group != c.group || w.until != c.until {
			t.Errorf("%q: got group %d until %d, want %d, %d", c.chunks, w.group, w.until, c.group, c.until)
		}
	}
}

// A keeper that starts slowly gets the Deadline as it is then. A command that it killed before it heard of a renewal
// was ended for its lease.
func TestKeeperHearsOfRenewals(t *testing.T) {
	locks, err := fencelock.Open(t.Context(), "memory://?ttl=1s")
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Mutex("n").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, w, _ := os.Pipe()
	ready, answer, _ := os.Pipe()
	for _, f := range []*os.File{in, w, ready, answer} {
		defer f.Close()
	}
	h := holding{lease: lease, keeper: &keeper{w: w, ready: ready}}
	done, buf := make(chan error, 1), make([]byte, 1<<10)
	go func() { done <- h.born(4711) }()
	time.Sleep(50 * time.Millisecond) // a slow start
	if n, _ := in.Read(buf); string(buf[:n]) != "group 4711\n" {
		t.Errorf("at the start: got %q, want the group alone", buf[:n])
	}
	if _, err := answer.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, _ := in.Read(buf); !strings.HasPrefix(string(buf[:n]), "until ") {
		t.Errorf("on watch: got %q, want the Deadline", buf[:n])
	}
	h.events = events{a: &cli.App{}, lease: lease}
	const killed = cli.ExitSignal + 9
	for _, past := range []bool{false, true} {
		if past {
			h.keeperAt, h.deadline = time.Now().Add(-time.Millisecond), time.Time{} // a renewal is noticed now
		}
		h.observe(time.Now())
		if h.kept(killed, time.Now()); (h.lost != nil) != past {
			t.Errorf("message after the kill %v: got %v", past, h.lost)
		}
	}
}
