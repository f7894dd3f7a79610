package zookeeper

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	maxFlights = 4   // multis of units that are under way on one session
	maxBatch   = 128 // units in one multi
	goodBatch  = 16  // from the third flight on: the servers do few large requests faster than many small ones
)

// batches put the grants and releases of many callers into few requests. A lone caller's leaves at once; what comes
// while enough are under way leaves together with the next.
type batches struct {
	mu    sync.Mutex
	queue []*unit
	most  int     // units that leave together
	marks []*mark // those of no flight: as many may begin
	last  int64   // the number of the last flight

	flights, units int // under way
}

func (b *batches) init() {
	b.most = maxBatch
	for i := range maxFlights {
		b.marks = append(b.marks, &mark{slot: i + 1})
	}
}

// unit is a few operations of which all are done or none.
type unit struct {
	ops   []any
	noted bool   // it has to be known whether they were done, also if the answer is lost
	ended func() // called when it has ended
	grant        // the zero value: it is none

	left  bool          // its caller does not wait any more
	done  chan struct{} // closed when the rest is there
	asked backend.Instant
	index int // the operation that failed; -1 with an error: it is unknown whether they were done
	err   error
	stat  *zk.Stat // what the last of ops, if it set data, made of the node; nil if the answer could not be read so far
}

// grant is what a unit has that makes a holder's node.
type grant struct {
	r      *backend.Request
	bucket *bucket                 // that the token is drawn from
	held   string                  // the node
	gates  *zk.CheckVersionRequest // done only if the gates are of this version

	pot      *pot
	token    backend.Token // with the next one once the unit has ended
	reserved int
}

var (
	// errGates: the gates are not of the version that a unit wants, and nothing was done.
	errGates = errors.New("the gates of the keyspace change all the time")
	// errDrawn: the counter is not what it was known to be, and nothing was done.
	errDrawn = errors.New("other clients draw tokens of the same counter all the time")
	// errTaken: the unit was taken back, and nothing was done.
	errTaken = errors.New("the request was taken back")
)

// send is multi in company: of the answer only the failure is there.
func (s *session) send(ctx context.Context, u *unit) (int, error) {
	u.done = make(chan struct{})
	err := ctx.Err()
	if err == nil {
		err = s.await(ctx)
	}
	if err != nil {
		u.end(-1, err)
		return -1, err
	}
	s.batches.add(s, u)
	return s.result(ctx, u)
}

// result waits for what becomes of a unit.
func (s *session) result(ctx context.Context, u *unit) (int, error) {
	if err := u.await(ctx); err != nil {
		s.batches.take(u)
		return -1, err
	}
	return u.index, u.err
}

// await returns when the unit has ended, or with ctx. If both are so it is the unit that counts: its end is not for a later call.
func (u *unit) await(ctx context.Context) error {
	select {
	case <-u.done:
		return nil
	default:
	}
	select {
	case <-u.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take takes a unit back that has not left; otherwise it ends by itself.
func (b *batches) take(u *unit) {
	b.mu.Lock()
	u.left = true
	i := slices.Index(b.queue, u)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	b.mu.Unlock()
	if i >= 0 {
		u.end(-1, errTaken)
	}
}

// add queues units, and sees to it that they leave.
func (b *batches) add(s *session, us ...*unit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, us...)
	if n := len(b.marks); n > 0 && b.due() {
		m := b.marks[n-1]
		b.marks = b.marks[:n-1]
		s.d.flying.Go(func() { b.fly(s, m) })
	}
}

// due reports whether there is enough for another flight: half as much as those that are under way have.
func (b *batches) due() bool {
	switch n := len(b.queue); b.flights {
	case 0:
		return n > 0
	case 1:
		return n >= min((b.units+1)/2, b.most)
	default:
		return n >= min(max(b.units/b.flights, goodBatch), b.most)
	}
}

// fly sends flights with one mark until nothing is queued that may leave. While there is no connection the units stay in the queue.
func (b *batches) fly(s *session, m *mark) {
	for size := 1; ; {
		if size > 1 {
			runtime.Gosched() // who has just been answered may come along
		}
		err := s.await(context.Background()) // ends with the session
		f := b.next(m)
		if f == nil {
			return
		}
		size = f.size
		f.fly(s, err)
		again := f.land(s.d)
		b.landed(f)
		b.add(s, slices.DeleteFunc(again, b.abandoned)...)
		s.d.depart(s)
	}
}

// next takes what leaves together, in the order in which it came: of those that look at the gates, such as want one version of
// them, and none whose counter another flight is about to set. Without any the mark is given back.
func (b *batches) next(m *mark) *flight {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := &flight{mark: m}
	if !b.due() {
		b.marks = append(b.marks, m)
		return nil
	}
	b.queue = slices.DeleteFunc(b.queue, func(u *unit) bool {
		if len(f.units) == b.most {
			return false
		}
		return f.add(u)
	})
	if len(f.units) == 0 {
		b.marks = append(b.marks, m)
		return nil
	}
	b.last++
	f.number, f.size = b.last, len(f.units)
	b.flights++
	b.units += f.size
	return f
}

// landed counts a flight out. After a failure fewer leave together: others' units may be in the way.
func (b *batches) landed(f *flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flights--
	b.units -= f.size
	switch {
	case f.err == nil:
		b.most = min(b.most+b.most/2+1, maxBatch)
	case f.index >= 0:
		b.most = max(b.most/2, 1)
	}
}

// abandoned ends a unit whose caller does not wait any more, and which was not done.
func (b *batches) abandoned(u *unit) bool {
	b.mu.Lock()
	left := u.left
	b.mu.Unlock()
	if left {
		u.end(-1, errTaken)
	}
	return left
}

func (u *unit) end(i int, err error) {
	u.index, u.err = i, err
	u.ended()
	close(u.done)
}
