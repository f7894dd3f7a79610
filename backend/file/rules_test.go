package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// bubble runs a test in virtual time with two drivers of one directory.
func bubble(t *testing.T, test func(t *testing.T, a, b caller)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		test(t, newQuiet(t, dir), newQuiet(t, dir))
	})
}

func TestExclusion(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Minute))
		_, err := b.Acquire(t.Context(), try("x", time.Minute))
		wantErr(t, "a second holder", err, backend.ErrLocked)
		take(t, b, try("y", time.Minute))
		release(t, a, h)
		if h2 := take(t, b, try("x", time.Minute)); h2.Token <= h.Token {
			t.Errorf("token: got %d after %d", h2.Token, h.Token)
		}
	})
}

func TestSentAgainIsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		r := try("x", time.Second)
		h := take(t, a, r)
		time.Sleep(900 * time.Millisecond)
		if again := take(t, a, r); again.Token != h.Token || again.Asked.Sub(h.Asked) < 900*time.Millisecond {
			t.Errorf("sent again: got token %d asked %v later, want token %d asked 900ms later",
				again.Token, again.Asked.Sub(h.Asked), h.Token)
		}
		time.Sleep(900 * time.Millisecond)
		_, err := b.Acquire(t.Context(), try("x", time.Second))
		wantErr(t, "the expiry was set again", err, backend.ErrLocked)
	})
}

func TestExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		r := try("x", time.Second)
		r.Grace = time.Second
		h := take(t, a, r)
		time.Sleep(2*time.Second - time.Millisecond)
		_, err := b.Acquire(t.Context(), try("x", time.Second))
		wantErr(t, "within TTL + grace", err, backend.ErrLocked)
		time.Sleep(time.Millisecond)
		wantErr(t, "Check of an expired hold", a.Check(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		wantErr(t, "Renew of an expired hold", a.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		if i := inspect(t, b, "x"); i.Held {
			t.Errorf("Inspect after the expiry: got %+v, want free", i)
		}
		h2 := take(t, b, try("x", time.Second))
		wantErr(t, "Release of an expired hold", a.Release(t.Context(), h), backend.ErrLost)
		wantErr(t, "Check of the next holder", b.Check(t.Context(), []*core.Hold{h2})[0], nil)
	})
}

func TestRenew(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		var hs []*core.Hold
		for i := range 200 {
			hs = append(hs, take(t, a, try(fmt.Sprint("n", i), time.Second)))
		}
		release(t, a, hs[7])
		for range 5 {
			time.Sleep(900 * time.Millisecond)
			for i, err := range a.Renew(t.Context(), hs) {
				if want := i == 7; errors.Is(err, backend.ErrLost) != want || (err != nil) != want {
					t.Fatalf("Renew %d: got %v, want lost %v", i, err, want)
				}
			}
		}
		if i := inspect(t, b, "n7"); i.Held {
			t.Errorf("Renew revived what was released: %+v", i)
		}
		n := 0
		for i, err := range b.List(t.Context(), "n1") {
			if err != nil || !i.Held || i.ExpiresIn != time.Second || i.Waiters != 0 ||
				i.Leaked || i.Owner != "tester" {
				t.Errorf("List: got %+v, %v", i, err)
			}
			n++
		}
		if want := 111; n != want { // 1, 10–19, 100–199
			t.Errorf("List: got %d names, want %d", n, want)
		}
	})
}

func TestRelease(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Minute))
		release(t, a, h)
		release(t, a, h)
		h2 := take(t, b, try("x", time.Minute))
		release(t, a, h) // sent again after the next grant
		wantErr(t, "the next holder", b.Check(t.Context(), []*core.Hold{h2})[0], nil)
		_, err := a.Acquire(t.Context(), h.Request)
		wantErr(t, "a late Acquire of what was released", err, backend.ErrLost)
		release(t, b, h2)
		stranger := &core.Hold{Request: try("x", time.Minute)}
		wantErr(t, "Release of what was never held", a.Release(t.Context(), stranger), backend.ErrLost)
	})
}

func TestAbandon(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Second))
		if err := a.Abandon(t.Context(), h.Request); err != nil {
			t.Fatalf("Abandon of a holder: %v", err)
		}
		late := try("x", time.Second)
		if err := a.Abandon(t.Context(), late); err != nil {
			t.Fatalf("Abandon of nothing: %v", err)
		}
		_, err := a.Acquire(t.Context(), late)
		wantErr(t, "Acquire after Abandon", err, backend.ErrLost)
		h2 := take(t, b, try("x", time.Second))
		if err := a.Abandon(t.Context(), h.Request); err != nil {
			t.Fatalf("Abandon repeated: %v", err)
		}
		wantErr(t, "the next holder", b.Check(t.Context(), []*core.Hold{h2})[0], nil)
		time.Sleep(time.Minute)
		release(t, a, take(t, a, try("x", time.Second))) // any write cleans up
		st, err := a.store.bucket("x").snapshot(t.Context())
		if err != nil || len(st.released)+len(st.abandoned) != 1 {
			t.Errorf("ends after a minute: got %+v, %v, want that of the last release", st, err)
		}
	})
}

func TestAbandonLeavesTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		first := wait("x", time.Minute)
		one := later(ctx, a, first)
		synctest.Wait()
		two := later(t.Context(), b, wait("x", time.Minute))
		time.Sleep(time.Second)
		cancel()
		g := <-one
		wantErr(t, "a cancelled wait", g.err, context.Canceled)
		wantErr(t, "a cancelled wait", g.err, backend.ErrLocked)
		release(t, a, h) // now it is the first one's
		began := time.Now()
		if err := a.Abandon(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if g := <-two; g.err != nil {
			t.Fatal(g.err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the next waiter got it after %v, want at once", took)
		}
	})
}

func TestBreak(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		if err := a.Break(t.Context(), "x"); err != nil {
			t.Errorf("Break of a free lock: %v", err)
		}
		r := try("x", time.Minute)
		h := take(t, a, r)
		next := later(t.Context(), b, wait("x", time.Minute))
		time.Sleep(time.Second)
		if err := a.Break(t.Context(), "x"); err != nil {
			t.Errorf("Break: %v", err)
		}
		h2 := (<-next).h
		if h2.Token <= h.Token {
			t.Errorf("token: got %d after %d", h2.Token, h.Token)
		}
		wantErr(t, "Check", a.Check(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
		wantErr(t, "Release", a.Release(t.Context(), h), backend.ErrLost)
		_, err := a.Acquire(t.Context(), r)
		wantErr(t, "Acquire sent again", err, backend.ErrLost)
	})
}

func TestFIFO(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Hour))
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			d := []caller{a, b}[i%2]
			all.Go(func() {
				h := take(t, d, wait("x", time.Hour))
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				release(t, d, h)
			})
			time.Sleep(time.Second)
		}
		if i := inspect(t, a, "x"); i.Waiters != 20 || !i.Held {
			t.Errorf("Inspect: got %+v, want held with 20 waiters", i)
		}
		release(t, a, h)
		_, err := a.Acquire(t.Context(), try("x", time.Hour))
		wantErr(t, "overtaking", err, backend.ErrLocked)
		all.Wait()
		for i := range order {
			if order[i] != i {
				t.Fatalf("order: got %v", order)
			}
		}
		if i := inspect(t, a, "x"); i.Held || i.Waiters != 0 {
			t.Errorf("Inspect: got %+v, want free", i)
		}
	})
}

// ghost joins the queue as a process would that dies then.
func ghost(t *testing.T, d caller, name string) *backend.Request {
	t.Helper()
	r := wait(name, time.Minute)
	c := &backend.Claim{Request: r, Place: ""}
	d.store.Ask(t.Context(), []*backend.Claim{c})
	wantErr(t, "joining the queue", c.Err, backend.ErrLocked)
	return r
}

func TestDeadWaiter(t *testing.T) {
	limit := backend.TraitsOf("file").DeadWaiter
	for _, c := range []struct {
		name string
		dies func(t *testing.T, a caller, h *core.Hold)
	}{
		{"release", func(t *testing.T, a caller, h *core.Hold) { release(t, a, h) }},
		{"break", func(t *testing.T, a caller, h *core.Hold) { _ = a.Break(t.Context(), "x") }},
		{"expiry", func(*testing.T, caller, *core.Hold) { time.Sleep(10 * time.Second) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, a, b caller) {
				h := take(t, a, try("x", 10*time.Second))
				dead := ghost(t, a, "x")
				next := later(t.Context(), b, wait("x", time.Minute))
				synctest.Wait()
				c.dies(t, a, h)
				freed := time.Now()
				g := <-next
				if took := time.Since(freed); g.err != nil || took > limit {
					t.Errorf("got %v after %v, want the lock within %v", g.err, took, limit)
				}
				_, err := a.Acquire(t.Context(), try("x", time.Minute))
				wantErr(t, "others", err, backend.ErrLocked)
				dead.Wait = false
				_, err = a.Acquire(t.Context(), dead) // it was only slow
				wantErr(t, "the dead waiter", err, backend.ErrLocked)
			})
		})
	}
}

func TestTryLockTakesADeadLock(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		take(t, a, try("x", time.Second))
		ghost(t, a, "x")
		time.Sleep(time.Second)
		_, err := b.Acquire(t.Context(), try("x", time.Second))
		wantErr(t, "the waiter's turn", err, backend.ErrLocked)
		time.Sleep(turn)
		take(t, b, try("x", time.Second))
	})
}

func TestSlowWaiterKeepsItsTurn(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Minute))
		slow := ghost(t, a, "x")
		release(t, a, h)
		time.Sleep(time.Hour)
		take(t, b, slow) // nobody has looked meanwhile
	})
}

func TestToken(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		h := take(t, a, try("x", time.Minute))
		if now := time.Now().UnixMicro(); h.Token < now {
			t.Errorf("token: got %d, below the clock %d", h.Token, now)
		}
		release(t, a, h)
		r := try("x", time.Minute)
		r.Floor = h.Token + backend.FloorAhead/2
		h2 := take(t, b, r)
		if h2.Token != r.Floor+1 {
			t.Errorf("token over a floor: got %d, want %d", h2.Token, r.Floor+1)
		}
		release(t, b, h2)
		if h3 := take(t, a, try("x", time.Minute)); h3.Token != h2.Token+1 {
			t.Errorf("token after a floor: got %d, want %d", h3.Token, h2.Token+1)
		}
		floor := h2.Token + 1e12
		if err := a.Raise(t.Context(), floor); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if h := take(t, b, try(fmt.Sprint("r", i), time.Minute)); h.Token <= floor {
				t.Errorf("token after Raise: got %d, want above %d", h.Token, floor)
			}
		}
		r = try("y", time.Minute)
		r.Floor = maxToken
		_, err := a.Acquire(t.Context(), r)
		wantErr(t, "the last floor", err, backend.ErrInvalid)
	})
}

func TestPrefixes(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for _, prefix := range []string{"", "a", "ab", backend.DefaultPrefix} {
		d := newWith(t, dir, Options{Prefix: prefix, NoSockets: true})
		for _, name := range []string{"a", "b", "bc", "c", "abc"} {
			take(t, d, try(name, time.Minute))
			seen[prefix+"\x00"+name] = true
		}
		n := 0
		for range d.List(t.Context(), "") {
			n++
		}
		if n != 5 {
			t.Errorf("List under prefix %q: got %d names, want 5", prefix, n)
		}
	}
}

// A process that is stopped in one bucket takes the leases of that one, and no others of another process.
func TestStuckBucketDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, a, _ caller) {
		var hs []*core.Hold
		stuck := map[*core.Hold]bool{}
		for i := range 300 {
			h := take(t, a, try(fmt.Sprint("n", i), time.Minute))
			hs, stuck[h] = append(hs, h), key{backend.DefaultPrefix, h.Name}.bucket() == 7
		}
		f, err := os.OpenFile(a.store.buckets[7].lock, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if ours, err := tryLock(f); !ours || err != nil {
			t.Fatalf("tryLock: got %v, %v", ours, err)
		}
		in := 0
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for i, err := range a.Renew(ctx, hs) {
			if stuck[hs[i]] {
				in++
			}
			if (err != nil) != stuck[hs[i]] {
				t.Errorf("%s, of the stuck bucket %v: %v", hs[i].Name, stuck[hs[i]], err)
			}
		}
		if in == 0 {
			t.Error("no hold is in the stuck bucket")
		}
	})
}

// All holds whose names are kept in one bucket are renewed by one write.
func TestRenewalOfOneBucket(t *testing.T) {
	bubble(t, func(t *testing.T, a, _ caller) {
		const ttl = 10 * time.Second
		var hs []*core.Hold
		for i := 0; len(hs) < 3; i++ {
			if r := try(fmt.Sprint(i), ttl); (key{backend.DefaultPrefix, r.Name}).bucket() == 7 {
				hs = append(hs, take(t, a, r))
			}
		}
		time.Sleep(time.Second)
		for _, err := range a.Renew(t.Context(), hs) {
			wantErr(t, "Renew", err, nil)
		}
		for _, h := range hs {
			if left := inspect(t, a, h.Name).ExpiresIn; left != ttl {
				t.Errorf("%s expires in %v after a renewal, want %v", h.Name, left, ttl)
			}
		}
	})
}
