package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// call sends a request once the session is connected. The client library knows no ctx: when ctx ends, call
// returns, and the request goes on by itself until it is answered, or its connection or session has ended.
func call[T any](ctx context.Context, s *session, send func(*zk.Conn) (T, error)) (T, error) {
	return tracked(ctx, s, nil, send)
}

// tracked is call, with a function that is called when the request has ended, whenever that is.
func tracked[T any](ctx context.Context, s *session, ended func(), send func(*zk.Conn) (T, error)) (T, error) {
	var none T
	if ended == nil {
		ended = func() {}
	}
	if err := ctx.Err(); err != nil {
		ended()
		return none, err
	}
	if err := s.await(ctx); err != nil {
		ended()
		return none, err
	}
	type outcome struct {
		res T
		err error
	}
	done := make(chan outcome, 1)
	s.d.flying.Go(func() {
		res, err := send(s.conn)
		ended()
		done <- outcome{res, err}
	})
	select {
	case o := <-done:
		return o.res, s.meaning(o.err)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// multi sends several operations of which all are done or none. If one failed, its index comes with its error; -1
// if it is unknown whether they were done.
//
// The library cannot read the answer to the creation of a container and calls that an API error, with what stands before it
// in the answer. If the operations have failed it can read all of the answer, and says which one has. So what has
// neither failed nor is empty was done. The first operation must not be a container's.
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
		s.d.clock.heard(rs[i].Stat.Mtime) // set just now
	}
	return rs, 0, nil
}

// ensured calls f, and again after it has made the nodes that carry everything else, if they are missing.
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
	for _, p := range []string{s.d.at.locks, s.d.at.tokens, s.d.at.done} {
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
			return c.Create(p, nil, zk.FlagPersistent, s.d.acl)
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

// meaning returns an error of the server as the contract has it: what another try cannot mend is ErrInvalid.
func (s *session) meaning(err error) error {
	var means string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		means = "ZooKeeper refuses access to " + s.d.at.root + ": the user needs all rights to the nodes of the prefix, and must be the one who made them"
	case errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		means = "ZooKeeper does not accept the user: digest authentication is needed"
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		means = "a node above or at " + s.d.at.root + " is ephemeral, which some other program made"
	default:
		return err
	}
	return &refused{means, err}
}

// refused is a server's error that matches ErrInvalid.
type refused struct {
	means string
	err   error
}

func (e *refused) Error() string {
	return fmt.Sprintf("%v: %s (%v)", backend.ErrInvalid, e.means, e.err)
}
func (e *refused) Unwrap() []error { return []error{backend.ErrInvalid, e.err} }

// cutOff reports whether a request may have been lost with its connection.
func cutOff(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionMoved) ||
		errors.Is(err, zk.ErrSessionExpired)
}
