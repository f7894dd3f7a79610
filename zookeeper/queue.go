package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// claim is how long the first in the queue may leave a free lock untaken before the others take it for dead.
	claim = 2 * time.Second
	// nearFloor is how often the first two in the queue look, in case a push is lost or the one before
	// them is dead; farFloor is for the others.
	nearFloor = 2 * time.Second
	farFloor  = 5 * time.Second
	// maxSuspects bounds what is remembered of queues that do not move, and of names that were held.
	maxSuspects = 1000
	// busyFor is how long a name that was found held is looked at before it is asked for.
	busyFor = 2 * time.Second
)

// node is a node's data and what the server says of it.
type node struct {
	data []byte
	stat *zk.Stat
}

func get(ctx context.Context, s *session, path string) (node, error) {
	return call(ctx, s, func(c *zk.Conn) (node, error) {
		data, stat, err := c.Get(path)
		return node{data, stat}, err
	})
}

// sync makes what the session reads next as new as anything that was answered to anyone before. ZooKeeper's own sync is not enough: a
// leader that has lost its followers, and does not know yet, answers it. A write is agreed on by a majority, and a session sees its
// own. Who may not write, or finds nothing to write to, has to be content with sync.
func (s *session) sync(ctx context.Context) error {
	err := s.touch(ctx)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		_, err = call(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(s.d.at.root) })
	}
	return err
}

// touch writes something: the answer also tells the time.
func (s *session) touch(ctx context.Context) error {
	stat, err := call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.d.at.done, nil, -1) })
	if err == nil {
		s.d.clock.heard(stat.Mtime)
	}
	return err
}

// synced is get of what the leader has.
func synced(ctx context.Context, s *session, path string) (node, error) {
	if err := s.sync(ctx); err != nil {
		return node{}, err
	}
	return get(ctx, s, path)
}

func number(t backend.Token) []byte { return strconv.AppendInt(nil, t, 10) }

// sortWaiters puts those who came first first. The numbers are compared by their difference, since
// they start again after 2^32.
func sortWaiters(ws []string) {
	slices.SortFunc(ws, func(a, b string) int { return int(place(a) - place(b)) })
}

// line reads who stands at a lock.
func (s *session) line(ctx context.Context, lock string) (line, error) {
	children, err := call(ctx, s, func(c *zk.Conn) ([]string, error) {
		children, _, err := c.Children(lock)
		return children, err
	})
	if err != nil {
		return line{}, err
	}
	l := readLine(children)
	if l.strange != "" {
		return l, backend.Invalid("the node %s/%s was made by another program: nothing but locks may be there", lock, l.strange)
	}
	return l, nil
}

// join takes a place at the end of the queue.
func (e *entry) join(ctx context.Context, s *session) error {
	e.doubt = true
	path, err := tracked(ctx, s, e.takeOff(), func(c *zk.Conn) (string, error) {
		return c.Create(e.lock+"/"+waitMark+e.r.Nonce+"-", []byte(e.r.Owner), zk.FlagEphemeralSequential, s.d.acl)
	})
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		e.doubt = false
	}
	if err == nil {
		e.wait = path[len(e.lock)+1:]
	}
	return err
}

// stand looks at the queue from our place in it: it takes the lock if it is ours to take, and otherwise
// watches the one before us. errMoved: look again.
func (e *entry) stand(ctx context.Context, s *session) (g backend.Grant, done bool, next time.Duration, err error) {
	l, err := s.line(ctx, e.lock)
	if errors.Is(err, zk.ErrNoNode) {
		e.wait = ""
		return g, false, 0, errMoved
	}
	if err != nil {
		return g, false, 0, err
	}
	at := slices.Index(l.waiters, e.wait)
	if at < 0 { // unless the server is behind
		if err := s.sync(ctx); err != nil {
			return g, false, 0, err
		}
		if l, err = s.line(ctx, e.lock); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return g, false, 0, err
		}
		at = slices.Index(l.waiters, e.wait)
	}
	e.others = at+1 < len(l.waiters)
	switch {
	case at < 0: // somebody took us for dead, or cleaned up
		e.wait = ""
		return g, false, 0, errMoved
	case l.held == "" && at == 0:
		g, done, err = e.advance(ctx, s)
		return g, done, 0, err
	case l.held == "":
		if err := s.suspect(ctx, e.lock, l); err != nil {
			return g, false, 0, err
		}
	}
	before := l.held
	if at > 0 {
		before = l.waiters[at-1]
	}
	next = farFloor
	if at <= 1 {
		next = nearFloor
	}
	if l.held == "" {
		next = claim / 4
	}
	s.d.note(e.lock, true)
	return g, false, next, e.watchNode(ctx, s, before)
}

// follow goes on when the node that we watched has gone. After the holder the lock is ours, for we were the first in the queue and
// who is first remains so. A waiter before us has the lock now or has had it, unless it gave up: if so it was the first, and now
// we are. errMoved: look at the queue.
func (e *entry) follow(ctx context.Context, s *session, gone string) (g backend.Grant, done bool, next time.Duration, err error) {
	e.others = true // probably: others came since we looked
	if isWait(gone) {
		nonce := gone[len(waitMark) : len(waitMark)+nonceLen]
		if err := e.watchNode(ctx, s, heldMark+nonce); !errors.Is(err, errMoved) {
			return g, false, nearFloor, err
		}
		if passed, err := e.passedOn(ctx, s, nonce); !passed {
			return g, false, 0, err
		}
	}
	g, done, err = e.advance(ctx, s)
	return g, done, 0, err
}

// passedOn reports whether the last release that found somebody in the queue was that of a holder; otherwise the error is errMoved, or
// why it is not known. What a release says of the counter is what our own grant will find.
func (e *entry) passedOn(ctx context.Context, s *session, nonce string) (bool, error) {
	n, err := get(ctx, s, e.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return false, err
	}
	p, ok := readPassing(n.data)
	if !ok || p.nonce != nonce {
		return false, errMoved
	}
	e.d.bucket(e.r.Name).hint(p.version, p.last)
	return true, nil
}

// advance takes a lock that is free and ours to take, out of the first place in the queue.
func (e *entry) advance(ctx context.Context, s *session) (backend.Grant, bool, error) {
	g, i, err := e.grab(ctx, s, &zk.DeleteRequest{Path: e.lock + "/" + e.wait, Version: -1})
	switch {
	case err == nil:
		return g, true, nil
	case i == 0 && errors.Is(err, zk.ErrNoNode):
		e.wait = ""
		return g, false, errMoved
	case isRefusal(err) && s.remove(ctx, e.lock+"/"+e.wait) == nil: // the next in the queue goes on; otherwise Abandon sees to it
		e.wait = ""
	}
	return g, false, err
}

// watchNode makes the end of the node before ours wake us. errMoved: it has gone already.
func (e *entry) watchNode(ctx context.Context, s *session, name string) error {
	path := e.lock + "/" + name
	if e.watched == path && s.watching(path, e.watch) {
		return nil
	}
	e.unwatch()
	ended := news{mine: e.wait, gone: name}
	w, data, err := s.watchEnd(ctx, path, func(gone bool) {
		if gone {
			e.news.Store(&ended)
		}
		e.poke()
	})
	if errors.Is(err, zk.ErrNoNode) {
		return errMoved
	}
	if err != nil {
		return err
	}
	e.watched, e.watch = path, w
	if r, ok := readRecord(data); ok && isHeld(name) {
		e.d.bucket(e.r.Name).hint(r.version, r.token+r.ahead) // what our own grant will find
	}
	return nil
}

// suspect is the first in a queue whose lock is free, and since when it was seen there.
type suspect struct {
	node  string
	since time.Time
}

// suspect is called when a lock is free and somebody else is first in its queue. If that one does not take it
// for long enough it is dead, or as good as dead: it loses its place.
func (s *session) suspect(ctx context.Context, lock string, l line) error {
	d, now, first := s.d, time.Now(), l.waiters[0]
	d.mu.Lock()
	known := d.suspects[lock]
	if known.node != first {
		if len(d.suspects) >= maxSuspects {
			clear(d.suspects)
		}
		d.suspects[lock] = suspect{first, now}
		d.mu.Unlock()
		return nil
	}
	over := now.Sub(known.since) >= claim
	if over {
		delete(d.suspects, lock)
	}
	d.mu.Unlock()
	if !over {
		return nil
	}
	return s.remove(ctx, lock+"/"+first)
}

// note remembers that a name was found held; wasHeld says whether it was just now. To ask for a lock that is
// held costs the servers a write that fails, to look costs a read.
func (d *Driver) note(lock string, held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !held:
		delete(d.busy, lock)
		return
	case len(d.busy) >= maxSuspects:
		clear(d.busy)
	}
	d.busy[lock] = time.Now()
}

func (d *Driver) wasHeld(lock string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.busy[lock]
	return known && time.Since(at) < busyFor
}

// remove deletes a node that may be gone.
func (s *session) remove(ctx context.Context, path string) error {
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return err
}
