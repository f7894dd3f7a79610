package etcd_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// values are what the entries of a queue say, in their order.
func (r *rig) values(t *testing.T, name string) (all []string) {
	t.Helper()
	resp, err := r.c.Get(t.Context(), r.prefix+"~lock/"+name+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	must(t, err)
	for _, kv := range resp.Kvs {
		all = append(all, string(kv.Value))
	}
	return all
}

// noted returns when a renewal has written the token of a holder into its entry.
func (r *rig) noted(t *testing.T, name string) {
	t.Helper()
	await(t, 10*time.Second, "its token is written", func() bool {
		v := r.values(t, name)
		return len(v) > 0 && regexp.MustCompile("^(held|both):[0-9]").MatchString(v[0])
	})
}

// busy makes a driver wait for another lock until the test ends, so that the lease of its waiters lasts.
func (r *rig) busy(t *testing.T, d caller) {
	t.Helper()
	session, err := r.c.Grant(t.Context(), 600)
	must(t, err)
	_, err = r.c.Put(t.Context(), r.prefix+"~lock/busy/0", "wait::somebody", clientv3.WithLease(session.ID))
	must(t, err)
	req, over := request("busy", 1000, time.Minute), make(chan bool)
	req.Wait = true
	go func() {
		defer close(over)
		if _, err := d.Acquire(t.Context(), req); t.Context().Err() == nil {
			t.Errorf("the wait for another lock has ended: %v", err)
		}
	}()
	t.Cleanup(func() { <-over })
	await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, "busy")) == 2 })
}

// heirAsksNothing: the next in the queue is granted the lock by the release. What it holds is there for all to see,
// before its first renewal and after it, which puts it under the lease of the lock.
func heirAsksNothing(t *testing.T, r *rig) {
	first := lock(t, open(t, r.url()).Mutex("x"))
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	r.busy(t, d)
	req := request("x", 1, 20*time.Second)
	granted := r.second(t, d, req)
	if v := r.values(t, "x"); len(v) != 2 || v[1] != "next::somebody" {
		t.Fatalf("the queue: got %q, want an heir in the second place", v)
	}
	unlock(t, first)
	h := &core.Hold{Request: req, Grant: <-granted}
	rising(t, "of the heir", first.Token(), h.Token)
	waiters := r.lease(t, "x")
	if v := r.values(t, "x"); v[0] != "next::somebody" { // as the transaction of a turn would have it
		t.Errorf("the heir has written its entry to be granted the lock: %q", v)
	}
	if h.Short <= 0 || h.Short > 10*time.Second {
		t.Errorf("the heir may trust its grant for %v until it has renewed, want about the waiters' 3 s", h.Short)
	}
	for _, renewed := range []bool{false, true} {
		if renewed {
			must(t, d.Renew(t.Context(), []*core.Hold{h})[0])
		}
		info, err := other.Inspect(t.Context(), "x")
		if err != nil || !info.Held || info.Owner != "somebody" || info.Token != h.Token || info.ExpiresIn <= 0 {
			t.Errorf("Inspect, renewed %v: got %+v, %v, want token %d", renewed, info, err, h.Token)
		}
	}
	if id := r.lease(t, "x"); id == waiters {
		t.Error("the entry is under the waiters' lease after its renewal")
	}
	must(t, d.Release(t.Context(), h))
}

// heirBehindATurn: a waiter in front of the heir takes its turn after the heir has joined, and reserves numbers.
func heirBehindATurn(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	for i, renews := range []bool{false, true} {
		h := hold(t, d, request("x", 10*i+1, 20*time.Second))
		turn, heir := reserving("x", 10*i+2, 63), request("x", 10*i+3, 20*time.Second)
		granted := r.second(t, d, turn)
		heir.Wait = true
		next := make(chan backend.Grant, 1)
		go func() {
			g, err := other.Acquire(t.Context(), heir)
			if err != nil {
				t.Error(err)
			}
			next <- g
		}()
		await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, "x")) == 3 })
		must(t, d.Release(t.Context(), h))
		h = &core.Hold{Request: turn, Grant: <-granted}
		if h.Reserved != 63 {
			t.Errorf("got %d reserved, want 63", h.Reserved)
		}
		if renews {
			must(t, d.Renew(t.Context(), []*core.Hold{h})[0])
			r.noted(t, "x")
		}
		must(t, d.Release(t.Context(), h))
		g := <-next
		after(t, "of the heir", h.Grant, g)
		must(t, other.Release(t.Context(), &core.Hold{Request: heir, Grant: g}))
	}
}

// heirBehindAFloor: a holder raises the floor after the heir has joined.
func heirBehindAFloor(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	r.busy(t, other)
	h := hold(t, d, request("x", 1, 20*time.Second))
	for i := range 3 { // the second and third are holders that were heirs
		heir := request("x", i+2, 20*time.Second)
		next := r.second(t, other, heir)
		floor := h.Token + 1e6
		must(t, d.RaiseHeld(t.Context(), h, floor))
		must(t, d.Release(t.Context(), h))
		g := <-next
		rising(t, "of an heir over a floor", floor, g.Token)
		h = &core.Hold{Request: heir, Grant: g}
		d, other = other, d
	}
	must(t, d.Release(t.Context(), h))
}

// heirsBeforeTheFirstGate: nobody inherits the lock behind a gate, and a drain waits for who has.
func heirsBeforeTheFirstGate(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	r.busy(t, other)
	h := hold(t, d, request("x", 1, 20*time.Second))
	heir := request("x", 2, 20*time.Second)
	granted := r.second(t, other, heir)
	must(t, d.Release(t.Context(), h))
	h = &core.Hold{Request: heir, Grant: <-granted} // not renewed: its entry says that of an heir
	refused := request("x", 3, 20*time.Second)
	refused.Wait = true
	answer := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), refused)
		answer <- err
	}()
	await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, "x")) == 2 })
	g := closedGate("x")
	must(t, other.SetGate(t.Context(), g, 0))
	for i, v := range r.values(t, "x") {
		if i > 0 && strings.HasPrefix(v, "next:") {
			t.Errorf("behind the gate the queue is %q", r.values(t, "x"))
		}
	}
	left, err := d.Undrained(t.Context(), g)
	if err != nil || len(left) != 1 || left[0].Name != "x" {
		t.Errorf("undrained: got %+v, %v, want x", left, err)
	}
	must(t, other.Renew(t.Context(), []*core.Hold{h})[0]) // what was granted is kept
	must(t, other.Release(t.Context(), h))
	refusedBy(t, "the waiter", <-answer, g)
	if left, err := d.Undrained(t.Context(), g); err != nil || len(left) != 0 {
		t.Errorf("undrained at last: got %+v, %v", left, err)
	}
}

// heirIsBroken: Break ends the hold of an heir that has not renewed yet, and the next one is granted the lock.
func heirIsBroken(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	r.busy(t, other)
	h := hold(t, d, request("x", 1, 20*time.Second))
	heir, last := request("x", 2, 20*time.Second), request("x", 3, 20*time.Second)
	granted := r.second(t, other, heir)
	must(t, d.Release(t.Context(), h))
	h = &core.Hold{Request: heir, Grant: <-granted}
	next := r.second(t, d, last)
	must(t, d.Break(t.Context(), "x"))
	var g backend.Grant
	select {
	case g = <-next:
	case <-time.After(10 * time.Second):
		t.Fatal("the next one is not granted the lock")
	}
	rising(t, "after a break", h.Token, g.Token)
	want(t, "renewal of the broken one", other.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
	want(t, "release of the broken one", other.Release(t.Context(), h), backend.ErrLost)
	must(t, d.Release(t.Context(), &core.Hold{Request: last, Grant: g}))
}

// heirInSilence: an heir whose lease was not confirmed for half of its time asks before it trusts that it holds.
func heirInSilence(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	first := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, url).Mutex("x"), 2)
	p.Set(faultproxy.Mode{HoldRequests: true})
	time.Sleep(1600 * time.Millisecond) // longer than it relies on its lease
	unlock(t, first)
	select {
	case <-wait.Done:
		t.Errorf("it came back with %v while nothing that it asks is answered", wait.Err)
	case <-time.After(300 * time.Millisecond):
	}
	p.Set(faultproxy.Mode{})
	next := wait.Granted(t, 10*time.Second)
	rising(t, "of the heir", first.Token(), next.Token())
	must(t, next.Renew(t.Context()))
	unlock(t, next)
}

// heirCutOff: an heir whose first renewal is not answered is told that the lock is lost before the next one has it.
func heirCutOff(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	first := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, url).Mutex("x"), 2)
	third := r.wait(t, open(t, r.url()).Mutex("x"), 3)
	p.Set(faultproxy.Mode{HoldRequests: true}) // the event comes through
	unlock(t, first)
	le := wait.Granted(t, 5*time.Second)
	next := third.Granted(t, 15*time.Second)
	if le.Err() == nil {
		t.Error("the next one is granted the lock before the heir is told")
	}
	rising(t, "of the next", le.Token(), next.Token())
	p.Set(faultproxy.Mode{})
	unlock(t, next)
}

// heirOutlivesTheWait: an heir has its TTL from the first renewal on, however long the waiters' lease lasts.
func heirOutlivesTheWait(t *testing.T, r *rig) {
	first := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x", fencelock.WithTTL(10*time.Second)), 2)
	unlock(t, first)
	next := wait.Granted(t, 2*time.Second)
	await(t, 2*time.Second, "its first renewal", func() bool { return time.Until(next.Deadline()) > 8*time.Second })
	select {
	case <-next.Done():
		t.Errorf("lost: %v", next.Err())
	case <-time.After(4 * time.Second):
	}
	unlock(t, next)
}

// heirOfAShortTTL: with a TTL of a second, too, an heir keeps its place.
func heirOfAShortTTL(t *testing.T, r *rig) {
	short := fencelock.WithTTL(time.Second)
	l, third := open(t, r.url()), open(t, r.url())
	for range 3 {
		first := lock(t, open(t, r.url()).Mutex("x"))
		wait := r.wait(t, l.Mutex("x", short), 2)
		last := r.wait(t, third.Mutex("x", short), 3)
		time.Sleep(960 * time.Millisecond) // the waiters' lease is renewed after a second
		unlock(t, first)
		unlock(t, wait.Granted(t, 5*time.Second)) // never, if the last one has its place
		unlock(t, last.Granted(t, 5*time.Second))
	}
}

// The first renewal of an heir asks for two things at once, for it has little time: for the lease of the lock, and to
// have its entry under it. If the answer to the one is lost, the entry stays under the lease that ends later.
func TestHeirMovesAtOnce(t *testing.T) {
	t.Parallel()
	for ttl, moves := range map[time.Duration]bool{
		20 * time.Second: true,
		2 * time.Second:  false, // the lease of the waiters ends later, however both are renewed
	} {
		r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "moves:")
		first := lock(t, open(t, r.url()).Mutex("x"))
		d := r.driver(t, r.url())
		cut := d.KeepAlives()
		req := request("x", 1, ttl)
		granted := r.second(t, d, req)
		under := func() int64 {
			resp, err := r.c.Get(t.Context(), r.prefix+"~lock/x/", clientv3.WithLastCreate()...)
			must(t, err)
			if len(resp.Kvs) == 0 {
				t.Fatal("the entry is gone")
			}
			return resp.Kvs[0].Lease
		}
		before := under()
		cut()
		unlock(t, first)
		h := &core.Hold{Request: req, Grant: <-granted}
		if err := d.Renew(within(t, 300*time.Millisecond), []*core.Hold{h})[0]; err == nil {
			t.Fatal("renewed without a keep-alive")
		}
		if moved := under() != before; moved != moves {
			t.Errorf("with a TTL of %v: moved: %v, want %v", ttl, moved, moves)
		}
	}
}

// A server that is full hands a lock that is released to no heir: the first renewal would have no space. The waiter is
// granted the lock once there is space.
func TestHeirOnAFullServer(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "full:")
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	at, err := r.c.Get(t.Context(), "any")
	must(t, err)
	_, err = pb.NewMaintenanceClient(r.c.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, MemberID: at.Header.MemberId, Alarm: pb.AlarmType_NOSPACE,
	})
	must(t, err)
	unlock(t, le)
	select {
	case <-wait.Done:
		t.Errorf("the wait has ended while the server is full: %v", wait.Err)
	case <-time.After(time.Second):
	}
	_, err = r.c.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	must(t, err)
	next := wait.Granted(t, 15*time.Second)
	must(t, next.Renew(t.Context()))
	unlock(t, next)
}
