package etcd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// What migrations rest on, on one server and on three.
func TestGates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		members int
	}{{"One", 1}, {"Three", 3}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.members > 1 && testing.Short() {
				t.Skip("three servers")
			}
			e := servers.Etcd(t, servers.EtcdOptions{Members: tt.members})
			r := on(t, e, "gates:")
			gatetest.Run(t, func(t *testing.T) backend.Driver {
				t.Helper()
				d, err := backend.Open(t.Context(), r.url(), nil)
				must(t, err)
				return d
			})
		})
	}
}

// closedGate is a gate that refuses all but a migration that nobody is in.
func closedGate(names string) backend.Gate {
	return backend.Gate{
		Move: "moving house/1:2", Scope: backend.Scope{{Match: names}}, State: backend.GateBoth,
		Epoch: time.Now().UnixMicro(),
	}
}

// hold acquires with a bare driver; the lock must be free.
func hold(t *testing.T, d caller, r *backend.Request) *core.Hold {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	return &core.Hold{Request: r, Grant: g}
}

// refusedBy fails the test unless err is the refusal of a gate.
func refusedBy(t *testing.T, what string, err error, g backend.Gate) {
	t.Helper()
	var refusal *backend.GateError
	if !errors.As(err, &refusal) || refusal.Move != g.Move || refusal.Epoch != g.Epoch {
		t.Errorf("%s: got %v, want the refusal of gate %q, epoch %d", what, err, g.Move, g.Epoch)
	}
}

// gateOfAnother: what is no list of gates under our key lets nobody in, and is told with the key.
func gateOfAnother(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	must(t, d.Release(t.Context(), hold(t, d, request("x", 1, 20*time.Second))))
	key := r.prefix + "~gates"
	for i, text := range []string{
		"", "open", "null", "{}", `[{"move":"m","state":"open","epoch":1}]`, `[] []`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"ajar","epoch":1}]`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1,"but":"not on Sundays"}]`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1},` +
			`{"move":"m","scope":[{"match":"*"}],"state":"both","epoch":1}]`,
	} {
		_, err := r.c.Put(t.Context(), key, text)
		must(t, err)
		_, gates := d.Gates(t.Context())
		try := request("x", 10+i, 20*time.Second)
		_, tried := d.Acquire(t.Context(), try)
		wait := request("x", 100+i, 20*time.Second)
		wait.Wait = true
		_, waited := d.Acquire(within(t, 5*time.Second), wait)
		for what, err := range map[string]error{
			"Gates": gates, "a try": tried, "a wait": waited,
			"SetGate": d.SetGate(t.Context(), closedGate("*"), backend.Lower),
		} {
			want(t, what+" with "+text, err, backend.ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s with %q: got %v, want it to name the key", what, text, err)
			}
		}
		must(t, d.Abandon(t.Context(), try))
		must(t, d.Abandon(t.Context(), wait))
		if q := r.queue(t, "x"); len(q) > 0 {
			t.Errorf("with %q the queue has %q", text, q)
		}
	}
}

// gateCosts: a lock costs a transaction also with gates in the store; a client that has not seen a
// change of them, one more, once.
func gateCosts(t *testing.T, r *rig) {
	l, n := r.counted(t)
	unlock(t, lock(t, l.Mutex("y")))
	n.take()
	g := closedGate("x*")
	must(t, r.driver(t, r.url()).SetGate(t.Context(), g, 0))
	for _, txns := range []int{3, 2, 2} {
		is := quick(func() { unlock(t, lock(t, l.Mutex("y"))) })
		if got := n.take(); is && (got["Txn"] != txns || len(got) != 1) {
			t.Errorf("calls for an uncontended cycle of a name that stays: got %v, want %d Txn", got, txns)
		}
	}
	_, err := l.Mutex("x").TryLock(t.Context())
	refusedBy(t, "TryLock", err, g)
	if got := n.take(); got["Txn"] > 2 {
		t.Errorf("calls for a refused try: got %v, want a look, and the clean-up", got)
	}
}

// bothInStore: the holder of a phase in which both stores are locked can be told in its entry, from
// the grant on and after the renewal that writes the token; Inspect shows the owner as ever.
func bothInStore(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	g := closedGate("*")
	req := request("x", 1, 20*time.Second)
	req.Move, req.Phase = g.Move, backend.PhaseBoth
	h := hold(t, d, req)
	entry := func() string {
		resp, err := r.c.Get(t.Context(), r.prefix+"~lock/x/"+req.Nonce)
		must(t, err)
		if len(resp.Kvs) != 1 {
			t.Fatal("there is no entry")
		}
		return string(resp.Kvs[0].Value)
	}
	for _, renewed := range []bool{false, true} {
		if renewed {
			must(t, d.Renew(t.Context(), []*core.Hold{h})[0])
			r.noted(t, "x")
		}
		if e := entry(); !strings.HasPrefix(e, "both:") || !strings.HasSuffix(e, ":"+req.Owner) {
			t.Errorf("the entry, renewed %v: got %q", renewed, e)
		}
		info, err := d.Inspect(t.Context(), "x")
		if err != nil || !info.Held || info.Owner != req.Owner || info.Token != h.Token {
			t.Errorf("Inspect, renewed %v: got %+v, %v", renewed, info, err)
		}
		left, err := d.Undrained(t.Context(), g)
		if err != nil || len(left) != 0 {
			t.Errorf("Undrained, renewed %v: got %+v, %v", renewed, left, err)
		}
	}
	must(t, d.Release(t.Context(), h))
}

// undrainedStrangers: what another program, or an older version, has put into a queue holds up the
// drain; who waits does not.
func undrainedStrangers(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	g := closedGate("in/*")
	for key, text := range map[string]string{
		"in%2Fold/1": "held:17:somebody", "in%2Fstrange/1": "?", "in%2Fwaits/1": "wait::somebody",
		"in%2Fbehind/1": "wait::somebody",
		"in%2Ffuture/1": "held", "out/1": "held::somebody",
		"in%2Fours/1": "both::moving+house%2F1%3A2:somebody:else", "in%2Fother/1": "both:5:another:somebody",
	} {
		_, err := r.c.Put(t.Context(), r.prefix+"~lock/"+key, text)
		must(t, err)
	}
	_, err := r.c.Put(t.Context(), r.prefix+"~lock/in%2Fbehind/2", "?") // will be first one day
	must(t, err)
	must(t, d.SetGate(t.Context(), g, 0))
	infos, err := d.Undrained(t.Context(), g)
	must(t, err)
	var got []string
	for _, i := range infos {
		got = append(got, i.Name)
		if !i.Held {
			t.Errorf("got %+v, want it held", i)
		}
	}
	if want := "in/behind in/future in/old in/other in/strange"; strings.Join(got, " ") != want {
		t.Errorf("undrained: got %v, want %s", got, want)
	}
}

// refusedWaiterLeaves: a waiter that a gate refuses when its turn has come is gone before its
// Acquire returns, also if the answer to its leaving is lost, and the next one is granted the lock.
func refusedWaiterLeaves(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d, other := r.driver(t, url), r.driver(t, r.url())
	g := closedGate("*")
	g.State = backend.GateOpen // with a gate there is nobody who needs no turn
	must(t, other.SetGate(t.Context(), g, 0))
	g.State, g.Epoch = backend.GateBoth, g.Epoch+1
	for i, lost := range []bool{false, true} {
		h := hold(t, other, request("x", 10*i+1, 20*time.Second))
		refused, both := request("x", 10*i+2, 20*time.Second), request("x", 10*i+3, 20*time.Second)
		refused.Wait, both.Wait = true, true
		both.Move, both.Phase = g.Move, backend.PhaseBoth
		answer, next := make(chan error, 1), make(chan *core.Hold, 1)
		go func() {
			_, err := d.Acquire(t.Context(), refused)
			answer <- err
		}()
		await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, "x")) == 2 })
		go func() {
			got, err := other.Acquire(t.Context(), both)
			if err != nil {
				t.Error(err)
			}
			next <- &core.Hold{Request: both, Grant: got}
		}()
		await(t, 10*time.Second, "both wait", func() bool { return len(r.queue(t, "x")) == 3 })
		must(t, other.SetGate(t.Context(), g, backend.Lower))
		if lost {
			// The first transaction finds that the gates have changed, the second leaves.
			p.LoseReplyTo(1, with("~lock/x/"+refused.Nonce, "~gates"))
		}
		must(t, other.Release(t.Context(), h))
		refusedBy(t, "the waiter", <-answer, g)
		if q := r.queue(t, "x"); len(q) != 1 || q[0] == refused.Nonce {
			t.Errorf("the queue when the refused one knows: got %q, want %s at the most", q, both.Nonce)
		}
		must(t, other.Release(t.Context(), <-next))
		must(t, d.Abandon(t.Context(), refused))
		g.State, g.Epoch = backend.GateOpen, g.Epoch+1
		must(t, other.SetGate(t.Context(), g, g.Epoch-1))
		g.State, g.Epoch = backend.GateBoth, g.Epoch+1
	}
}

// lostReplyBeforeGate: a grant whose answer was lost is found, though a gate was closed meanwhile that would refuse it.
func lostReplyBeforeGate(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d, other := r.driver(t, url), r.driver(t, r.url())
	g := closedGate("*")
	for i, wait := range []bool{false, true} {
		req := request("x", 10+i, 20*time.Second)
		req.Wait = wait
		// now one transaction is all that it takes
		must(t, d.Release(t.Context(), hold(t, d, request("x", 100+i, 20*time.Second))))
		p.Set(faultproxy.Mode{HoldReplies: true})
		granted := make(chan *core.Hold, 1)
		go func() {
			g, err := d.Acquire(t.Context(), req)
			if err != nil {
				t.Errorf("with wait %v: %v", wait, err)
			}
			granted <- &core.Hold{Request: req, Grant: g}
		}()
		await(t, 5*time.Second, "it is granted", func() bool { return len(r.queue(t, "x")) == 1 })
		must(t, other.SetGate(t.Context(), g, backend.Lower))
		p.Cut()
		p.Set(faultproxy.Mode{})
		h := <-granted
		if h.Token == 0 {
			return
		}
		left, err := other.Undrained(t.Context(), g)
		if err != nil || len(left) != 1 || left[0].Name != "x" {
			t.Errorf("undrained: got %v, %v, want x", left, err)
		}
		again := hold(t, d, req)
		if again.Token != h.Token {
			t.Errorf("sent again: token %d, then %d", h.Token, again.Token)
		}
		must(t, d.Release(t.Context(), again))
		g.State, g.Epoch = backend.GateOpen, g.Epoch+1
		must(t, other.SetGate(t.Context(), g, backend.Lower))
		g.State, g.Epoch = backend.GateBoth, g.Epoch+1
	}
}

// setGateLostReply: a change of a gate whose answer was lost is done once.
func setGateLostReply(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	g := closedGate("*")
	p.LoseReplyTo(1, with("~gates", g.Move))
	must(t, d.SetGate(t.Context(), g, 0))
	if n := p.Counts().LostReplies; n != 1 {
		t.Errorf("%d replies were lost, want 1", n)
	}
	resp, err := r.c.Get(t.Context(), r.prefix+"~gates")
	must(t, err)
	if len(resp.Kvs) != 1 || resp.Kvs[0].Version != 2 { // without a gate first
		t.Errorf("the gates: got %v, want them written once", resp.Kvs)
	}
}

// reportLeases: however often a client reports, and for how long, its report is under one lease, of
// which nothing is left after it was withdrawn.
func reportLeases(t *testing.T, r *rig) {
	l, n := r.counted(t)
	must(t, l.Close())
	n.take()
	d := r.driver(t, r.url())
	c := backend.Client{ID: "a/b", Move: "m/1", Phase: backend.PhaseFrom}
	key := r.prefix + "~client/m%2F1/a%2Fb"
	leaseOf := func() clientv3.LeaseID {
		resp, err := r.c.Get(t.Context(), key)
		must(t, err)
		if len(resp.Kvs) != 1 {
			t.Fatal("there is no report")
		}
		return clientv3.LeaseID(resp.Kvs[0].Lease)
	}
	seen := map[clientv3.LeaseID]bool{}
	for _, keep := range []time.Duration{20 * time.Second, 20 * time.Second, 30 * time.Second, 29*time.Second + 1} {
		began := time.Now()
		must(t, d.Report(t.Context(), c, keep))
		id := leaseOf()
		seen[id] = true
		ttl, err := r.c.TimeToLive(t.Context(), id)
		must(t, err)
		most, took := int64((keep+time.Second-1)/time.Second), int64(time.Since(began)/time.Second)
		if ttl.GrantedTTL != most || ttl.TTL < most-1-took {
			t.Errorf("keep %v: got a lease of %d s with %d s left", keep, ttl.GrantedTTL, ttl.TTL)
		}
	}
	if len(seen) != 2 {
		t.Errorf("leases: got %d, want one for each length", len(seen))
	}
	_, err := r.c.Revoke(t.Context(), leaseOf()) // as if it had expired
	must(t, err)
	must(t, d.Report(t.Context(), c, 30*time.Second))
	seen[leaseOf()] = true
	must(t, d.Withdraw(t.Context(), c))
	await(t, 5*time.Second, "no lease is left", func() bool {
		for id := range seen {
			if ttl, err := r.c.TimeToLive(t.Context(), id); err != nil || ttl.TTL > 0 {
				return false
			}
		}
		return true
	})
	if keys := r.keys(t); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
	want(t, "a report for no time", d.Report(t.Context(), c, 0), backend.ErrInvalid)
	_, err = r.c.Put(t.Context(), key, "somebody")
	must(t, err)
	_, err = d.Clients(t.Context(), c.Move)
	want(t, "Clients with a strange report", err, backend.ErrInvalid)
}

// baseLostAndRaised: raising the base after it was lost does not make it low.
func baseLostAndRaised(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	for i, raise := range []func(*core.Hold) error{
		func(*core.Hold) error { return d.Raise(t.Context(), 7) },
		func(h *core.Hold) error { return d.RaiseHeld(t.Context(), h, 7) },
		func(*core.Hold) error { return nil },
	} {
		h := hold(t, d, request("x", 10*i+1, 20*time.Second))
		_, err := r.c.Delete(t.Context(), r.prefix+"~base")
		must(t, err)
		if s, err := d.Source(t.Context()); err != nil || s < h.Token {
			t.Errorf("the source without a base: got %d, %v after token %d", s, err, h.Token)
		}
		must(t, raise(h))
		must(t, d.Release(t.Context(), h))
		next := request("x", 10*i+2, 20*time.Second)
		next.Floor = 8
		again := hold(t, d, next)
		rising(t, "after the base was lost and raised", h.Token, again.Token)
		must(t, d.Release(t.Context(), again))
	}
	h := hold(t, d, request("x", 100, 20*time.Second))
	want(t, "RaiseHeld beyond 2^53", d.RaiseHeld(t.Context(), h, 1<<53), backend.ErrInvalid)
	must(t, d.Release(t.Context(), h))
}
