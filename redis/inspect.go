package redis

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// scanCount is how many keys the server looks at for one step of a List.
const scanCount = 1000

// Inspect implements backend.Driver.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	reply, err := d.run(ctx, inspectScript, keysOf(d.prefix+name).inspect())
	if err != nil {
		return backend.Info{}, err
	}
	i, _, err := info(name, reply)
	return i, err
}

// info reads {value, there, pttl, waiters}.
func info(name string, reply any) (backend.Info, value, error) {
	res, _ := reply.([]any)
	if len(res) != 4 {
		return backend.Info{}, value{}, unexpected(reply)
	}
	text, ok1 := res[0].(string)
	there, ok2 := res[1].(int64)
	left, ok3 := res[2].(int64)
	waiters, ok4 := res[3].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return backend.Info{}, value{}, unexpected(reply)
	}
	i := backend.Info{Name: name, Held: there == 1, Waiters: int(waiters)}
	if !i.Held {
		return i, value{}, nil
	}
	v := parse(text)
	i.Token, i.Owner = v.token, v.owner
	i.Leaked = left == -1
	if left > 0 {
		i.ExpiresIn = time.Duration(left) * time.Millisecond
	}
	return i, v, nil
}

// List implements backend.Driver. With an empty prefix it names every string
// key of the database, for each could be somebody's lock.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		seen := map[string]bool{}
		fresh := func(names []string) []string {
			return slices.DeleteFunc(names, func(n string) bool {
				old := seen[n]
				seen[n] = true
				return old || backend.CheckName(n) != nil
			})
		}
		err := d.scan(ctx, prefix, func(names []string) (bool, error) {
			names = fresh(names)
			more := true
			err := d.inspectAll(ctx, names, func(i backend.Info, _ value) {
				more = more && (!i.Held && i.Waiters <= 0 || yield(i, nil))
			})
			return more, err
		})
		if err != nil {
			yield(backend.Info{}, err)
		}
	}
}

// scan finds the names with this prefix that have a lock key or a queue, and
// calls found with some at a time until it says no.
func (d *Driver) scan(ctx context.Context, prefix string, found func([]string) (bool, error)) error {
	whole := d.prefix + prefix
	for _, kind := range []struct{ match, before string }{
		{glob(whole) + "*", ""},
		{"fl\x00{*}q" + glob(whole) + "*", "}q"},
	} {
		for _, node := range d.masters(ctx) {
			if node.err != nil {
				return d.meaning(node.err)
			}
			var cursor uint64
			for more := true; more; more = cursor != 0 {
				type page struct {
					keys   []string
					cursor uint64
				}
				p, err := do(ctx, d, func(ctx context.Context) (page, error) {
					keys, next, err := node.client.Scan(ctx, cursor, kind.match, scanCount).Result()
					return page{keys, next}, err
				})
				if err != nil {
					return err
				}
				cursor = p.cursor
				names := make([]string, 0, len(p.keys))
				for _, k := range p.keys {
					if kind.before != "" {
						_, k, _ = strings.Cut(k, kind.before)
					}
					if strings.HasPrefix(k, whole) && !strings.Contains(k, "\x00") {
						names = append(names, strings.TrimPrefix(k, d.prefix))
					}
				}
				if ok, err := found(names); !ok || err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// node is a server to scan.
type node struct {
	client goredis.Cmdable
	err    error
}

func (d *Driver) masters(ctx context.Context) []node {
	if d.cluster == nil {
		return []node{{client: d.client}}
	}
	var mu sync.Mutex
	var nodes []node
	err := d.cluster.ForEachMaster(ctx, func(_ context.Context, c *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node{client: c})
		return nil
	})
	if err != nil {
		return []node{{err: err}}
	}
	return nodes
}

// inspectAll inspects many names in one pipeline. A key of another type is no lock and is left out.
func (d *Driver) inspectAll(ctx context.Context, names []string, each func(backend.Info, value)) error {
	if len(names) == 0 {
		return nil
	}
	cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
		for _, n := range names {
			inspectScript.Eval(ctx, p, keysOf(d.prefix+n).inspect())
		}
	})
	if err != nil {
		return err
	}
	for i, c := range cmds {
		reply, err := c.(*goredis.Cmd).Result()
		if err != nil {
			if strings.HasPrefix(err.Error(), "WRONGTYPE") {
				continue
			}
			return d.meaning(err)
		}
		one, v, err := info(names[i], reply)
		if err != nil {
			return err
		}
		each(one, v)
	}
	return nil
}

// glob quotes what SCAN's MATCH would read as a pattern.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Break implements backend.Driver.
func (d *Driver) Break(ctx context.Context, name string) error {
	k := keysOf(d.prefix + name)
	_, err := d.run(ctx, breakScript, k.all(), k.ours(), claimMillis, d.publish)
	return err
}
