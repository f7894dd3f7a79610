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

// answer is what a node says to a request: one reply for each operation.
type answer struct {
	node    int
	replies []any
	err     error
	sure    bool // no copy of the request is under way
}

// question is what some nodes are asked at once, and their answers as they come in.
type question struct {
	s     *store
	nodes []*node       // that are asked
	need  int           // its caller is woken by so many answers
	wake  chan struct{} // of size 1

	mu    sync.Mutex
	heard []answer

	taken int // how many of the answers its caller has seen
	good  int // how many of these said what they were asked; the others have their error
}

func (s *store) question(nodes []*node, need int) *question {
	return &question{
		s: s, nodes: nodes, need: min(need, len(nodes)),
		wake: make(chan struct{}, 1), heard: make([]answer, 0, len(nodes)),
	}
}

// ask asks all nodes the same. A request that is not sent by the end of that time, or of ctx, is not
// sent any more.
func (s *store) ask(ctx context.Context, most time.Duration, ops []op, note func(answer)) *question {
	by := time.Now().Add(most)
	if end, ok := ctx.Deadline(); ok && end.Before(by) {
		by = end
	}
	q := s.question(s.nodes, s.quorum)
	each := make([]request, len(s.nodes))
	for i, n := range s.nodes {
		each[i] = request{ops: ops, to: q, note: note, by: by}
		n.send(&each[i])
	}
	return q
}

// askEach asks each of some nodes something of its own.
func (s *store) askEach(nodes []*node, need int, most time.Duration, what func(i int) op) *question {
	q, by := s.question(nodes, need), time.Now().Add(most)
	for i, n := range nodes {
		n.send(&request{ops: []op{what(i)}, to: q, by: by})
	}
	return q
}

// answered takes in an answer, whether or not the caller still waits for it.
func (q *question) answered(a answer) {
	q.mu.Lock()
	q.heard = append(q.heard, a)
	enough := len(q.heard) >= q.need
	q.mu.Unlock()
	if enough {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// rest is how many answers are still to come.
func (q *question) rest() int { return len(q.nodes) - q.taken }

// each gives the answers to take, which says what is wrong with one. It returns when that is enough,
// when all answers have come, when the time is over, or when ctx has ended: only the last is an
// error. enough may be nil.
func (q *question) each(ctx context.Context, most time.Duration, take func(answer) error, enough func() bool) error {
	var over <-chan time.Time
	for late := false; ; {
		q.mu.Lock()
		come := q.heard[q.taken:]
		q.mu.Unlock()
		for i := range come {
			q.taken++
			a := &come[i] // heard is never moved, for it has room for all
			if a.err == nil {
				a.err = take(*a)
			}
			if a.err == nil {
				q.good++
			}
			if enough != nil && enough() {
				return nil
			}
		}
		if late || q.rest() == 0 {
			return nil
		}
		if over == nil { // not before: answers that are there already need no timer
			timer := time.NewTimer(most)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-q.wake:
		case <-over:
			late = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// majority waits for all answers, and wants the answers of a majority.
func (q *question) majority(ctx context.Context, take func(answer) error) error {
	return q.enough(q.each(ctx, callMost, take, nil))
}

// enough is err, or else the error of a question that no majority has answered.
func (q *question) enough(err error) error {
	if err == nil && q.good < q.s.quorum {
		err = q.err()
	}
	return err
}

// err says that no majority answered, or none the same, and why.
func (q *question) err() error {
	what, needed := "no majority", "are needed"
	if q.good >= q.s.quorum {
		what, needed = "the votes are split", "that agree are needed"
	}
	return q.because(fmt.Sprintf("%s: %d of %d nodes answered, %d %s",
		what, q.good, len(q.s.nodes), q.s.quorum, needed), q.s.quorum)
}

// seen returns the answers that the caller has seen.
func (q *question) seen() []answer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.heard[:q.taken]
}

// because adds the reasons to what is missing, each with its nodes. It matches ErrInvalid where so
// many servers say that asking again is of no use that fewer are left than must answer.
func (q *question) because(what string, need int) error {
	var reasons []string
	addrs, left, seen := map[string][]string{}, len(q.nodes), q.seen()
	for _, n := range q.nodes {
		why := "no answer in time"
		if i := slices.IndexFunc(seen, func(a answer) bool { return a.node == n.index }); i >= 0 {
			err := seen[i].err
			if err == nil {
				continue
			}
			why = err.Error()
			if errors.Is(err, backend.ErrInvalid) {
				left--
			}
		}
		if addrs[why] == nil {
			reasons = append(reasons, why)
		}
		addrs[why] = append(addrs[why], n.addr)
	}
	for i, why := range reasons {
		reasons[i] = strings.Join(addrs[why], ", ") + ": " + why
	}
	what += " (" + strings.Join(reasons, "; ") + ")"
	if left < need {
		return backend.Invalid("%s", what)
	}
	return errors.New(what)
}
