package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// waitTTL is the TTL of the lease that waiters share: what a dead one delays the others.
	waitTTL = 3 * time.Second
	// tombTTL is the least TTL of a tombstone; it stands for at least half of it.
	tombTTL = 2 * time.Minute
	// deathPause is how long a lease that follows a dead one is waited with, after the second death
	// in a row; it doubles up to deathMost. So does the pause after a lease that the server has no
	// space for.
	deathPause = 50 * time.Millisecond
	deathMost  = 2 * time.Second
	// spareMost is how many leases of one lock each are kept for the next locks. They are not renewed.
	spareMost = 512
)

// sessionAge is how old the last confirmation of the waiters' lease may be when a
// waiter relies on it; the keeper renews it at once.
const sessionAge = waitTTL / 2

var waitSlot = slotKey{kind: waits, secs: int64(waitTTL / time.Second)}

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
	report kind = "report" // of what one client of a migration has reported
)

// slotKey tells the leases of a driver apart.
type slotKey struct {
	kind kind
	secs int64
	of   string // the key of a report
}

// slot is the place of the lease that the next user gets.
type slot struct {
	cur    *lease
	spare  []*lease      // of locks that had one of their own, the latest last
	busy   chan struct{} // closed when the one who renews or replaces it is done
	deaths int           // in a row
	died   time.Time
}

// leases are the leases of a driver.
type leases struct {
	store *store
	lc    pb.LeaseClient

	mu    sync.Mutex
	slots map[slotKey]*slot
	open  []*stream // that nobody uses just now
	full  fullness
}

// fullness is what a driver does while the server has no space for leases: it asks for one now and then.
type fullness struct {
	err   error // of the last one that was refused; nil: there is space
	pause time.Duration
	until time.Time // the next one is asked for
}

// refused returns the last refusal for lack of space, for as long as another lease is not worth a request.
func (s *leases) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full.err != nil && time.Now().Before(s.full.until) {
		return s.full.err
	}
	return nil
}

// hear takes in what became of a lease that was asked for.
func (s *leases) hear(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		s.full = fullness{}
		return
	}
	pause := min(max(2*s.full.pause, deathPause), deathMost)
	s.full = fullness{err, pause, time.Now().Add(pause)}
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

// aging returns the leases of slots that are alive, and were not confirmed just now.
func (s *leases) aging(slots map[slotKey]bool) (ls []*lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range slots {
		if sl := s.slots[k]; sl != nil && sl.cur != nil && sl.cur.within(sl.cur.granted) &&
			!sl.cur.within(sl.cur.granted/4) {
			ls = append(ls, sl.cur)
		}
	}
	return ls
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
		if err := s.backOff(ctx, sl, l); err != nil {
			return nil, err
		}
	}
	return s.grant(ctx, k.secs)
}

// backOff waits before a lease that died is replaced, if the one before it had died too.
func (s *leases) backOff(ctx context.Context, sl *slot, l *lease) error {
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
	if err := s.refused(); err != nil {
		return nil, err
	}
	p, l := s.store.history.now(), &lease{}
	resp, err := do(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		l.asked = backend.Now()
		return s.store.client.Grant(ctx, secs)
	})
	s.hear(err)
	if err != nil {
		return nil, err
	}
	s.store.history.see(p, resp.ResponseHeader)
	l.id, l.granted, l.born = resp.ID, time.Duration(resp.TTL)*time.Second, time.Now()
	return l, nil
}

// fresh reports whether the lease of one lock was confirmed just now.
func (l *lease) fresh() bool { return l.within(l.granted / 50) }

// spare takes a lease for one lock that is left over, and if fresh, was confirmed just now; nil if
// there is none.
func (s *leases) spare(secs int64, fresh bool) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slot(slotKey{kind: own, secs: secs})
	last := len(sl.spare) - 1
	if last < 0 || fresh && !sl.spare[last].fresh() {
		return nil
	}
	l := sl.spare[last]
	sl.spare = sl.spare[:last]
	return l
}

// take returns a lease for one lock, confirmed just now: mine, one that is left over, or a new one.
func (s *leases) take(ctx context.Context, secs int64, mine *lease) (*lease, error) {
	l := mine
	if l == nil {
		l = s.spare(secs, false)
	}
	switch {
	case l == nil || !l.within(l.granted):
	case l.fresh():
		return l, nil
	default:
		err := s.keepAlive(ctx, []*lease{l})[0]
		if err == nil || !errors.Is(err, backend.ErrLost) {
			return l, err
		}
	}
	return s.grant(ctx, secs)
}

// give takes back a lease that nothing is attached to.
func (s *leases) give(secs int64, l *lease) {
	s.mu.Lock()
	sl := s.slot(slotKey{kind: own, secs: secs})
	if len(sl.spare) < spareMost && !l.isDead() {
		sl.spare, l = append(sl.spare, l), nil
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
	s.store.flying.Go(func() {
		ctx, cancel := context.WithTimeout(s.store.ctx, sendMost)
		defer cancel()
		_, _ = s.store.client.Revoke(ctx, l.id) // it would end by itself, only later
	})
}

// drop revokes the leases of a report but those for this many seconds.
func (s *leases) drop(of string, but int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, sl := range s.slots {
		if k.kind != report || k.of != of || k.secs == but {
			continue
		}
		if sl.cur != nil {
			s.revoke(sl.cur)
		}
		delete(s.slots, k)
	}
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
		if k.kind == tombs || k.kind == report {
			continue
		}
		for _, l := range append(sl.spare, sl.cur) {
			if l != nil && l.within(l.granted) {
				wg.Go(func() { _, _ = s.store.client.Revoke(ctx, l.id) })
			}
		}
	}
	wg.Wait()
}
