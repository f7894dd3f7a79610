package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxDraws is how often a claim is sent again because others have changed what it depends on.
const maxDraws = 30

// errAgain: nothing was done, and the claim is to be sent again.
var errAgain = errors.New("again")

// Ask implements backend.Driver: one multi, if the lock is free. What others have changed meanwhile
// is asked for, and the claim sent again.
func (st *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		p := st.place(c)
		p.endEnter()
		if c.Err = p.settle(ctx); c.Err != nil {
			continue
		}
		if c.Err = p.each(ctx, p.prepare); c.Err != nil && c.Wait && p.s != nil {
			c.Err = p.s.unheard(c.Err)
		}
		if errors.Is(c.Err, backend.ErrLocked) && !c.Wait { // it has made nothing, and will not be given up
			p.stop()
			c.Place = nil
		}
	}
}

// each sends a unit after the other until one is answered.
func (p *place) each(ctx context.Context, prepare func(context.Context) (*unit, error)) error {
	err := errAgain
	for tries := 0; errors.Is(err, errAgain); tries++ {
		u, failed := prepare(ctx)
		if u == nil {
			return failed
		}
		if err := p.s.send(ctx, u); err != nil {
			return err
		}
		err = p.answer(ctx, u)
		if errors.Is(err, errAgain) && tries == maxDraws {
			return backend.Refusal(u.err)
		}
	}
	return err
}

// prepare returns what is to be sent for a grant; nil: the answer is known.
func (p *place) prepare(ctx context.Context) (*unit, error) {
	if p.left {
		return nil, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	if u := p.landed; u != nil && u.bucket != nil && u.err == nil {
		return nil, p.answer(ctx, u)
	}
	if p.isGranted() {
		return nil, p.again(ctx)
	}
	u, err := p.attempt(ctx)
	if err != nil && !p.isGranted() && !backend.Final(err) && !errors.Is(err, backend.ErrGates) {
		err = backend.Refusal(err) // nothing was sent but questions
	}
	return u, err
}

func (p *place) attempt(ctx context.Context) (*unit, error) {
	st, c := p.st, p.c
	s, err := p.session(ctx)
	if err != nil {
		return nil, err
	}
	if p.doubt {
		if err := p.recover(ctx, s); err != nil {
			return nil, err
		}
		if p.isGranted() {
			return nil, p.again(ctx)
		}
	}
	gates, err := st.gates.judged(ctx, s, c)
	if err != nil {
		return nil, err
	}
	u := &unit{p: p, gates: gates, bucket: st.bucket(c.Name)}
	if c.Wait && (p.wait != "" && !p.turn || p.wait == "" && (p.taken || st.wasHeld(p.lock))) {
		return nil, p.queued()
	}
	if p.wait != "" {
		u.ops = []any{&zk.DeleteRequest{Path: p.lock + "/" + p.wait, Version: -1}}
	} else {
		if err := p.glance(ctx, s); err != nil {
			return nil, err
		}
		if p.empty {
			// The container is taken down only if it is empty, and what is not there can be made.
			u.ops = []any{&zk.DeleteRequest{Path: p.lock, Version: -1}}
		}
		u.ops = append(u.ops, &zk.CreateRequest{Path: p.lock, Acl: st.acl, Flags: zk.FlagContainer})
	}
	if err := p.draw(ctx, s); err != nil {
		return nil, err
	}
	return u, nil
}

// draw makes it known what a grant depends on.
func (p *place) draw(ctx context.Context, s *session) error {
	if p.missing {
		if err := s.ensure(ctx); err != nil {
			return err
		}
		p.missing = false
	}
	if _, err := p.st.gates.load(ctx, s, false); err != nil {
		return err
	}
	if err := p.st.bucket(p.r.Name).load(ctx, s); err != nil {
		return err
	}
	_, err := s.time(ctx)
	return err
}

// queued is the answer to a waiter whose turn has not come.
func (p *place) queued() error {
	p.taken = true
	p.c.Queued, p.c.Next = p.wait != "" && p.s.watching(p.watched, p.watch), p.next
	if !p.c.Queued { // Enter joins, or stands again
		p.c.Next = time.Millisecond
	}
	return backend.ErrLocked
}

// glance returns nil if the lock is free, as far as that is known. To ask for a lock that is held
// costs the servers a write that fails, to look costs a read: so it looks only where the lock was
// held just now.
func (p *place) glance(ctx context.Context, s *session) error {
	if !p.taken {
		if !p.st.wasHeld(p.lock) {
			return nil
		}
		if err := s.sync(ctx); err != nil { // another's release may be on its way to our server
			return err
		}
	}
	p.taken, p.empty = false, false
	l, err := s.line(ctx, p.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	held := l.held != "" || len(l.waiters) > 0
	p.st.note(p.lock, held)
	switch {
	case !held:
		p.empty = err == nil // its holder died, and the servers have not taken it down yet
		return nil
	case l.held == "":
		if err := s.suspect(ctx, p.lock, l); err != nil {
			return err
		}
	}
	return backend.ErrLocked
}

// answer is that to a claim whose unit has ended.
func (p *place) answer(ctx context.Context, u *unit) error {
	p.landed = nil
	if p.c.Leaving {
		return p.answerLeave(u)
	}
	switch i := u.index; {
	case u.err == nil && p.s.covers(u.asked, p.length()):
		return p.hand(ctx)
	case u.err == nil:
		return p.again(ctx) // the session had been silent for long
	case i < 0 && !u.sent:
		return backend.Refusal(u.err)
	case i < 0:
		return u.err
	case errors.Is(u.err, errGates):
		p.st.gates.outdated(u.gates)
	case errors.Is(u.err, errDrawn):
	case errors.Is(u.err, zk.ErrNodeExists):
		if p.taken = true; p.c.Wait {
			return p.queued()
		}
	case p.wait != "" && i == 0 && errors.Is(u.err, zk.ErrNoNode): // taken for dead, or cleaned up
		p.wait, p.turn = "", false
		return p.queued()
	case p.empty && (errors.Is(u.err, zk.ErrNotEmpty) || errors.Is(u.err, zk.ErrNoNode)):
		p.empty = false
	case errors.Is(u.err, zk.ErrNoNode):
		p.missing = true
	default:
		return u.err
	}
	return errAgain
}

// land takes in what became of a unit.
func (u *unit) land() {
	p := u.p
	switch {
	case u.join && u.err == nil:
		_, p.wait, _ = strings.Cut(u.last.String, p.lock+"/")
		p.doubt = p.wait == "" // the answer was lost, and it is known that it was done
	case u.join:
	case u.bucket == nil:
		return // a release, which says so itself
	case u.err == nil:
		p.granted(u.token, u.reserved, u.pot.after(), u.asked)
	}
	p.doubt = p.doubt || u.err != nil && u.index < 0 && u.sent
}

// time returns the servers' clock in microseconds. It asks only if it has not heard of it for long.
func (s *session) time(ctx context.Context) (int64, error) {
	if us, known := s.st.clock.now(); known {
		return us, nil
	}
	err := s.ensured(ctx, func() error { return s.touch(ctx) })
	us, _ := s.st.clock.now()
	return us, err
}
