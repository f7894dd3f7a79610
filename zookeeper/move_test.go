package zookeeper_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// What migrations rest on, on one server and on three, of which clients use any.
func TestGates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		servers int
	}{{"One", 1}, {"Three", 3}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.servers > 1 && testing.Short() {
				t.Skip("three servers")
			}
			z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: tt.servers, Config: []string{
				"maxSessionTimeout=60000", "maxClientCnxns=0", // the rules open many clients
			}})
			gatetest.Run(t, func(t *testing.T) backend.Driver {
				t.Helper()
				d, err := zookeeper.New(z.Addrs(), nil)
				must(t, err)
				return d
			})
		})
	}
}

// closedGate is a gate that refuses all but a migration that nobody is in.
func closedGate(names string) backend.Gate {
	return backend.Gate{
		Move: "moving house/1", Scope: backend.Scope{{Match: names}}, State: backend.GateBoth,
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

// What is no list of gates where gates are lets nobody in, and is told with the node.
func TestGatesOfAnother(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	_, err := c.Create(root, nil, 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	// of the version that a node of ours begins with
	_, err = c.Create(root+"/locks", []byte("mine"), 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	d := driver(t, z.URL())
	for _, text := range []string{
		"mine", "null", "{}", `[{"move":"m","state":"open","epoch":1}]`, `[] []`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"ajar","epoch":1}]`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1,"but":"not on Sundays"}]`,
		`[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1},` +
			`{"move":"m","scope":[{"match":"*"}],"state":"both","epoch":1}]`,
	} {
		_, err := c.Set(root+"/locks", []byte(text), -1)
		must(t, err)
		_, gates := d.Gates(t.Context())
		try := request("x")
		_, tried := d.Acquire(t.Context(), try)
		wait := request("x")
		wait.Wait = true
		_, waited := d.Acquire(within(t, 5*time.Second), wait)
		for what, err := range map[string]error{
			"Gates": gates, "a try": tried, "a wait": waited,
			"SetGate": d.SetGate(t.Context(), closedGate("*"), backend.Lower),
		} {
			want(t, what+" with "+text, err, backend.ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), root+"/locks") {
				t.Errorf("%s with %q: got %v, want it to name the node", what, text, err)
			}
		}
		must(t, d.Abandon(t.Context(), try))
		must(t, d.Abandon(t.Context(), wait))
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	_, err = c.Set(root+"/locks", nil, -1)
	must(t, err)
	must(t, d.Release(t.Context(), hold(t, d, request("x"))))
}

// A user who may make nothing but what locks are made of needs no more rights for a store with
// gates: there is no node for them that could be missing.
func TestGatesNeedNoRights(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	acl := zk.WorldACL(zk.PermAll)
	for _, p := range []string{root, root + "/locks", root + "/tokens", root + "/done"} {
		_, err := c.Create(p, nil, 0, acl)
		must(t, err)
	}
	must(t, c.AddAuth("digest", []byte("admin:secret")))
	admin := zk.DigestACL(zk.PermAll, "admin", "secret")
	for p, perms := range map[string]int32{
		root: zk.PermRead, root + "/locks": zk.PermRead | zk.PermCreate | zk.PermDelete,
	} {
		_, err := c.SetACL(p, append(zk.WorldACL(perms), admin...), -1)
		must(t, err)
	}
	opened, err := zookeeper.New(z.Addrs(), nil)
	must(t, err)
	d := call(opened)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Release(t.Context(), hold(t, d, request("x"))))
	g := closedGate("*")
	want(t, "SetGate without the right to write", d.SetGate(t.Context(), g, 0), backend.ErrInvalid)
	want(t, "Report without the right to create",
		d.Report(t.Context(), backend.Client{ID: "1", Move: g.Move}, time.Minute),
		backend.ErrInvalid)
	_, err = c.Set(root+"/locks",
		[]byte(`[{"move":"moving house/1","scope":[{"match":"*"}],"state":"both","epoch":7}]`), -1)
	must(t, err)
	g.Epoch = 7
	try := request("x")
	_, err = d.Acquire(t.Context(), try)
	refusedBy(t, "a try", err, g)
	must(t, d.Abandon(t.Context(), try))
}

// Many grants and releases leave together; a gate that is closed meanwhile refuses those in its scope and no other.
func TestGateClosesOnACrowd(t *testing.T) {
	t.Parallel()
	z := single(t)
	l, other := open(t, z.URL()), driver(t, z.URL())
	g := closedGate("in/*")
	const each, cycles = 40, 10
	var wg sync.WaitGroup
	errs := make(chan error, each*(cycles+1))
	cycle := func(name string) error {
		le, err := l.Mutex(name).Lock(t.Context())
		if err != nil {
			return err
		}
		return le.Unlock(t.Context())
	}
	ended := make(chan struct{}, each*cycles)
	for i := range each {
		in, out := fmt.Sprint("in/", i), fmt.Sprint("out/", i)
		wg.Go(func() {
			var err error
			for err == nil { // until the gate is closed
				err = cycle(in)
			}
			if !errors.Is(err, fencelock.ErrUnsupported) {
				errs <- fmt.Errorf("%s: %w", in, err)
			}
		})
		wg.Go(func() {
			for range cycles {
				if err := cycle(out); err != nil {
					errs <- fmt.Errorf("%s: %w", out, err)
				}
				ended <- struct{}{}
			}
		})
	}
	for range each { // they are at it
		<-ended
	}
	must(t, other.SetGate(t.Context(), g, 0))
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	left, err := other.Undrained(t.Context(), g)
	if err != nil || len(left) > 0 {
		t.Errorf("undrained: got %+v, %v", left, err)
	}
	_, err = l.Mutex("in/0").TryLock(t.Context())
	refusedBy(t, "TryLock", err, g)
}

// What another program holds holds up the drain; who waits does not.
func TestUndrainedStrangers(t *testing.T) {
	t.Parallel()
	z := single(t)
	c, d := foreign(t, z.Addrs()...), driver(t, z.URL())
	acl := zk.WorldACL(zk.PermAll)
	must(t, d.Release(t.Context(), hold(t, d, request("warm"))))
	nonce := strings.Repeat("5", 32)
	for path, text := range map[string]string{
		"in%2Fold/held-" + nonce:                   `{"token":17,"version":3,"last":17,"owner":"somebody"}`,
		"in%2Fstrange/note":                        "?",
		"in%2Fodd/held-" + nonce:                   "17 3\nsomebody",
		"in%2Fwaits/wait-" + nonce + "-0000000003": "somebody",
		"out/held-" + nonce:                        `{"token":17,"version":3,"last":17,"owner":"somebody"}`,
		"in%2Fours/held-" + nonce:                  `{"token":17,"version":3,"last":17,"both":"moving house/1"}`,
		"in%2Fother/held-" + nonce:                 `{"token":17,"version":3,"last":17,"both":"another"}`,
	} {
		name, _, _ := strings.Cut(path, "/")
		_, err := c.Create(at(name), nil, 0, acl)
		must(t, err)
		_, err = c.Create(at(path), []byte(text), zk.FlagEphemeral, acl)
		must(t, err)
	}
	g := closedGate("in/*")
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
	slices.Sort(got)
	if want := "in/odd in/old in/other in/strange"; strings.Join(got, " ") != want {
		t.Errorf("undrained: got %v, want %s", got, want)
	}
}

// A waiter that a gate refuses when its turn has come is gone before its Acquire returns, and the
// next one is granted the lock.
func TestRefusedWaiterLeaves(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d, other := driver(t, z.URL()), driver(t, z.URL())
	g := closedGate("*")
	h := hold(t, other, request("x"))
	first, both := request("x"), request("x")
	first.Wait, both.Wait = true, true
	both.Move, both.Phase = g.Move, backend.PhaseBoth
	answer, next := make(chan error, 1), make(chan *core.Hold, 1)
	go func() {
		_, err := d.Acquire(t.Context(), first)
		answer <- err
	}()
	await(t, 10*time.Second, "one waits", func() bool { return len(nodes(t, c, "x", "wait-")) == 1 })
	go func() {
		got, err := other.Acquire(t.Context(), both)
		if err != nil {
			t.Error(err)
		}
		next <- &core.Hold{Request: both, Grant: got}
	}()
	await(t, 10*time.Second, "both wait", func() bool { return len(nodes(t, c, "x", "wait-")) == 2 })
	must(t, other.SetGate(t.Context(), g, 0))
	must(t, other.Release(t.Context(), h))
	refusedBy(t, "the waiter", <-answer, g)
	for _, n := range nodes(t, c, "x", "wait-") {
		if strings.Contains(n, first.Nonce) {
			t.Errorf("the refused waiter is in the queue: %s", n)
		}
	}
	must(t, other.Release(t.Context(), <-next))
	must(t, d.Abandon(t.Context(), first))
	awaitClean(t, c, time.Second)
}

// What a client knows of the gates may be old: it is asked for again before a client is refused or
// granted a lock, and only then.
func TestGatesAreKnown(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	d, other := driver(t, url), driver(t, z.URL())
	var asked atomic.Int64
	p.LoseReplyTo(1, func(b []byte) bool {
		if bytes.HasSuffix(b, []byte("/locks\x00")) { // a read of the node
			asked.Add(1)
		}
		return false
	})
	g := closedGate("*")
	for i, state := range []backend.GateState{
		"", backend.GateBoth, backend.GateOpen, backend.GateBoth, backend.GateOpen,
	} {
		if state != "" {
			g.State = state
			must(t, other.SetGate(t.Context(), g, backend.Lower))
			g.Epoch++
		}
		for again := range 3 {
			asked.Store(0)
			r := request("x")
			got, err := d.Acquire(t.Context(), r)
			if state == backend.GateBoth {
				want(t, fmt.Sprint("in step ", i), err, backend.ErrUnsupported)
				must(t, d.Abandon(t.Context(), r))
				continue
			}
			must(t, err)
			must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: got}))
			once := int64(1)
			if again > 0 {
				once = 0
			}
			if n := asked.Load(); n != once {
				t.Errorf("step %d, lock %d: the gates were asked for %d times, want %d", i, again, n, once)
			}
		}
	}
}

// What was done and whose answer was lost is found: a grant, though a gate was closed meanwhile
// that would refuse it; a change of a gate, which is done once; a raise.
func TestLostRepliesOfGates(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	d, other := driver(t, url), driver(t, z.URL())
	g := closedGate("*")
	for _, wait := range []bool{false, true} {
		r := request("x")
		r.Wait = wait
		must(t, d.Release(t.Context(), hold(t, d, request("x")))) // now one multi is all that it takes
		p.Set(faultproxy.Mode{HoldReplies: true})
		granted := make(chan *core.Hold, 1)
		go func() {
			g, err := d.Acquire(t.Context(), r)
			if err != nil {
				t.Errorf("with wait %v: %v", wait, err)
			}
			granted <- &core.Hold{Request: r, Grant: g}
		}()
		await(t, 5*time.Second, "it is granted", func() bool { return len(nodes(t, c, "x", "held-")) == 1 })
		must(t, other.SetGate(t.Context(), g, backend.Lower))
		p.Cut()
		p.Set(faultproxy.Mode{})
		h := <-granted
		if h.Token == 0 {
			return
		}
		again := hold(t, d, r)
		if again.Token != h.Token {
			t.Errorf("sent again: token %d, then %d", h.Token, again.Token)
		}
		p.LoseReplyTo(1, about(at("x")+"/held-", "/tokens"))
		before := p.Counts().LostReplies
		must(t, d.RaiseHeld(t.Context(), again, h.Token+1e9))
		if n := p.Counts().LostReplies - before; n != 1 {
			t.Errorf("%d replies were lost, want 1", n)
		}
		if s, err := other.Source(t.Context()); err != nil || s < h.Token+1e9 {
			t.Errorf("the source: got %d, %v after a raise to %d", s, err, h.Token+1e9)
		}
		must(t, d.Release(t.Context(), again))
		g.State, g.Epoch = backend.GateOpen, g.Epoch+1
		p.LoseReplyTo(1, about(root+"/locks", g.Move))
		_, stat, err := c.Get(root + "/locks")
		must(t, err)
		must(t, d.SetGate(t.Context(), g, g.Epoch-1))
		_, after, err := c.Get(root + "/locks")
		must(t, err)
		if after.Version != stat.Version+1 {
			t.Errorf("the gates were written %d times, want once", after.Version-stat.Version)
		}
		g.State, g.Epoch = backend.GateBoth, g.Epoch+1
	}
}
