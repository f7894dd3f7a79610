package redlock

import (
	"context"
	"crypto/sha1" //nolint:gosec // what the scripts of Redis have; nobody gains by a collision
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// scanCount is how many keys a node looks at for one step of a search.
	scanCount = 1000
	// inspectMost is how many names go into one request of a search.
	inspectMost = 256
	// decisive is how long a look waits for the other nodes after a majority, if it is they who decide
	// whether a lock is held.
	decisive = 500 * time.Millisecond
)

// view is what the nodes say of one name.
type view struct {
	answers int
	ids     map[string][]sight // by holder; "" for a stranger
	waiters []int
}

// sight is a lock as one node has it.
type sight struct {
	redisnode.Value
	text string
	pttl int64
}

// read takes in a reply of look.lua's i. A node where the key is of another type has no vote of anybody.
func (v *view) read(reply any) error {
	v.answers++
	var text string
	var there, pttl, waiters int64
	if !redisnode.Read(reply, &text, &there, &pttl, &waiters) {
		return errForeignType
	}
	v.waiters = append(v.waiters, int(waiters))
	if there == 1 {
		val := redisnode.Parse(text)
		if v.ids == nil {
			v.ids = map[string][]sight{}
		}
		v.ids[val.ID] = append(v.ids[val.ID], sight{val, text, pttl})
	}
	return nil
}

// few reports whether a minority has what was seen: votes of a ballot that was lost, or what is left of a
// released lock.
func (v *view) few(seen []sight, nodes, quorum int) bool { return len(seen)+nodes-v.answers < quorum }

// unclear reports whether the nodes that have not answered decide whether the lock is held, or
// which number is its token: some vote that was not enough, or has not been released yet, is all
// that has been seen, or votes with different numbers.
func (v *view) unclear(nodes, quorum int) bool {
	for id, seen := range v.ids {
		if v.few(seen, nodes, quorum) {
			continue
		}
		if _, many := commonest(seen); len(seen) < quorum || id != "" && many < quorum {
			return true
		}
	}
	return false
}

// info is the majority's view. A lock that may be held, as far as the nodes that answered can tell,
// is shown as held; with any, one that a single node has.
func (v *view) info(name string, nodes, quorum int, any bool) backend.Info {
	i := backend.Info{Name: name, Waiters: reached(v.waiters, quorum)}
	marks := map[string]bool{}
	for id, seen := range v.ids {
		if v.few(seen, nodes, quorum) && !any {
			continue
		}
		i.Held = true
		if id != "" {
			i.Owner = seen[0].Owner
			i.Token, _ = commonest(seen)
		}
		left := make([]int64, 0, len(seen))
		for _, s := range seen {
			if s.pttl == -1 {
				i.Leaked = i.Leaked || any || id == ""
				s.pttl = 0
			}
			left = append(left, s.pttl)
			marks[s.Both] = true
		}
		ms := min(reached(left, min(quorum, len(left))), math.MaxInt64/int64(time.Millisecond))
		i.ExpiresIn = time.Duration(max(ms, 0)) * time.Millisecond
	}
	if len(marks) == 1 { // all that is left is of one migration, or of none
		for both := range marks {
			i.Both = both
		}
	}
	return i
}

// reached is the greatest number that so many of ns reach.
func reached[N int | int64](ns []N, many int) N {
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
		count[s.Number]++
	}
	for n, c := range count {
		if c > many || c == many && n > best {
			best, many = n, c
		}
	}
	return best, many
}

// view asks every node about a name. It returns when a majority has answered that decides.
func (s *store) view(ctx context.Context, name string) (*view, error) {
	v := &view{}
	q := s.ask(ctx, callMost, []op{{s.prefix + name, []any{"i"}}}, nil)
	take := func(a answer) error { return v.read(a.replies[0]) }
	err := q.each(ctx, callMost, take, func() bool { return q.good >= s.quorum })
	if err == nil {
		err = q.each(ctx, decisive, take, func() bool { return !v.unclear(len(s.nodes), s.quorum) })
	}
	return v, q.enough(err)
}

// Look implements backend.Driver. With an empty prefix it names every string key of the databases,
// for each could be somebody's lock.
//
// A strict one names what a single node has: the others may have lost their votes. So a hold is
// seen as long as a majority of the nodes answers of which none has forgotten anything, now or
// within the last quarantine.
func (s *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		views := map[string]*view{}
		var err error
		if r.Name != "" {
			views[r.Name], err = s.view(ctx, r.Name)
		} else {
			views, err = s.search(ctx, r)
		}
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for name, v := range views {
			i := v.info(name, len(s.nodes), s.quorum, r.Strict)
			if (r.Name != "" || i.Held || i.Waiters > 0) && !yield(i, nil) {
				return
			}
		}
	}
}

// search looks at the names of all nodes at once. A majority must be searched to the end: a lock
// that is held is on one of those.
func (s *store) search(ctx context.Context, of backend.Range) (map[string]*view, error) {
	q := s.question(s.nodes, len(s.nodes))
	for _, n := range s.nodes {
		s.flying.Go(func() {
			found, err := n.search(ctx, s.prefix, of)
			q.answered(answer{node: n.index, replies: []any{found}, err: err})
		})
	}
	views := map[string]*view{}
	err := q.each(ctx, math.MaxInt64, func(a answer) error {
		for name, reply := range a.replies[0].(map[string]any) {
			if views[name] == nil {
				views[name] = &view{}
			}
			_ = views[name].read(reply) // what is no lock on one node may be one on the others
		}
		return nil
	}, nil)
	for _, v := range views {
		v.answers = q.good
	}
	return views, q.enough(err)
}

// search returns what a node says of the names that it has. If it is strict, it is an error if the
// node is in quarantine, or was while it was searched.
func (n *node) search(ctx context.Context, keyspace string, r backend.Range) (map[string]any, error) {
	before, err := n.state(ctx)
	if err != nil {
		return nil, err
	}
	names, err := n.scan(ctx, keyspace, r.Prefix)
	if err != nil {
		return nil, err
	}
	found := map[string]any{}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(names)), inspectMost) {
		var ops []op
		for _, name := range some {
			ops = append(ops, op{keyspace + name, []any{"i"}})
		}
		replies, err := n.ask(ctx, ops)
		if err != nil {
			return nil, err
		}
		for i, name := range some {
			found[name] = replies[i]
		}
	}
	if r.Strict {
		after, err := n.state(ctx)
		if err != nil {
			return nil, err
		}
		if !before.settled || before != after {
			return nil, errors.New("in quarantine, or it was while it was searched for holders: " +
				"it may have forgotten one")
		}
	}
	return found, nil
}

// scan returns the names of a node that begin with prefix and have a lock key or waiters. Each step
// is bounded.
func (n *node) scan(ctx context.Context, keyspace, prefix string) (map[string]bool, error) {
	whole := keyspace + prefix
	names := map[string]bool{}
	for _, before := range []string{"", waitKey} {
		var cursor uint64
		for more := true; more; more = cursor != 0 {
			step, cancel := context.WithTimeout(ctx, callMost)
			keys, next, err := n.client.Scan(step, cursor, redisnode.Glob(before+whole)+"*", scanCount).Result()
			cancel()
			if err != nil {
				return nil, meaning(err)
			}
			cursor = next
			for _, k := range keys {
				k = strings.TrimPrefix(k, before)
				name, ours := strings.CutPrefix(k, keyspace)
				if ours && strings.HasPrefix(k, whole) && backend.CheckName(name) == nil {
					names[name] = true
				}
			}
		}
	}
	return names, nil
}

// ask asks one node.
func (n *node) ask(ctx context.Context, ops []op) (replies []any, err error) {
	q := n.s.question([]*node{n}, 1)
	n.send(&request{ops: ops, to: q, by: time.Now().Add(callMost)})
	if err := q.each(ctx, math.MaxInt64, func(answer) error { return nil }, nil); err != nil {
		return nil, err
	}
	a := q.heard[0] // the call ends by itself
	return a.replies, a.err
}

// state asks one node for its state.
func (n *node) state(ctx context.Context) (state, error) {
	replies, err := n.ask(ctx, []op{{stateKey, []any{"s"}}})
	if err != nil {
		return state{}, err
	}
	st, _, err := stateOf(replies[0])
	return st, err
}

// Break implements backend.Driver. A majority must have freed the lock of every holder that a majority
// knows; the other nodes follow when they answer. A vote for a waiter stays if the lock is held.
func (s *store) Break(ctx context.Context, name string) error {
	v, err := s.view(ctx, name)
	if err != nil {
		return err
	}
	ids, held := " ", v.info(name, len(s.nodes), s.quorum, false).Held
	for id, seen := range v.ids {
		if held && v.few(seen, len(s.nodes), s.quorum) {
			continue
		}
		if id != "" {
			ids += id + " "
			continue
		}
		for _, stranger := range seen { // known by the value
			ids += fmt.Sprintf("-%x ", sha1.Sum([]byte(stranger.text))) //nolint:gosec // as above
		}
	}
	q := s.question(s.nodes, s.quorum)
	for _, n := range s.nodes {
		n.send(&request{ops: []op{{s.prefix + name, []any{"b", ids}}}, to: q, until: time.Now().Add(tombstone)})
	}
	err = q.each(ctx, callMost, func(a answer) error {
		if a.replies[0] != int64(1) {
			return errForeignType
		}
		return nil
	}, func() bool { return q.good >= s.quorum })
	return q.enough(err)
}
