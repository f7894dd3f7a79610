package zookeeper_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/faultproxy"
)

// A waiter that died in the middle delays those behind it no longer than one that died at the head: they look
// before it is their turn to look at it.
func TestDeadWaiterInTheMiddle(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	holder, a, behind := open(t, z.URL()), open(t, z.URL()), open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	le := lock(t, holder.Mutex("x"))
	next := queue(t, c, a, "x", 1)
	queue(t, c, open(t, url), "x", 2)
	last := queue(t, c, behind, "x", 3)
	p.Set(faultproxy.BlackHole)
	unlock(t, le)
	unlock(t, next.Granted(t, 5*time.Second))
	freed := time.Now()
	got := last.Granted(t, 20*time.Second)
	took, most := last.At.Sub(freed), a.Traits().DeadWaiter+time.Second
	t.Logf("behind a dead waiter in the middle: granted after %v", took)
	if took > most {
		t.Errorf("granted after %v, want %v at most", took, most)
	}
	unlock(t, got)
	p.Set(faultproxy.Mode{})
}

// A writer whose requests take nearly a second keeps its place before readers.
func TestSlowLiveWaitingWriter(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for 8s")
	}
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	reader := get(t, open(t, z.URL()).RWMutex("x").RLock)
	writer := waits(t, c, open(t, url).Mutex("x").Lock, "x", 1)
	late := waits(t, c, open(t, z.URL()).RWMutex("x").RLock, "x", 2)
	place := nodes(t, c, "x", "wait-")
	p.Set(faultproxy.Mode{Delay: 400 * time.Millisecond})
	select {
	case <-late.Done:
		t.Fatalf("a reader came before a slow writer that waits: %v", late.Err)
	case <-time.After(8 * time.Second):
	}
	if now := nodes(t, c, "x", "wait-"); !slices.Equal(now, place) {
		t.Errorf("the writer's place: got %q, want %q", now, place)
	}
	p.Set(faultproxy.Mode{})
	unlock(t, reader)
	unlock(t, writer.Granted(t, 10*time.Second))
	unlock(t, late.Granted(t, 5*time.Second))
	awaitClean(t, c, 2*time.Second)
}

// The first in the queue says that it lives just before the removal comes that takes it for dead: it keeps its place.
func TestLateRemovalOfALiveWriter(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l, g := openGated(t, z)
	reader := get(t, open(t, z.URL()).RWMutex("x").RLock)
	place, err := c.Create(at("x")+"/wait-"+strings.Repeat("5", 32)+"-", nil, zk.FlagEphemeralSequential,
		zk.WorldACL(zk.PermAll))
	must(t, err)
	late := waits(t, c, l.RWMutex("x").RLock, "x", 2)
	const opDelete = 2
	held, release := g.hold(func(p []byte) bool {
		return len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == opDelete && about(place)(p)
	})
	t.Cleanup(release)
	select {
	case <-held:
	case <-time.After(10 * time.Second):
		t.Fatal("a writer that says nothing is not taken for dead")
	}
	_, err = c.Set(place, nil, -1) // it lives
	must(t, err)
	release()
	_, err = l.Inspect(t.Context(), "x") // answered after the removal
	must(t, err)
	if got := nodes(t, c, "x", "wait-"); !slices.Equal(got, []string{place}) {
		t.Errorf("the writer's place: got %q, want %q", got, place)
	}
	must(t, c.Delete(place, -1))
	unlock(t, late.Granted(t, 5*time.Second))
	unlock(t, reader)
	awaitClean(t, c, 2*time.Second)
}

// What a writer that waits behind readers says is for the next in the queue: the others look as seldom as ever.
func TestReadersBehindALiveWriter(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for 8s")
	}
	z := single(t)
	c := foreign(t, z.Addrs()...)
	behind, g := openGated(t, z)
	reader := get(t, open(t, z.URL()).RWMutex("x").RLock)
	writer := waits(t, c, open(t, z.URL()).Mutex("x").Lock, "x", 1)
	next := waits(t, c, open(t, z.URL()).RWMutex("x").RLock, "x", 2)
	last := waits(t, c, behind.RWMutex("x").RLock, "x", 3)
	place := nodes(t, c, "x", "wait-")[0]
	asked, began := g.count(asks), time.Now()
	said := func() int32 {
		_, stat, err := c.Get(place)
		must(t, err)
		return stat.Version
	}
	often := said() + 7
	await(t, 20*time.Second, "the writer has said often that it lives", func() bool { return said() >= often })
	n, took := asked.Load(), time.Since(began)
	if most := 4 + int64(took/time.Second); n > most { // two every 2 s
		t.Errorf("the last in the queue asked %d times in %v, want at most %d", n, took, most)
	}
	unlock(t, reader)
	unlock(t, writer.Granted(t, 5*time.Second))
	unlock(t, next.Granted(t, 5*time.Second))
	unlock(t, last.Granted(t, 5*time.Second))
	awaitClean(t, c, 2*time.Second)
}
