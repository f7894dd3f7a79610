package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
)

// guard: what is lower is refused with the greatest seen, what is equal or higher is let through.
func guard(t *testing.T, r *rig) {
	g, err := etcd.NewGuard(r.c, &etcd.Options{Prefix: r.prefix})
	must(t, err)
	for _, tt := range []struct {
		token backend.Token
		stale backend.Token // 0: let through
	}{
		{5, 0}, {5, 0}, {9, 0}, {8, 9}, {1 << 50, 0}, {9, 1 << 50}, {1 << 50, 0},
	} {
		err := g.Check(t.Context(), "account/7", tt.token)
		var stale *backend.StaleError
		if errors.As(err, &stale) != (tt.stale > 0) || stale != nil && stale.Max != tt.stale {
			t.Errorf("token %d: got %v, want refused with %d (0: let through)", tt.token, err, tt.stale)
		}
	}
	must(t, g.Check(t.Context(), "account", 1))
	must(t, g.Check(t.Context(), "account/8", 1))
	now := backend.Token(time.Now().UnixMicro())
	must(t, g.Check(t.Context(), "near", now+backend.FloorAhead/2))
	for _, bad := range []backend.Token{0, -1, 1 << 53, 1<<53 - 1, now + 2*backend.FloorAhead} {
		want(t, "a token that is none", g.Check(t.Context(), "account", bad), backend.ErrInvalid)
	}
	d := r.driver(t, r.url())
	hold(t, d, request("x", 1, 30*time.Second))
	must(t, d.Raise(t.Context(), now+3*backend.FloorAhead)) // as a migration does
	must(t, g.Check(t.Context(), "account", now+2*backend.FloorAhead))
	_, err = r.c.Put(t.Context(), r.prefix+"~token/odd", "x")
	must(t, err)
	want(t, "another's data under the key", g.Check(t.Context(), "odd", 3), backend.ErrInvalid)
	must(t, etcd.CheckToken(t.Context(), r.c, r.prefix+"by the function", 3))
	want(t, "a lower one", etcd.CheckToken(t.Context(), r.c, r.prefix+"by the function", 2), backend.ErrStale)
	_, err = etcd.NewGuard(nil, nil)
	want(t, "a guard without a client", err, backend.ErrInvalid)
}

// guardInTransactions: check and access are one step, in Do and in the program's own transaction.
func guardInTransactions(t *testing.T, r *rig) {
	g, err := etcd.NewGuard(r.c, &etcd.Options{Prefix: r.prefix})
	must(t, err)
	data := r.prefix + "data"
	for _, tt := range []struct {
		token   backend.Token
		text    string
		refused bool
	}{
		{5, "five", false}, {5, "five again", false}, {7, "seven", false}, {6, "six", true}, {7, "seven again", false},
	} {
		resp, err := g.Do(t.Context(), "data", tt.token, clientv3.OpPut(data, tt.text), clientv3.OpGet(data))
		if errors.Is(err, backend.ErrStale) != tt.refused {
			t.Fatalf("write with token %d: got %v", tt.token, err)
		}
		if err == nil {
			if len(resp.Responses) != 2 ||
				string(resp.Responses[1].GetResponseRange().Kvs[0].Value) != tt.text ||
				resp.Header.Revision == 0 {
				t.Errorf("the answers to the access with token %d: got %v", tt.token, resp)
			}
		}
	}
	got, err := r.c.Get(t.Context(), data)
	must(t, err)
	if s := string(got.Kvs[0].Value); s != "seven again" {
		t.Errorf("written: got %q", s)
	}
	for _, n := range []int{100, 126, 127} {
		access := make([]clientv3.Op, n)
		for i := range access {
			access[i] = clientv3.OpPut(fmt.Sprintf("%s%d", data, i), "x")
		}
		for _, token := range []backend.Token{7, 7} {
			resp, err := g.Do(t.Context(), fmt.Sprintf("many %d", n), token, access...)
			switch {
			case n <= 126 && (err != nil || len(resp.Responses) != n):
				t.Errorf("an access of %d operations: got %v, %v", n, resp, err)
			case n > 126 && (!errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "max-txn-ops, 128")):
				t.Errorf("an access of %d operations: got %v, want ErrInvalid with the bound", n, err)
			}
		}
	}
	own := func(token backend.Token) bool {
		resp, err := r.c.Txn(t.Context()).If(g.Compare("data", token)).Then(clientv3.OpGet(data)).Commit()
		must(t, err)
		return resp.Succeeded
	}
	if !own(7) || own(6) || own(8) {
		t.Errorf("Compare with 7 recorded: got %v, %v, %v for 7, 6, 8; want true, false, false", own(7), own(6), own(8))
	}
	must(t, g.Check(t.Context(), "data", 8))
	if own(7) || !own(8) {
		t.Error("Compare lets the overtaken through")
	}
}

// heldCompare: a transaction goes through as long as the lock is held, and not a moment longer.
func heldCompare(t *testing.T, r *rig) {
	l := open(t, r.url())
	le := lock(t, l.Mutex("x"))
	cmp, ok := etcd.Held(le)
	if !ok {
		t.Fatal("a lease of etcd has no compare")
	}
	write := func() bool {
		resp, err := r.c.Txn(t.Context()).If(cmp).Then(clientv3.OpPut(r.prefix+"data", "1")).Commit()
		must(t, err)
		return resp.Succeeded
	}
	if !write() {
		t.Error("the holder's write was refused")
	}
	must(t, le.Renew(t.Context()))
	if !write() {
		t.Error("the holder's write was refused after a renewal")
	}
	must(t, open(t, r.url()).Break(t.Context(), "x"))
	if write() {
		t.Error("a write after Break went through")
	}
	lost(t, le, 2e9, fencelock.Revoked)
	unlock(t, lock(t, l.Mutex("x")))
	if _, ok := etcd.Held(none{}); ok {
		t.Error("a lease of another backend has a compare")
	}
}

// heldAfterUnlock: a lease that has passed its lock on within the process does not hold it, though the entry is the
// same.
func heldAfterUnlock(t *testing.T, r *rig) {
	m := open(t, r.url()).Mutex("x")
	for range 50 {
		first := lock(t, m)
		quick := make(chan *fencelock.Lease, 1)
		go func() {
			le, err := m.Lock(t.Context())
			if err == nil {
				err = le.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			quick <- le
		}()
		await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, "x")) == 2 })
		next := start(t, m)
		<-time.After(5 * time.Millisecond) // so that it is in line, mostly
		unlock(t, first)
		before, le := <-quick, next.Granted(t, 10*time.Second)
		if before == nil {
			return
		}
		if le.Token() != before.Token()+1 { // by way of the store
			unlock(t, le)
			continue
		}
		if _, ok := etcd.Held(before); ok {
			t.Error("a lease that has passed the lock on has a compare")
		}
		if _, ok := etcd.Held(le); !ok {
			t.Error("the lease to which the lock was passed on has no compare")
		}
		unlock(t, le)
		return
	}
	t.Skip("this machine is too slow: no lock was passed on within its 3 ms")
}

type none struct{}

func (none) Handle() any { return nil }
