package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// flight is what leaves in one multi: the check of the gates, what the counters are set to, the units' operations, the mark.
type flight struct {
	units  []*unit
	gates  *zk.CheckVersionRequest // nil: no unit wants them
	pots   []*pot
	mark   *mark
	noted  bool // the mark is left
	number int64
	size   int // units at its beginning

	index int // the operation that failed; -1 with an error: it is unknown whether they were done
	err   error
}

// add puts a unit on the flight, unless it wants other gates than those before it, or a counter that another flight has.
func (f *flight) add(u *unit) bool {
	if u.gates != nil && f.gates != nil && f.gates.Version != u.gates.Version {
		return false
	}
	if u.bucket != nil {
		if u.pot = u.bucket.take(f); u.pot == nil {
			return false
		}
		if u.pot.grants++; u.pot.grants == 1 {
			f.pots = append(f.pots, u.pot)
		}
	}
	f.units = append(f.units, u)
	if u.gates != nil {
		f.gates = u.gates
	}
	f.noted = f.noted || u.noted
	return true
}

// fly sends the flight unless err, and waits for what becomes of it.
func (f *flight) fly(s *session, err error) {
	if f.index, f.err = -1, err; err != nil {
		return
	}
	f.draw(&s.d.clock)
	if len(f.units) == 0 {
		return
	}
	rs, i, err := s.exchange(f.ops(s))
	if f.index, f.err = i, err; err == nil {
		f.read(rs)
	}
	if f.index < 0 && f.noted && cutOff(f.err) {
		f.settle(s)
	}
	f.mark.there = f.mark.there || f.noted && f.err == nil
}

// before is how many operations come before those of the units.
func (f *flight) before() int {
	if f.gates != nil {
		return 1 + len(f.pots)
	}
	return len(f.pots)
}

// count is how many operations of a flight are the unit's.
func (u *unit) count() int {
	if u.bucket != nil {
		return len(u.ops) + 1
	}
	return len(u.ops)
}

// read gives the units what the answer says of the nodes that they set.
func (f *flight) read(rs []zk.MultiResponse) {
	i := f.before()
	for _, u := range f.units {
		if last := i + len(u.ops) - 1; last < len(rs) {
			u.stat = rs[last].Stat
		}
		i += u.count()
	}
}

// draw gives the grants their tokens. Those that cannot have one end.
func (f *flight) draw(c *clock) {
	us, clocked := c.now()
	f.pots = slices.DeleteFunc(f.pots, func(p *pot) bool {
		if p.draws = p.bucket.state(); !p.known {
			p.bucket.leave()
		}
		return !p.known
	})
	f.units = slices.DeleteFunc(f.units, func(u *unit) bool {
		if u.bucket == nil {
			return false
		}
		err := errDrawn
		if clocked && u.pot.known {
			u.token, u.reserved, err = u.pot.draw(u.r, us)
		}
		if err != nil {
			u.end(0, err)
		}
		return err != nil
	})
}

// ops are the operations of the flight. The library could not read the answer if a container's were the first.
func (f *flight) ops(s *session) []any {
	ops := make([]any, 0, 2+len(f.pots)+4*len(f.units))
	if f.gates != nil {
		ops = append(ops, f.gates)
	}
	for _, p := range f.pots {
		ops = append(ops, p.op())
	}
	asked := backend.Now()
	for _, u := range f.units {
		u.asked = asked
		ops = append(ops, u.ops...)
		if u.bucket != nil {
			data := holding(u.r, u.token, u.pot.after()).bytes()
			ops = append(ops, &zk.CreateRequest{Path: u.held, Data: data, Acl: s.d.acl, Flags: zk.FlagEphemeral})
		}
	}
	if f.noted {
		ops = append(ops, f.mark.op(s, f.number))
	}
	return ops
}

// settle finds out whether a flight was done whose answer was lost. The session's requests are done in order, so what is not done now
// will never be.
func (f *flight) settle(s *session) {
	for {
		n, err := synced(context.Background(), s, f.mark.path(s))
		switch {
		case err == nil:
			f.mark.there = true
			if string(n.data) == strconv.FormatInt(f.number, 10) {
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

// land hands out the results. It returns the units that are to leave again, because an operation failed that is none of theirs.
func (f *flight) land(d *Driver) (again []*unit) {
	i := f.index
	for _, p := range f.pots {
		switch {
		case f.err == nil:
			p.bucket.drawn(p.after())
		case f.err != nil && i < 0:
			p.bucket.forget()
		}
		defer p.bucket.leave()
	}
	if f.err == nil || i < 0 {
		for _, u := range f.units {
			u.end(-1, f.err)
		}
		return nil
	}
	if f.gates != nil && i == 0 {
		return f.refuse(f.meaning(errGates, zk.ErrBadVersion))
	}
	if i -= f.before(); i < 0 {
		d.forgetCounters() // if one has changed, others may have too
		return f.refuse(f.meaning(errDrawn, zk.ErrBadVersion))
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

// meaning is the failure of a flight: as if it is one of what is expected.
func (f *flight) meaning(as, expected error) error {
	if errors.Is(f.err, expected) || errors.Is(f.err, zk.ErrNoNode) {
		return as
	}
	return f.err
}

// refuse ends the grants; the others leave again.
func (f *flight) refuse(err error) (again []*unit) {
	for _, u := range f.units {
		if u.bucket == nil {
			again = append(again, u)
		} else {
			u.end(0, err)
		}
	}
	return again
}
