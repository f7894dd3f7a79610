package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// flightsMost is how many multis of units a session has under way.
	flightsMost = 4
	// batchMost is how many units go in one multi, and batchGood how many from the third multi at a
	// time on: the servers do few large requests faster than many small ones.
	batchMost, batchGood = 128, 16
)

// unit is a few operations for a claim, of which all are done or none. Those of many claims go in
// one multi.
type unit struct {
	p      *place
	ops    []any
	join   bool    // it makes the node in the queue
	noted  bool    // it has to be known whether they were done, also if the answer is lost
	bucket *bucket // of a grant: the counter that its token is drawn from
	gates  int32   // of a grant: the version of the gates with which it is done

	done     chan struct{} // closed when the rest is there
	asked    backend.Instant
	token    backend.Token
	reserved int
	pot      *pot
	index    int  // the operation that failed; -1 with an error: see sent
	sent     bool // with index -1: it is unknown whether they were done; otherwise they were not
	err      error
	last     zk.MultiResponse // of the last of ops; empty if the answer could not be read so far
}

var (
	// errGates: the gates are not of the version that a unit wants, and nothing was done.
	errGates = errors.New("the gates of the keyspace change all the time")
	// errDrawn: the counter is not what it was known to be, and nothing was done.
	errDrawn = errors.New("other clients draw tokens of the same counter all the time")
)

// batch is what the units of a session wait in while enough are under way. The engine's own would
// not do: two multis of a process cannot draw from one counter, and what is asked for again, after a
// slow answer or another's failure, goes together too.
type batch struct {
	mu      sync.Mutex
	queue   []*unit
	most    int // units in one multi
	flights int
	units   int // of all of them
}

// send sends a unit, and returns when it has ended or ctx has. If it has left then, the next call
// about its claim waits for it; see place.settle.
func (s *session) send(ctx context.Context, u *unit) error {
	u.done, u.p.flying = make(chan struct{}), u
	s.batch.mu.Lock()
	s.batch.queue = append(s.batch.queue, u)
	s.batch.mu.Unlock()
	s.depart()
	err := u.p.settle(ctx)
	if err == nil {
		return nil
	}
	s.batch.mu.Lock()
	i := slices.Index(s.batch.queue, u)
	if i >= 0 {
		s.batch.queue = slices.Delete(s.batch.queue, i, i+1)
	}
	s.batch.mu.Unlock()
	if i >= 0 {
		u.end(-1, err)
		return u.p.settle(context.Background())
	}
	return err
}

func (u *unit) end(i int, err error) {
	u.index, u.err = i, err
	close(u.done)
}

// due reports whether there is enough for another multi: half as much as is under way.
func (b *batch) due() bool {
	switch n := len(b.queue); b.flights {
	case 0:
		return n > 0
	case 1:
		return n >= min((b.units+1)/2, b.most)
	case flightsMost:
		return false
	default:
		return n >= min(max(b.units/b.flights, batchGood), b.most)
	}
}

// depart sends what is in the queue, if it is enough.
func (s *session) depart() {
	b := &s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.due() {
		return
	}
	b.flights++
	s.st.flying.Go(func() {
		m := <-s.marks
		err := s.await(context.Background()) // while there is no connection the units stay in the queue
		for f := s.board(err); f != nil; f = s.board(err) {
			if f.mark, f.index, f.err = m, -1, err; err == nil {
				f.fly()
			}
			s.landed(f)
			runtime.Gosched() // who has just been answered may come along
			err = s.await(context.Background())
		}
		s.marks <- m
	})
}

// board takes units out of the queue for the next multi; nil: there are not enough, or all of them
// want counters from which others draw, and which bring them when they land.
func (s *session) board(err error) *flight {
	b := &s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flights--
	if !b.due() {
		return nil
	}
	f := &flight{s: s}
	b.queue = slices.DeleteFunc(b.queue, func(u *unit) bool {
		return err != nil && f.carry(u) || len(f.units) < b.most && f.load <= maxLoad && f.add(u)
	})
	if len(f.units) == 0 {
		return nil
	}
	b.flights++
	f.size = len(f.units)
	b.units += f.size
	return f
}

// landed hands out the results of a flight. What was not done because an operation failed that is
// none of its own goes again, with fewer at a time: others' may be in the way.
func (s *session) landed(f *flight) {
	again := f.land()
	for _, u := range again {
		u.sent = false
	}
	b := &s.batch
	b.mu.Lock()
	b.units -= f.size
	b.queue = append(again, b.queue...)
	if f.err == nil {
		b.most = min(b.most+b.most/2+1, batchMost)
	} else if f.index >= 0 {
		b.most = max(b.most/2, 1)
	}
	b.mu.Unlock()
	for _, p := range f.pots {
		<-p.bucket.taken
	}
	for _, o := range s.st.others(s) { // what waits there for these counters
		o.depart()
	}
}

// flight is what leaves in one multi: the check of the gates, what the counters are set to, the
// units' operations, the mark.
type flight struct {
	s      *session
	units  []*unit
	others int // of them that are no grants, which come first
	size   int // units at its beginning
	load   int // bytes of their paths, about
	first  int // the place of the first one's operations
	gated  bool
	gates  int32
	pots   []*pot
	noted  bool
	mark   *mark

	index int // the operation that failed; -1 with an error: it is unknown whether they were done
	err   error
}

// add puts a unit on the flight, unless it wants other gates than those before it, or a counter from
// which another one draws.
func (f *flight) add(u *unit) bool {
	if b := u.bucket; b != nil {
		if f.gated && f.gates != u.gates {
			return false
		}
		i := slices.IndexFunc(f.pots, func(p *pot) bool { return p.bucket == b })
		if i < 0 {
			select {
			case b.taken <- struct{}{}:
			default:
				return false
			}
			i = len(f.pots)
			f.pots = append(f.pots, &pot{bucket: b, draws: b.state()})
		}
		u.pot, f.gated, f.gates = f.pots[i], true, u.gates
	}
	f.noted = f.noted || u.noted
	return f.carry(u)
}

// carry puts the grants behind the others: what comes in an answer after a container cannot be read.
func (f *flight) carry(u *unit) bool {
	if u.bucket != nil {
		f.units = append(f.units, u)
	} else {
		f.units = slices.Insert(f.units, f.others, u)
		f.others++
	}
	f.load += 3 * u.p.load()
	return true
}

// fly sends the flight.
func (f *flight) fly() {
	f.draw()
	if len(f.units) == 0 {
		f.err = nil
		return
	}
	rs, i, err := f.s.exchange(f.ops())
	f.index, f.err = i, err
	if i < 0 && f.noted && cutOff(err) {
		f.settle()
	}
	if f.noted && f.err == nil {
		f.mark.there = true
	}
	if f.err == nil {
		f.read(rs)
	}
}

// draw gives the grants their tokens. Those that cannot have one end.
func (f *flight) draw() {
	us, clocked := f.s.st.clock.now()
	f.units = slices.DeleteFunc(f.units, func(u *unit) bool {
		if u.bucket == nil {
			return false
		}
		err := errDrawn
		if clocked && u.pot.known {
			u.token, u.reserved, err = u.pot.draw(u.p.r, us)
		}
		if err != nil {
			u.end(0, err)
		}
		return err != nil
	})
}

// count is how many operations of a flight are the unit's.
func (u *unit) count() int {
	if u.bucket != nil {
		return len(u.ops) + 1
	}
	return len(u.ops)
}

// ops are the operations of the flight. The library could not read the answer if a container's were
// the first.
func (f *flight) ops() []any {
	st := f.s.st
	ops := make([]any, 0, 2+len(f.pots)+4*len(f.units))
	if f.gated {
		ops = append(ops, &zk.CheckVersionRequest{Path: st.at.locks, Version: f.gates})
	}
	for _, p := range f.pots {
		ops = append(ops, p.ops()...)
	}
	f.first = len(ops)
	asked := backend.Now()
	for _, u := range f.units {
		u.asked, u.sent = asked, true
		ops = append(ops, u.ops...)
		if u.bucket != nil {
			ops = append(ops, &zk.CreateRequest{
				Path: u.p.held, Data: holding(u.p.r, u.token, u.pot.after()).bytes(),
				Acl: st.acl, Flags: zk.FlagEphemeral,
			})
		}
	}
	if f.noted {
		ops = append(ops, f.mark.op(f.s))
	}
	return ops
}

// read gives the units what the answer says of the last of their operations.
func (f *flight) read(rs []zk.MultiResponse) {
	i := f.first
	for _, u := range f.units {
		if last := i + len(u.ops) - 1; last < len(rs) {
			u.last = rs[last]
		}
		i += u.count()
	}
}

// land hands out the results.
func (f *flight) land() (again []*unit) {
	i := f.index
	for _, p := range f.pots {
		switch {
		case !p.known:
		case f.err == nil:
			p.bucket.drawn(p.after())
		case i < 0:
			p.bucket.forget()
		}
	}
	if f.err == nil || i < 0 {
		for _, u := range f.units {
			u.end(-1, f.err)
		}
		return nil
	}
	if f.gated && i == 0 {
		return f.refuse(errGates)
	}
	if i -= f.first; i < 0 {
		f.s.st.forgetCounters() // if one has changed, others may have too
		return f.refuse(errDrawn)
	}
	for _, u := range f.units {
		if i >= 0 && i < u.count() {
			u.end(i, f.err)
		} else {
			again = append(again, u)
		}
		i -= u.count()
	}
	if i < 0 {
		return again
	}
	// Somebody has deleted the mark, or it had been made, unknown to us.
	f.mark.there = errors.Is(f.err, zk.ErrNodeExists)
	return slices.DeleteFunc(again, func(u *unit) bool {
		if u.noted {
			u.end(len(u.ops), f.err)
		}
		return u.noted
	})
}

// refuse ends the grants, with err if that is what the failure means; the others leave again.
func (f *flight) refuse(err error) (again []*unit) {
	if !errors.Is(f.err, zk.ErrBadVersion) && !errors.Is(f.err, zk.ErrNoNode) {
		err = f.err
	}
	for _, u := range f.units {
		if u.bucket == nil {
			again = append(again, u)
		} else {
			u.end(0, err)
		}
	}
	return again
}

// settle finds out whether a flight was done whose answer was lost. The session's requests are done
// in order, so what is not done now will never be.
func (f *flight) settle() {
	for {
		n, err := synced(context.Background(), f.s, f.mark.path(f.s))
		switch {
		case err == nil:
			f.mark.there = true
			if string(n.data) == strconv.FormatInt(f.mark.number, 10) {
				f.err = nil
			}
			return
		case errors.Is(err, zk.ErrNoNode):
			f.mark.there = false
			return
		case !cutOff(err):
			return
		}
	}
}

// mark is an ephemeral node of a session, into which a flight with releases writes a number. So when
// its answer was lost it is found out whether the releases were done, or whether somebody else had
// taken the locks away. One flight has it at a time.
type mark struct {
	slot   int
	there  bool  // the node was created
	number int64 // what was written last
}

func newMarks() chan *mark {
	marks := make(chan *mark, flightsMost)
	for i := range flightsMost {
		marks <- &mark{slot: i + 1}
	}
	return marks
}

func (m *mark) path(s *session) string {
	return fmt.Sprintf("%s/%016x-%d", s.st.at.done, uint64(s.owner()), m.slot)
}

// op is the operation that leaves the mark.
func (m *mark) op(s *session) any {
	m.number++
	data := strconv.AppendInt(nil, m.number, 10)
	if m.there {
		return &zk.SetDataRequest{Path: m.path(s), Data: data, Version: -1}
	}
	return &zk.CreateRequest{Path: m.path(s), Data: data, Acl: s.st.acl, Flags: zk.FlagEphemeral}
}
