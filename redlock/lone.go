package redlock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// inline is how long a lone caller reads by itself.
	inline = 2 * time.Millisecond
	// often is how many rounds of lone callers, with less than oftenPause between them, make it worth while to open lines.
	often      = 64
	oftenPause = time.Second
	// slowFor is how long a node is then not read first.
	slowFor = time.Second
	// sweepAfter is when somebody else reads what lone callers did not wait for, if no other comes.
	sweepAfter = 5 * time.Millisecond
)

// lone is what a driver knows of callers that come alone.
type lone struct {
	rounds atomic.Int64 // that are under way
	// Of the one caller that is alone:
	last  time.Time
	run   int         // of rounds with little time in between
	order []*node     // in which this one writes and reads
	slow  []time.Time // by node: when it was too slow to be waited for

	mu     sync.Mutex
	sweep  *time.Timer
	armed  bool
	closed bool
}

// round is one question to all nodes, whose answers its caller reads with each.
type round struct {
	d     *Driver
	done  chan answer   // has room for all answers, whether or not somebody still reads it
	wake  chan struct{} // of size 1: a majority has answered, or one more
	heard atomic.Int32  // answers so far
	began time.Time
	taken int

	counted, alone bool
	tag            string  // of its replies
	lines          []*line // of a lone caller: yet to be read, and locked
	ops            []op    // as encoded last
	command        []byte
}

// round makes one whose caller does not come back for it, or not soon.
func (d *Driver) round() *round {
	return &round{d: d, done: make(chan answer, len(d.nodes)), wake: make(chan struct{}, 1)}
}

// came wakes the caller, but not for less than a majority, which decides nothing.
func (r *round) came() {
	if int(r.heard.Add(1)) >= r.d.quorum {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// begin makes one that its caller reads at once, with each: alone, if nobody else has one under way.
func (d *Driver) begin() *round {
	r := d.round()
	r.began, r.counted, r.alone = time.Now(), true, d.lone.rounds.Add(1) == 1
	if r.alone {
		if d.lone.run++; r.began.Sub(d.lone.last) > oftenPause {
			d.lone.run = 0
		}
		d.lone.last = r.began
		r.tag = strconv.FormatInt(r.began.UnixNano(), 36)
		r.lines = make([]*line, 0, len(d.nodes))
		d.lone.turn(d.nodes, d.quorum, r.began)
	}
	return r
}

// turn begins with the nodes that the last one did not wait for, so that no line comes to owe much, and ends with slow ones.
func (s *lone) turn(nodes []*node, quorum int, now time.Time) {
	slow := func(n *node) bool { return now.Sub(s.slow[n.index]) < slowFor }
	if len(s.order) == 0 {
		s.order = slices.Clone(nodes)
	}
	s.order = append(s.order[quorum:], s.order[:quorum]...)
	slices.SortStableFunc(s.order, func(a, b *node) int { return cmp.Compare(flag(slow(a)), flag(slow(b))) })
}

// nodes are all, those first whose answers are read first.
func (r *round) nodes() []*node {
	if r.alone {
		return r.d.lone.order
	}
	return r.d.nodes
}

// take tries to get a lone caller a node's line.
func (r *round) take(n *node) (*line, bool) {
	if !r.alone || !n.line.take(r.began, r.d.lone.run > often) {
		return nil, false
	}
	return &n.line, true
}

// send asks a node, on its line if that was taken.
func (r *round) send(n *node, l *line, q *request) {
	q.done, q.to = r.done, r
	if l == nil {
		n.send(q)
		return
	}
	if len(r.ops) == 0 || &r.ops[0] != &q.ops[0] {
		keys, args := r.d.call(q)
		r.ops, r.command = q.ops, encode(r.command[:0], keys, append(args, r.tag))
	}
	if len(r.command) > lineBytes || !l.write(q, r.tag, r.command, r.began) {
		l.unlock()
		n.send(q.elsewhere())
		return
	}
	r.lines = append(r.lines, l)
}

// read reads the lines, and reports whether take had enough. Those of nodes that are slow are left to others.
func (r *round) read(take func(answer) bool) (enough bool) {
	by := r.began.Add(inline)
	for len(r.lines) > 0 {
		l := r.lines[0]
		if !l.read(by) {
			r.d.lone.slow[l.node.index] = r.began
			for _, l := range r.lines {
				l.left.Store(true)
				r.d.flying.Go(l.drain)
			}
			r.lines = nil
			break
		}
		r.lines = r.lines[1:]
		l.unlock()
		for r.taken < len(r.d.nodes) && len(r.done) > 0 {
			r.taken++
			if take(<-r.done) {
				return true
			}
		}
	}
	return false
}

// leave ends a round that begin made. What its lines still owe is read by the next lone caller, or by sweep.
func (r *round) leave() {
	if !r.counted {
		return
	}
	r.counted = false
	owing := false
	for _, l := range r.lines {
		owing = owing || len(l.owed) > 0
		l.unlock()
	}
	r.lines = nil
	if owing {
		r.d.sweepSoon()
	}
	r.d.lone.rounds.Add(-1)
}

// sweepSoon makes sure that what the lines owe is read.
func (d *Driver) sweepSoon() {
	s := &d.lone
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.armed || s.closed:
		return
	case s.sweep == nil:
		s.sweep = time.AfterFunc(sweepAfter, d.sweep)
	default:
		s.sweep.Reset(sweepAfter)
	}
	s.armed = true
}

// sweep reads what lines owe that nobody uses.
func (d *Driver) sweep() {
	s := &d.lone
	s.mu.Lock()
	s.armed = false
	busy := false
	for _, n := range d.nodes {
		switch l := &n.line; {
		case s.closed || !l.lock(0):
			busy = true
		case len(l.owed) == 0:
			l.unlock()
		default:
			d.flying.Go(l.drain)
		}
	}
	s.mu.Unlock()
	if busy {
		d.sweepSoon() // whoever has it may leave something again
	}
}

// close ends the lines.
func (s *lone) close(nodes []*node) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(n.line.close)
	}
	all.Wait()
}

// each reads answers until enough says so, all have come, the time is over or ctx has ended; the last
// is its only error.
func (d *Driver) each(ctx context.Context, r *round, most time.Duration, take func(answer) (enough bool)) error {
	defer r.leave()
	if r.read(take) {
		return nil
	}
	var over <-chan time.Time
	for late := false; ; {
		for more := true; more && r.taken < len(d.nodes); {
			select {
			case a := <-r.done:
				r.taken++
				if take(a) {
					return nil
				}
			default:
				more = false
			}
		}
		if late || r.taken == len(d.nodes) {
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
