package etcd_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock"
)

// inNamespace: over clients of a namespace a waiter hears of releases at once.
func inNamespace(t *testing.T, r *rig) {
	const space = "app/"
	client := func() *fencelock.Locker {
		c := clientOf(t, clientv3.Config{Endpoints: r.e.Addrs()})
		c.KV = namespace.NewKV(c.KV, space)
		c.Watcher = namespace.NewWatcher(c.Watcher, space)
		c.Lease = namespace.NewLease(c.Lease, space)
		l, _ := r.over(t, c)
		return l
	}
	a, b := client(), client()
	inside := &rig{r.e, r.c, space + r.prefix}
	for range 2 { // over the watch of the first wait, too
		le := lock(t, a.Mutex("x"))
		wait := inside.wait(t, b.Mutex("x"), 2)
		unlock(t, le)
		unlock(t, wait.Granted(t, 3*time.Second)) // before it would look for itself
	}
	if n := len(r.keys(t)); n > 0 {
		t.Errorf("%d keys are outside the namespace", n)
	}
}
