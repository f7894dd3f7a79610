package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// undrainedMost is how many holders Undrained describes at the most.
const undrainedMost = 100

// Undrained implements backend.Gater. It searches every node for locks without the mark of g's holders. One node that has such a
// vote is enough to count: the others may have lost theirs. So a hold is seen as long as a majority of the nodes
// answers of which none has forgotten anything, now or within the last quarantine.
func (d *Driver) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	sights := map[string][]sight{}
	searched, silent := 0, silence{d: d}
	for _, n := range d.nodes {
		wg.Go(func() {
			found, err := n.search(ctx, g.Scope)
			mu.Lock()
			defer mu.Unlock()
			for name, s := range found {
				if s.both != g.Move {
					sights[name] = append(sights[name], s)
				}
			}
			if err != nil {
				silent.add(n.index, err)
			} else {
				searched++
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if searched < d.quorum {
		return nil, silent.err(searched)
	}
	var left []backend.Info
	for name, seen := range sights {
		i := backend.Info{Name: name, Held: true, Owner: seen[0].owner, Waiters: -1}
		for _, s := range seen {
			i.ExpiresIn = max(i.ExpiresIn, time.Duration(s.pttl)*time.Millisecond)
			i.Leaked = i.Leaked || s.pttl == -1
		}
		i.Token, _ = commonest(seen)
		if left = append(left, i); len(left) == undrainedMost {
			break
		}
	}
	return left, nil
}

// search returns the locks that a node has of the names that move. It is an error if the node is in quarantine, or was while it
// was searched.
func (n *node) search(ctx context.Context, scope backend.Scope) (map[string]sight, error) {
	before, err := n.state(ctx)
	if err != nil {
		return nil, err
	}
	names, err := n.scan(ctx, n.d.prefix, "")
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !scope.Moves(name) })
	found := map[string]sight{}
	for some := range slices.Chunk(names, inspectMost) {
		var ops []op
		for _, name := range some {
			ops = append(ops, op{n.d.prefix + name, []any{"i"}})
		}
		replies, err := n.ask(ctx, ops)
		if err != nil {
			return nil, err
		}
		for i, reply := range replies {
			res, _ := reply.([]any)
			if len(res) != 4 || res[1] != int64(1) {
				continue // free, or of another type: no lock
			}
			text, _ := res[0].(string)
			pttl, _ := res[2].(int64)
			found[some[i]] = sight{parse(text), pttl}
		}
	}
	after, err := n.state(ctx)
	if err == nil && (!before.settled || before != after) {
		err = errors.New("in quarantine, or it was while it was searched for holders: it may have forgotten one")
	}
	return found, err
}

// ask asks one node.
func (n *node) ask(ctx context.Context, ops []op) ([]any, error) {
	done := make(chan answer, 1)
	n.send(&request{ops: ops, done: done, by: time.Now().Add(callMost)})
	a, err := await(ctx, done)
	if err == nil {
		err = a.err
	}
	return a.replies, err
}

// state asks one node for its state.
func (n *node) state(ctx context.Context) (state, error) {
	replies, err := n.ask(ctx, []op{{stateKey, []any{"s"}}})
	if err != nil {
		return state{}, err
	}
	return stateOf(replies[0])
}
