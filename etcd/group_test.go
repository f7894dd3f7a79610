package etcd_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// lateCopyAfterBreak: nothing is left of a request of which a copy was granted the lock after a Break.
func lateCopyAfterBreak(t *testing.T, r *rig) {
	d := r.driver(t, r.url()).Driver
	for i, mode := range []backend.Mode{backend.Exclusive, backend.Reader} {
		q := request("x", i+1, 10*time.Second)
		q.Mode = mode
		c, copied := &backend.Claim{Request: q}, &backend.Claim{Request: q}
		d.Ask(t.Context(), []*backend.Claim{c})
		must(t, c.Err)
		must(t, d.Break(t.Context(), "x"))
		d.Ask(t.Context(), []*backend.Claim{copied})
		must(t, copied.Err)
		c.Held, c.Unsure, c.Leaving = true, true, true
		d.Ask(t.Context(), []*backend.Claim{c})
		want(t, fmt.Sprintf("the release of a broken lock, %v", mode), c.Err, backend.ErrLost)
		if left := r.queue(t, "x"); len(left) != 0 {
			t.Errorf("left of a lock, %v: %q", mode, left)
		}
	}
}

// baseAhead: the base is never lowered, by a process that has not seen it neither.
func baseAhead(t *testing.T, r *rig) {
	first := open(t, r.url())
	ahead(t, r)
	for _, take := range []func(*fencelock.Locker) locks{
		func(l *fencelock.Locker) locks { return l.RWMutex("x").RLock },
		func(l *fencelock.Locker) locks { return l.Semaphore("x", 2).Acquire },
	} {
		writer := lock(t, first.Mutex("x"))
		unlock(t, writer)
		le := get(t, take(open(t, r.url())))
		rising(t, fmt.Sprintf("of a %v", le.Mode()), writer.Token(), le.Token())
		unlock(t, le)
	}
}

// baseRaised: others, whose clock is ahead, raise the base before each transaction, and a reader is granted the lock.
func baseRaised(t *testing.T, r *rig) {
	unlock(t, lock(t, open(t, r.url()).Mutex("x")))
	ahead(t, r)
	n := 0
	l := r.seen(t, func(_ string, req any) func() {
		txn, _ := req.(*pb.TxnRequest)
		for _, op := range txn.GetSuccess() {
			if !strings.Contains(string(op.GetRequestPut().GetKey()), "/+r") {
				continue
			}
			n++
			if resp, err := r.c.Get(t.Context(), r.prefix+"~base"); err == nil {
				base, _ := strconv.ParseInt(string(resp.Kvs[0].Value), 10, 64)
				_, _ = r.c.Put(t.Context(), r.prefix+"~base", fmt.Sprintf("%016d", base+300))
			}
		}
		return func() {}
	})
	le, err := l.RWMutex("x").TryRLock(t.Context())
	must(t, err)
	if n > 4 {
		t.Errorf("%d transactions, want 4: the guess, two that are raised too little, and the one that is enough", n)
	}
	unlock(t, le)
}

// floorOfReader: a reader whose floor is that of those who read has a number of its own, which the next one has too.
func floorOfReader(t *testing.T, r *rig) {
	l := open(t, r.url())
	first := get(t, l.RWMutex("x").RLock)
	second := get(t, open(t, r.url()).RWMutex("x", fencelock.WithFloor(first.Token())).RLock)
	third := get(t, open(t, r.url()).RWMutex("x").RLock)
	rising(t, "above a floor", first.Token(), second.Token())
	if third.Token() != second.Token() {
		t.Errorf("after the tokens %d and %d: got %d, want the greatest", first.Token(), second.Token(), third.Token())
	}
	for _, le := range []*fencelock.Lease{first, second, third} {
		unlock(t, le)
	}
	writer := lock(t, l.Mutex("x"))
	rising(t, "of the writer", second.Token(), writer.Token())
	unlock(t, writer)
}

// baseLostBeforeReader: where the base is missing a reader makes another, and what is no base lets nobody in.
func baseLostBeforeReader(t *testing.T, r *rig) {
	l := open(t, r.url())
	writer := lock(t, l.Mutex("x"))
	unlock(t, writer)
	_, err := r.c.Delete(t.Context(), r.prefix+"~base")
	must(t, err)
	reader := get(t, l.RWMutex("x").RLock)
	rising(t, "of a reader", writer.Token(), reader.Token())
	unlock(t, reader)
	_, err = r.c.Put(t.Context(), r.prefix+"~base", "no number")
	must(t, err)
	_, err = l.Semaphore("x", 2).TryAcquire(t.Context())
	want(t, "a permit where the base is none", err, fencelock.ErrInvalid)
}

// breakOfMany: Break ends more holds than a transaction may have operations.
func breakOfMany(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	const n = 150
	for i := range n {
		q := request("x", i+1, 30*time.Second)
		q.Mode, q.Limit = backend.Permit, n
		h, err := d.Acquire(t.Context(), q)
		must(t, err)
		if h.Slot != i {
			t.Fatalf("permit %d has slot %d", i, h.Slot)
		}
	}
	l := open(t, r.url())
	info, err := l.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || info.Mode != backend.Permit || info.Holders != n || info.ExpiresIn < 20*time.Second {
		t.Errorf("got %+v, want %d permits", info, n)
	}
	must(t, l.Break(t.Context(), "x"))
	if left := r.queue(t, "x"); len(left) != 0 {
		t.Errorf("%d entries are left, want none", len(left))
	}
}

// strangerAmongReaders: what no program of ours has written under a reader's key excludes everybody.
func strangerAmongReaders(t *testing.T, r *rig) {
	l := open(t, r.url())
	key := r.prefix + "~lock/x/+rsomebody"
	_, err := r.c.Put(t.Context(), key, "something")
	must(t, err)
	_, err = l.RWMutex("x").TryRLock(t.Context())
	want(t, "a reader beside a stranger", err, fencelock.ErrLocked)
	wait := r.line(t, "x", l.RWMutex("x").RLock, 2)
	must(t, l.Break(t.Context(), "x"))
	unlock(t, wait.Granted(t, 2*time.Second))
}

// readersAtGate: a gate refuses readers and permits too, in their turn as at once, and a drain counts them.
func readersAtGate(t *testing.T, r *rig) {
	l, reads, counts := open(t, r.url()), open(t, r.url()), open(t, r.url())
	d := r.driver(t, r.url())
	held := get(t, l.RWMutex("x").RLock)
	y, z := lock(t, l.Mutex("y")), lock(t, l.Mutex("z"))
	reader := r.line(t, "y", l.RWMutex("y").RLock, 2)
	permit := r.line(t, "z", l.Semaphore("z", 2).Acquire, 2)
	must(t, d.SetGate(t.Context(), backend.Gate{
		Move: "m", Scope: backend.Scope{{Match: "*"}}, State: backend.GateBoth, Epoch: 1,
	}, 0))
	_, err := reads.RWMutex("free").TryRLock(t.Context())
	want(t, "a reader behind a gate", err, fencelock.ErrUnsupported)
	_, err = counts.Semaphore("free", 2).TryAcquire(t.Context())
	want(t, "a permit behind a gate", err, fencelock.ErrUnsupported)
	_, err = open(t, r.url()).RWMutex("x").TryRLock(t.Context())
	want(t, "a reader beside one, behind a gate", err, fencelock.ErrUnsupported)
	unlock(t, y)
	unlock(t, z)
	<-reader.Done
	want(t, "a reader's turn behind a gate", reader.Err, fencelock.ErrUnsupported)
	<-permit.Done
	want(t, "a permit's turn behind a gate", permit.Err, fencelock.ErrUnsupported)
	var undrained []string
	for i, err := range d.Look(t.Context(), backend.Range{Strict: true}) {
		must(t, err)
		if i.Held {
			undrained = append(undrained, i.Name)
		}
	}
	if len(undrained) != 1 || undrained[0] != "x" {
		t.Errorf("undrained: got %q, want x", undrained)
	}
	unlock(t, held)
}

// sharedRoundTrips: the first reader or permit costs a transaction, each further one another, and a release one.
func sharedRoundTrips(t *testing.T, r *rig) {
	other := open(t, r.url())
	unlock(t, lock(t, other.Mutex("warm")))
	l, n := r.counted(t, fencelock.WithTTL(10*time.Minute))
	unlock(t, lock(t, l.Mutex("warm"))) // the lease
	for _, kind := range []struct {
		name     string
		one, two locks
	}{
		{"reader", l.RWMutex("x").RLock, other.RWMutex("x").RLock},
		{"permit", l.Semaphore("y", 2).Acquire, other.Semaphore("y", 2).Acquire},
	} {
		n.take()
		le := get(t, kind.one)
		if got := n.take()["Txn"]; got > 2 { // one more if others have raised the base
			t.Errorf("the first %s: %d transactions, want 1", kind.name, got)
		}
		unlock(t, le)
		if got := n.take()["Txn"]; got != 1 {
			t.Errorf("the release of a %s: %d transactions, want 1", kind.name, got)
		}
		le = get(t, kind.two)
		second := get(t, kind.one)
		if got := n.take()["Txn"]; got > 3 {
			t.Errorf("the second %s: %d transactions, want 2", kind.name, got)
		}
		unlock(t, second)
		unlock(t, le)
	}
}
