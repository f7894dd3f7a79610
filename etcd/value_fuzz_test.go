package etcd

import "testing"

// Whatever value an entry has, it is a stranger's, or what it says is what it says again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "held::", "held:7:owner", "held:+7:owner", "wait::owner", "wait:+3:", "both:7:m%3A:owner", "both::m:",
		"held:-7:owner", "held:+-7:owner", "held:99999999999999999999:", "both:7:%:owner", "both:both::m:o", "both:",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := parse(s)
		if !ok {
			return
		}
		if v.token < 0 || v.reserve < 0 || v.both && !v.held {
			t.Errorf("%q: read as %+v", s, v)
		}
		if again, ok := parse(v.String()); !ok || again != v {
			t.Errorf("%q: %+v becomes %+v", s, v, again)
		}
	})
}
