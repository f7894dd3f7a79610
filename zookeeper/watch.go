package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// watch is somebody who wants to hear of the end of a node, once.
type watch struct{ f func(gone bool) }

// post is what is watched of one node. The client library has no way to take a watch back, so one that was armed
// is used by all who come later, until the node goes.
type post struct {
	ws    map[*watch]struct{}
	armed bool
	data  []byte // the node's, when it was armed
}

// expect adds a watch for a path. It must be there before the request that arms it; armed: none is needed.
func (s *session) expect(path string, f func(gone bool)) (w *watch, armed bool, data []byte) {
	w = &watch{f}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.posts == nil {
		return w, false, nil // over, as the next request finds
	}
	p := s.posts[path]
	if p == nil {
		p = &post{ws: map[*watch]struct{}{}}
		s.posts[path] = p
	}
	p.ws[w] = struct{}{}
	return w, p.armed, p.data
}

// armed notes that the server tells of the end of a node. If it has told already, nobody is left to hear of it.
func (s *session) armed(path string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.posts[path]; p != nil {
		p.armed, p.data = true, data
	}
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

// fire calls those who watch a node that was deleted. A change of its data uses up the watch: they look, and arm it anew.
func (s *session) fire(e zk.Event) {
	if e.Type != zk.EventNodeDeleted && e.Type != zk.EventNodeDataChanged {
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

// watchEnd makes f hear of the end of a node. It returns the node's data; zk.ErrNoNode if it has gone.
func (s *session) watchEnd(ctx context.Context, path string, f func(gone bool)) (*watch, []byte, error) {
	w, armed, data := s.expect(path, f)
	if armed {
		return w, data, nil
	}
	data, err := call(ctx, s, func(c *zk.Conn) ([]byte, error) {
		data, _, _, err := c.GetW(path)
		if err == nil {
			s.armed(path, data)
		}
		return data, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		s.mu.Lock()
		delete(s.posts, path) // no other one will look for it in vain
		s.mu.Unlock()
	}
	if err != nil {
		s.ignore(path, w)
		return nil, nil, err
	}
	return w, data, nil
}
