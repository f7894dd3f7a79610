package zookeeper

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// limit is the longest hold that the servers' longest session covers, as far as it is known.
type limit struct {
	most  time.Duration
	known time.Time
}

// longest is the longest session that is asked for: the servers grant what they will, and their numbers are of 32 bits.
const longest = 24 * time.Hour

// limitLasts is how long the limit is believed: somebody may change the servers' settings.
const limitLasts = time.Minute

// session returns a session, with the place counted in, for holds of its length, and not of much
// more: the lock of a process that dies is free only when its session has expired.
func (st *store) session(ctx context.Context, p *place) (*session, error) {
	length := p.length()
	if most := st.limit(); most > 0 && length > most {
		return nil, tooLong(length, most)
	}
	s, err := st.pick(min(length, longest), func(s *session) bool {
		return s.length >= length && s.length <= length+length/4 && s.use(p)
	})
	if err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.unuse(p)
		return nil, err
	}
	if most := s.most(); most < length {
		st.setLimit(most)
		s.unuse(p)
		return nil, tooLong(length, most)
	}
	return s, nil
}

// any returns the session that every driver has.
func (st *store) any(ctx context.Context) (*session, error) {
	s, err := st.pick(0, func(s *session) bool { return s.base && s.alive() })
	if err != nil {
		return nil, err
	}
	return s, s.ready(ctx)
}

// pick returns the first session that is taken. Without one it opens one for holds of the length; 0:
// the one that every driver has.
func (st *store) pick(length time.Duration, take func(*session) bool) (*session, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, backend.ErrClosed
	}
	for _, s := range st.sessions {
		if take(s) {
			return s, nil
		}
	}
	base := length == 0
	if base {
		length = baseLength
	}
	s, err := st.openSession(length, base)
	if err != nil {
		return nil, err
	}
	st.sessions = append(st.sessions, s)
	take(s)
	return s, nil
}

// others are the sessions but one.
func (st *store) others(s *session) []*session {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(st.sessions), func(o *session) bool { return o == s })
}

// forget takes a session out that is over, and reports whether that is because the store is closed.
func (st *store) forget(s *session) (closed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sessions = slices.DeleteFunc(st.sessions, func(o *session) bool { return o == s })
	return st.closed
}

func (st *store) limit() time.Duration {
	st.mu.Lock()
	defer st.mu.Unlock()
	if time.Since(st.most.known) > limitLasts {
		return 0
	}
	return st.most.most
}

func (st *store) setLimit(most time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.most = limit{most, time.Now()}
}

func tooLong(length, most time.Duration) error {
	return backend.Invalid("TTL and grace together are %v, but the longest session of the "+
		"ZooKeeper servers covers %v at most: ask for less, or raise maxSessionTimeout there",
		length, most)
}

// ready returns when the session is connected for the first time and has been authenticated.
func (s *session) ready(ctx context.Context) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	if s.st.auth == nil {
		return nil
	}
	s.mu.Lock()
	done := s.authDone
	s.mu.Unlock()
	if done {
		return nil
	}
	// The library does it again for every new connection.
	_, err := together(ctx, s, "auth", false, func(ctx context.Context) (struct{}, error) {
		none, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth("digest", s.st.auth)
		})
		s.mu.Lock()
		s.authDone = s.authDone || err == nil
		s.mu.Unlock()
		return none, err
	})
	return err
}
