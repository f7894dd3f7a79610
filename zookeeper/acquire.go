package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Acquire implements backend.Driver: one multi if the lock is free.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	e, err := d.entry(r)
	if err != nil {
		return backend.Grant{}, err
	}
	var g backend.Grant
	look := func(ctx context.Context) (bool, time.Duration, error) {
		var done bool
		var next time.Duration
		var err error
		g, done, next, err = e.look(ctx)
		return done, next, err
	}
	if r.Wait {
		if err := backend.Wait(ctx, e.wake, look); err != nil {
			return backend.Grant{}, err
		}
		return g, nil
	}
	done, _, err := look(ctx)
	if cutOff(err) || errors.Is(err, errEnded) { // once more, on the next connection
		done, _, err = look(ctx)
	}
	switch {
	case err == nil && done:
		return g, nil
	case err == nil:
		d.drop(e) // it has made nothing
		err = backend.ErrLocked
	}
	return backend.Grant{}, err
}

// look does what is next: it finds what an unanswered request did, takes a free lock, or stands in the queue.
func (e *entry) look(ctx context.Context) (g backend.Grant, done bool, next time.Duration, err error) {
	if e.lapsed() {
		return g, false, 0, backend.ErrLost
	}
	if e.grant != nil {
		g, err = e.again(ctx)
		return g, err == nil, 0, err
	}
	s, err := e.session(ctx)
	if err != nil {
		return g, false, 0, err
	}
	if e.doubt {
		if err := e.recover(ctx, s); err != nil {
			return g, false, 0, err
		}
		if e.grant != nil {
			g, err = e.again(ctx)
			return g, err == nil, 0, err
		}
	}
	if n := e.news.Swap(nil); n != nil && n.mine == e.wait {
		if g, done, next, err = e.follow(ctx, s, n.gone); !errors.Is(err, errMoved) {
			return g, done, next, err
		}
	}
	for range 8 {
		if e.wait == "" {
			if _, err := e.admitted(ctx, s); err != nil { // also where somebody holds the lock
				return g, false, 0, err
			}
			if !e.r.Wait || !s.d.wasHeld(e.lock) {
				if g, done, err = e.take(ctx, s); done || err != nil || !e.r.Wait {
					return g, done, 0, err
				}
			}
			if err := e.join(ctx, s); err != nil {
				if errors.Is(err, zk.ErrNoNode) { // free meanwhile
					s.d.note(e.lock, false)
					continue
				}
				return g, false, 0, err
			}
		}
		g, done, next, err = e.stand(ctx, s)
		if !errors.Is(err, errMoved) {
			return g, done, next, err
		}
	}
	return g, false, 10 * time.Millisecond, nil // others are busy here: look again
}

// errMoved: the queue changed between two requests.
var errMoved = errors.New("the queue has changed")

// again confirms a grant that was given before, or whose answer was lost.
func (e *entry) again(ctx context.Context) (backend.Grant, error) {
	asked, err := e.confirm(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	if !e.renew(asked) {
		return backend.Grant{}, backend.ErrLost
	}
	g := *e.grant
	g.Asked = asked
	return g, nil
}

// confirm asks until the session surely lasts for the TTL after the asking.
func (e *entry) confirm(ctx context.Context) (backend.Instant, error) {
	for {
		asked := backend.Now()
		i, err := e.s.multi(ctx, &zk.CheckVersionRequest{Path: e.held, Version: -1})
		switch {
		case i == 0 && errors.Is(err, zk.ErrNoNode), errors.Is(err, errEnded):
			return asked, backend.ErrLost
		case err != nil:
			return asked, err
		case e.s.covers(asked, e.r.TTL):
			return asked, nil
		}
		if err := pause(ctx, report(e.s.most())+time.Millisecond); err != nil {
			return asked, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recover finds what a request did that was not answered.
func (e *entry) recover(ctx context.Context, s *session) error {
	if err := e.quiet(ctx); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return err
	}
	l, err := s.line(ctx, e.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	e.wait = ""
	if l.held == heldMark+e.r.Nonce {
		n, err := get(ctx, s, e.held)
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return err
		default:
			r, ok := readRecord(n.data)
			if !ok || n.stat.EphemeralOwner != s.owner() {
				return errEnded // left by a session of ours that is over: it goes by itself
			}
			e.d.bucket(e.r.Name).hint(r.version, r.token+r.ahead)
			e.granted(r.token, 0, draws{version: r.version, last: r.token + r.ahead}, backend.Now()) // the time is confirmed next
			return nil
		}
	}
	for _, w := range l.waiters {
		if w[len(waitMark):len(waitMark)+nonceLen] != e.r.Nonce {
			continue
		}
		n, err := get(ctx, s, e.lock+"/"+w)
		if err == nil && n.stat.EphemeralOwner == s.owner() {
			e.wait = w
		} else if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	e.doubt = false
	return nil
}

// take takes the lock if nobody has it and nobody waits; otherwise it is not done.
func (e *entry) take(ctx context.Context, s *session) (backend.Grant, bool, error) {
	seen := unseen
	if s.d.wasHeld(e.lock) {
		err := s.sync(ctx) // another's release may be on its way to our server
		if err == nil {
			seen, err = e.glance(ctx, s)
		}
		if err != nil || seen == occupied {
			return backend.Grant{}, false, err
		}
	}
	var drawn error
	for range maxDraws {
		ops := []any{&zk.CreateRequest{Path: e.lock, Acl: s.d.acl, Flags: zk.FlagContainer}}
		if seen == empty {
			// The container is taken down only if it is empty, and what is not there can be made.
			ops = append([]any{&zk.DeleteRequest{Path: e.lock, Version: -1}}, ops...)
		}
		g, i, err := e.grab(ctx, s, ops...)
		if drawn = nil; errors.Is(err, errDrawn) {
			drawn = err
		}
		switch {
		case err == nil:
			return g, true, nil
		case drawn != nil, errors.Is(err, zk.ErrNodeExists): // who has the lock now may have drawn
			if seen, err = e.glance(ctx, s); err != nil || seen == occupied {
				return g, false, err
			}
		case seen == empty && i >= 0 && (errors.Is(err, zk.ErrNotEmpty) || errors.Is(err, zk.ErrNoNode)):
			seen = unseen
		case i >= 0 && errors.Is(err, zk.ErrNoNode):
			if err := s.ensure(ctx); err != nil {
				return g, false, err
			}
		default:
			return g, false, err
		}
	}
	return backend.Grant{}, false, drawn
}

// sight is what a look at a lock's node shows.
type sight int

const (
	unseen   sight = iota // no node, as far as is known
	empty                 // its holder died, and the servers have not taken the container down yet
	occupied              // somebody holds or waits
)

// glance looks at the lock's node from outside the queue.
func (e *entry) glance(ctx context.Context, s *session) (sight, error) {
	l, err := s.line(ctx, e.lock)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		s.d.note(e.lock, false)
		return unseen, nil
	case err != nil:
		return unseen, err
	case l.held == "" && len(l.waiters) == 0:
		s.d.note(e.lock, false)
		return empty, nil
	}
	s.d.note(e.lock, true)
	if l.held == "" {
		err = s.suspect(ctx, e.lock, l)
	}
	return occupied, err
}

// grab draws a token, does ops, and makes the holder's node, all in one step, as long as the gates let the request in.
func (e *entry) grab(ctx context.Context, s *session, ops ...any) (backend.Grant, int, error) {
	b := e.d.bucket(e.r.Name)
	for tries := 0; ; tries++ {
		gates, err := e.admitted(ctx, s)
		if err != nil {
			return backend.Grant{}, -1, err
		}
		if err := b.load(ctx, s); err != nil {
			return backend.Grant{}, -1, err
		}
		if _, err := s.time(ctx); err != nil {
			return backend.Grant{}, -1, err
		}
		u := &unit{ops: ops, ended: e.takeOff(), grant: grant{r: e.r, bucket: b, held: e.held, gates: gates.same(e.d.at)}}
		e.doubt = true
		i, err := s.send(ctx, u)
		switch {
		case err == nil:
			g := e.granted(u.token, u.reserved, u.pot.after(), u.asked)
			if !s.covers(u.asked, e.r.TTL) { // the session had been silent for long
				g, err = e.again(ctx)
			}
			return g, -1, err
		case i < 0:
			return backend.Grant{}, i, err
		}
		e.doubt = false
		switch {
		case errors.Is(err, errGates) && tries < maxDraws:
			e.d.gates.outdated(gates)
		case errors.Is(err, errDrawn) && tries < maxDraws && e.wait != "": // the lock is ours to take
		default:
			return backend.Grant{}, i, err
		}
	}
}

// maxDraws is how often a grant is asked for again because others have changed what it depends on.
const maxDraws = 30

// time returns the servers' clock in microseconds. It asks only if it has not heard of it for long.
func (s *session) time(ctx context.Context) (int64, error) {
	if us, known := s.d.clock.now(); known {
		return us, nil
	}
	err := s.ensured(ctx, func() error { return s.touch(ctx) })
	us, _ := s.d.clock.now()
	return us, err
}
