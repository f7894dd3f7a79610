package redlock

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// grip is one round of votes as the nodes know it: by an id of its own, for what is late of one
// round must not touch the next.
type grip struct {
	id string

	mu      sync.Mutex
	open    []int  // by node: requests with this id that may be under way to it
	voted   bool   // a node has voted for it, in time for the round or not
	over    bool   // it was released or undone: nothing of it is sent any more
	asked   []bool // nodes that are being asked for their vote again; nil if none ever was
	lacking []bool // nodes that had no vote when the lock was renewed; nil if there are none
}

func (s *store) grip(id string) *grip { return &grip{id: id, open: make([]int, len(s.nodes))} }

// sent notes that every node is asked for its vote.
func (g *grip) sent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.open {
		g.open[i]++
	}
}

// answered notes the answer to a request for a vote. That to one copy of a request tells nothing of
// another.
func (g *grip) answered(a answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.sure {
		g.open[a.node]--
	}
	if a.err == nil {
		reply, _ := a.replies[0].([]any)
		g.voted = g.voted || len(reply) > 0 && reply[0] == int64(0)
	}
}

// sure reports whether nothing of the round is under way to a node.
func (g *grip) sure(node int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[node] == 0
}

// nothing reports whether no node has anything of the round, or ever will.
func (g *grip) nothing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.voted && slices.Max(g.open) == 0
}

// end is its release: nothing else of it is sent from now on.
func (g *grip) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

// lack notes that a node has no vote for a lock that is held.
func (g *grip) lack(node int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lacking == nil {
		g.lacking = make([]bool, len(g.open))
	}
	g.lacking[node] = true
}

// begin returns the nodes that lack noted since, and that may be asked for their vote again, and
// notes that they are.
func (g *grip) begin() (nodes []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, lacks := range g.lacking {
		if g.over || !lacks || g.asked != nil && g.asked[i] {
			continue
		}
		if g.asked == nil {
			g.asked = make([]bool, len(g.open))
		}
		g.asked[i] = true
		g.open[i]++
		nodes = append(nodes, i)
	}
	g.lacking = nil
	return nodes
}

// answeredAgain notes the answer of a node that was asked for its vote again.
func (g *grip) answeredAgain(a answer) {
	g.answered(a)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked[a.node] = false
}

// free sends the release of a round to every node, with a tombstone where something of it may be
// under way. A node that does not answer gets it when it does. to may be nil.
func (s *store) free(to *round, r *backend.Request, g *grip, remember, leave bool) {
	lock := s.prefix + r.Name
	b := bucket(lock)
	keep := r.TTL + r.Grace + tombstone
	until := time.Now().Add(keep)
	release := func(keep time.Duration) []op {
		how := ""
		if keep > 0 || !remember || leave {
			how = fmt.Sprint(millis(keep), " ", flag(remember), " ", flag(leave))
		}
		return []op{{lock, []any{"r", g.id, b, how}}}
	}
	certain, doubtful := release(0), []op(nil)
	g.end()
	each := make([]request, len(s.nodes))
	for i, n := range s.nodes {
		q := &each[i]
		*q = request{ops: certain, to: to, until: until}
		if !g.sure(n.index) {
			if doubtful == nil {
				doubtful = release(keep)
			}
			q.ops, q.certain, q.of = doubtful, certain, g
		}
		n.send(q)
	}
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
