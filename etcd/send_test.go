package etcd_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/etcd"
)

// A request without an answer is sent once more after 700 ms, or half of its time. The first answer to either counts.
func TestSecondSend(t *testing.T) {
	const never = time.Hour
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, tt := range []struct {
		what  string
		bound time.Duration // 0: none
		takes [2]time.Duration
		fails bool // the first one, when its time is over
		want  int  // the answer; 0: none
		after time.Duration
	}{
		{"at once", time.Second, [2]time.Duration{0, 0}, false, 1, 0},
		{"the first hangs", time.Second, [2]time.Duration{never, ms(100)}, false, 2, ms(600)},
		{"the first hangs, long", time.Minute, [2]time.Duration{never, ms(100)}, false, 2, ms(800)},
		{"the first is slow", time.Second, [2]time.Duration{ms(900), never}, false, 1, ms(900)},
		{"the first fails", time.Second, [2]time.Duration{ms(100), 0}, true, 2, ms(100)},
		{"no answer", time.Second, [2]time.Duration{never, never}, false, 0, time.Second},
		{"no answer, no bound", 0, [2]time.Duration{never, never}, false, 0, ms(5000)},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if tt.bound > 0 {
				ctx, cancel = context.WithTimeout(ctx, tt.bound)
			}
			defer cancel()
			var sends atomic.Int64
			began := time.Now()
			res, err := etcd.Do(ctx, func(ctx context.Context) (int, error) {
				n := int(sends.Add(1))
				select {
				case <-time.After(tt.takes[n-1]):
				case <-ctx.Done():
					return 0, ctx.Err()
				}
				if n == 1 && tt.fails {
					return 0, errors.New("connection reset")
				}
				return n, nil
			})
			if took := time.Since(began); res != tt.want || err == nil != (tt.want > 0) || took != tt.after {
				t.Errorf("%s: got %d, %v after %v, want %d after %v", tt.what, res, err, took, tt.want, tt.after)
			}
		})
	}
}
