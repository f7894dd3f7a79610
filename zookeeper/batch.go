package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// flightsMost is how many multis of units a session has under way.
	flightsMost = 4
	// batchMost is how many units go in one multi, and batchGood how many from the third multi at a
	// time on: the servers do few large requests faster than many small ones.
	batchMost, batchGood = 128, 16
	// jsonMost is how many bytes one of a text may become as JSON.
	jsonMost = 6
)

// unit is a few operations for a claim, of which all are done or none. Those of many claims go in
// one multi.
type unit struct {
	p      *place
	ops    []any
	noted  bool // it has to be known whether they were done, also if the answer is lost
	guess  guess
	missed bool          // another's guess of its flight was wrong
	grants bool          // it makes a hold
	gates  int32         // of a grant: the version of the gates with which it is done
	era    backend.Token // of a reader's grant beside others: their token, instead of one of its own
	tells  bool          // of a reader's: others are to have its token
	slot   int           // of a permit's

	done     chan struct{} // closed when the rest is there
	asked    backend.Instant
	token    backend.Token
	reserved int
	held     string // the path of the holder's node
	index    int    // the operation that failed; -1 with an error: see sent
	sent     bool   // with index -1: it is unknown whether they were done; otherwise they were not
	err      error
	last     zk.MultiResponse // of the last of ops; empty if the answer could not be read so far
}

// guess is what a unit takes for true without having looked. One that is wrong makes the whole multi fail: for a while
// after that units with different ones share none.
type guess int

const (
	none  guess = iota
	free        // nobody has the lock
	alone       // nobody waits for it
)

var (
	// errGates: the gates are not of the version that a unit wants, and nothing was done.
	errGates = errors.New("the gates of the keyspace change all the time")
	// errGuess: others' guesses were wrong, time and again, and this one's may be. Nothing was done.
	errGuess = errors.New("others of the locks asked for with it are taken")
	// errBase: the base of the tokens is not what it was known to be, and nothing was done.
	errBase = errors.New("the base of the tokens changes all the time")
)

// batch is what the units of a session wait in while enough are under way. The engine's own would
// not do: what is asked for again, after a slow answer or another's failure, goes together too.
type batch struct {
	mu      sync.Mutex
	queue   []*unit
	most    int // units in one multi
	flights int
	units   int       // of all of them
	wrong   time.Time // when a guess was wrong last
}

// send puts a unit in the queue.
func (s *session) send(u *unit) {
	u.done = make(chan struct{})
	s.batch.mu.Lock()
	s.batch.queue = append(s.batch.queue, u)
	s.batch.mu.Unlock()
	s.depart()
}

// await waits for the end of a unit; false: ctx ended before. With back the end of ctx takes back a
// unit that has not left, and one that has is waited for.
func (u *unit) await(ctx context.Context, back bool) bool {
	select {
	case <-u.done:
		return true
	case <-ctx.Done():
	}
	if !back {
		return false
	}
	b := &u.p.s.batch
	b.mu.Lock()
	i := slices.Index(b.queue, u)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	b.mu.Unlock()
	if i >= 0 {
		u.end(-1, ctx.Err())
	}
	<-u.done
	return true
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
		// While there is no connection the units stay in the queue.
		for f := s.board(m, s.await(context.Background())); f != nil; {
			s.depart() // what it could not take along
			f.fly()
			s.landed(f)
			runtime.Gosched() // callers that have just been answered may come along
			f = s.board(m, s.await(context.Background()))
		}
		s.marks <- m
	})
}

// board takes units out of the queue for the next multi; nil: there are not enough. ended: the session is over, and
// none leaves.
func (s *session) board(m *mark, ended error) *flight {
	b := &s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flights--
	if ended != nil {
		for _, u := range b.queue {
			u.end(-1, ended)
		}
		b.queue = nil
	}
	if !b.due() {
		return nil
	}
	f := &flight{s: s, mark: m, apart: time.Since(b.wrong) < busyFor}
	b.queue = slices.DeleteFunc(b.queue, func(u *unit) bool {
		return len(f.units) < b.most && f.load < requestLoad && f.add(u)
	})
	if len(f.units) == 0 {
		return nil
	}
	b.flights++
	f.size = len(f.units)
	b.units += f.size
	return f
}

// landed hands out the results of a flight. A unit that was not done because another's operation
// failed goes again, with fewer at a time.
func (s *session) landed(f *flight) {
	again := f.land()
	for _, u := range again {
		u.sent = false
	}
	b := &s.batch
	b.mu.Lock()
	b.units -= f.size
	b.queue = append(again, b.queue...)
	if f.wrong {
		b.wrong = time.Now()
	}
	if f.err == nil {
		b.most = min(b.most+b.most/2+1, batchMost)
	} else if f.index >= 0 && !f.wrong {
		b.most = max(b.most/2, 1)
	}
	b.mu.Unlock()
}

// flight leaves in one multi. It has, if it grants anything, the checks of the gates and the base and the write that
// tells the zxid; the units' operations; the mark.
type flight struct {
	s      *session
	units  []*unit
	others int // of them that are no grants, which come first
	size   int // units at its beginning
	load   int // bytes of their paths and texts, about
	first  int // the place of the first one's operations
	gated  bool
	apart  bool  // all have the same guess
	guess  guess // that of the first one
	wrong  bool  // one guess was wrong
	gates  int32
	origin origin
	raised bool  // the base is set, for a floor
	zxid   int64 // of the multi
	noted  bool
	mark   *mark

	index int // the operation that failed; -1 with an error: it is unknown whether they were done
	err   error
}

// add puts a unit on the flight, unless it wants other gates than those before it, or, if they are to be apart,
// guesses otherwise. The grants are behind the others: what comes in an answer after a container cannot be read.
func (f *flight) add(u *unit) bool {
	if len(f.units) == 0 {
		f.guess = u.guess
	} else if f.apart && f.guess != u.guess {
		return false
	}
	if u.grants {
		if f.gated && f.gates != u.gates {
			return false
		}
		f.gated, f.gates = true, u.gates
	}
	f.noted = f.noted || u.noted
	f.load += u.count()*u.p.load() + jsonMost*len(u.p.r.Owner+u.p.r.Move)
	if u.grants {
		f.units = append(f.units, u)
	} else {
		f.units = slices.Insert(f.units, f.others, u)
		f.others++
	}
	return true
}

// fly sends the flight.
func (f *flight) fly() {
	f.number()
	if len(f.units) == 0 {
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

// number puts the base so that the grants exceed their floors. Those that cannot be made end.
func (f *flight) number() {
	f.origin = f.s.st.base.state()
	us := f.s.st.clock.now()
	f.units = slices.DeleteFunc(f.units, func(u *unit) bool {
		if !u.grants {
			return false
		}
		var err error
		if !f.origin.known {
			err = errBase
		} else if u.era == 0 {
			var raised bool
			raised, err = f.origin.exceed(u.p.r.Floor, false, us)
			f.raised = f.raised || raised
		}
		if err != nil {
			u.end(0, err)
		}
		return err != nil
	})
	f.gated = f.others < len(f.units)
}

// count is how many operations of a flight are the unit's.
func (u *unit) count() int {
	n := len(u.ops)
	if u.grants {
		n++
	}
	if u.tells {
		n++
	}
	return n
}

// ops are the operations of the flight. The library could not read the answer if a container's were
// the first.
func (f *flight) ops() []any {
	st := f.s.st
	ops := make([]any, 0, 4+4*len(f.units))
	if f.gated {
		ops = append(ops, &zk.CheckVersionRequest{Path: st.at.locks, Version: f.gates})
		ops = append(ops, f.origin.keep(st.at, f.raised)...)
		ops = append(ops, &zk.SetDataRequest{Path: st.at.tokens + "/" + f.origin.last, Version: -1})
	}
	f.first = len(ops)
	asked := backend.Now()
	for _, u := range f.units {
		u.asked, u.sent = asked, true
		ops = append(ops, u.ops...)
		if u.grants {
			u.held = u.p.holder(u.slot)
			rec := record{Base: f.origin.add, Token: u.era, Owner: u.p.r.Owner}
			if u.p.r.Phase == backend.PhaseBoth {
				rec.Both = u.p.r.Move
			}
			ops = append(ops, &zk.CreateRequest{
				Path: u.held, Data: encoded(rec), Acl: st.acl, Flags: zk.FlagEphemeral,
			})
		}
		if u.tells {
			data := encoded(passing{Base: &f.origin.add})
			ops = append(ops, &zk.SetDataRequest{Path: u.p.lock, Data: data, Version: -1})
		}
	}
	if f.noted {
		ops = append(ops, f.mark.op(f.s))
	}
	return ops
}

// read takes in the zxid, and gives the units what the answer says of the last of their operations.
func (f *flight) read(rs []zk.MultiResponse) {
	i := f.first
	if f.gated && i <= len(rs) && rs[i-1].Stat != nil {
		f.zxid = rs[i-1].Stat.Mzxid
	}
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
	if f.err == nil || i < 0 {
		if f.err == nil && f.gated {
			f.s.st.base.saw(f.origin, f.zxid, f.raised, f.origin.token(f.zxid)+stride-1)
		}
		for _, u := range f.units {
			f.done(u)
		}
		return nil
	}
	if f.gated && i == 0 {
		return f.refuse(errGates)
	}
	if i -= f.first; i < 0 {
		f.s.st.base.outdated(f.origin)
		return f.refuse(errBase)
	}
	for _, u := range f.units {
		if i >= 0 && i < u.count() {
			f.wrong = u.guess != none && (errors.Is(f.err, zk.ErrNodeExists) || errors.Is(f.err, zk.ErrNotEmpty))
			u.end(i, f.err)
		} else {
			again = append(again, u)
		}
		i -= u.count()
	}
	if f.wrong { // where two are, many may be, and each would cost the others a request
		again = slices.DeleteFunc(again, func(u *unit) bool {
			missed := u.missed && u.guess != none
			if u.missed = true; missed {
				u.end(0, errGuess)
			}
			return missed
		})
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

// done ends a unit that was done, or of which it is unknown.
func (f *flight) done(u *unit) {
	switch {
	case f.err != nil || !u.grants:
		u.end(-1, f.err)
		return
	case f.zxid == 0: // the answer could not be read: the grant is looked for
		u.end(-1, zk.ErrAPIError)
		return
	case u.era > 0:
		u.token = u.era
	default:
		u.token = f.origin.token(f.zxid)
		if u.p.r.Mode != backend.Reader { // they have one number, and not several
			u.reserved = min(max(u.p.r.Reserve, 0), stride-1)
		}
	}
	u.end(-1, nil)
}

// refuse ends the grants, with err if that is what the failure means; the others leave again.
func (f *flight) refuse(err error) (again []*unit) {
	if !errors.Is(f.err, zk.ErrBadVersion) && !errors.Is(f.err, zk.ErrNoNode) {
		err = f.err
	}
	for _, u := range f.units {
		if !u.grants {
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
				f.err, f.zxid = nil, n.stat.Mzxid
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

// mark is an ephemeral node of a session, into which a flight with releases writes a number. So
// when its answer was lost it is found out whether the releases were done, or whether somebody else
// had taken the locks away. One flight has it at a time.
type mark struct {
	slot   int
	there  bool  // the node was created
	number int64 // what was written last
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
