package redlock

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// scanCount is how many keys a node looks at for one step of a List.
	scanCount = 1000
	// inspectMost is how many names go into one request of a List.
	inspectMost = 256
	// stragglers is how long a look waits for the nodes that are not needed.
	stragglers = 20 * time.Millisecond
	// decisive is how long it waits for them if it is they who decide whether a lock is held.
	decisive = 500 * time.Millisecond
)

// view is what the nodes say of one name.
type view struct {
	answers int
	ids     map[string][]sight // by holder; "" for a stranger
	waiters []int
	foreign bool // a key of another type
}

// sight is a lock as one node has it.
type sight struct {
	value
	pttl int64
}

// read takes in a reply of look.lua's i.
func (v *view) read(reply any) {
	res, _ := reply.([]any)
	switch len(res) {
	case 1:
		v.answers++
		v.foreign = true
	case 4:
		text, _ := res[0].(string)
		pttl, _ := res[2].(int64)
		waiters, _ := res[3].(int64)
		v.answers++
		v.waiters = append(v.waiters, int(waiters))
		if res[1] == int64(1) {
			val := parse(text)
			if v.ids == nil {
				v.ids = map[string][]sight{}
			}
			v.ids[val.id] = append(v.ids[val.id], sight{val, pttl})
		}
	}
}

// unclear reports whether the nodes that have not answered decide whether the lock is held, or which number is its token: some
// vote that was not enough, or has not been released yet, is all that has been seen, or votes with different numbers.
func (v *view) unclear(nodes, quorum int) bool {
	for id, seen := range v.ids {
		if len(seen)+nodes-v.answers < quorum {
			continue
		}
		if _, many := commonest(seen); len(seen) < quorum || id != "" && many < quorum {
			return true
		}
	}
	return false
}

// info is the majority's view. A lock that may be held, as far as the nodes that answered can tell, is shown as held.
func (v *view) info(name string, nodes, quorum int) backend.Info {
	i := backend.Info{Name: name, Waiters: reached(v.waiters, quorum)}
	for id, seen := range v.ids {
		if len(seen)+nodes-v.answers < quorum {
			continue // a minority: votes of a round that was lost, or what is left of a released lock
		}
		i.Held = true
		if id != "" {
			i.Owner = seen[0].owner
			i.Token, _ = commonest(seen)
		}
		left := make([]int, 0, len(seen))
		for _, s := range seen {
			if s.pttl == -1 {
				i.Leaked = id == ""
				s.pttl = 0
			}
			left = append(left, int(s.pttl))
		}
		i.ExpiresIn = time.Duration(reached(left, min(quorum, len(left)))) * time.Millisecond
	}
	return i
}

// reached is the greatest number that so many of ns reach.
func reached(ns []int, many int) int {
	if len(ns) < many || many == 0 {
		return 0
	}
	ns = slices.Sorted(slices.Values(ns))
	return ns[len(ns)-many]
}

// commonest is the number that most nodes have, and how many have it: the token is what a majority has.
func commonest(seen []sight) (best backend.Token, many int) {
	count := map[backend.Token]int{}
	for _, s := range seen {
		count[s.number]++
	}
	for n, c := range count {
		if c > many || c == many && n > best {
			best, many = n, c
		}
	}
	return best, many
}

// Inspect implements backend.Driver.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	views, err := d.views(ctx, []string{name})
	if err != nil {
		return backend.Info{}, err
	}
	if views[0].foreign {
		return backend.Info{}, errForeignType
	}
	return views[0].info(name, len(d.nodes), d.quorum), nil
}

// views asks every node about the names. It returns when a majority has answered and the others had a little time.
func (d *Driver) views(ctx context.Context, names []string) ([]view, error) {
	ops := make([]op, len(names))
	for i, n := range names {
		ops[i] = op{d.prefix + n, []any{"i"}}
	}
	views := make([]view, len(names))
	heard, answered, silent := 0, 0, silence{d: d}
	take := func(a answer) bool {
		heard++
		if a.err != nil {
			silent.add(a.node, a.err)
		} else {
			answered++
			for i, reply := range a.replies {
				views[i].read(reply)
			}
		}
		return answered == d.quorum || heard == len(d.nodes)
	}
	answers := d.ask(ops, callMost)
	err := d.each(ctx, answers, callMost, take)
	if err == nil && answered == d.quorum && heard < len(d.nodes) {
		err = d.each(ctx, answers, stragglers, take)
	}
	unclear := func(v view) bool { return v.unclear(len(d.nodes), d.quorum) }
	if err == nil && answered >= d.quorum && heard < len(d.nodes) && slices.ContainsFunc(views, unclear) {
		err = d.each(ctx, answers, decisive, take)
	}
	if err == nil && answered < d.quorum {
		err = silent.err(answered)
	}
	return views, err
}

// List implements backend.Driver. With an empty prefix it names every string
// key of the databases, for each could be somebody's lock.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		names, err := d.names(ctx, prefix)
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for some := range slices.Chunk(names, inspectMost) {
			views, err := d.views(ctx, some)
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			for i, v := range views {
				if v.foreign {
					continue // no lock
				}
				info := v.info(some[i], len(d.nodes), d.quorum)
				if (info.Held || info.Waiters > 0) && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// names scans all nodes at once for the names with this prefix that have a lock key or waiters. A majority must be
// scanned to the end: a lock that is held is on one of those.
func (d *Driver) names(ctx context.Context, prefix string) ([]string, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	scanned, silent := 0, silence{d: d}
	for _, n := range d.nodes {
		wg.Go(func() {
			found, err := n.scan(ctx, d.prefix, prefix)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				silent.add(n.index, err)
				return
			}
			scanned++
			for _, name := range found {
				seen[name] = true
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if scanned < d.quorum {
		return nil, silent.err(scanned)
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	return names, nil
}

// scan returns the names of a node; some may come twice. Each step is bounded.
func (n *node) scan(ctx context.Context, keyspace, prefix string) ([]string, error) {
	whole := keyspace + prefix
	var names []string
	for _, before := range []string{"", waitKey} {
		var cursor uint64
		for more := true; more; more = cursor != 0 {
			step, cancel := context.WithTimeout(ctx, callMost)
			keys, next, err := n.client.Scan(step, cursor, glob(before+whole)+"*", scanCount).Result()
			cancel()
			if err != nil {
				return nil, meaning(err)
			}
			cursor = next
			for _, k := range keys {
				k = strings.TrimPrefix(k, before)
				name, ours := strings.CutPrefix(k, keyspace)
				if ours && strings.HasPrefix(k, whole) && backend.CheckName(name) == nil {
					names = append(names, name)
				}
			}
		}
	}
	return names, nil
}

// glob quotes what SCAN's MATCH would read as a pattern.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Break implements backend.Driver. A majority must have freed the lock; the others follow when they answer.
func (d *Driver) Break(ctx context.Context, name string) error {
	r := d.round()
	for _, n := range d.nodes {
		n.send(&request{ops: []op{{d.prefix + name, []any{"b"}}}, done: r.done, to: r})
	}
	freed, silent := 0, silence{d: d}
	err := d.each(ctx, r, callMost, func(a answer) bool {
		switch {
		case a.err != nil:
			silent.add(a.node, a.err)
		case a.replies[0] == int64(1):
			freed++
		default:
			silent.add(a.node, errForeignType)
		}
		return freed >= d.quorum
	})
	if freed < d.quorum && err == nil {
		err = silent.err(freed)
	}
	return err
}
