package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// call sends a request once the session is connected. The client library knows no ctx: when ctx
// ends, call returns, and the request goes on by itself until it is answered, or its connection or
// session has ended. So it is for what changes nothing, or does no harm later.
func call[T any](ctx context.Context, s *session, send func(*zk.Conn) (T, error)) (T, error) {
	if err := s.await(ctx); err != nil {
		var none T
		return none, err
	}
	return core.Do(ctx, true, &s.st.flying, func(context.Context) (T, error) {
		res, err := send(s.conn)
		return res, s.meaning(err)
	})
}

// round is a question that is under way, and its answer.
type round struct {
	done chan struct{} // closed when the rest is there
	res  any
	err  error
}

// together asks a question once for all callers that have it at the same time. The question goes on
// when a caller's ctx ends, so a slow server is not asked again and again for what it is about to
// say. fresh: the question leaves after the call; otherwise it may be under way already.
func together[T any](
	ctx context.Context, s *session, what string, fresh bool, ask func(context.Context) (T, error),
) (T, error) {
	var none T
	if err := cmp.Or(s.await(ctx), ctx.Err()); err != nil {
		return none, err
	}
	for {
		s.mu.Lock()
		r := s.rounds[what]
		joined := r != nil
		if !joined {
			r = &round{done: make(chan struct{})}
			s.rounds[what] = r
			s.st.flying.Go(func() {
				r.res, r.err = ask(context.Background()) // ends with the session
				s.mu.Lock()
				delete(s.rounds, what)
				s.mu.Unlock()
				close(r.done)
			})
		}
		s.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			if err := s.await(ctx); err != nil {
				return none, err // it says why there is no connection
			}
			return none, ctx.Err()
		}
		if fresh && joined {
			fresh = false // what is under way now began after the call
			continue
		}
		if r.err != nil {
			return none, r.err
		}
		return r.res.(T), nil
	}
}

// multi sends several operations of which all are done or none. If one failed, its index comes with
// its error; -1 if it is unknown whether they were done.
//
// The library cannot read the answer to the creation of a container and calls that an API error,
// with what stands before it in the answer. If the operations have failed it can read all of the
// answer, and says which one has. So what has neither failed nor is empty was done. The first
// operation must not be a container's.
func (s *session) multi(ctx context.Context, ops ...any) (int, error) {
	i, err := call(ctx, s, func(*zk.Conn) (int, error) {
		_, i, err := s.exchange(ops)
		return i + 1, err
	})
	return i - 1, err // without an answer call returns zero
}

// exchange sends a multi and reads its answer.
func (s *session) exchange(ops []any) ([]zk.MultiResponse, int, error) {
	rs, err := s.conn.Multi(ops...)
	for i, one := range rs {
		if one.Error != nil {
			return rs, i, s.meaning(one.Error)
		}
	}
	if err != nil && (!errors.Is(err, zk.ErrAPIError) || len(rs) == 0) {
		return nil, -1, s.meaning(err)
	}
	if i := slices.IndexFunc(rs, func(r zk.MultiResponse) bool { return r.Stat != nil }); i >= 0 {
		s.st.clock.heard(rs[i].Stat.Mtime) // set just now
	}
	return rs, 0, nil
}

// ensured calls f, and again after it has made the nodes that carry everything else, if they are
// missing.
func (s *session) ensured(ctx context.Context, f func() error) error {
	err := f()
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if err := s.ensure(ctx); err != nil {
		return err
	}
	return f()
}

// ensure makes the nodes that carry everything else.
func (s *session) ensure(ctx context.Context) error {
	for _, p := range []string{s.st.at.locks, s.st.at.tokens, s.st.at.done} {
		if err := s.ensurePath(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// ensurePath makes a persistent node, and those above it.
func (s *session) ensurePath(ctx context.Context, p string) error {
	create := func() error {
		_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
			return c.Create(p, nil, zk.FlagPersistent, s.st.acl)
		})
		if errors.Is(err, zk.ErrNodeExists) {
			err = nil
		}
		return err
	}
	err := create()
	if errors.Is(err, zk.ErrNoNode) && strings.Count(p, "/") > 1 {
		if err := s.ensurePath(ctx, path.Dir(p)); err != nil {
			return err
		}
		err = create()
	}
	return err
}

// meaning returns an error of the server as the contract has it: what another try cannot mend is
// ErrInvalid.
func (s *session) meaning(err error) error {
	var means string
	switch {
	case err == nil || errors.Is(err, backend.ErrInvalid): // which it has already
		return err
	case errors.Is(err, zk.ErrNoAuth):
		means = "ZooKeeper refuses access to " + s.st.at.root + ": the user needs all rights to " +
			"the nodes of the prefix, and must be the one who made them"
	case errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		means = "ZooKeeper does not accept the user: digest authentication is needed"
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		means = "a node above or at " + s.st.at.root + " is ephemeral, which some other program made"
	default:
		return err
	}
	return backend.Invalid("%s (%w)", means, err)
}

// cutOff reports whether a request may have been lost with its connection.
func cutOff(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) ||
		errors.Is(err, zk.ErrSessionMoved) ||
		errors.Is(err, zk.ErrSessionExpired)
}

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

// sync makes what the session reads next as new as anything that was answered to anyone before.
// ZooKeeper's own sync is not enough: a leader that has lost its followers, and does not know yet,
// answers it. A write is agreed on by a majority, and a session sees its own writes. A user that may
// not write, or finds nothing to write to, has sync only.
func (s *session) sync(ctx context.Context) error {
	_, err := together(ctx, s, "sync", true, func(ctx context.Context) (struct{}, error) {
		_, err := s.touch(ctx)
		if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
			_, err = call(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(s.st.at.root) })
		}
		return struct{}{}, err
	})
	return err
}

// touch writes something: the answer tells the zxid and the time.
func (s *session) touch(ctx context.Context) (*zk.Stat, error) {
	stat, err := call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		return c.Set(s.st.at.done, nil, -1)
	})
	if err == nil {
		s.st.clock.heard(stat.Mtime)
	}
	return stat, err
}

// synced is get of what the leader has.
func synced(ctx context.Context, s *session, path string) (node, error) {
	if err := s.sync(ctx); err != nil {
		return node{}, err
	}
	return get(ctx, s, path)
}

// children are the names of the nodes under one.
func (s *session) children(ctx context.Context, path string) ([]string, error) {
	return call(ctx, s, func(c *zk.Conn) ([]string, error) {
		children, _, err := c.Children(path)
		return children, err
	})
}

// line reads the holders and the queue of a lock.
func (s *session) line(ctx context.Context, lock string) (line, error) {
	return s.lineBy(ctx, lock, (*zk.Conn).Children)
}

// lineWatched is line, and the servers tell of the next change.
func (s *session) lineWatched(ctx context.Context, lock string) (line, error) {
	l, err := s.lineBy(ctx, lock, func(c *zk.Conn, path string) ([]string, *zk.Stat, error) {
		children, stat, _, err := c.ChildrenW(path)
		if err == nil {
			s.armed(path)
		}
		return children, stat, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		s.unarmed(lock)
	}
	return l, err
}

func (s *session) lineBy(
	ctx context.Context, lock string, list func(*zk.Conn, string) ([]string, *zk.Stat, error),
) (line, error) {
	l, err := call(ctx, s, func(c *zk.Conn) (line, error) {
		children, stat, err := list(c, lock)
		if err != nil {
			return line{}, err
		}
		l := readLine(children)
		l.stat, l.read = *stat, time.Now()
		return l, nil
	})
	if err != nil {
		return line{}, err
	}
	if l.strange != "" {
		return l, backend.Invalid("the node %s/%s was made by another program: "+
			"nothing but locks may be there", lock, l.strange)
	}
	return l, nil
}

// remove deletes a node that may be gone.
func (s *session) remove(ctx context.Context, path string) error { return s.removeAs(ctx, path, -1) }

// removeAs deletes a node of a version, -1: any; another one is left.
func (s *session) removeAs(ctx context.Context, path string, version int32) error {
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) {
		return struct{}{}, c.Delete(path, version)
	})
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) {
		err = nil
	}
	return err
}
