package redis

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // what the scripts of Redis have; nobody gains by a collision
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// places are the tags of the slots that have the gates: all of a cluster, one elsewhere.
func (s *store) places() []string {
	if s.cluster != nil {
		return tags()[:]
	}
	return tags()[:1]
}

// gatesIn returns the key of the version of the gates for the locks of a slot.
func (s *store) gatesIn(tag string) *string {
	if s.cluster == nil {
		return &s.gates
	}
	key := ours(tag) + "g" + s.prefix
	return &key
}

// gatesAt returns the KEYS of load.lua and swap.lua in a slot.
func (s *store) gatesAt(tag string) []string {
	version := ours(tag) + "g" + s.prefix
	return []string{version, version + "\x00"}
}

// versionOf returns the version of a record or a list, as gates.lua makes it.
func versionOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:8])
}

func badGate(key string) error {
	return backend.Invalid("the key %q, which keeps the gates of migrations, holds something else, "+
		"which some other program put there: until that is gone nothing is granted", key)
}

// Load implements backend.Mover.
func (s *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return redisnode.Records(func() ([]backend.Record, error) {
		if move, _, ok := redisnode.Report(prefix); ok {
			return s.clients(ctx, move, "", nil, 0)
		}
		return s.loadGates(ctx)
	})
}

// loadGates returns the gates of every place.
func (s *store) loadGates(ctx context.Context) ([]backend.Record, error) {
	var all []backend.Record
	err := everywhere(ctx, s, loadScript, s.places(), func(tag string) ([]string, []any) {
		return s.gatesAt(tag), nil
	}, func(tag string, c *goredis.Cmd) error {
		res, err := c.StringSlice()
		if err != nil {
			return err
		}
		if len(res)%2 == 0 {
			return badGate(s.gatesAt(tag)[0])
		}
		if res[0] == "" {
			all = append(all, backend.Record{Key: backend.GateKey, Place: tag})
			return nil
		}
		records := map[string]string{}
		for pair := range slices.Chunk(res[1:], 2) {
			records[pair[0]] = pair[1]
		}
		var list []string
		for _, move := range slices.Sorted(maps.Keys(records)) {
			data := records[move]
			list = append(list, data)
			all = append(all, backend.Record{
				Key: backend.GateKey + move, Place: tag, Data: []byte(data), Version: versionOf(data),
			})
		}
		if versionOf("["+strings.Join(list, ",")+"]") != res[0] {
			return badGate(s.gatesAt(tag)[0])
		}
		return nil
	})
	return all, err
}

// Swap implements backend.Mover.
func (s *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	if move, id, ok := redisnode.Report(rs[0].Key); ok {
		_, err := s.clients(ctx, move, id, rs[0].Data, keep)
		return err
	}
	return everywhere(ctx, s, swapScript, rs, func(r backend.Record) ([]string, []any) {
		return s.gatesAt(r.Place), []any{strings.TrimPrefix(r.Key, backend.GateKey), r.Data, r.Version}
	}, func(r backend.Record, c *goredis.Cmd) error {
		switch n, err := c.Int(); {
		case err != nil:
			return err
		case n == 0:
			return backend.ErrGates
		case n < 0:
			return badGate(s.gatesAt(r.Place)[0])
		}
		return nil
	})
}

// clients takes in or deletes a report, if there is an id, and returns what is left.
func (s *store) clients(ctx context.Context, move, id string, data []byte, keep time.Duration,
) ([]backend.Record, error) {
	key := ours(tags()[0]) + "k" + s.prefix + "\x00" + move
	reply, err := s.run(ctx, clientsScript, []string{key}, id, bytes.Clone(data), redisnode.Millis(keep))
	if err != nil {
		return nil, err
	}
	res, ok := reply.([]any)
	if !ok {
		return nil, redisnode.Unexpected(reply)
	}
	var all []backend.Record
	for pair := range slices.Chunk(res, 2) {
		id, _ := pair[0].(string)
		data, _ := pair[len(pair)-1].(string)
		all = append(all, backend.Record{
			Key: backend.ClientKey + move + "\x00" + id, Data: []byte(data), Version: versionOf(data),
		})
	}
	return all, nil
}

// Source implements backend.Mover: the greatest counter of all slots, and at least the servers'
// clocks, which bound most of what a server that lost its counters has granted before.
func (s *store) Source(ctx context.Context) (backend.Token, error) {
	var top backend.Token
	masters, err := s.masters(ctx)
	if err != nil {
		return 0, err
	}
	for _, master := range masters {
		now, err := do(ctx, s, func(ctx context.Context) (time.Time, error) { return master.Time(ctx).Result() })
		if err != nil {
			return 0, err
		}
		top = max(top, now.UnixMicro())
	}
	err = everywhere(ctx, s, sourceScript, s.counters(), func(keys []string) ([]string, []any) {
		return keys, nil
	}, func(keys []string, c *goredis.Cmd) error {
		reply, err := c.Result()
		if err != nil {
			return err
		}
		if bad, ok := reply.([]any); ok && len(bad) == 1 {
			if i, ok := bad[0].(int64); ok && i > 0 && int(i) <= len(keys) {
				return backend.Invalid("the key %q, the counter of tokens, holds something else, "+
					"which some other program put there", keys[i-1])
			}
		}
		text, _ := reply.(string)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return redisnode.Unexpected(reply)
		}
		top = max(top, n)
		return nil
	})
	return top, err
}

// Raise implements backend.Mover. For all names it writes the counter of every slot, since a name
// of any slot may be locked next.
func (s *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if held == nil {
		return everywhere(ctx, s, raiseScript, s.counters(), func(keys []string) ([]string, []any) {
			return keys, []any{floor}
		}, func(_ []string, c *goredis.Cmd) error { return c.Err() })
	}
	k := keysOf(s.prefix + held.Name)
	switch reply, err := s.run(ctx, raiseHeldScript, []string{k.lock, k.ours() + "c"}, held.Nonce, floor); {
	case err != nil:
		return err
	case reply == int64(0):
		return backend.ErrLost
	case reply != int64(1):
		return redisnode.Unexpected(reply)
	}
	return nil
}

// counters are the counters of all slots, together where one command may name several: those of a
// cluster's slots stand alone.
func (s *store) counters() [][]string {
	together := atOnce
	if s.cluster != nil {
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
