package redlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/redlock"
)

// The rules for gates, on three nodes.
func TestGates(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	gatetest.Run(t, func(t *testing.T) backend.Driver { return gater(t, c.url("fresh=1")) })
}

// gater is a driver of its own: one more client of the nodes. Its closing is the caller's.
func gater(t *testing.T, url string) caller {
	t.Helper()
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	return call(d.(*redlock.Driver))
}

// closing is gater, closed with the test.
func closing(t *testing.T, url string) caller {
	d := gater(t, url)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// gates is the key of the gates, with the default prefix.
const gates = "fl\x00rl:gfencelock:"

func request(name, nonce string, phase backend.Phase) *backend.Request {
	r := &backend.Request{
		Name: name, Nonce: strings.Repeat(nonce, 32), Owner: "o", TTL: 20 * time.Second,
		Phase: phase, Lost: func(error) {},
	}
	if phase != "" {
		r.Move = "m"
	}
	return r
}

func gate(state backend.GateState, match string) backend.Gate {
	return backend.Gate{Move: "m", Scope: backend.Scope{{Match: match}}, State: state, Epoch: time.Now().UnixMicro()}
}

// have awaits that every node has a gate.
func (c *cluster) have(t *testing.T, what string) {
	t.Helper()
	await(t, 5*time.Second, what, func() bool {
		for _, n := range c.direct {
			if n.HLen(t.Context(), gates).Val() != 1 {
				return false
			}
		}
		return true
	})
}

// A node that takes no gate delays a look at the gates by one more look.
func TestNodeThatTakesNoGate(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	must(t, d.SetGate(t.Context(), gate(backend.GateBoth, "*"), 0))
	c.have(t, "every node has the gate")
	stubborn := c.direct[2]
	must(t, stubborn.Del(t.Context(), gates).Err())
	must(t, stubborn.Do(t.Context(), "ACL", "SETUSER", "default", "-hset").Err())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	all, err := d.Gates(ctx)
	if took := time.Since(began); err != nil || len(all) != 1 || took > 10*time.Second {
		t.Errorf("got %v, %v after %v, want the gate of the others", all, err, took)
	}
	if n := stubborn.Exists(t.Context(), gates).Val(); n != 0 {
		t.Error("the node has taken the gate")
	}
}

// Of a client the last report counts, whichever node has it.
func TestLastReportOfAClient(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	last := backend.Client{ID: "c", Move: "m", Phase: backend.PhaseTo, Reported: time.Now()}
	must(t, d.Report(t.Context(), last, time.Minute))
	key := "fl\x00rl:kfencelock:\x00m"
	await(t, 5*time.Second, "the node has it", func() bool { return c.direct[1].Exists(t.Context(), key).Val() == 1 })
	record := c.direct[1].HGet(t.Context(), key, "c").Val()
	till, _, _ := strings.Cut(record, " ")
	before := last
	before.Phase, before.Reported = backend.PhaseFrom, last.Reported.Add(-time.Minute)
	old, err := json.Marshal(before)
	must(t, err)
	must(t, c.direct[1].HSet(t.Context(), key, "c", till+" "+string(old)).Err())
	for range 20 { // it is the first, the second or the last to answer
		all, err := d.Clients(t.Context(), "m")
		must(t, err)
		if len(all) != 1 || all[0].Phase != backend.PhaseTo {
			t.Fatalf("got %+v, want the last report", all)
		}
	}
}

// A node that lost its data has lost the gate too. It gets it back from the others by the next vote
// or look that sees it, mostly while it is still in quarantine; until then it is one vote, which
// opens nothing.
func TestNodeThatLostTheGate(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d, straggler := closing(t, c.url("fresh=1&quarantine=21s")), closing(t, c.url("quarantine=21s"))
	must(t, d.SetGate(t.Context(), gate(backend.GateBoth, "*"), 0))
	for _, kind := range []struct {
		what string
		lose func()
	}{
		{"all of a node", func() { must(t, c.direct[0].FlushAll(t.Context()).Err()) }},
		{"the gate of a node", func() { must(t, c.direct[1].Del(t.Context(), gates).Err()) }},
	} {
		kind.lose()
		r := request("x", "a", backend.PhaseFrom)
		_, err := straggler.Acquire(t.Context(), r)
		want(t, kind.what, err, backend.ErrUnsupported)
		await(t, 5*time.Second, kind.what, func() bool { // a vote that sees it
			_ = straggler.Abandon(t.Context(), r)
			_, err := straggler.Acquire(t.Context(), r)
			want(t, kind.what, err, backend.ErrUnsupported)
			return c.direct[0].HLen(t.Context(), gates).Val() == 1 && c.direct[1].HLen(t.Context(), gates).Val() == 1
		})
	}
	must(t, c.direct[2].Del(t.Context(), gates).Err())
	if got, err := d.Gates(t.Context()); err != nil || len(got) != 1 || got[0].Torn ||
		got[0].State != backend.GateBoth {
		t.Errorf("Gates: got %+v, %v, want it whole again", got, err)
	}
	c.have(t, "Gates gives it back")
}

// A change of a gate needs every node, and says which one is missing. What got through of it is
// finished by the next client that looks.
func TestGateNeedsEveryNode(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	ps, url := c.proxied(t, "fresh=1")
	d := closing(t, url)
	must(t, d.SetGate(t.Context(), gate(backend.GateOpen, "*"), 0))
	refuse(ps[2])
	g := gate(backend.GateBoth, "*")
	err := d.SetGate(t.Context(), g, backend.Lower)
	want(t, "SetGate", err, backend.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), ps[2].Addr()) {
		t.Errorf("got %v, want the node named", err)
	}
	if _, err := d.Gates(t.Context()); err != nil {
		t.Errorf("Gates of a majority: %v", err)
	}
	if _, err := d.Undrained(t.Context(), g); err != nil {
		t.Errorf("Undrained of a majority: %v", err)
	}
	ps[2].Set(faultproxy.Mode{})
	await(t, 5*time.Second, "the node answers", func() bool {
		got, err := d.Gates(t.Context())
		return err == nil && len(got) == 1 && !got[0].Torn && got[0].State == backend.GateBoth &&
			strings.Contains(c.direct[2].HGet(t.Context(), gates, "m").Val(), `"both"`)
	})
}

// Undrained counts a lock that a single node still has, and is an error while a majority may have forgotten.
func TestUndrainedAfterLosses(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	r := request("x", "a", "")
	_, err := d.Acquire(t.Context(), r)
	must(t, err)
	both := request("y", "b", backend.PhaseBoth)
	_, err = d.Acquire(t.Context(), both)
	must(t, err)
	g := gate(backend.GateBoth, "*")
	must(t, d.SetGate(t.Context(), g, 0))
	await(t, 5*time.Second, "all nodes have voted", func() bool {
		return c.value(t, 0, "x") != "" && c.value(t, 1, "x") != "" && c.value(t, 2, "x") != ""
	})
	for i := range 2 {
		must(t, c.direct[i].Del(t.Context(), "fencelock:x").Err())
	}
	left, err := d.Undrained(t.Context(), g)
	if err != nil || len(left) != 1 || left[0].Name != "x" || left[0].Owner != "o" {
		t.Errorf("got %+v, %v, want x", left, err)
	}
	if info, err := d.Inspect(t.Context(), "y"); err != nil || info.Owner != "o" {
		t.Errorf("Inspect: got %+v, %v, want the plain owner", info, err)
	}
	for i := range 2 {
		must(t, c.direct[i].FlushAll(t.Context()).Err())
	}
	if left, err := d.Undrained(t.Context(), g); err == nil {
		t.Errorf("got %v, want an error: two of three nodes have forgotten", left)
	}
}

// Numbers that are raised while nodes are searched, by a client of another keyspace, are no quarantine.
func TestUndrainedBesideARaise(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d, other := closing(t, c.url("fresh=1")), closing(t, c.url("prefix=other:"))
	g := gate(backend.GateBoth, "*")
	must(t, d.SetGate(t.Context(), g, 0))
	n, err := other.Source(t.Context())
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var raises sync.WaitGroup
	raises.Go(func() {
		for floor := n + 1; ctx.Err() == nil; floor++ {
			if err := other.Raise(ctx, floor); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for range 50 {
		if _, err := d.Undrained(t.Context(), g); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	raises.Wait()
}

// What is no gate under the gates' key grants nothing, and is named.
func TestForeignGate(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	for _, record := range []string{
		`{"move":"m","state":"ajar","epoch":1,"scope":[{"match":"x"}]}`,
		`{"move":"m","state":"both","epoch":1,"scope":{}}`, "x",
	} {
		for _, n := range c.direct {
			must(t, n.HSet(t.Context(), gates, "m", record).Err())
		}
		r := request("x", "a", "")
		_, err := d.Acquire(t.Context(), r)
		must(t, d.Abandon(t.Context(), r))
		_, err2 := d.Gates(t.Context())
		for _, err := range []error{err, err2} {
			want(t, record, err, backend.ErrInvalid)
			if err != nil && !strings.Contains(err.Error(), "gfencelock:") {
				t.Errorf("got %v, want the key named", err)
			}
		}
	}
	want(t, "SetGate", d.SetGate(t.Context(), gate(backend.GateBoth, "*"), 0), backend.ErrInvalid)
}

// A waiter that is refused is out of the queue, and the lock that was kept for it goes to the next at once.
func TestRefusedWaiterPassesOn(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	a, b := closing(t, c.url("fresh=1")), closing(t, c.url("fresh=1"))
	first := request("x", "c", backend.PhaseBoth)
	g, err := a.Acquire(t.Context(), first)
	must(t, err)
	wait := func(d caller, r *backend.Request, n int) chan error {
		r.Wait = true
		done := make(chan error, 1)
		go func() {
			_, err := d.Acquire(t.Context(), r)
			done <- err
		}()
		await(t, 5*time.Second, "it waits", func() bool {
			i, err := a.Inspect(t.Context(), "x")
			return err == nil && i.Waiters == n
		})
		return done
	}
	refused := wait(b, request("x", "a", backend.PhaseFrom), 1)
	granted := wait(b, request("x", "b", backend.PhaseBoth), 2)
	must(t, a.SetGate(t.Context(), gate(backend.GateBoth, "*"), 0))
	released := time.Now()
	must(t, a.Release(t.Context(), &core.Hold{Request: first, Grant: g}))
	must(t, <-granted)
	if took := time.Since(released); took > time.Second {
		t.Errorf("the next was granted after %v, want at once", took)
	}
	var refusal *backend.GateError
	if err := <-refused; !errors.As(err, &refusal) || refusal.Phase != backend.PhaseFrom {
		t.Errorf("the straggler: got %v, want the gate's refusal", err)
	}
	must(t, b.Abandon(t.Context(), request("x", "b", backend.PhaseBoth)))
}

// Two changes of one epoch at two nodes: neither is the later, so that nothing is mended, and whoever
// a majority keeps out stays out.
func TestGatesOfOneEpoch(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	shut := gate(backend.GateBoth, "*")
	must(t, d.SetGate(t.Context(), shut, 0))
	other := shut
	other.State = backend.GateOpen
	raw, err := json.Marshal(other)
	must(t, err)
	must(t, c.direct[0].HSet(t.Context(), gates, "m", string(raw)).Err())
	got, err := d.Gates(t.Context())
	must(t, err)
	if len(got) != 1 || !got[0].Torn || got[0].State != backend.GateBoth {
		t.Errorf("got %+v, want the gate torn, and not open", got)
	}
	if _, err := closing(t, c.url("")).Acquire(t.Context(), request("x", "a", "")); err == nil {
		t.Error("a client of no migration was granted the lock")
	}
}
