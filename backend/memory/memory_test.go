package memory_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
)

const ttl = 10 * time.Second

// bubble runs fn in virtual time with a driver on a new store.
func bubble(t *testing.T, fn func(t *testing.T, d caller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		fn(t, call(d))
	})
}

// try is a request without Wait; change may be nil.
func try(name string, change func(*backend.Request)) *backend.Request {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	r := &backend.Request{Name: name, Nonce: hex.EncodeToString(nonce), Owner: "me", TTL: ttl, Lost: func(error) {}}
	if change != nil {
		change(r)
	}
	return r
}

func waits(r *backend.Request) { r.Wait = true }

func acquire(t *testing.T, d caller, r *backend.Request) *core.Hold {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Name, err)
	}
	return &core.Hold{Request: r, Grant: g}
}

// queue calls Acquire in a goroutine and returns once it waits.
func queue(ctx context.Context, d caller, r *backend.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, r)
		done <- err
	}()
	synctest.Wait()
	return done
}

func want(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantInfo(t *testing.T, d caller, what string, want backend.Info) {
	t.Helper()
	if got, err := d.Inspect(t.Context(), want.Name); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
	}
}

func TestSentAgainHasTheEffectOfOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		r := try("n", nil)
		h := acquire(t, d, r)
		time.Sleep(time.Second)
		again := acquire(t, d, r)
		if again.Token != h.Token {
			t.Errorf("token: got %d, then %d, want the same", h.Token, again.Token)
		}
		if got := again.Asked.Sub(h.Asked); got != time.Second {
			t.Errorf("the second Asked is %v after the first, want 1s: it set the expiry anew", got)
		}
		wantInfo(t, d, "after it", backend.Info{Name: "n", Owner: "me", Held: true, Token: h.Token, ExpiresIn: ttl})
		want(t, "another's try", errOf(d.Acquire(t.Context(), try("n", nil))), backend.ErrLocked)
	})
}

func errOf(_ backend.Grant, err error) error { return err }

func TestSentAgainKeepsItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		first, second := try("n", waits), try("n", waits)
		ctx, cancel := context.WithCancel(t.Context())
		lost := queue(ctx, d, first)
		other := queue(t.Context(), d, second)
		cancel() // the first one's reply is lost
		want(t, "the first", <-lost, context.Canceled)
		again := queue(t.Context(), d, first)
		if got, _ := d.Inspect(t.Context(), "n"); got.Waiters != 2 {
			t.Errorf("got %d waiters, want 2", got.Waiters)
		}
		want(t, "release", d.Release(t.Context(), h), nil)
		if err := <-again; err != nil {
			t.Errorf("the first, sent again: %v", err)
		}
		want(t, "abandon", d.Abandon(t.Context(), first), nil)
		if err := <-other; err != nil {
			t.Errorf("the second: %v", err)
		}
	})
}

func TestRelease(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		want(t, "release", d.Release(t.Context(), h), nil)
		want(t, "release, sent again", d.Release(t.Context(), h), nil)
		next := acquire(t, d, try("n", nil))
		want(t, "release, sent again after the next grant", d.Release(t.Context(), h), nil)
		want(t, "renewal of the released", d.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		want(t, "abandon of the released", d.Abandon(t.Context(), h.Request), nil)
		wantInfo(t, d, "the next holder",
			backend.Info{Name: "n", Owner: "me", Held: true, Token: next.Token, ExpiresIn: ttl})
		want(t, "acquire of the released, late", errOf(d.Acquire(t.Context(), h.Request)), backend.ErrLost)
	})
}

func TestReleaseOfALostLock(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		time.Sleep(ttl)
		want(t, "release of an expired lock", d.Release(t.Context(), h), backend.ErrLost)
		next := acquire(t, d, try("n", nil))
		want(t, "release of an expired lock that another has", d.Release(t.Context(), h), backend.ErrLost)
		want(t, "renewal of it", d.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		wantInfo(t, d, "the next holder",
			backend.Info{Name: "n", Owner: "me", Held: true, Token: next.Token, ExpiresIn: ttl})
	})
}

func TestAbandon(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		never := try("n", nil)
		want(t, "abandon of what never came", d.Abandon(t.Context(), never), nil)
		want(t, "which comes late", errOf(d.Acquire(t.Context(), never)), backend.ErrLost)
		wantInfo(t, d, "after it", backend.Info{Name: "n"})

		held := acquire(t, d, try("n", nil))
		waiter := queue(t.Context(), d, try("n", waits))
		want(t, "abandon of a hold", d.Abandon(t.Context(), held.Request), nil)
		want(t, "abandon again", d.Abandon(t.Context(), held.Request), nil)
		if err := <-waiter; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		want(t, "release of the abandoned", d.Release(t.Context(), held), backend.ErrLost)

		ctx, cancel := context.WithCancel(t.Context())
		gone := try("n", waits)
		cancelled := queue(ctx, d, gone)
		cancel()
		err := <-cancelled
		want(t, "the cancelled", err, context.Canceled)
		want(t, "the cancelled", err, backend.ErrLocked)
		want(t, "abandon of a waiter", d.Abandon(t.Context(), gone), nil)
		if info, _ := d.Inspect(t.Context(), "n"); info.Waiters != 0 {
			t.Errorf("got %d waiters, want none", info.Waiters)
		}
	})
}

func TestTheStoreRemembersWhatEnded(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		want(t, "release", d.Release(t.Context(), h), nil)
		for range 1000 {
			want(t, "release", d.Release(t.Context(), acquire(t, d, try("n", nil))), nil)
		}
		want(t, "release, sent again after 1,000 others", d.Release(t.Context(), h), nil)
	})
}

func TestQueueIsFirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		var order []int
		done := make(chan struct{})
		for i := range 20 {
			go func() {
				g, err := d.Acquire(t.Context(), try("n", waits))
				want(t, "the waiter", err, nil)
				order = append(order, i) // one at a time: the lock guards it
				r := &core.Hold{Request: try("n", nil), Grant: g}
				want(t, "a stranger's release", d.Release(t.Context(), r), backend.ErrLost)
				want(t, "break", d.Break(t.Context(), "n"), nil)
				if i == 19 {
					close(done)
				}
			}()
			synctest.Wait()
			want(t, "a try behind waiters", errOf(d.Acquire(t.Context(), try("n", nil))), backend.ErrLocked)
		}
		want(t, "release", d.Release(t.Context(), h), nil)
		<-done
		if !slices.IsSorted(order) || len(order) != 20 {
			t.Errorf("got the order %v", order)
		}
	})
}

// TestFirstWaiterIsGone: a waiter whose turn comes and who does not ask holds up the next one for
// two seconds.
func TestFirstWaiterIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		ctx, cancel := context.WithCancel(t.Context())
		gone := queue(ctx, d, try("n", waits))
		next := queue(t.Context(), d, try("n", waits))
		cancel() // and nobody abandons it
		want(t, "the first", <-gone, context.Canceled)
		want(t, "release", d.Release(t.Context(), h), nil)
		began := time.Now()
		want(t, "the next", <-next, nil)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the next one was granted after %v, want 2s", took)
		}
	})
}

func TestExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", func(r *backend.Request) { r.Grace = 5 * time.Second }))
		start := time.Now()
		waiter := queue(t.Context(), d, try("n", waits))
		time.Sleep(5 * time.Second)
		want(t, "renewal", d.Renew(t.Context(), []*core.Hold{h})[0], nil)
		if err := <-waiter; err != nil {
			t.Error(err)
		}
		if got := time.Since(start); got != 20*time.Second {
			t.Errorf("the waiter was served after %v, want the renewal's TTL and grace: 20s", got)
		}
		want(t, "renewal after the expiry", d.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
	})
}

func TestExpiryWithoutWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		time.Sleep(ttl - time.Millisecond)
		want(t, "a try before", errOf(d.Acquire(t.Context(), try("n", nil))), backend.ErrLocked)
		time.Sleep(time.Millisecond)
		wantInfo(t, d, "after the expiry", backend.Info{Name: "n"})
		want(t, "renewal: a vanished lock stays so", d.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		wantInfo(t, d, "after the renewal", backend.Info{Name: "n"})
		for info := range d.List(t.Context(), "") {
			t.Errorf("listed: %+v", info)
		}
		acquire(t, d, try("n", nil))
	})
}

func TestRenewOfMany(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		a, b, c := acquire(t, d, try("a", nil)), acquire(t, d, try("b", nil)), acquire(t, d, try("c", nil))
		want(t, "release", d.Release(t.Context(), b), nil)
		errs := d.Renew(t.Context(), []*core.Hold{a, b, c})
		if len(errs) != 3 {
			t.Fatalf("got %d results, want 3", len(errs))
		}
		want(t, "a", errs[0], nil)
		want(t, "b", errs[1], backend.ErrLost)
		want(t, "c", errs[2], nil)
	})
}

func TestBreak(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		want(t, "break of a free lock", d.Break(t.Context(), "n"), nil)
		told := make(chan error, 1)
		h := acquire(t, d, try("n", func(r *backend.Request) { r.Lost = func(err error) { told <- err } }))
		waiter := queue(t.Context(), d, try("n", waits))
		other, err := d.Client(backend.DefaultPrefix)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "break", other.Break(t.Context(), "n"), nil)
		want(t, "the holder was told", <-told, backend.ErrLost)
		if err := <-waiter; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		want(t, "release of the broken", d.Release(t.Context(), h), backend.ErrLost)
	})
}

func TestPrefixesIsolate(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		var clients []caller
		for _, p := range []string{"c", "a", "b:"} {
			c, err := d.Client(p)
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, call(c))
		}
		clients = append(clients, d)
		var last backend.Token
		for i, c := range clients {
			h := acquire(t, c, try("name", nil))
			if h.Token <= last {
				t.Errorf("client %d: got token %d after %d, want one source for the store", i, h.Token, last)
			}
			last = h.Token
		}
		for i, c := range clients[1:] {
			var names []string
			for info, err := range c.List(t.Context(), "na") {
				want(t, "list", err, nil)
				names = append(names, info.Name)
			}
			if !slices.Equal(names, []string{"name"}) {
				t.Errorf("client %d: got %q, want its own only", i, names)
			}
			want(t, "break", c.Break(t.Context(), "name"), nil)
		}
		if info, _ := clients[0].Inspect(t.Context(), "name"); !info.Held {
			t.Error("a break with another prefix freed the lock")
		}
		_, err := d.Client("\x00")
		want(t, "a bad prefix", err, backend.ErrInvalid)
	})
}

func TestListStops(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		for i := range 5 {
			acquire(t, d, try(fmt.Sprint(i), nil))
		}
		n := 0
		for range d.List(t.Context(), "") {
			if n++; n == 2 {
				break
			}
		}
		if n != 2 {
			t.Errorf("got %d, want 2", n)
		}
	})
}

func TestNamesLeaveNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		for i := range 2000 {
			want(t, "release", d.Release(t.Context(), acquire(t, d, try(fmt.Sprint(i), nil))), nil)
			want(t, "abandon", d.Abandon(t.Context(), try(fmt.Sprint("x", i), nil)), nil)
		}
		if got := memory.Size(d.Driver); got > 2*1024 {
			t.Errorf("got %d entries after 2,000 names came and went, want a constant number", got)
		}
	})
}

func TestClosedClientLeavesTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		other, err := d.Client(backend.DefaultPrefix)
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, d, try("n", nil))
		want(t, "close", other.Close(), nil)
		if info, _ := d.Inspect(t.Context(), "n"); !info.Held {
			t.Error("the close of another client freed the lock")
		}
	})
}

// Another client of the store, made the shortest way, excludes the first: what a test of "somebody
// else holds it" needs.
func TestAnotherClientExcludes(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]error{
		"": fencelock.ErrLocked, backend.DefaultPrefix: fencelock.ErrLocked, "another:": nil,
	} {
		c, err := d.Client(prefix)
		if err != nil {
			t.Fatal(err)
		}
		var ls [2]*fencelock.Locker
		for i, of := range []caller{call(d), call(c)} {
			if ls[i], err = fencelock.New(of); err != nil {
				t.Fatal(err)
			}
		}
		le, err := ls[0].Mutex("n").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other, err := ls[1].Mutex("n").TryLock(t.Context())
		if !errors.Is(err, want) {
			t.Errorf("a client with the prefix %q: got %v, want %v", prefix, err, want)
		}
		if err == nil {
			if err := other.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*memory.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *memory.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }

// What two prefixes make of two names may be the same: they are two locks.
func TestPrefixOfAPrefix(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	for prefix, name := range map[string]string{"a": "bc", "ab": "c", "abc": "d"} {
		c, err := d.Client(prefix)
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Mutex(name).TryLock(t.Context()); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
		for i, err := range l.List(t.Context(), "") {
			if err != nil || i.Name != name {
				t.Errorf("prefix %q lists %q, %v", prefix, i.Name, err)
			}
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}
