package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// How a claim takes a lock that is not free. "Readers and permits" in the package comment says why no step comes too
// late for what it has seen.

// waiter is how the name of our node in the queue begins.
func (p *place) waiter() string {
	switch p.r.Mode {
	case backend.Reader:
		return waitReadMark + p.r.Nonce + "-"
	case backend.Permit:
		return fmt.Sprintf("%s%s-%d-", waitPermMark, p.r.Nonce, p.r.Limit)
	}
	return waitMark + p.r.Nonce + "-"
}

// holder is the path of the node that makes the claim a hold.
func (p *place) holder(slot int) string {
	switch p.r.Mode {
	case backend.Reader:
		return p.lock + "/" + readMark + p.r.Nonce
	case backend.Permit:
		return fmt.Sprintf("%s/%s%s-%d-%d", p.lock, permMark, p.r.Nonce, p.r.Limit, slot)
	}
	return p.lock + "/" + heldMark + p.r.Nonce
}

// see looks at the queue from our place in it, and notes whether the lock is ours to take. errMoved: we have
// no place any more.
func (p *place) see(
	ctx context.Context, list func(context.Context, string) (line, error),
) (l line, at int, err error) {
	if l, err = list(ctx, p.lock); errors.Is(err, zk.ErrNoNode) {
		p.wait = ""
		return l, -1, errMoved
	}
	if err != nil {
		return l, -1, err
	}
	if at = l.at(p.wait); at < 0 { // unless the server is behind
		if err := p.s.sync(ctx); err != nil {
			return l, -1, err
		}
		if l, err = list(ctx, p.lock); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return l, -1, err
		}
		at = l.at(p.wait)
	}
	if at < 0 { // somebody took us for dead, or cleaned up
		p.wait = ""
		return l, at, errMoved
	}
	p.others = len(l.holds) > 0 || at+1 < len(l.waiters)
	return l, at, p.judge(ctx, l, at)
}

// judge notes whether the lock is ours to take, at a place in the queue, and what comes with that. errMoved: the
// reader that it was to join has gone.
func (p *place) judge(ctx context.Context, l line, at int) error {
	t := l.turn(p.r, at)
	if t != nil && t.beside != "" {
		n, err := get(ctx, p.s, p.lock+"/"+t.beside)
		if errors.Is(err, zk.ErrNoNode) {
			return errMoved
		}
		if err != nil {
			return err
		}
		r, ok := readRecord(n)
		if !ok {
			return backend.Invalid("the node %s/%s was made by another program: nothing but locks may be there",
				p.lock, t.beside)
		}
		told := backend.Token(0)
		if l.stat.Version != 0 { // data were written
			if n, err = get(ctx, p.s, p.lock); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return err
			}
			if err == nil {
				_, told = readPassing(n)
			}
		}
		t.joins(p.r, r.Token, told)
	}
	p.turn = t
	return nil
}

// head is about the first in the queue of a lock that is shared, as long as that may not hold: it would keep
// those behind it out for as long as its session lasts. So it says that it lives, by writing into its node when
// it looks. It returns what it has said so far, as another sees it; otherwise silentHead.
func (p *place) head(ctx context.Context, l line, at int) (said int32, err error) {
	if len(l.holds) == 0 || l.held() != "" || l.due() {
		return silentHead, nil
	}
	if at == 0 && time.Since(p.said) < nearFloor/4 {
		return silentHead, nil
	}
	path := p.lock + "/" + l.waiters[0].node
	stat, err := call(ctx, p.s, func(c *zk.Conn) (*zk.Stat, error) {
		if at == 0 {
			return c.Set(path, []byte(p.c.Owner), -1)
		}
		_, stat, err := c.Get(path)
		return stat, err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return silentHead, errMoved
	case err != nil:
		return silentHead, err
	case at == 0:
		p.said = time.Now()
		return silentHead, nil
	}
	return stat.Version, nil
}

// silentHead: nobody has asked what the first in the queue said. As the version of a node it stands for any.
const silentHead = -1

// watchFront makes what is in front of the claim wake it. errMoved: it has gone already.
func (p *place) watchFront(ctx context.Context, l line, at int) error {
	if front := l.front(p.r, at); front != "" {
		// What the first in the queue says wakes the next one. Many readers may be behind that.
		return p.watchNode(ctx, front, at > 1 && p.r.Mode == backend.Reader)
	}
	return p.watchLine(ctx)
}

// watchLine makes every change of the lock's holders and queue wake the claim: for the first in the queue
// for a permit, which any holder's release may let in.
func (p *place) watchLine(ctx context.Context) error {
	if p.watched == p.lock && p.s.watching(p.lock, p.watch) {
		return nil
	}
	p.unwatch()
	c, s := p.c, p.s
	w, armed := s.expect(p.lock, func(bool) { c.Wake(0) })
	list := s.line
	if !armed {
		list = s.lineWatched
	}
	_, _, err := p.see(ctx, list)
	if err != nil {
		s.ignore(p.lock, w)
		return err
	}
	p.watched, p.watch = p.lock, w
	if p.turn != nil {
		return p.draw(ctx)
	}
	return nil
}

// stepMost is how long a try stands behind others that may take what they want and do not move, and stepLooks how
// often it looks at them all the same, for those whose requests take long.
const (
	stepMost  = 200 * time.Millisecond
	stepLooks = 5
)

// step is for a try beside other holders. It joins the queue, so that what it finds remains true, and
// leaves it if it would have to wait.
func (p *place) step(ctx context.Context) error {
	p.taken = true
	front, since, looks := -1, time.Time{}, 0 // how many stand in front, since when, and for how many looks
	for moved := 0; moved < 8; {
		if p.wait == "" {
			moved++
			if err := p.queue(ctx); err != nil || !p.taken { // or free meanwhile
				return err
			}
			continue // the answer may have been lost
		}
		l, at, err := p.see(ctx, p.s.line)
		if looks++; at != front {
			front, since, looks = at, time.Now(), 0
		}
		switch {
		case err == nil && p.turn == nil && l.soon(p.r, at) && (looks < stepLooks || time.Since(since) < stepMost):
			select {
			case <-time.After(2*time.Millisecond + rand.N(4*time.Millisecond)):
			case <-ctx.Done():
				return ctx.Err()
			}
		case err == nil && p.turn == nil:
			moved = 8
		case !errors.Is(err, errMoved):
			return err
		case p.wait != "": // the reader that it was to join has gone
			moved++
		}
	}
	if p.wait != "" {
		if err := p.s.erase(ctx, p.lock, []string{p.lock + "/" + p.wait}); err != nil {
			return err
		}
		p.wait = ""
	}
	return backend.ErrLocked
}

// breakAll ends all holds of a group, also of readers that have joined meanwhile.
func (s *session) breakAll(ctx context.Context, lock string, l line) error {
	shown := s.show(ctx, lock, l.holds)
	last := backend.Token(0)
	for _, h := range shown {
		last = max(last, h.Token)
	}
	for {
		old := slices.DeleteFunc(shown, func(h shownHold) bool {
			return h.Token > last || h.err == nil && !h.there // granted since, or gone
		})
		if len(old) == 0 {
			return s.erase(ctx, lock, nil)
		}
		errs := make([]error, len(old))
		abreast(len(old), func(i int) {
			if errs[i] = old[i].err; errs[i] == nil {
				errs[i] = s.remove(ctx, lock+"/"+old[i].node)
			}
		})
		err := errors.Join(errs...)
		if err == nil {
			l, err = s.line(ctx, lock)
		}
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		if err != nil {
			return err
		}
		shown = s.show(ctx, lock, l.holds)
	}
}

// shownHold is a hold, and what its node shows. Of one that is no record, or has gone, that is nothing.
type shownHold struct {
	entry
	record
	there  bool
	leaked bool // it is of no session
	err    error
}

// show reads the nodes of holds.
func (s *session) show(ctx context.Context, lock string, holds []entry) []shownHold {
	all := make([]shownHold, len(holds))
	abreast(len(holds), func(i int) {
		n, err := get(ctx, s, lock+"/"+holds[i].node)
		h := &all[i]
		switch h.entry = holds[i]; {
		case err == nil:
			h.record, _ = readRecord(n)
			h.there, h.leaked = true, n.stat.EphemeralOwner == 0
		case !errors.Is(err, zk.ErrNoNode):
			h.err = err
		}
	})
	return all
}
