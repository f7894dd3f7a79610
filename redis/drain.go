package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// undrainedMost is where Undrained stops.
const undrainedMost = 100

// errSearch ends a search that may have missed keys: they wander with a slot, and another server's cursor means nothing.
var errSearch = errors.New("the servers changed while they were searched for holders: a failover, a restart or a slot on its way")

// Undrained implements backend.Gater. It searches every key of the keyspace: SCAN returns each key that is there from its
// beginning to its end, and so is the key of a hold from before the gate was closed. What is granted by a release is no
// hold before its waiter has confirmed it, which the closed gate refuses.
func (d *Driver) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	var left []backend.Info
	seen := map[string]bool{}
	before, err := d.layout(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range d.masters(ctx) {
		if n.err != nil {
			return nil, d.meaning(n.err)
		}
		err := d.search(ctx, n, func(name string) bool { return g.Scope.Moves(name) }, func(i backend.Info, v value) {
			if i.Held && !v.claim && v.both != g.Move && !seen[i.Name] {
				seen[i.Name] = true
				left = append(left, i)
			}
		}, func() bool { return len(left) < undrainedMost })
		if err != nil {
			return nil, err
		}
	}
	after, err := d.layout(ctx)
	if err == nil && before != after {
		err = errSearch
	}
	return left, err
}

// search inspects the names on one server that pick says yes to, while more does. Each page is read with the run id of the
// server, which must stay the same.
func (d *Driver) search(ctx context.Context, n node, pick func(string) bool, found func(backend.Info, value), more func() bool) error {
	run := ""
	for cursor := uint64(0); ; {
		cmds, err := do(ctx, d, func(ctx context.Context) ([]goredis.Cmder, error) {
			return n.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
				p.Info(ctx, "server")
				p.Scan(ctx, cursor, glob(d.prefix)+"*", scanCount)
				return nil
			})
		})
		if err != nil {
			return err
		}
		_, rest, ok := strings.Cut(cmds[0].(*goredis.StringCmd).Val(), "run_id:")
		if !ok || run != "" && run != rest[:min(40, len(rest))] {
			return errSearch
		}
		run = rest[:min(40, len(rest))]
		keys, next := cmds[1].(*goredis.ScanCmd).Val()
		var names []string
		for _, k := range keys {
			name := strings.TrimPrefix(k, d.prefix)
			if backend.CheckName(name) == nil && pick(name) {
				names = append(names, name)
			}
		}
		if err := d.inspectAll(ctx, names, found); err != nil {
			return err
		}
		if cursor = next; cursor == 0 || !more() {
			return nil
		}
	}
}

// layout describes which master of a cluster has which slots, by the word of each; it is empty off a cluster. It is an error if
// the masters that the client knows do not have every slot, or one is on its way to another.
func (d *Driver) layout(ctx context.Context) (string, error) {
	if d.cluster == nil {
		return "", nil
	}
	var all []string
	have := 0
	for _, n := range d.masters(ctx) {
		if n.err != nil {
			return "", d.meaning(n.err)
		}
		text, err := do(ctx, d, func(ctx context.Context) (string, error) { return n.client.ClusterNodes(ctx).Result() })
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

// slotCount reads the slots of CLUSTER NODES: numbers and ranges. One that is on its way is in brackets.
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
