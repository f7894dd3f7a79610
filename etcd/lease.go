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
	// sessionAge is how old the last confirmation of the waiters' lease may be when a waiter relies
	// on it.
	sessionAge = waitTTL / 2
	// tombTTL is the least TTL of a tombstone. Its lease is never renewed, and may be as old as
	// tombAge.
	tombTTL = 2 * time.Minute
	tombAge = tombTTL / 2
	// pauseLeast is the first pause before a lease that died soon is replaced, and pauseMost the longest.
	pauseLeast = 50 * time.Millisecond
	pauseMost  = 2 * time.Second
	// spareMost is how many leases of one lock each are kept for the next locks. They are not renewed.
	spareMost = 512
	// revokeMost bounds the revocation of a lease.
	revokeMost = 2 * time.Second
)

// lease is one etcd lease of this driver.
type lease struct {
	id      clientv3.LeaseID
	kind    kind
	secs    int64         // as it was asked for
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

// fresh reports whether the lease of one lock was confirmed just now.
func (l *lease) fresh() bool { return l.within(l.granted / 50) }

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
	l.asked = asked
}

func (l *lease) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// kind is what a lease is for.
type kind string

const (
	single kind = ""       // by one lock
	shared kind = "shared" // by the auto-renewed locks of one TTL
	waits  kind = "waits"  // by all waiters
	tombs  kind = "tombs"  // by tombstones; it is never renewed
	report kind = "report" // of what one client of a migration has reported
)

// slotKey tells the leases of a driver apart that have more than one user.
type slotKey struct {
	kind kind
	secs int64
	of   string // the key of a report
}

var waitSlot = slotKey{kind: waits, secs: int64(waitTTL / time.Second)}

// tombSlot is the place of the lease that the tombstone of a request is under.
func tombSlot(r *backend.Request) slotKey {
	return slotKey{kind: tombs, secs: max(seconds(tombTTL), 2*secs(r))}
}

// slot is the place of the lease that the next user gets.
type slot struct {
	cur  *lease
	turn chan struct{} // full while somebody renews or replaces cur
	// Leases that died soon are replaced more and more slowly. The caller whose turn it is has these two:
	pause time.Duration
	until time.Time
}

// leases are the leases of a driver.
type leases struct {
	store *store
	lc    pb.LeaseClient

	mu    sync.Mutex
	slots map[slotKey]*slot
	spare map[int64][]*lease // of locks that had one of their own, by secs, the latest last
	open  []*stream          // that nobody uses just now
}

// seconds rounds up: the store may keep a lock longer, never shorter.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// slot returns a slot; s.mu is held.
func (s *leases) slot(k slotKey) *slot {
	if s.slots[k] == nil {
		s.slots[k] = &slot{turn: make(chan struct{}, 1)}
	}
	return s.slots[k]
}

// peek returns the lease of a slot if it was confirmed at most age ago.
func (s *leases) peek(k slotKey, age time.Duration) *lease {
	return s.cur(k, func(l *lease) bool { return l.within(age) })
}

// cur returns the lease of a slot if it will do.
func (s *leases) cur(k slotKey, does func(*lease) bool) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.slot(k).cur; l != nil && does(l) {
		return l
	}
	return nil
}

// aging returns the leases of slots that are alive, and were not confirmed just now.
func (s *leases) aging(slots map[slotKey]bool) (ls []*lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range slots {
		if l := s.slot(k).cur; l != nil && l.within(l.granted) && !l.within(l.granted/4) {
			ls = append(ls, l)
		}
	}
	return ls
}

// get returns the lease of a slot, confirmed at most age ago: renewed or replaced
// if need be, by one caller for all.
func (s *leases) get(ctx context.Context, k slotKey, age time.Duration) (*lease, error) {
	return s.obtain(ctx, k, func(l *lease) bool { return l.within(age) })
}

// since is get of one that was confirmed by a request sent after a moment.
func (s *leases) since(ctx context.Context, k slotKey, at backend.Instant) (*lease, error) {
	return s.obtain(ctx, k, func(l *lease) bool { return !l.isDead() && l.confirmed().Sub(at) >= 0 })
}

// obtain returns the lease of a slot if it will do, and otherwise renews or replaces it.
func (s *leases) obtain(ctx context.Context, k slotKey, does func(*lease) bool) (*lease, error) {
	if l := s.cur(k, does); l != nil {
		return l, nil
	}
	s.mu.Lock()
	sl := s.slot(k)
	s.mu.Unlock()
	select {
	case sl.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := s.cur(k, does); l != nil { // of the caller before
		<-sl.turn
		return l, nil
	}
	return s.outlive(ctx, func(ctx context.Context) (*lease, error) {
		defer func() { <-sl.turn }()
		l, err := s.renewOrGrant(ctx, k, sl)
		if err == nil {
			s.mu.Lock()
			sl.cur = l
			s.mu.Unlock()
		}
		return l, err
	}, func(*lease) {})
}

// outlive asks for a lease. The request goes on when ctx ends: on a slow way its answer serves the caller's next send.
// late gets a lease that comes after that.
func (s *leases) outlive(
	ctx context.Context, ask func(context.Context) (*lease, error), late func(*lease),
) (*lease, error) {
	type answer struct {
		l   *lease
		err error
	}
	told := make(chan answer)
	s.store.flying.Go(func() {
		l, err := ask(s.store.ctx)
		select {
		case told <- answer{l, err}:
		case <-ctx.Done():
			if err == nil {
				late(l)
			}
		}
	})
	select {
	case a := <-told:
		return a.l, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// renewOrGrant renews or replaces the lease of a slot; it is the caller's turn.
func (s *leases) renewOrGrant(ctx context.Context, k slotKey, sl *slot) (*lease, error) {
	l := sl.cur
	if l != nil && k.kind != tombs && l.within(l.granted) {
		if err := s.keepAlive(ctx, []*lease{l})[0]; !errors.Is(err, backend.ErrLost) {
			return l, err
		}
	}
	if l != nil && l.isDead() {
		if time.Since(l.born) > 2*l.granted {
			sl.pause = 0
		}
		select {
		case <-time.After(time.Until(sl.until)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		sl.pause = min(max(2*sl.pause, pauseLeast), pauseMost)
		sl.until = time.Now().Add(sl.pause)
	}
	return s.grant(ctx, k.kind, k.secs)
}

// grant makes a lease. One whose answer was lost ends by itself.
func (s *leases) grant(ctx context.Context, k kind, secs int64) (*lease, error) {
	return do(ctx, func(ctx context.Context) (*lease, error) {
		p, asked := s.store.history.now(), backend.Now()
		resp, err := s.store.client.Grant(ctx, secs)
		if err != nil {
			return nil, err
		}
		s.store.history.see(p, resp.ResponseHeader)
		granted := time.Duration(resp.TTL) * time.Second
		return &lease{id: resp.ID, kind: k, secs: secs, granted: granted, born: time.Now(), asked: asked}, nil
	})
}

// left takes a lease for one lock that is left over, and if fresh, was confirmed just now; nil if
// there is none.
func (s *leases) left(secs int64, fresh bool) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.spare[secs]
	last := len(all) - 1
	if last < 0 || fresh && !all[last].fresh() {
		return nil
	}
	s.spare[secs] = all[:last]
	return all[last]
}

// take returns a lease for one lock, confirmed just now or at most age ago: mine, one that is left over, or a new one.
func (s *leases) take(ctx context.Context, secs int64, mine *lease, age time.Duration) (*lease, error) {
	l := mine
	if l == nil {
		l = s.left(secs, false)
	}
	if l != nil && (l.fresh() || l.within(age)) {
		return l, nil
	}
	return s.outlive(ctx, func(ctx context.Context) (*lease, error) {
		if l != nil && l.within(l.granted) {
			if err := s.keepAlive(ctx, []*lease{l})[0]; !errors.Is(err, backend.ErrLost) {
				return l, err
			}
		}
		return s.grant(ctx, single, secs)
	}, func(l *lease) {
		if l != mine {
			s.give(l)
		}
	})
}

// give takes back a lease that nothing is attached to.
func (s *leases) give(l *lease) {
	s.mu.Lock()
	keep := len(s.spare[l.secs]) < spareMost && !l.isDead()
	if keep {
		s.spare[l.secs] = append(s.spare[l.secs], l)
	}
	s.mu.Unlock()
	if !keep {
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
		ctx, cancel := context.WithTimeout(s.store.ctx, revokeMost)
		defer cancel()
		_, _ = s.store.client.Revoke(ctx, l.id) // it would end by itself, only later
	})
}

// drop revokes the leases of a report.
func (s *leases) drop(of string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, sl := range s.slots {
		if k.kind == report && k.of == of {
			if sl.cur != nil {
				s.revoke(sl.cur)
			}
			delete(s.slots, k)
		}
	}
}

// giveUp stops the use of all leases: in a store that has gone back, locks that were released since may have entries
// under them. The holds move to other leases, and the old ones end.
func (s *leases) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		if sl.cur != nil {
			sl.cur.die()
		}
	}
	clear(s.spare)
}

// close revokes what no lock is under, if the server answers: the leases of one lock may be in
// their grace.
func (s *leases) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var idle []*lease
	for k, sl := range s.slots {
		if sl.cur != nil && (k.kind == shared || k.kind == waits) {
			idle = append(idle, sl.cur)
		}
	}
	for _, ls := range s.spare {
		idle = append(idle, ls...)
	}
	var wg sync.WaitGroup
	for _, l := range idle {
		if l.within(l.granted) {
			wg.Go(func() { _, _ = s.store.client.Revoke(ctx, l.id) })
		}
	}
	wg.Wait()
}
