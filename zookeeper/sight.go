package zookeeper

import (
	"context"
	"maps"
	"time"
)

const (
	// quietHead is how long the first in the queue may say nothing while others hold together, before it
	// is taken for dead. It says something half a nearFloor after its last look has ended.
	quietHead = 3500 * time.Millisecond
	// maxSights is how many names that were not free are remembered before those are forgotten which were not
	// looked at for sightFor.
	maxSights = 1000
	sightFor  = 10 * time.Second
	// busyFor is how long a name that was found held is looked at before it is asked for.
	busyFor = 2 * time.Second
)

// sight is how a lock was seen that was not free.
type sight struct {
	at    time.Time
	first string // in the queue, if it is looked at; then
	due   bool   // whether it may take the lock
	said  int32  // and otherwise what it has said
	since time.Time
}

// saw remembers who stands at a lock. Where the first in the queue has not taken what it may for so
// long that it is dead, or as good as dead, or has not said for long that it lives, it loses its
// place. mine is our own node; said is of head.
func (s *session) saw(ctx context.Context, lock string, l line, mine string, said int32) error {
	now := sight{at: time.Now()}
	st, most := s.st, claim
	st.mu.Lock()
	was := st.sights[lock]
	switch due := l.due(); {
	case due:
		now.first, now.due = l.waiters[0].node, true
	case len(l.waiters) == 0:
	case said != silentHead:
		now.first, now.said, most = l.waiters[0].node, said, quietHead
	case l.held() == "" && !was.due: // it was not looked at now
		now.first, now.said, now.since = was.first, was.said, was.since
	}
	if now.since.IsZero() {
		if now.since = now.at; was.first == now.first && was.due == now.due && was.said == now.said {
			now.since = was.since
		}
	}
	if len(l.holds)+len(l.waiters) > 0 {
		if len(st.sights) >= max(st.crowd, maxSights) {
			maps.DeleteFunc(st.sights, func(_ string, one sight) bool { return now.at.Sub(one.at) > sightFor })
			st.crowd = 2 * len(st.sights)
		}
		st.sights[lock] = now
	} else {
		delete(st.sights, lock)
	}
	st.mu.Unlock()
	looked := now.due || said != silentHead
	if looked && now.first != "" && now.first != mine && now.at.Sub(now.since) >= most {
		return s.removeAs(ctx, lock+"/"+now.first, said)
	}
	return nil
}

// quiet is when the first in the queue, which was looked at just now, may have said nothing for too long.
func (st *store) quiet(lock string) time.Duration {
	st.mu.Lock()
	defer st.mu.Unlock()
	return max(time.Millisecond, quietHead-time.Since(st.sights[lock].since))
}

// wasHeld reports whether a lock was not free just now. To ask for one that is held costs the
// servers a write that fails, to look costs a read.
func (st *store) wasHeld(lock string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return time.Since(st.sights[lock].at) < busyFor
}
