package backend_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A source that follows the clock is never moved further than 3 ms ahead of it, and never back.
func TestReserve(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) backend.Token { return backend.Token(now.Add(d).UnixMicro()) }
	for _, tt := range []struct {
		token backend.Token
		asked int
		want  int
	}{
		{at(0), 0, 0},
		{at(0), 1023, 1023},
		{at(0), 3000, 3000},
		{at(0), 3001, 3000},
		{at(2 * time.Millisecond), 1023, 1000},
		{at(3 * time.Millisecond), 1, 0},
		{at(time.Second), 1, 0},
	} {
		if got := backend.Reserve(&backend.Request{Reserve: tt.asked}, tt.token, now); got != tt.want {
			t.Errorf("%d asked for, the token %d µs ahead: got %d, want %d",
				tt.asked, int64(tt.token)-now.UnixMicro(), got, tt.want)
		}
	}
}
