package zookeeper

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"
)

const (
	maxBatch   = 128 // units in one multi
	maxFlights = 1   // multis of units that are under way on one session: more gained nothing
	maxTries   = 2   // how often a unit leaves in company before it goes alone
)

// batches put the grants and releases of many callers into few requests. A lone caller's leaves at once; what comes
// while enough are under way leaves together with the next.
type batches struct {
	mu      sync.Mutex
	queue   []*unit
	flights int
}

// unit is a few operations of which all are done or none.
type unit struct {
	gates *zk.CheckVersionRequest // done only if the gates are of this version; nil: whatever they are
	ops   []any
	ended func()
	tries int // how often it left in company, and another one failed

	done  chan struct{} // closed when the rest is there
	index int
	err   error
}

// errGates: the gates are not of the version that a unit wants, and nothing was done.
var errGates = errors.New("the gates of the keyspace change all the time")

// send is multi in company: of the answer only the failure is there. With gates nothing is done unless they are of that version.
func (s *session) send(ctx context.Context, ended func(), gates *zk.CheckVersionRequest, ops ...any) (int, error) {
	if err := ctx.Err(); err != nil {
		ended()
		return -1, err
	}
	if err := s.await(ctx); err != nil {
		ended()
		return -1, err
	}
	u := &unit{gates: gates, ops: ops, ended: ended, done: make(chan struct{})}
	s.batches.add(s, u)
	select {
	case <-u.done:
		return u.index, u.err
	case <-ctx.Done():
		s.batches.take(u)
		return -1, ctx.Err()
	}
}

// take takes a unit back that has not left; otherwise it ends by itself.
func (b *batches) take(u *unit) {
	b.mu.Lock()
	i := slices.Index(b.queue, u)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	b.mu.Unlock()
	if i >= 0 {
		u.ended()
	}
}

// add queues units, and sees to it that they leave.
func (b *batches) add(s *session, us ...*unit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, us...)
	if b.flights < maxFlights {
		b.flights++
		s.d.flying.Go(func() { b.fly(s) })
	}
}

// next takes what leaves together: of those that look at the gates, such as want one version of them, which is looked at once.
func (b *batches) next() (us []*unit, gates *zk.CheckVersionRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for n < len(b.queue) && n < maxBatch && (n == 0 || b.queue[0].tries < maxTries && b.queue[n].tries < maxTries) {
		if own := b.queue[n].gates; own != nil {
			if gates != nil && gates.Version != own.Version {
				break
			}
			gates = own
		}
		n++
	}
	us = slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	if n == 0 {
		b.flights--
		b.queue = nil
	}
	return us, gates
}

// fly sends batches until nothing is queued. While there is no connection the units stay in the queue.
func (b *batches) fly(s *session) {
	for {
		err := s.await(context.Background()) // ends with the session
		us, gates := b.next()
		switch {
		case len(us) == 0:
			return
		case err != nil:
			b.land(s, us, nil, -1, err)
		default:
			var ops []any
			if gates != nil {
				ops = append(ops, gates)
			}
			for _, u := range us {
				ops = append(ops, u.ops...)
			}
			_, i, err := s.exchange(ops)
			b.land(s, us, gates, i, err)
		}
	}
}

// land hands out the results. If a unit has failed, or the gates are not what some want, nothing was done: the others leave again.
func (b *batches) land(s *session, us []*unit, gates *zk.CheckVersionRequest, i int, err error) {
	if err == nil || i < 0 {
		for _, u := range us {
			u.end(i, err)
		}
		return
	}
	var again []*unit
	if gates != nil && i == 0 {
		if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) {
			err = errGates
		}
		for _, u := range us {
			if u.gates != nil {
				u.end(0, err)
			} else {
				again = append(again, u)
			}
		}
		b.add(s, again...)
		return
	}
	if gates != nil {
		i--
	}
	for _, u := range us {
		if i >= 0 && i < len(u.ops) {
			u.end(i, err)
		} else {
			u.tries++
			again = append(again, u)
		}
		i -= len(u.ops)
	}
	b.add(s, again...)
}

func (u *unit) end(i int, err error) {
	u.index, u.err = i, err
	u.ended()
	close(u.done)
}
