package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// waitTTL is the TTL of the lease that waiters share: what a dead one delays the others.
	waitTTL = 3 * time.Second
	// tombTTL is the least TTL of a tombstone; it stands for at least half of it.
	tombTTL = 2 * time.Minute
	// deathPause is how long a lease that follows a dead one is waited with, after
	// the second death in a row; it doubles up to deathMost.
	deathPause = 50 * time.Millisecond
	deathMost  = 2 * time.Second
)

// lease is one etcd lease of this driver.
type lease struct {
	id      clientv3.LeaseID
	granted time.Duration // as the server granted it
	born    time.Time

	mu    sync.Mutex
	asked backend.Instant // just before the last request was sent that set its expiry
	dead  bool            // the server does not know it any more
}

// confirmed is the moment from which the lease's TTL counts.
func (l *lease) confirmed() backend.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// within reports whether the lease was confirmed at most age ago.
func (l *lease) within(age time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dead && l.asked.Elapsed() <= age
}

// isDead reports whether the server said that the lease is over.
func (l *lease) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// renewed takes in the server's answer to a keep-alive sent at asked.
func (l *lease) renewed(asked backend.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked.Sub(l.asked) > 0 {
		l.asked = asked
	}
}

func (l *lease) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// kind is what a lease is for.
type kind string

const (
	shared kind = "shared" // by the auto-renewed locks of one TTL
	own    kind = "own"    // of one lock
	waits  kind = "waits"  // by all waiters
	tombs  kind = "tombs"  // by tombstones; it is never renewed
)

// slotKey tells the leases of a driver apart.
type slotKey struct {
	kind kind
	secs int64
}

// slot is the place of the lease that the next user gets.
type slot struct {
	cur    *lease
	busy   chan struct{} // closed when the one who renews or replaces it is done
	deaths int           // in a row
	died   time.Time
}

// leases are the leases of a driver.
type leases struct {
	d  *Driver
	lc pb.LeaseClient

	mu    sync.Mutex
	slots map[slotKey]*slot
	open  []*stream // that nobody uses just now
}

// seconds rounds up: the store may keep a lock longer, never shorter.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func (s *leases) slot(k slotKey) *slot {
	if s.slots[k] == nil {
		s.slots[k] = &slot{}
	}
	return s.slots[k]
}

// peek returns the lease of a slot if it was confirmed at most age ago.
func (s *leases) peek(k slotKey, age time.Duration) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.slot(k).cur; l != nil && l.within(age) {
		return l
	}
	return nil
}

// get returns the lease of a slot, confirmed at most age ago: renewed or replaced
// if need be, by one caller for all.
func (s *leases) get(ctx context.Context, k slotKey, age time.Duration) (*lease, error) {
	for {
		s.mu.Lock()
		sl := s.slot(k)
		if sl.cur != nil && sl.cur.within(age) {
			defer s.mu.Unlock()
			return sl.cur, nil
		}
		busy := sl.busy
		if busy == nil {
			sl.busy = make(chan struct{})
		}
		s.mu.Unlock()
		if busy == nil {
			return s.refresh(ctx, k, sl)
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// refresh renews or replaces the lease of a slot that its caller has marked as busy.
func (s *leases) refresh(ctx context.Context, k slotKey, sl *slot) (*lease, error) {
	l, err := s.renewOrGrant(ctx, k, sl)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(sl.busy)
	sl.busy = nil
	if err == nil {
		sl.cur = l
	}
	return l, err
}

func (s *leases) renewOrGrant(ctx context.Context, k slotKey, sl *slot) (*lease, error) {
	s.mu.Lock()
	l := sl.cur
	s.mu.Unlock()
	if l != nil && k.kind != tombs && l.within(l.granted) {
		switch err := s.keepAlive(ctx, []*lease{l})[0]; {
		case err == nil:
			return l, nil
		case !errors.Is(err, backend.ErrLost):
			return nil, err
		}
	}
	if l != nil && l.isDead() {
		if err := s.mourn(ctx, sl, l); err != nil {
			return nil, err
		}
	}
	return s.grant(ctx, k.secs)
}

// mourn waits before a lease that died is replaced, if the one before it had died too.
func (s *leases) mourn(ctx context.Context, sl *slot, l *lease) error {
	s.mu.Lock()
	if time.Since(l.born) > 2*l.granted {
		sl.deaths = 0
	}
	sl.deaths++
	pause := time.Duration(0)
	if sl.deaths > 1 {
		pause = min(deathPause<<min(sl.deaths-2, 10), deathMost) - time.Since(sl.died)
	}
	sl.died = time.Now()
	s.mu.Unlock()
	return rest(ctx, pause)
}

// grant makes a lease. One whose answer was lost ends by itself.
func (s *leases) grant(ctx context.Context, secs int64) (*lease, error) {
	l := &lease{}
	p := s.d.history.now()
	err := s.d.do(ctx, func(ctx context.Context) error {
		asked := backend.Now()
		resp, err := s.d.client.Grant(ctx, secs)
		if err != nil {
			return err
		}
		l.id, l.granted, l.asked, l.born = resp.ID, time.Duration(resp.TTL)*time.Second, asked, time.Now()
		s.d.history.see(p, resp.ResponseHeader)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// take returns a lease for one lock, confirmed just now: mine, one that is left over, or a new one.
func (s *leases) take(ctx context.Context, secs int64, mine *lease) (*lease, error) {
	l := mine
	if l == nil {
		s.mu.Lock()
		sl := s.slot(slotKey{own, secs})
		l, sl.cur = sl.cur, nil
		s.mu.Unlock()
	}
	switch {
	case l == nil || !l.within(l.granted):
	case l.within(l.granted / 50):
		return l, nil
	default:
		switch err := s.keepAlive(ctx, []*lease{l})[0]; {
		case err == nil:
			return l, nil
		case !errors.Is(err, backend.ErrLost):
			return nil, err
		}
	}
	return s.grant(ctx, secs)
}

// give takes back a lease that nothing is attached to. One is kept for the next lock.
func (s *leases) give(secs int64, l *lease) {
	s.mu.Lock()
	sl := s.slot(slotKey{own, secs})
	if sl.cur == nil && !l.isDead() {
		sl.cur, l = l, nil
	}
	s.mu.Unlock()
	if l != nil {
		s.revoke(l)
	}
}

// revoke ends a lease in the background, and whatever is still attached to it. If
// that fails it ends by itself.
func (s *leases) revoke(l *lease) {
	if l.isDead() {
		return
	}
	l.die()
	s.d.flying.Go(func() {
		ctx, cancel := context.WithTimeout(s.d.ctx, sendMost)
		defer cancel()
		_, _ = s.d.client.Revoke(ctx, l.id) // it would end by itself, only later
	})
}

// verify finds out which of two leases the server does not know any more; the second may be nil.
func (s *leases) verify(ctx context.Context, l, session *lease) error {
	ls := []*lease{l}
	if session != nil {
		ls = append(ls, session)
	}
	for _, err := range s.keepAlive(ctx, ls) {
		if err != nil && !errors.Is(err, backend.ErrLost) {
			return err
		}
	}
	return nil
}

// close revokes what no lock is under, if the server answers: the leases of one lock may be in their grace.
func (s *leases) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wg sync.WaitGroup
	for k, sl := range s.slots {
		if l := sl.cur; l != nil && k.kind != tombs && l.within(l.granted) {
			wg.Go(func() { _, _ = s.d.client.Revoke(ctx, l.id) })
		}
	}
	wg.Wait()
}
