package etcd

import "testing"

// Whatever value an entry has, it is a stranger's, or what it says is what it says again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "held::", "held:7:owner", "held:+7:owner", "wait::owner", "wait:+3:", "both:7:m%3A:owner", "both::m:",
		"held:-7:owner", "held:+-7:owner", "held:99999999999999999999:", "both:7:%:owner", "both:both::m:o", "both:",
		"held:@7:owner", "held/3:@0:owner", "held/2:9:", "held/0::", "held/-1::", "held/3:@+1:", "wait/1::",
		"both/1:7:m:o", "held:@:", "held:@-1:",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := parse(s)
		if !ok {
			return
		}
		if v.token < 0 || v.reserve < 0 || v.slot < 0 || v.base < 0 || (v.both || v.slot > 0) && !v.held {
			t.Errorf("%q: read as %+v", s, v)
		}
		if again, ok := parse(v.String()); !ok || again != v {
			t.Errorf("%q: %+v becomes %+v", s, v, again)
		}
	})
}
