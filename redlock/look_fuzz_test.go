package redlock

import "testing"

// Whatever the nodes answer to a look, what is made of it can be a lock.
func FuzzView(f *testing.F) {
	id := "0123456789abcdef0123456789abcdef"
	for _, s := range []string{"", id + ":7:owner", id + ".1:7:owner\x00move", id + ":-7:owner", "1:2:3", id + "::"} {
		f.Add(s, id+":8:other", int64(1), int64(1000), int64(-1), int64(3), 4)
	}
	f.Add("x", "y", int64(1), int64(1<<62), int64(-2), int64(-3), 3)
	f.Fuzz(func(t *testing.T, a, b string, there, left, never, waiters int64, n int) {
		var v view
		for _, reply := range [][]any{
			{a, there, left, waiters},
			{b, int64(1), never, waiters},
			{a, int64(1), left, int64(0)},
		} {
			v.read(reply[:min(max(n, 0), len(reply))])
		}
		v.unclear(3, 2)
		for _, any := range []bool{false, true} {
			i := v.info("n", 3, 2, any)
			if i.Token < 0 || i.ExpiresIn < 0 {
				t.Errorf("%q, %q: read as %+v", a, b, i)
			}
		}
	})
}
