package etcd_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// Inspect knows the token of a lock from the base as it was at the grant, and once the holder has renewed it from the
// entry, whatever was raised and compacted since. A server of its own, for a compaction is everybody's.
func TestTokenOverCompaction(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "compaction:")
	l, other := open(t, r.url()), open(t, r.url())
	le := lock(t, l.Mutex("x"))
	must(t, r.driver(t, r.url()).Raise(t.Context(), le.Token()+1e9))
	shows := func(when string) {
		t.Helper()
		info, err := other.Inspect(t.Context(), "x")
		must(t, err)
		if info.Token != le.Token() || !info.Held || info.Owner != le.Owner() {
			t.Errorf("Inspect %s: got %+v, want it held by %q with token %d", when, info, le.Owner(), le.Token())
		}
	}
	shows("after the base was raised")
	_, created, _ := r.leaseOf(t, "x")
	must(t, le.Renew(t.Context()))
	r.noted(t, "x")
	if _, again, _ := r.leaseOf(t, "x"); again != created {
		t.Error("the renewal created the entry anew")
	}
	resp, err := r.c.Get(t.Context(), "any")
	must(t, err)
	_, err = r.c.Compact(t.Context(), resp.Header.Revision)
	must(t, err)
	shows("after a renewal and a compaction")
	unlock(t, le)
}

// baseLost: without its base the store would hand out low numbers; it is made again before a grant.
func baseLost(t *testing.T, r *rig) {
	l := open(t, r.url())
	le := lock(t, l.Mutex("x"))
	if now := time.Now().UnixMicro(); le.Token() < now-60e6 || le.Token() > now+60e6 {
		t.Errorf("a first token: got %d, want one near the clock, %d", le.Token(), now)
	}
	unlock(t, le)
	_, err := r.c.Delete(t.Context(), r.prefix+"~base")
	must(t, err)
	next := lock(t, l.Mutex("x"))
	rising(t, "after the base was deleted", le.Token(), next.Token())
	unlock(t, next)
}

// baseOfAnother: what is no number under our key is no base.
func baseOfAnother(t *testing.T, r *rig) {
	_, err := r.c.Put(t.Context(), r.prefix+"~base", "twelve")
	must(t, err)
	_, err = fencelock.Open(t.Context(), r.url())
	want(t, "Open", err, fencelock.ErrInvalid)
	_, err = r.c.Delete(t.Context(), r.prefix+"~base")
	must(t, err)
	l := open(t, r.url())
	unlock(t, lock(t, l.Mutex("x")))
	_, err = r.c.Put(t.Context(), r.prefix+"~base", "9")
	must(t, err)
	_, err = l.Mutex("x").Lock(within(t, 5*time.Second))
	want(t, "Lock", err, fencelock.ErrInvalid)
	r.awaitFree(t, "x")
}

// baseAtTheEnd: no token is 2^53 or more, neither of a holder nor of an heir.
func baseAtTheEnd(t *testing.T, r *rig) {
	l := open(t, r.url())
	session, err := r.c.Grant(t.Context(), 60)
	must(t, err)
	front := r.prefix + "~lock/x/0"
	_, err = r.c.Put(t.Context(), front, "held:5:somebody", clientv3.WithLease(session.ID))
	must(t, err)
	_, err = r.c.Put(t.Context(), r.prefix+"~base", fmt.Sprintf("%016d", int64(1<<53-1)))
	must(t, err)
	wait := r.wait(t, l.Mutex("x"), 2)
	_, err = r.c.Delete(t.Context(), front)
	must(t, err)
	<-wait.Done
	want(t, "an heir", wait.Err, fencelock.ErrInvalid)
	_, err = l.Mutex("y").TryLock(t.Context())
	want(t, "a holder", err, fencelock.ErrInvalid)
}

// foreignEntry: what another program puts into the queue holds the lock, and Break frees it.
func foreignEntry(t *testing.T, r *rig) {
	l := open(t, r.url())
	_, err := r.c.Put(t.Context(), r.prefix+"~lock/x/somebody", "something")
	must(t, err)
	_, err = l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || info.Owner != "" || info.Token != 0 || !info.Leaked {
		t.Errorf("Inspect: got %+v, want it held by a stranger without expiry", info)
	}
	must(t, l.Break(t.Context(), "x"))
	must(t, l.Break(t.Context(), "x"))
	unlock(t, lock(t, l.Mutex("x")))
	// A waiter's entry under no lease would be waited for without end.
	_, err = r.c.Put(t.Context(), r.prefix+"~lock/x/somebody", "wait::somebody")
	must(t, err)
	must(t, l.Break(t.Context(), "x"))
	unlock(t, lock(t, l.Mutex("x")))
}

// raise: every later grant is above the floor, also of those who wait already.
func raise(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	floor := le.Token() + 1e12
	must(t, d.Raise(t.Context(), floor))
	must(t, d.Raise(t.Context(), 7)) // never lowers it
	unlock(t, le)
	next := wait.Granted(t, 2*time.Second)
	rising(t, "of a waiter over the floor", floor, next.Token())
	unlock(t, next)
	after := lock(t, open(t, r.url()).Mutex("y"))
	rising(t, "of another name over the floor", next.Token(), after.Token())
	unlock(t, after)
	want(t, "Raise beyond 2^53", d.Raise(t.Context(), 1<<53), backend.ErrInvalid)
	// With nothing in the store but the base.
	floor = after.Token() + 1e9
	must(t, d.Raise(t.Context(), floor))
	le = lock(t, open(t, r.url()).Mutex("x"))
	rising(t, "over the floor", floor, le.Token())
	unlock(t, le)
}

// prefixes that look like the continuation of another's keys are another keyspace all the same.
func prefixes(t *testing.T, r *rig) {
	all := []string{"p", "p~", "p~lock/", "p~lock/x/", "p~~lock/", "p~lock", "p~base", "P", "p/"}
	var held []*fencelock.Lease
	for _, p := range all {
		l := open(t, (&rig{e: r.e, prefix: r.prefix + p}).url())
		for _, name := range []string{"x", "lock/x", "x/y", "~lock/x", "a/", "a"} {
			le, err := l.Mutex(name).TryLock(t.Context())
			if err != nil {
				t.Errorf("prefix %q, name %q: %v", p, name, err)
				continue
			}
			held = append(held, le)
		}
		n := 0
		for info, err := range l.List(t.Context(), "") {
			must(t, err)
			if !info.Held {
				t.Errorf("prefix %q: %q is not held", p, info.Name)
			}
			n++
		}
		if n != 6 {
			t.Errorf("prefix %q: List names %d locks, want 6", p, n)
		}
	}
	for _, le := range held {
		unlock(t, le)
	}
}

// listAbreast: what List has to ask about each lock is asked about many at a time.
func listAbreast(t *testing.T, r *rig) {
	// each lock has a lease of its own, and no token in its entry yet
	l := open(t, r.url(), fencelock.WithManualRenew())
	const n = 100
	tokens := map[string]fencelock.Token{}
	for i := range n {
		le := lock(t, l.Mutex(fmt.Sprint(i)))
		tokens[le.Name()] = le.Token()
	}
	p, url := r.proxied(t)
	slow := open(t, url)
	p.Set(faultproxy.Mode{Delay: 20 * time.Millisecond})
	began := time.Now()
	seen := 0
	for info, err := range slow.List(t.Context(), "") {
		must(t, err)
		if seen++; info.Token != tokens[info.Name] || info.ExpiresIn <= 0 {
			t.Errorf("List: got %+v, want token %d and an expiry", info, tokens[info.Name])
		}
	}
	if took := time.Since(began); seen != n || took > 3*time.Second {
		t.Errorf("List of locks at 40ms a request: got %d in %v, want %d within 3s", seen, took, n)
	}
	p.Set(faultproxy.Mode{})
}

// list pages through the store and groups each lock's entries.
func list(t *testing.T, r *rig) {
	l, other := open(t, r.url()), open(t, r.url())
	const n = 1100 // more than a page
	ctx := t.Context()
	lease, err := r.c.Grant(ctx, 60)
	must(t, err)
	for i := 0; i < n; i += 100 {
		ops := make([]clientv3.Op, 100)
		for j := range ops {
			key := fmt.Sprintf("%s~lock/many%%2F%d/%032x", r.prefix, i+j, 1)
			ops[j] = clientv3.OpPut(key, "held:5:somebody", clientv3.WithLease(lease.ID))
		}
		_, err := r.c.Txn(ctx).Then(ops...).Commit()
		must(t, err)
	}
	lock(t, l.Mutex("few/a"))
	r.waitAt(t, other.Mutex("few/a"), "few%2Fa", 2)
	seen := map[string]backend.Info{}
	for info, err := range other.List(ctx, "") {
		must(t, err)
		if _, twice := seen[info.Name]; twice {
			t.Errorf("List names %q twice", info.Name)
		}
		seen[info.Name] = info
	}
	if len(seen) != n+1 {
		t.Errorf("List names %d locks, want %d", len(seen), n+1)
	}
	few := 0
	for info, err := range other.List(ctx, "few/") {
		must(t, err)
		few++
		if info.Name != "few/a" || info.Waiters != 1 || !info.Held || info.Token == 0 || info.ExpiresIn <= 0 {
			t.Errorf("List of few/: got %+v", info)
		}
	}
	if few != 1 {
		t.Errorf("List of few/ names %d locks, want 1", few)
	}
	for range other.List(ctx, "") {
		break // ending early is no error
	}
}

// waitAt is wait for a name that is encoded in the store.
func (r *rig) waitAt(t *testing.T, m fencelock.Mutex, encoded string, n int) *pending {
	t.Helper()
	p := start(t, m)
	await(t, 10*time.Second, "in the queue", func() bool { return len(r.queue(t, encoded)) == n })
	return p
}
