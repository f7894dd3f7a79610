package etcd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
)

// The leader is killed, or stops answering: the lock is kept, the waiter keeps its place, and a
// Lock meanwhile is ridden out; so is an RLock, which joins those who read.
func TestLeaderFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("elections take a second or two each")
	}
	e := servers.Etcd(t, servers.EtcdOptions{Members: 3})
	r := on(t, e, "leader:")
	for _, tt := range []struct {
		name      string
		fail, end func(*servers.Server) error
	}{
		{"killed", (*servers.Server).Kill, (*servers.Server).Start},
		{"paused", (*servers.Server).Pause, (*servers.Server).Resume},
	} {
		l, other := open(t, r.url(), fencelock.WithTTL(10*time.Second)), open(t, r.url())
		le := lock(t, l.Mutex("x"))
		wait := r.wait(t, other.Mutex("x"), 2)
		reader := get(t, l.RWMutex("readers").RLock)
		leader, err := e.Leader(within(t, 10*time.Second))
		must(t, err)
		must(t, tt.fail(leader))
		began := time.Now()
		y := lock(t, l.Mutex("y"))
		t.Logf("leader %s: the next Lock took %v", tt.name, time.Since(began).Round(time.Millisecond))
		beside := get(t, other.RWMutex("readers").RLock)
		if beside.Token() != reader.Token() {
			t.Errorf("leader %s: readers have the tokens %d and %d", tt.name, reader.Token(), beside.Token())
		}
		unlock(t, beside)
		unlock(t, reader)
		must(t, le.Err())
		if wait.Over() {
			t.Fatalf("leader %s: the waiter came back while the lock is held: %v", tt.name, wait.Err)
		}
		must(t, le.Renew(within(t, 5*time.Second)))
		unlock(t, le)
		next := wait.Granted(t, 8*time.Second)
		rising(t, "after the leader "+tt.name, le.Token(), next.Token())
		unlock(t, next)
		unlock(t, y)
		must(t, tt.end(leader))
		must(t, e.AwaitOK(within(t, 20*time.Second)))
	}
}

// One member of three is silent: what it is asked goes to another, and then it is asked no more. With a request in
// three to it, these would take ten seconds.
func TestMemberHangs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three members")
	}
	e := servers.Etcd(t, servers.EtcdOptions{Members: 3})
	r := on(t, e, "hangs:")
	l := open(t, r.url(), fencelock.WithTTL(10*time.Second))
	unlock(t, lock(t, l.Mutex("x"))) // connected to all
	leader, err := e.Leader(within(t, 10*time.Second))
	must(t, err)
	for _, s := range e.Servers() {
		if s != leader {
			must(t, s.Pause())
			defer func() { _ = s.Resume() }()
			break
		}
	}
	looks := time.Now()
	for range 15 {
		_, err := l.Inspect(within(t, 8*time.Second), "x")
		must(t, err)
	}
	if took := time.Since(looks); took > 3500*time.Millisecond { // five without its mark
		t.Errorf("fifteen looks, of which a silent member would get a third, took %v", took)
	}
	var last fencelock.Token
	began := time.Now()
	for range 10 {
		le := lock(t, l.Mutex("x"))
		must(t, le.Renew(within(t, 8*time.Second)))
		unlock(t, le)
		rising(t, "with a silent member", last, le.Token())
		last = le.Token()
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ten times Lock, Renew and Unlock with a silent member took %v", took)
	}
}

// A watch that goes to a member that hangs is opened anew at another: nobody who waits takes that for an outage of the
// cluster, or hears of a release late. Of six clients some watch there, as a rule four.
func TestWatchAtAHungMember(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three members, and longer than an outage is ridden out")
	}
	e := servers.Etcd(t, servers.EtcdOptions{Members: 3})
	r := on(t, e, "watch:")
	holder := open(t, r.url(), fencelock.WithTTL(10*time.Second))
	var clients []*fencelock.Locker
	for i := range 6 {
		l := open(t, r.url(), fencelock.WithTTL(10*time.Second))
		le := lock(t, holder.Mutex("warm"))
		wait := r.wait(t, l.Mutex("warm"), 2)
		unlock(t, le)
		unlock(t, wait.Granted(t, 5*time.Second))
		clients = append(clients, l)
		lock(t, holder.Mutex(fmt.Sprint("x", i)))
	}
	leader, err := e.Leader(within(t, 10*time.Second))
	must(t, err)
	hung := slices.DeleteFunc(slices.Clone(e.Servers()), func(s *servers.Server) bool { return s == leader })[0]
	must(t, hung.Pause())
	defer func() { _ = hung.Resume() }()
	var waits []*pending
	for i, l := range clients {
		waits = append(waits, start(t, l.Mutex(fmt.Sprint("x", i))))
	}
	<-time.After(core.Patience + time.Second) // an outage would have ended the waits
	for i, w := range waits {
		if w.Over() {
			t.Fatalf("client %d: the wait is over: %v", i, w.Err)
		}
	}
	must(t, holder.Close()) // which releases all
	began := time.Now()
	for _, w := range waits {
		w.Granted(t, 10*time.Second)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("six waiters heard of the releases within %v, want less than their floor timers", took)
	}
}

// Tokens rise over a crash of the only server, and over its being put back to an older state: for a
// client that was there all the time and for a new one. A lock that the older state does not know
// is lost.
func TestTokensOverCrashAndRestore(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	s := e.Servers()[0]
	if s.Kind() != "local" {
		t.Skip("the data of a container is not at hand")
	}
	r := on(t, e, "restore:")
	l := open(t, r.url(), fencelock.WithTTL(20*time.Second))
	unlock(t, lock(t, l.Mutex("x")))
	backup := filepath.Join(t.TempDir(), "data")
	must(t, s.Stop())
	must(t, os.CopyFS(backup, os.DirFS(filepath.Join(s.Dir(), "data"))))
	must(t, s.Start())
	var last fencelock.Token
	for range 100 { // revisions that the older state does not have
		le := lock(t, l.Mutex("x"))
		rising(t, "after a release", last, le.Token())
		last = le.Token()
		unlock(t, le)
	}
	kept := lock(t, l.Mutex("kept"))
	d := r.driver(t, r.url())
	block := hold(t, d, reserving("block", 1, 63))
	must(t, s.Kill())
	must(t, s.Start())
	must(t, kept.Renew(within(t, 8*time.Second)))
	le := lock(t, l.Mutex("x"))
	rising(t, "after kill -9", last, le.Token())
	last = le.Token()
	unlock(t, le)

	must(t, s.Kill())
	data := filepath.Join(s.Dir(), "data")
	must(t, os.RemoveAll(data))
	must(t, os.CopyFS(data, os.DirFS(backup)))
	must(t, s.Start())
	fresh := open(t, r.url())
	after(t, "after the restore", block.Grant, hold(t, r.driver(t, r.url()), reserving("block", 2, 0)).Grant)
	le = lock(t, fresh.Mutex("x"))
	rising(t, "of a new client after the restore", last, le.Token())
	last = le.Token()
	unlock(t, le)
	le = lock(t, l.Mutex("x"))
	rising(t, "of an old client after the restore", last, le.Token())
	last = le.Token()
	unlock(t, le)
	lost(t, kept, 5*time.Second, fencelock.Revoked, fencelock.SessionLost)
	again := lock(t, l.Mutex("kept"))
	rising(t, "of a lock that the restore took away", kept.Token(), again.Token())
	unlock(t, again)

	// The old client is the first to come.
	must(t, s.Kill())
	must(t, os.RemoveAll(data))
	must(t, os.CopyFS(data, os.DirFS(backup)))
	must(t, s.Start())
	le = lock(t, l.Mutex("x"))
	rising(t, "of an old client that comes first after a restore", last, le.Token())
	last = le.Token()
	unlock(t, le)

	for _, mode := range []locks{l.RWMutex("x").RLock, l.Semaphore("x", 2).Acquire} {
		must(t, s.Kill())
		must(t, os.RemoveAll(data))
		must(t, os.CopyFS(data, os.DirFS(backup)))
		must(t, s.Start())
		le = get(t, mode)
		rising(t, fmt.Sprintf("of a %v of an old client that comes first", le.Mode()), last, le.Token())
		last = le.Token()
		unlock(t, le)
	}
}

// A waiter whose store is down is not left waiting for ever.
func TestWaiterOfADeadServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("an outage is ridden out for 5s")
	}
	e := servers.Etcd(t, servers.EtcdOptions{})
	r := on(t, e, "dead:")
	lock(t, open(t, r.url(), fencelock.WithTTL(time.Minute)).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	must(t, e.Servers()[0].Kill())
	killed := time.Now()
	select {
	case <-wait.Done:
		want(t, "a waiter of a dead server", wait.Err, fencelock.ErrUnavailable)
		t.Logf("told after %v", wait.At.Sub(killed).Round(time.Millisecond))
	case <-time.After(15 * time.Second):
		t.Error("a waiter of a dead server waits on")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := fencelock.Open(ctx, r.url())
	want(t, "Open", err, fencelock.ErrUnavailable)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Open with 500ms took %v", took)
	}
	must(t, e.Servers()[0].Start()) // so that closing is quick
}
