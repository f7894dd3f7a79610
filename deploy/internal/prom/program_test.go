package prom

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// recorder is a test that only remembers how it ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.ended = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.ended = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissingIsSkippedUnlessRequired(t *testing.T) {
	for _, tt := range []struct{ require, want string }{
		{"", "skipped: no-such-program is missing; run scripts/setup-tests.sh prometheus"},
		{"redis,etcd", "skipped: "},
		{"redis, prometheus", "failed: "},
		{"all", "failed: no-such-program is required by FENCELOCK_REQUIRE"},
	} {
		t.Setenv("FENCELOCK_REQUIRE", tt.require)
		r, done := &recorder{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			Program(r, "no-such-program")
		}()
		<-done
		if !strings.HasPrefix(r.ended, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.require, r.ended, tt.want)
		}
	}
}
