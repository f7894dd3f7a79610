package release

import "testing"

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"6.0.16", "6.2", true},
		{"6.2", "6.2", false},
		{"6.2.0", "6.2", false},
		{"7.0.15", "6.2", false},
		{"10", "9.1", false},
		{"3.8.0-${mvngit.commit.id}, built on 2021", "3.5.3", false},
		{"3.5.2-abc", "3.5.3", true},
		{"15.18 (Debian 15.18-0+deb12u1)", "15", false},
		{"14.9", "15", true},
		{"", "15", true},
	} {
		if got := Older(tt.a, tt.b); got != tt.want {
			t.Errorf("Older(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
