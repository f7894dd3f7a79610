package zookeeper

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// limit is the longest session that the servers grant, as far as it is known.
type limit struct {
	most  time.Duration
	known time.Time
}

// longest is the longest session that is asked for: the servers grant what they will, and their numbers are of 32 bits.
const longest = 24 * time.Hour

// limitLasts is how long the limit is believed: somebody may change the servers' settings.
const limitLasts = time.Minute

// session returns a session, counted in as used, of at least a length, and not of much more: the lock of a
// process that dies is free only when its session has expired.
func (d *Driver) session(ctx context.Context, length time.Duration) (*session, error) {
	if most := d.limit(); most > 0 && length > most {
		return nil, tooLong(length, most)
	}
	s, err := d.pick(func(s *session) bool { return s.length >= length && s.length <= length+length/4 }, min(length, longest))
	if err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.unuse()
		return nil, err
	}
	if most := s.most(); most < length {
		d.setLimit(most)
		s.unuse()
		return nil, tooLong(length, most)
	}
	return s, nil
}

// any returns some session, counted in as used.
func (d *Driver) any(ctx context.Context) (*session, error) {
	s, err := d.pick(func(s *session) bool { return s.base }, 0)
	if err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.unuse()
		return nil, err
	}
	return s, nil
}

// pick returns the first session that fits and counts it in as used. Without one it opens one
// of the length; 0: the base session.
func (d *Driver) pick(fits func(*session) bool, length time.Duration) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, backend.ErrClosed
	}
	for _, s := range d.sessions {
		if fits(s) && s.use() {
			return s, nil
		}
	}
	base := length == 0
	if base {
		length = baseLength
	}
	s, err := d.openSession(length, base)
	if err != nil {
		return nil, err
	}
	s.use()
	d.sessions = append(d.sessions, s)
	return s, nil
}

// forget takes a session out that is over.
func (d *Driver) forget(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions = slices.DeleteFunc(d.sessions, func(o *session) bool { return o == s })
}

func (d *Driver) limit() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.most.known) > limitLasts {
		return 0
	}
	return d.most.most
}

func (d *Driver) setLimit(most time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.most = limit{most, time.Now()}
}

func tooLong(length, most time.Duration) error {
	return backend.Invalid("TTL and grace together are %v, but the ZooKeeper servers let a session last for %v at most: ask for less, or raise maxSessionTimeout there", length, most)
}

// ready returns when the session is connected for the first time and has been authenticated.
func (s *session) ready(ctx context.Context) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	if s.d.auth == nil {
		return nil
	}
	s.mu.Lock()
	if s.authed == nil {
		s.authed = make(chan struct{}, 1)
	}
	turn, done := s.authed, s.authDone
	s.mu.Unlock()
	if done {
		return nil
	}
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	done = s.authDone
	s.mu.Unlock()
	if done {
		return nil
	}
	// The library does it again for every new connection.
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.AddAuth("digest", s.d.auth) })
	if err == nil {
		s.mu.Lock()
		s.authDone = true
		s.mu.Unlock()
	}
	return err
}
