package etcd_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/etcd"
)

// checks answers logins in the time, and with the error, that is said for each.
type checks struct {
	clientv3.Auth
	mu    sync.Mutex
	begun int
	takes []time.Duration
	fails []error
}

func (c *checks) Authenticate(ctx context.Context, _, _ string) (*clientv3.AuthenticateResponse, error) {
	c.mu.Lock()
	n := c.begun
	c.begun++
	c.mu.Unlock()
	select {
	case <-time.After(c.takes[n]):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if n < len(c.fails) && c.fails[n] != nil {
		return nil, c.fails[n]
	}
	return &clientv3.AuthenticateResponse{Token: strconv.Itoa(n)}, nil
}

func TestLogins(t *testing.T) {
	t.Parallel()
	const second, hangs = time.Second, time.Hour
	silent, refused, late := errors.New("no answer"), rpctypes.ErrAuthFailed, context.DeadlineExceeded.Error()
	type ask struct {
		at, most time.Duration // when, and after what time who asks has gone
		want     string        // the token, or the error
		after    time.Duration // the answer
		newer    bool          // the server has refused a token
	}
	for _, tt := range []struct {
		says  string
		takes []time.Duration
		fails []error
		asks  []ask
		begun int
	}{
		{
			"streams that are opened meanwhile, and a second after, share it",
			[]time.Duration{second / 2, 0},
			nil,
			[]ask{
				{at: 0, most: second, want: "0", after: second / 2},
				{at: second / 4, most: second, want: "0", after: second / 4},
				{at: second * 5 / 4, most: second, want: "0"},
				{at: second * 7 / 4, most: second, want: "1"},
			},
			2,
		},
		{
			"whose token was refused has a newer one",
			[]time.Duration{second / 2, second / 2, 0},
			nil,
			[]ask{
				{at: 0, most: second, want: "0", after: second / 2},
				{at: second * 3 / 4, most: second, want: "1", after: second / 2, newer: true},
				{at: second, most: second, want: "1", after: second / 4, newer: true},
				{at: second * 3 / 2, most: second, want: "1"},
			},
			2,
		},
		{
			"it goes on without who asked for it",
			[]time.Duration{second * 3 / 2, hangs, hangs},
			nil,
			[]ask{
				{at: 0, most: second / 2, want: late, after: second / 2},
				{at: second / 2, most: second / 2, want: late, after: second / 2},
				{at: second, most: second, want: "0", after: second / 2},
			},
			2,
		},
		{
			"another begins beside one that hangs",
			[]time.Duration{hangs, 0},
			nil,
			[]ask{
				{at: 0, most: second, want: "1", after: 700 * time.Millisecond},
			},
			2,
		},
		{
			"one that hangs ends",
			[]time.Duration{hangs, 0},
			nil,
			[]ask{
				{at: 0, most: second / 2, want: late, after: second / 2},
				{at: 16 * second, most: second, want: "1"},
			},
			2,
		},
		{
			"an error is nobody's who comes later",
			[]time.Duration{second / 2, 0},
			[]error{silent},
			[]ask{
				{at: 0, most: second, want: silent.Error(), after: second / 2},
				{at: second / 4, most: second, want: silent.Error(), after: second / 4},
				{at: second * 3 / 4, most: second, want: "1"},
			},
			2,
		},
		{
			"an error is nobody's while another is under way",
			[]time.Duration{second, second},
			[]error{silent},
			[]ask{
				{at: 0, most: 2 * second, want: "1", after: 1700 * time.Millisecond},
			},
			2,
		},
		{
			"but that of the server is all the same",
			[]time.Duration{second, hangs},
			[]error{refused},
			[]ask{
				{at: 0, most: 2 * second, want: refused.Error(), after: second},
			},
			2,
		},
	} {
		t.Run(tt.says, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &checks{takes: tt.takes, fails: tt.fails}
				shared := etcd.ShareLogins(c)
				var wg sync.WaitGroup
				for i, ask := range tt.asks {
					wg.Go(func() {
						time.Sleep(ask.at)
						ctx, cancel := context.WithTimeout(t.Context(), ask.most)
						defer cancel()
						if !ask.newer {
							ctx = etcd.Opening(ctx)
						}
						asked := time.Now()
						resp, err := shared.Authenticate(ctx, "u", "p")
						var got string
						if err != nil {
							got = err.Error()
						} else {
							got = resp.Token
						}
						if took := time.Since(asked); got != ask.want || took != ask.after {
							t.Errorf("ask %d: got %q after %v, want %q after %v", i, got, took, ask.want, ask.after)
						}
					})
				}
				wg.Wait()
				time.Sleep(time.Minute)
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.begun != tt.begun {
					t.Errorf("got %d logins, want %d", c.begun, tt.begun)
				}
			})
		})
	}
}
