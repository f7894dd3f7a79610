package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// scanCount is how many keys the server looks at for one step of a search.
const scanCount = 1000

// Look implements backend.Driver. Of all names it leaves out keys that hold no lock, ours or of a
// known recipe: with an empty prefix every key of the database is below it.
func (s *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		more := true
		var err error
		switch {
		case r.Name != "":
			var reply any
			var i backend.Info
			reply, err = s.run(ctx, inspectScript, keysOf(s.prefix+r.Name).inspect(), s.plain())
			if err == nil {
				i, _, err = info(r.Name, reply)
				err = s.meaning(err)
			}
			if err == nil {
				more = yield(i, nil)
			}
		default:
			err = s.search(ctx, r, func(i backend.Info) bool {
				more = yield(i, nil)
				return more
			})
		}
		if err != nil && more {
			yield(backend.Info{}, err)
		}
	}
}

// plain is "1" if an application's own strings may stand where locks do: what shape.lua asks.
func (s *store) plain() string {
	if s.prefix == "" {
		return "1"
	}
	return "0"
}

// info reads {value, there, pttl, waiters, shaped like a lock}, and of a group what members reads, or the error of a
// key of another type. other: it is no lock, as far as one can see, but an application's data.
func info(name string, reply any) (i backend.Info, other bool, err error) {
	var text string
	var there, left, waiters, shaped int64
	var group []any
	if redisnode.Read(reply, &text) {
		return backend.Info{}, true, scriptError(strings.TrimPrefix(text, "-"))
	}
	if !redisnode.Read(reply, &text, &there, &left, &waiters, &shaped) &&
		!redisnode.Read(reply, &text, &there, &left, &waiters, &shaped, &group) {
		return backend.Info{}, false, redisnode.Unexpected(reply)
	}
	i = backend.Info{Name: name, Held: there == 1, Waiters: int(waiters)}
	if !i.Held {
		return i, false, nil
	}
	parse(text, &i)
	if group != nil && !members(text, group, &i) {
		return backend.Info{}, false, redisnode.Unexpected(reply)
	}
	i.Leaked = left == -1
	if left > 0 {
		i.ExpiresIn = time.Duration(min(left, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
	return i, shaped != 1, nil
}

// parse reads "nonce:token:owner" with its marks. Any other value is a stranger's.
func parse(text string, i *backend.Info) {
	if v := redisnode.Parse(text); len(v.ID) == 32 {
		i.Token, i.Owner, i.Both, i.Pending = v.Number, v.Owner, v.Both, v.Pending
	}
}

// members reads {holds, greatest token, owner, none is confirmed, holds that end first} of a group with this
// marker. If its holds are missing, which only another program can have deleted, the holders are not known.
func members(marker string, group []any, i *backend.Info) bool {
	var n, token, pending int64
	var owner string
	var first []any
	if !redisnode.Read(group, &n, &token, &owner, &pending, &first) || n < 0 || token < 0 {
		return false
	}
	if n == 0 {
		return true
	}
	i.Mode = backend.Reader
	if strings.HasPrefix(marker, "shared:p:") {
		i.Mode = backend.Permit
	}
	i.Holders, i.Token, i.Pending = int(n), token, pending == 1
	i.Owner, i.Both, _ = strings.Cut(owner, "\x00")
	i.Holds = make([]backend.Held, len(first))
	for at := range first {
		if !member(first[at], &i.Holds[at]) {
			return false
		}
	}
	return true
}

// member reads {nonce, token, slot, owner, pttl} of one hold of a group.
func member(one any, h *backend.Held) bool {
	var token, slot string
	var left int64
	if !redisnode.Read(one, &h.ID, &token, &slot, &h.Owner, &left) {
		return false
	}
	h.Owner, _, _ = strings.Cut(h.Owner, "\x00")
	h.ExpiresIn = time.Duration(left) * time.Millisecond
	var err1, err2 error
	h.Token, err1 = strconv.ParseInt(token, 10, 64)
	h.Slot, err2 = strconv.Atoi(slot)
	return err1 == nil && err2 == nil && h.Token >= 0 && h.Slot >= 0
}

// search finds the names that have a lock key or a queue, until found says no; a strict one finds those that are
// held. SCAN returns each key that is there from its beginning to its end, and so is the key of a hold from before a
// gate was closed. A lock that a release granted is Pending before its waiter has confirmed it.
func (s *store) search(ctx context.Context, r backend.Range, found func(backend.Info) bool) error {
	whole, seen, more := s.prefix+r.Prefix, map[string]bool{}, true
	marks := []string{"", "fl\x00{*}q"} // before the name of a lock, and of its queue
	layout := ""
	if r.Strict {
		var err error
		if layout, err = s.layout(ctx); err != nil {
			return err
		}
		marks = marks[:1]
	}
	for _, mark := range marks {
		masters, err := s.masters(ctx)
		if err != nil {
			return err
		}
		for _, master := range masters {
			err := s.scan(ctx, master, mark+redisnode.Glob(whole)+"*", r.Strict, func(keys []string) (bool, error) {
				var names []string
				for _, k := range keys {
					if mark != "" {
						_, k, _ = strings.Cut(k, "}q")
					}
					if !strings.HasPrefix(k, whole) {
						continue
					}
					if name := k[len(s.prefix):]; backend.CheckName(name) == nil && !seen[name] {
						names = append(names, name)
					}
				}
				err := s.inspect(ctx, names, func(i backend.Info, other bool) {
					if more && !seen[i.Name] && (i.Held && (r.Strict || !other) || !r.Strict && i.Waiters > 0) {
						seen[i.Name] = true
						more = found(i)
					}
				})
				return more, err
			})
			if err != nil || !more {
				return err
			}
		}
	}
	if !r.Strict {
		return nil
	}
	after, err := s.layout(ctx)
	if err == nil && layout != after {
		err = errSearch
	}
	return err
}

// errSearch ends a search that may have missed keys: they move with a slot, and another server's
// cursor means nothing.
var errSearch = errors.New("the servers changed while they were searched for holders: " +
	"a failover, a restart or a slot on its way")

// scan calls found with the keys of one server that match, page by page, until it says no. If it is
// strict, each page is read with the run id of the server, which must stay the same.
func (s *store) scan(ctx context.Context, master goredis.Cmdable, match string, strict bool,
	found func([]string) (bool, error),
) error {
	run := ""
	for cursor := uint64(0); ; {
		cmds, err := do(ctx, s, func(ctx context.Context) ([]goredis.Cmder, error) {
			return master.Pipelined(ctx, func(p goredis.Pipeliner) error {
				p.Scan(ctx, cursor, match, scanCount)
				if strict {
					p.Info(ctx, "server")
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		if strict {
			_, id, ok := strings.Cut(cmds[1].(*goredis.StringCmd).Val(), "run_id:")
			id = id[:min(40, len(id))]
			if !ok || run != "" && run != id {
				return errSearch
			}
			run = id
		}
		keys, next := cmds[0].(*goredis.ScanCmd).Val()
		if more, err := found(keys); err != nil || !more {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// inspect describes many names in one pipeline. A key of another type is no lock and is left out; one of ours beside a
// lock that is of another type is an error.
func (s *store) inspect(ctx context.Context, names []string, each func(i backend.Info, other bool)) error {
	if len(names) == 0 {
		return nil
	}
	return together(ctx, s, inspectScript, names, func(name string) ([]string, []any) {
		return keysOf(s.prefix + name).inspect(), []any{s.plain()}
	}, func(name string, c *goredis.Cmd) error {
		reply, err := c.Result()
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		i, other, err := info(name, reply)
		switch {
		case err == nil:
			each(i, other)
		case other:
			return nil
		}
		return err
	})
}

// layout describes which master of a cluster has which slots, by the word of each; it is empty off
// a cluster. It is an error if the masters that the client knows do not have every slot, or one is
// on its way to another.
func (s *store) layout(ctx context.Context) (string, error) {
	if s.cluster == nil {
		return "", nil
	}
	var all []string
	have := 0
	masters, err := s.masters(ctx)
	if err != nil {
		return "", err
	}
	for _, master := range masters {
		text, err := do(ctx, s, func(ctx context.Context) (string, error) {
			return master.ClusterNodes(ctx).Result()
		})
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) < 8 || !strings.Contains(f[2], "myself") {
				continue
			}
			count, ok := slotCount(f[8:])
			if !ok {
				return "", errSearch
			}
			have += count
			all = append(all, f[0]+" "+strings.Join(f[8:], " "))
		}
	}
	if have != slots {
		return "", errSearch
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

// slotCount reads the slots of CLUSTER NODES: numbers and ranges. One that is on its way is in
// brackets.
func slotCount(ranges []string) (n int, ok bool) {
	for _, r := range ranges {
		from, to, wide := strings.Cut(r, "-")
		if !wide {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil {
			return 0, false
		}
		n += b - a + 1
	}
	return n, true
}

// masters are the servers that have the keys.
func (s *store) masters(ctx context.Context) ([]goredis.Cmdable, error) {
	if s.cluster == nil {
		return []goredis.Cmdable{s.client}, nil
	}
	return do(ctx, s, func(ctx context.Context) (all []goredis.Cmdable, err error) {
		var mu sync.Mutex
		err = s.cluster.ForEachMaster(ctx, func(_ context.Context, c *goredis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, c)
			return nil
		})
		return all, err
	})
}

// Break implements backend.Driver. A key that holds no lock is left alone, with ErrInvalid. It asks for the holders,
// and frees the lock of these alone, because its request may come late.
func (s *store) Break(ctx context.Context, name string) error {
	k := keysOf(s.prefix + name)
	reply, err := s.breaks(ctx, k, "", nil)
	if held, ok := reply.([]any); ok && len(held) > 0 && held[0] == "" {
		reply, err = s.breaks(ctx, k, rand.Text(), held[1:])
	}
	if err != nil {
		return err
	}
	if what, ok := reply.([]any); ok && len(what) == 1 {
		return backend.Invalid(
			"the key %q holds %v, which is no lock of ours, no token as redsync or redislock write it "+
				"and no lock of Redisson: it is left alone; look at it with redis-cli before you do anything about it",
			k.lock,
			what[0],
		)
	}
	return nil
}

// breaks runs break.lua.
func (s *store) breaks(ctx context.Context, k keys, nonce string, held []any) (any, error) {
	args := append([]any{k.ours(), redisnode.Millis(claim), s.publish, s.plain(), nonce}, held...)
	return s.run(ctx, breakScript, k.all(*s.gatesIn(k.tag)), args...)
}
