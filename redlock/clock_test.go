//go:build linux

package redlock_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// movable starts nodes whose wall clocks the test can move.
func movable(t *testing.T, n int) (c *cluster, move func(node int, by time.Duration)) {
	t.Helper()
	for _, program := range []string{"redis-server", "cc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: it is needed to move a Redis server's clock", program)
		}
	}
	dir := t.TempDir()
	shim := filepath.Join(dir, "clock.so")
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", shim,
		"testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	file := func(node int) string { return filepath.Join(dir, "clock-"+strconv.Itoa(node)) }
	move = func(node int, by time.Duration) {
		t.Helper()
		f, err := os.OpenFile(file(node), os.O_WRONLY, 0) // in place: the server has it mapped
		must(t, err)
		_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by)))
		must(t, err)
		must(t, f.Close())
	}
	var addrs []string
	for i := range n {
		must(t, os.WriteFile(file(i), make([]byte, 8), 0o600))
		addrs = append(addrs, launch(t, dir, "LD_PRELOAD="+shim, "CLOCK_FILE="+file(i)))
	}
	return over(t, nil, addrs), move
}

// launch starts a redis-server that keeps nothing, and returns its address.
func launch(t *testing.T, dir string, env ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	must(t, l.Close())
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	cmd.Env = append(os.Environ(), env...)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer c.Close()
	await(t, 10*time.Second, "redis-server answers", func() bool { return c.Ping(t.Context()).Err() == nil })
	return addr
}

// moved checks that a node's clock is where the test wants it.
func (c *cluster) moved(t *testing.T, node int, by time.Duration) {
	t.Helper()
	now, err := c.direct[node].Time(t.Context()).Result()
	must(t, err)
	if off := time.Until(now); off < by-10*time.Second || off > by+10*time.Second {
		t.Fatalf("the node's clock is %v ahead, want %v", off, by)
	}
}

// What is declared: where one node of a bare majority has its clock moved forward by a minute, it
// forgets the lock, and there are two holders. Their tokens differ, and a resource that checks them
// refuses the older one.
func TestClockOfOneNodeMovedForward(t *testing.T) {
	t.Parallel()
	c, move := movable(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	a, b := open(t, through), open(t, c.url(""))
	refuse(proxies[2])
	first := lock(t, a.Mutex("a", fencelock.WithManualRenew()))
	move(1, time.Minute)
	c.moved(t, 1, time.Minute)
	second, err := b.Mutex("a").TryLock(t.Context())
	if err != nil {
		t.Fatalf("got %v, want the violation that the documents declare", err)
	}
	guard := new(fence.Memory)
	if second.Token() <= first.Token() {
		t.Fatalf("token: got %d after %d", second.Token(), first.Token())
	}
	must(t, guard.Check(t.Context(), "r", first.Token()))
	must(t, guard.Check(t.Context(), "r", second.Token()))
	want(t, "the older holder's write", guard.Check(t.Context(), "r", first.Token()), fencelock.ErrStale)
	// Back again, and the tokens go on.
	unlock(t, second)
	move(1, 0)
	proxies[2].Set(faultproxy.Mode{})
	await(t, 10*time.Second, "the first holder has been told", func() bool { return first.Err() != nil })
	third := lock(t, b.Mutex("a"))
	if third.Token() <= second.Token() {
		t.Errorf("token: got %d after %d", third.Token(), second.Token())
	}
	unlock(t, third)
}

// The same with the clocks of two nodes, although all three had voted for the holder: one of them is no violation.
func TestClocksOfTwoNodesMovedForward(t *testing.T) {
	t.Parallel()
	c, move := movable(t, 3)
	a, b := open(t, c.url("fresh=1")), open(t, c.url(""))
	first := lock(t, a.Mutex("a", fencelock.WithManualRenew()))
	await(t, 5*time.Second, "all have voted", func() bool {
		return c.value(t, 0, "a") != "" && c.value(t, 1, "a") != "" && c.value(t, 2, "a") != ""
	})
	move(0, time.Minute)
	_, err := b.Mutex("a").TryLock(t.Context())
	want(t, "one of three is no violation", err, fencelock.ErrLocked)
	await(t, 5*time.Second, "the vote for the loser is undone", func() bool { return c.value(t, 0, "a") == "" })
	move(1, time.Minute)
	second, err := b.Mutex("a").TryLock(t.Context())
	if err != nil {
		t.Fatalf("got %v, want the violation that the documents declare", err)
	}
	if second.Token() <= first.Token() {
		t.Errorf("token: got %d after %d", second.Token(), first.Token())
	}
}

// A node whose clock was an hour ahead when its quarantine began waits one from when it was set right, not the hour.
func TestClockSetBackInQuarantine(t *testing.T) {
	t.Parallel()
	c, move := movable(t, 3)
	l := open(t, c.url("quarantine=3s&fresh=1"), fencelock.WithTTL(3*time.Second))
	unlock(t, lock(t, l.Mutex("a")))
	move(0, time.Hour)
	c.moved(t, 0, time.Hour)
	must(t, c.direct[0].FlushAll(t.Context()).Err())
	until := func() string { return c.direct[0].HGet(t.Context(), state, "until").Val() }
	await(t, 10*time.Second, "the quarantine begins", func() bool {
		unlock(t, lock(t, l.Mutex("a")))
		return until() != ""
	})
	ahead, back := until(), time.Now()
	move(0, 0)
	c.moved(t, 0, 0)
	await(t, 15*time.Second, "the node votes", func() bool {
		unlock(t, lock(t, l.Mutex("a")))
		return c.settled(t, 0)
	})
	if took := time.Since(back); took < 2900*time.Millisecond {
		t.Errorf("it votes after %v, want a whole quarantine; it was to end at %s", took, ahead)
	}
}

// Two databases of the same nodes: the releases in one do not keep the other's from staying remembered.
func TestReleasesRememberedInTwoDatabases(t *testing.T) {
	t.Parallel()
	c, move := movable(t, 3)
	var locks [2]fencelock.Mutex
	var left [2]func() time.Duration // until the first node forgets the releases
	for db := range locks {
		locks[db] = open(t, strings.Replace(c.url("fresh=1"), "/0?", "/"+strconv.Itoa(db)+"?", 1)).Mutex("a")
		r := goredis.NewClient(&goredis.Options{Addr: c.addrs[0], DB: db})
		t.Cleanup(func() { _ = r.Close() })
		left[db] = func() time.Duration {
			var most time.Duration
			for _, ring := range r.Keys(t.Context(), "fl?rl:r*").Val() {
				most = max(most, r.PTTL(t.Context(), ring).Val())
			}
			return most
		}
	}
	for _, by := range []time.Duration{0, 70 * time.Second} {
		move(0, by)
		c.moved(t, 0, by)
		for db, m := range locks {
			unlock(t, lock(t, m))
			await(t, 5*time.Second, fmt.Sprintf("a minute at least, %v later, in database %d", by, db), func() bool {
				return left[db]() > time.Minute
			})
		}
	}
}
