package redis

import (
	"context"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// Source implements backend.Gater: the greatest counter of all slots, and at least the servers' clocks, which bound most of what a
// server that lost its counters has granted before.
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	var top backend.Token
	for _, n := range d.masters(ctx) {
		if n.err != nil {
			return 0, d.meaning(n.err)
		}
		now, err := do(ctx, d, func(ctx context.Context) (time.Time, error) { return n.client.Time(ctx).Result() })
		if err != nil {
			return 0, err
		}
		top = max(top, now.UnixMicro())
	}
	err := everywhere(ctx, d, sourceScript, d.counters(), func(keys []string) ([]string, []any) {
		return keys, nil
	}, func(keys []string, c *goredis.Cmd) error {
		reply, err := c.Result()
		if err != nil {
			return err
		}
		if bad, ok := reply.([]any); ok && len(bad) == 1 {
			if i, ok := bad[0].(int64); ok && i > 0 && int(i) <= len(keys) {
				return backend.Invalid("the key %q, the counter of tokens, holds something else, which some other program put there", keys[i-1])
			}
		}
		text, _ := reply.(string)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return unexpected(reply)
		}
		top = max(top, n)
		return nil
	})
	return top, err
}

// counters are the counters of all slots, together where one command may name several: those of a cluster's slots stand alone.
func (d *Driver) counters() [][]string {
	together := placesAtOnce
	if d.cluster != nil {
		together = 1
	}
	var all [][]string
	for some := range slices.Chunk(tags()[:], together) {
		keys := make([]string, len(some))
		for i, tag := range some {
			keys[i] = ours(tag) + "c"
		}
		all = append(all, keys)
	}
	return all
}

// Raise implements backend.Raiser. It writes the counter of every slot, since a name of any slot may be locked next.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	return everywhere(ctx, d, raiseScript, d.counters(), func(keys []string) ([]string, []any) {
		return keys, []any{floor}
	}, func(_ []string, c *goredis.Cmd) error { return c.Err() })
}

// RaiseHeld implements backend.Gater.
func (d *Driver) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	k := keysOf(d.prefix + h.Name)
	reply, err := d.run(ctx, raiseHeldScript, []string{k.lock, k.ours() + "c"}, h.Nonce, floor)
	if err != nil {
		return err
	}
	return verdict(reply)
}
