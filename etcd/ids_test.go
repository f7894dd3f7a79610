package etcd_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// sameKey: whoever locks a name again and again does it with one key. A released acquisition that
// is abandoned late, or released again, does not touch the one that has its key now.
func sameKey(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	first := hold(t, d, request("x", 1, 20*time.Second))
	key := r.queue(t, "x")
	must(t, d.Release(t.Context(), first))
	for n := 2; n < 5; n++ {
		h := hold(t, d, request("x", n, 20*time.Second))
		if got := r.queue(t, "x"); !slices.Equal(got, key) {
			t.Errorf("cycle %d: got the key %q, want that of the first, %q", n, got, key)
		}
		must(t, d.Abandon(t.Context(), first.Request))
		must(t, d.Release(t.Context(), first))
		want(t, "Check after a late Abandon and a second Release of the first",
			d.Check(t.Context(), []*core.Hold{h})[0], nil)
		must(t, d.Release(t.Context(), h))
	}
}

// otherKeys: a key of which a request may still be under way is not used again, nor is that of an
// acquisition that was abandoned.
func otherKeys(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	h := hold(t, d, request("x", 1, 20*time.Second))
	one := r.queue(t, "x")
	must(t, d.Abandon(t.Context(), h.Request))
	h = hold(t, d, request("x", 2, 20*time.Second))
	two := r.queue(t, "x")
	if slices.Equal(one, two) {
		t.Errorf("after Abandon: got the key %q again", two)
	}
	_, err := d.Acquire(t.Context(), request("x", 3, 20*time.Second))
	want(t, "a try while it is held", err, backend.ErrLocked)
	must(t, d.Release(t.Context(), h))
	must(t, d.Release(t.Context(), hold(t, d, request("x", 4, 20*time.Second))))
	hold(t, d, request("x", 5, 20*time.Second))
	if got := r.queue(t, "x"); !slices.Equal(got, two) {
		t.Errorf("after a try: got the key %q, want %q", got, two)
	}
}
