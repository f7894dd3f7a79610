package zookeeper

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// claim is how long the first in the queue may leave a free lock untaken before the others take
	// it for dead.
	claim = 2 * time.Second
	// nearFloor is how often a waiter looks, in case a push is lost or one before it is dead.
	nearFloor = 2 * time.Second
)

// errMoved: the queue changed between two requests.
var errMoved = errors.New("the queue has changed")

// Enter implements backend.Driver. It does all that a waiter needs more than one request for: it
// joins the queue, and either finds that the lock is the claim's to take, which Ask does, or
// watches the node before it.
func (st *store) Enter(ctx context.Context, c *backend.Claim) error {
	return st.place(c).do(ctx, c, entering)
}

func (p *place) enter(ctx context.Context) error {
	if p.left || p.isGranted() {
		return nil
	}
	if err := p.s.covered(ctx, p.length()); err != nil {
		return err
	}
	if p.doubt {
		if err := p.recover(ctx); err != nil || p.isGranted() {
			return err
		}
	}
	if n := p.news.Swap(nil); n != nil && p.wait != "" && n.stand == p.stands {
		if err := p.follow(ctx, n.gone); !errors.Is(err, errMoved) {
			return err
		}
		p.seen = line{}
	}
	for range 8 {
		switch {
		case p.wait != "":
		case !p.taken: // Ask takes it
			return p.draw(ctx)
		default:
			if err := p.queue(ctx); err != nil {
				return err
			}
			continue
		}
		if p.turn != nil {
			return nil
		}
		if err := p.stand(ctx); !errors.Is(err, errMoved) {
			return err
		}
		p.seen = line{}
	}
	p.next = 10 * time.Millisecond // others are busy here
	return nil
}

// queue takes a place at the end of the queue, if there is one.
func (p *place) queue(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	u := &unit{p: p, ops: []any{&zk.CreateRequest{
		Path: p.lock + "/" + p.waiter(), Data: []byte(p.c.Owner), Acl: p.st.acl,
		Flags: zk.FlagEphemeralSequential,
	}}}
	p.s.send(u)
	u.await(ctx, true)
	switch {
	case u.err == nil:
		p.stands++
		_, p.wait, _ = strings.Cut(u.last.String, p.lock+"/")
		if p.wait == "" { // the answer was lost, and it is known that it was done
			p.doubt = true
			return p.recover(ctx)
		}
		return nil
	case u.index == 0 && errors.Is(u.err, zk.ErrNoNode): // free meanwhile
		p.taken = false
		return p.s.saw(ctx, p.lock, line{}, "", silentHead)
	}
	p.doubt = p.doubt || u.index < 0 && u.sent
	return u.err
}

// stand looks at the queue from our place in it: the lock may be ours to take; otherwise it watches
// what is in front of us. errMoved: look again.
func (p *place) stand(ctx context.Context) error {
	l, at, err := p.see(ctx, p.known)
	if err != nil {
		return err
	}
	if p.seen = (line{}); len(l.waiters) >= longLine {
		p.seen = l
	}
	said := int32(silentHead)
	if p.turn == nil {
		if said, err = p.head(ctx, l, at); err != nil {
			return err
		}
	}
	if p.turn == nil || len(l.holds) > 0 {
		if err := p.s.saw(ctx, p.lock, l, p.wait, said); err != nil {
			return err
		}
	}
	if p.turn != nil {
		return p.draw(ctx)
	}
	p.next = nearFloor
	switch {
	case l.due():
		p.next = claim / 4
	case at == 0 && l.held() == "": // it says that it lives
		p.next = nearFloor / 2
	case said != silentHead:
		if at == 1 { // it may have come to be the next without a push
			p.next = nearFloor / 2
		}
		p.next = min(p.next, p.st.quiet(p.lock))
	}
	return p.watchFront(ctx, l, at)
}

// longLine is the least queue that is not read again while it is known to be the same. Each waiter looks, so otherwise
// the load grows with the square of their number. A shorter queue costs no more to read than to compare.
const longLine = 16

// known is line, which is not read again if no node has come or gone since. A waiter with many in front reads it seldom
// then too, for each of those that is dead may delay it.
func (p *place) known(ctx context.Context, lock string) (line, error) {
	if len(p.seen.waiters) == 0 {
		return p.s.line(ctx, lock)
	}
	stat, err := call(ctx, p.s, func(c *zk.Conn) (*zk.Stat, error) {
		_, stat, err := c.Exists(lock)
		return stat, err
	})
	if err != nil {
		return line{}, err
	}
	soon := nearFloor * time.Duration(p.seen.at(p.wait)/longLine)
	if *stat != p.seen.stat && (p.seen.due() || time.Since(p.seen.read) >= soon) {
		return p.s.line(ctx, lock)
	}
	return p.seen, nil
}

// follow goes on when the node that we watched has gone. After the holder the lock is ours, for we
// were the first in the queue, and the first one remains so. A waiter before us has the lock now or
// has had it, unless it gave up: if so it was the first, and now we are. errMoved: look at the
// queue.
func (p *place) follow(ctx context.Context, gone string) error {
	before, _ := parse(gone)
	if p.r.Mode != backend.Exclusive || before.ask.Mode != backend.Exclusive || before.nonce == p.r.Nonce {
		return errMoved // an own one of an old session may have stood before others
	}
	p.others = true // probably: others came since we looked
	if before.waits {
		p.next = nearFloor
		if err := p.watchNode(ctx, heldMark+before.nonce, false); !errors.Is(err, errMoved) {
			return err
		}
		if err := p.passedOn(ctx, before.nonce); err != nil {
			return err
		}
	}
	p.turn = &turn{} // the lock is free and ours to take, and remains so
	return p.draw(ctx)
}

// passedOn returns nil if a holder wrote the last release that is to be read here; otherwise errMoved,
// or why it is not known.
func (p *place) passedOn(ctx context.Context, nonce string) error {
	n, err := get(ctx, p.s, p.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if last, _ := readPassing(n); last.Nonce != nonce {
		return errMoved
	}
	return nil
}

// watchNode makes the end of the node before ours wake us. errMoved: it has gone already.
func (p *place) watchNode(ctx context.Context, name string, quiet bool) error {
	path := p.lock + "/" + name
	if p.watched == path && p.s.watching(path, p.watch) {
		return nil
	}
	p.unwatch()
	c, ended := p.c, news{stand: p.stands, gone: name}
	w, err := p.s.watchEnd(ctx, path, quiet, func(gone bool) {
		if gone {
			p.news.Store(&ended)
		}
		c.Wake(0)
	})
	if errors.Is(err, zk.ErrNoNode) {
		return errMoved
	}
	if err != nil {
		return err
	}
	p.watched, p.watch = path, w
	return nil
}

// unwatch takes back what wakes a waiter.
func (p *place) unwatch() {
	if p.watch != nil {
		p.s.ignore(p.watched, p.watch)
	}
	p.watch, p.watched = nil, ""
}

// watch waits for the end of a node, once.
type watch struct{ f func(gone bool) }

// post is what is watched of one node. The client library has no way to take a watch back, so one
// that was armed serves all later watchers, until the node goes.
type post struct {
	ws    map[*watch]struct{}
	armed bool
}

// expect adds a watch for a path. It must be there before the request that arms it; armed: none is
// needed.
func (s *session) expect(path string, f func(gone bool)) (w *watch, armed bool) {
	w = &watch{f}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.posts == nil {
		return w, false // over, as the next request finds
	}
	p := s.posts[path]
	if p == nil {
		p = &post{ws: map[*watch]struct{}{}}
		s.posts[path] = p
	}
	p.ws[w] = struct{}{}
	return w, p.armed
}

// armed notes that the server tells of the end of a node. If it has told already, nobody is left to
// hear of it.
func (s *session) armed(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.posts[path]; p != nil {
		p.armed = true
	}
}

// unarmed forgets a node that has gone: no other one will look for it in vain.
func (s *session) unarmed(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.posts, path)
}

// watches reports whether the servers watch anything for the session.
func (s *session) watches() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.posts {
		if p.armed {
			return true
		}
	}
	return false
}

// watching reports whether a watch is still to be called.
func (s *session) watching(path string, w *watch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.posts[path]
	if p == nil {
		return false
	}
	_, ok := p.ws[w]
	return ok
}

// ignore takes a watch back.
func (s *session) ignore(path string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.posts[path]
	if p == nil {
		return
	}
	delete(p.ws, w)
	if len(p.ws) == 0 && !p.armed {
		delete(s.posts, path)
	}
}

// fire calls the watchers of a node that was deleted. Another change uses up the watch: they look, and
// arm it anew.
func (s *session) fire(e zk.Event) {
	switch e.Type {
	case zk.EventNodeDeleted, zk.EventNodeDataChanged, zk.EventNodeChildrenChanged:
	default:
		return
	}
	s.mu.Lock()
	p := s.posts[e.Path]
	delete(s.posts, e.Path)
	s.mu.Unlock()
	if p == nil {
		return
	}
	for w := range p.ws {
		w.f(e.Type == zk.EventNodeDeleted)
	}
}

// watchEnd makes f hear of the end of a node; zk.ErrNoNode if it has gone. quiet: not of what is written into it.
func (s *session) watchEnd(ctx context.Context, path string, quiet bool, f func(gone bool)) (*watch, error) {
	w, armed := s.expect(path, f)
	if armed {
		return w, nil
	}
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) {
		var err error
		if quiet { // of the nodes under an ephemeral one, of which there are none, nothing else is told
			_, _, _, err = c.ChildrenW(path)
		} else {
			_, _, _, err = c.GetW(path)
		}
		if err == nil {
			s.armed(path)
		}
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		s.unarmed(path)
	}
	if err != nil {
		s.ignore(path, w)
		return nil, err
	}
	return w, nil
}
