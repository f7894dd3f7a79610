package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// backUp keeps the data of a server. What it returns puts them back, as if nothing had happened since.
func backUp(t *testing.T, e *servers.EtcdCluster) (restore func()) {
	t.Helper()
	s := e.Servers()[0]
	if s.Kind() != "local" {
		t.Skip("the data of a container is not at hand")
	}
	data, backup := filepath.Join(s.Dir(), "data"), filepath.Join(t.TempDir(), "data")
	must(t, s.Stop())
	must(t, os.CopyFS(backup, os.DirFS(data)))
	must(t, s.Start())
	return func() {
		t.Helper()
		must(t, s.Kill())
		must(t, os.RemoveAll(data))
		must(t, os.CopyFS(data, os.DirFS(backup)))
		must(t, s.Start())
	}
}

// A waiter that was there before its store was put back to an older state hears of releases at once, although the
// revisions of its watch are ahead.
func TestWaiterOverRestore(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	r := on(t, e, "waiter:")
	session, err := r.c.Grant(t.Context(), 600)
	must(t, err)
	front := r.prefix + "~lock/x/0"
	_, err = r.c.Put(t.Context(), front, "held:5:somebody", clientv3.WithLease(session.ID))
	must(t, err)
	restore := backUp(t, e)
	r = on(t, e, r.prefix)
	l := open(t, r.url())
	for range 100 { // revisions that the older state does not have
		unlock(t, lock(t, l.Mutex("y")))
	}
	wait := r.wait(t, l.Mutex("x"), 2) // its watch begins after them
	restore()
	unlock(t, lock(t, l.Mutex("y"))) // which tells the driver
	if wait.over() {                 // the outage was too long for it
		wait = start(t, l.Mutex("x"))
	}
	r = on(t, e, r.prefix)
	await(t, 20*time.Second, "the waiter is in the queue again", func() bool { return len(r.queue(t, "x")) == 2 })
	_, err = r.c.Delete(t.Context(), front)
	must(t, err)
	unlock(t, wait.granted(t, 3*time.Second)) // before it would look for itself
}

// A release that is sent again, after the store was put back to a state from before the grant, says that the lock was
// lost. The older state knows nothing of a deletion.
func TestReleaseOverRestore(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	restore := backUp(t, e)
	r := on(t, e, "release:")
	p, url := r.proxied(t)
	for i := range 20 { // revisions that the older state does not have
		_, err := r.c.Put(t.Context(), r.prefix+"any", fmt.Sprint(i))
		must(t, err)
	}
	d := r.driver(t, url)
	h := hold(t, d, request("x", 1, time.Minute))
	p.Set(faultproxy.BlackHole)
	if err := d.Release(within(t, 300*time.Millisecond), h); err == nil {
		t.Fatal("Release without any answer: got nil")
	}
	restore()
	p.Cut()
	p.Set(faultproxy.Mode{})
	var err error
	for range 3 { // the driver connects anew
		if err = d.Release(within(t, 5*time.Second), h); errors.Is(err, backend.ErrLost) {
			break
		}
	}
	want(t, "Release after the restore", err, backend.ErrLost)
}
