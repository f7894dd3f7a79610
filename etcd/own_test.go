package etcd_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock"
)

// inNamespace: over clients of a namespace a waiter hears of releases at once, and a release whose reply was lost is
// found.
func inNamespace(t *testing.T, r *rig) {
	const space = "app/"
	client := func(addrs ...string) *fencelock.Locker {
		c := clientOf(t, clientv3.Config{Endpoints: addrs})
		c.KV = namespace.NewKV(c.KV, space)
		c.Watcher = namespace.NewWatcher(c.Watcher, space)
		c.Lease = namespace.NewLease(c.Lease, space)
		l, _ := r.over(t, c)
		return l
	}
	p, _ := r.proxied(t)
	a, b := client(p.Addr()), client(r.e.Addrs()...)
	inside := &rig{r.e, r.c, space + r.prefix}
	for range 2 { // over the watch of the first wait, too
		le := lock(t, a.Mutex("x"))
		wait := inside.wait(t, b.Mutex("x"), 2)
		unlock(t, le)
		unlock(t, wait.Granted(t, 3*time.Second)) // before it would look for itself
	}
	for lost := range int64(2) {
		le := lock(t, a.Mutex("x"))
		p.LoseReplyTo(1, with("~lock/x/", "~last"))
		unlock(t, le)
		if p.Counts().LostReplies != lost+1 {
			t.Error("the reply to the release was not lost")
		}
		unlock(t, lock(t, b.Mutex("x")))
	}
	if n := len(r.keys(t)); n > 0 {
		t.Errorf("%d keys are outside the namespace", n)
	}
}
