package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// answer is a node's to a request: one reply for each operation.
type answer struct {
	node    int
	replies []any
	err     error
	sure    bool // no copy of the request is under way
}

// round is one question to some nodes.
type round struct {
	s     *store
	nodes []*node       // that were asked
	need  int           // so many answers decide something, and fewer wake nobody
	wake  chan struct{} // of size 1

	mu    sync.Mutex
	heard []answer

	taken int           // how many of those its caller has seen
	good  int           // how many of these said what they were asked
	errs  map[int]error // why others did not, by node
}

func (s *store) round(nodes []*node, need int) *round {
	return &round{
		s: s, nodes: nodes, need: min(need, len(nodes)),
		wake: make(chan struct{}, 1), heard: make([]answer, 0, len(nodes)),
	}
}

// ask asks all nodes. What is not sent by then is of no use to anybody, nor after the end of ctx.
func (s *store) ask(ctx context.Context, most time.Duration, ops []op, note func(answer)) *round {
	r := s.round(s.nodes, s.quorum)
	each := make([]request, len(s.nodes))
	by := time.Now().Add(most)
	if end, ok := ctx.Deadline(); ok && end.Before(by) {
		by = end
	}
	for i, n := range s.nodes {
		each[i] = request{ops: ops, to: r, note: note, by: by}
		n.send(&each[i])
	}
	return r
}

// answered takes in an answer, whether or not somebody still waits for it.
func (r *round) answered(a answer) {
	r.mu.Lock()
	r.heard = append(r.heard, a)
	enough := len(r.heard) >= r.need
	r.mu.Unlock()
	if enough {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// rest is how many answers are still to come.
func (r *round) rest() int { return len(r.nodes) - r.taken }

// each gives the answers to take, which says what is wrong with one, until it is enough, all have
// come, the time is over or ctx has ended; the last is its only error. enough may be nil.
func (r *round) each(ctx context.Context, most time.Duration, take func(answer) error, enough func() bool) error {
	var over <-chan time.Time
	for late := false; ; {
		r.mu.Lock()
		come := r.heard[r.taken:]
		r.mu.Unlock()
		for _, a := range come {
			r.taken++
			err := a.err
			if err == nil {
				err = take(a)
			}
			if err == nil {
				r.good++
			} else {
				r.fail(a.node, err)
			}
			if enough != nil && enough() {
				return nil
			}
		}
		if late || r.rest() == 0 {
			return nil
		}
		if over == nil { // not before: answers that are there already need no timer
			timer := time.NewTimer(most)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-r.wake:
		case <-over:
			late = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *round) fail(node int, err error) {
	if r.errs == nil {
		r.errs = map[int]error{}
	}
	r.errs[node] = err
}

// majority waits for all answers, and wants those of a majority.
func (r *round) majority(ctx context.Context, take func(answer) error) error {
	err := r.each(ctx, callMost, take, nil)
	return r.enough(err)
}

// enough is err, or else that of a round without a majority.
func (r *round) enough(err error) error {
	if err == nil && r.good < r.s.quorum {
		err = r.err()
	}
	return err
}

// err says that no majority answered, and why: ErrInvalid where a server says that asking again is of no use.
func (r *round) err() error {
	return r.because(fmt.Sprintf("no majority: %d of %d nodes answered, %d are needed",
		r.good, len(r.s.nodes), r.s.quorum))
}

// because adds the reasons to what is missing, each with its nodes.
func (r *round) because(what string) error {
	var parts, reasons []string
	var addrs [][]string
	bad := false
	r.mu.Lock()
	seen := r.heard[:r.taken]
	r.mu.Unlock()
	for _, n := range r.nodes {
		why := ""
		switch err := r.errs[n.index]; {
		case err != nil:
			why = err.Error()
			bad = bad || errors.Is(err, backend.ErrInvalid)
		case slices.ContainsFunc(seen, func(a answer) bool { return a.node == n.index }):
			continue
		default:
			why = "no answer in time"
		}
		at := slices.Index(reasons, why)
		if at < 0 {
			at, reasons, addrs = len(reasons), append(reasons, why), append(addrs, nil)
		}
		addrs[at] = append(addrs[at], n.addr)
	}
	for i, reason := range reasons {
		parts = append(parts, strings.Join(addrs[i], ", ")+": "+reason)
	}
	what += " (" + strings.Join(parts, "; ") + ")"
	if bad {
		return backend.Invalid("%s", what)
	}
	return errors.New(what)
}
