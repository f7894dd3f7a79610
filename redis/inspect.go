package redis

import (
	"context"
	"iter"
	"slices"
	"strconv"
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
	k := keysOf(d.prefix + name).acquire("")
	reply, err := d.run(ctx, inspectScript, k[:3])
	if err != nil {
		return backend.Info{}, err
	}
	return info(name, reply)
}

// info reads {value, there, pttl, waiters}.
func info(name string, reply any) (backend.Info, error) {
	res, _ := reply.([]any)
	if len(res) != 4 {
		return backend.Info{}, unexpected(reply)
	}
	value, ok1 := res[0].(string)
	there, ok2 := res[1].(int64)
	left, ok3 := res[2].(int64)
	waiters, ok4 := res[3].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return backend.Info{}, unexpected(reply)
	}
	i := backend.Info{Name: name, Held: there == 1, Waiters: int(waiters)}
	if !i.Held {
		return i, nil
	}
	i.Token, i.Owner = parse(value)
	i.Leaked = left == -1
	if left > 0 {
		i.ExpiresIn = time.Duration(left) * time.Millisecond
	}
	return i, nil
}

// parse reads "nonce:token:owner"; zeros for a value that is not ours.
func parse(value string) (backend.Token, string) {
	parts := strings.SplitN(value, ":", 3)
	if len(parts) != 3 || len(parts[0]) != 32 || strings.Trim(parts[0], "0123456789abcdef") != "" {
		return 0, ""
	}
	token, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return 0, ""
	}
	return token, parts[2]
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
			infos, err := d.inspectAll(ctx, names)
			if err != nil {
				return false, err
			}
			for _, i := range infos {
				if (i.Held || i.Waiters > 0) && !yield(i, nil) {
					return false, nil
				}
			}
			return true, nil
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
func (d *Driver) inspectAll(ctx context.Context, names []string) ([]backend.Info, error) {
	if len(names) == 0 {
		return nil, nil
	}
	cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
		for _, n := range names {
			inspectScript.Eval(ctx, p, keysOf(d.prefix + n).acquire("")[:3])
		}
	})
	if err != nil {
		return nil, err
	}
	var infos []backend.Info
	for i, c := range cmds {
		reply, err := c.(*goredis.Cmd).Result()
		if err != nil {
			if strings.HasPrefix(err.Error(), "WRONGTYPE") {
				continue
			}
			return nil, d.meaning(err)
		}
		one, err := info(names[i], reply)
		if err != nil {
			return nil, err
		}
		infos = append(infos, one)
	}
	return infos, nil
}

// glob quotes what SCAN's MATCH would read as a pattern.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Break implements backend.Driver.
func (d *Driver) Break(ctx context.Context, name string) error {
	_, err := d.run(ctx, breakScript, keysOf(d.prefix+name).acquire(""), millis(claim), d.publish)
	return err
}
