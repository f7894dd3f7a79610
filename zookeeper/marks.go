package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"
)

// maxMarks is how many releases of one session are under way at once.
const maxMarks = 128

// marks are ephemeral nodes of a session that say what it released last. A release writes its nonce into one of
// them in the same step in which it deletes the lock. So one whose answer was lost finds out
// whether it was done, or whether somebody else had taken the lock away.
type marks struct {
	free chan *mark

	mu   sync.Mutex
	made int
}

// mark is one of them; one release has it at a time.
type mark struct {
	path  string
	there bool // the node was created
}

func (m *marks) init() { m.free = make(chan *mark, maxMarks) }

// take returns a mark that nobody uses.
func (s *session) takeMark(ctx context.Context) (*mark, error) {
	var m *mark
	select {
	case m = <-s.marks.free:
	default:
		m = s.newMark()
	}
	if m == nil {
		select {
		case m = <-s.marks.free:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.over:
			return nil, errEnded
		}
	}
	if m.there {
		return m, nil
	}
	err := s.ensured(ctx, func() error {
		_, err := s.multi(ctx, // what is set tells the time
			&zk.CreateRequest{Path: m.path, Acl: s.d.acl, Flags: zk.FlagEphemeral}, &zk.SetDataRequest{Path: m.path, Version: -1})
		return err
	})
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		s.marks.free <- m
		return nil, err
	}
	m.there = true
	return m, nil
}

// newMark returns nil if there are as many as there may be.
func (s *session) newMark() *mark {
	owner := s.owner()
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	if s.marks.made == maxMarks || owner == 0 {
		return nil
	}
	s.marks.made++
	return &mark{path: fmt.Sprintf("%s/%016x-%d", s.d.at.done, uint64(owner), s.marks.made)}
}
