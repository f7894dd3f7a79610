package zookeeper_test

import (
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// base is how often the base of the tokens has changed.
func base(t *testing.T, c *zk.Conn) int32 {
	t.Helper()
	return writes(t, c, root+"/tokens")
}

// The base changes once in a second for processes that start, and once in a tenth for floors that follow the clock.
func TestBaseChangesSeldom(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	must(t, d.Release(t.Context(), hold(t, d, request("warm"))))
	for _, one := range []struct {
		what  string
		every time.Duration
		do    func()
	}{
		{"starts", time.Second, func() {
			d := driver(t, z.URL())
			must(t, d.Release(t.Context(), hold(t, d, request("x"))))
		}},
		{"floors", 100 * time.Millisecond, func() {
			r := request("x")
			r.Floor = time.Now().UnixMicro()
			must(t, d.Release(t.Context(), hold(t, d, r)))
		}},
	} {
		before, began := base(t, c), time.Now()
		for range 20 {
			one.do()
		}
		most := 2 + int32(time.Since(began)/one.every)
		if n := base(t, c) - before; n > most {
			t.Errorf("20 %s: the base has changed %d times, want at most %d", one.what, n, most)
		}
	}
}

// A floor that is below the tokens changes nothing, whatever others have done since the process was granted one.
func TestFloorsBelowTheTokens(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d, other := driver(t, z.URL()), driver(t, z.URL())
	for _, one := range []caller{d, other} {
		must(t, one.Release(t.Context(), hold(t, one, request("warm"))))
	}
	held := hold(t, d, request("held"))
	before := base(t, c)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 50 {
				if _, err := c.Set(root+"/done", nil, -1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	newest := hold(t, other, request("x"))
	must(t, other.Release(t.Context(), newest))
	r := request("x")
	r.Floor = newest.Token - 1
	h := hold(t, d, r)
	if far := h.Token - newest.Token; far <= 0 || far > 100*256 {
		t.Errorf("with a floor of %d: got token %d after %d", r.Floor, h.Token, newest.Token)
	}
	last := granted(t, c)
	must(t, d.RaiseHeld(t.Context(), held, newest.Token))
	must(t, d.Raise(t.Context(), newest.Token))
	if n := granted(t, c) - last; n != 2 { // after an election that zxid is what the tokens are to exceed
		t.Errorf("%d raises were noted, want 2", n)
	}
	if n := base(t, c) - before; n != 0 {
		t.Errorf("the base has changed %d times, want 0", n)
	}
}

// A floor that others have reached is not too high, though the process has not heard of that.
func TestFloorThatOthersHaveReached(t *testing.T) {
	t.Parallel()
	z := single(t)
	d, other := driver(t, z.URL()), driver(t, z.URL())
	for _, one := range []caller{d, other} {
		must(t, one.Release(t.Context(), hold(t, one, request("x"))))
	}
	far := backend.Token(0)
	for range 3 {
		last, err := other.Source(t.Context())
		must(t, err)
		far = last + backend.FloorAhead*5/6
		must(t, other.Raise(t.Context(), far))
	}
	r := request("x")
	r.Floor = far
	if h := hold(t, d, r); h.Token <= far {
		t.Errorf("with a floor of %d: got token %d", far, h.Token)
	}
}

// Somebody empties the node of the base, or deletes the one under it: they are written anew.
func TestEmptiedBase(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	last := backend.Token(0)
	empties := func() {
		_, err := c.Set(root+"/tokens", nil, -1)
		must(t, err)
	}
	deletes := func() {
		children, _, err := c.Children(root + "/tokens")
		must(t, err)
		for _, child := range children {
			must(t, c.Delete(root+"/tokens/"+child, -1))
		}
	}
	for _, spoil := range []func(){empties, deletes} {
		for _, one := range []caller{d, d, driver(t, z.URL())} {
			h := hold(t, one, request("x"))
			if h.Token <= last {
				t.Errorf("token: got %d after %d", h.Token, last)
			}
			last = h.Token
			must(t, one.Release(t.Context(), h))
			spoil()
		}
	}
}

// Somebody deletes all nodes, and the tokens are above the clock: a process goes on above what it was granted itself.
func TestTokensAfterADeletion(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	r := request("x")
	r.Floor = time.Now().UnixMicro() + backend.FloorAhead/2
	for range 2 {
		h := hold(t, d, r)
		must(t, d.Release(t.Context(), h))
		var wipe func(path string)
		wipe = func(path string) {
			children, _, err := c.Children(path)
			must(t, err)
			for _, child := range children {
				wipe(path + "/" + child)
			}
			must(t, c.Delete(path, -1))
		}
		wipe(root)
		next := hold(t, d, request("x"))
		if next.Token <= h.Token {
			t.Errorf("token: got %d after %d", next.Token, h.Token)
		}
		must(t, d.Release(t.Context(), next))
		r = request("x")
	}
}
