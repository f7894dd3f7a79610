package zookeeper

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// place is what the store remembers of a claim.
type place struct {
	st         *store
	r          *backend.Request
	lock, held string // the name's node, and the holder's, if it is ours

	// Of the one call about it that is under way at a time.
	c       *backend.Claim
	s       *session
	flying  *unit  // what was sent, and whose end was not waited for
	landed  *unit  // what has ended, and was not answered
	doubt   bool   // a request that makes nodes of ours was not answered
	wait    string // our node in the queue; empty if there is none
	turn    bool   // the lock is free, and ours is the first node in the queue
	taken   bool   // the lock was not free when it was asked for
	empty   bool   // its node is there, and nothing under it
	missing bool   // a node is missing that carries everything else
	others  bool   // somebody waited behind us when we last looked
	next    time.Duration
	counter draws // what our grant made of it
	left    bool  // it was given up: nothing may come of it any more
	watched string
	watch   *watch
	slow    bool      // an Enter has outlived its ctx
	enters  *entering // one that goes on meanwhile

	news atomic.Pointer[news]

	mu      sync.Mutex
	grant   *backend.Grant
	handed  bool          // a caller was given it
	expired bool          // the TTL and the grace are over, and nobody renewed
	cleared chan struct{} // closed when what an expired hold had is gone
	leaving bool          // a release is under way, or was
	told    bool
	renewed backend.Instant // the last renewal
	timer   *time.Timer     // ends a hold that nobody renews
	armed   *watch          // tells when the holder's node goes
	stopped bool
}

// news is that the node which ours in the queue stood behind has gone.
type news struct{ mine, gone string }

// place returns what is remembered of a claim. It is found by the nonce too: the engine may have made
// another claim of the request.
func (st *store) place(c *backend.Claim) *place {
	p := st.find(c)
	if p == nil {
		lock := st.at.lock(c.Name)
		p = &place{st: st, r: c.Request, lock: lock, held: lock + "/" + heldMark + c.Nonce}
		st.mu.Lock()
		st.places[c.Nonce] = p
		st.mu.Unlock()
	}
	if p.c != c {
		p.endEnter()
		p.c, c.Place = c, p
	}
	return p
}

// find returns what is remembered of a claim, or nil.
func (st *store) find(c *backend.Claim) *place {
	if p, ok := c.Place.(*place); ok {
		return p
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.places[c.Nonce]
}

// length is that of the hold.
func (p *place) length() time.Duration { return p.r.TTL + p.r.Grace }

// load is what the claim adds to the transaction that ends its session: the path of its node, with
// its length. It has one at a time, and that in the queue is the longer one.
func (p *place) load() int {
	const sizes, number = 4, len("-2147483648")
	return sizes + len(p.lock) + len("/") + len(waitMark) + nonceLen + number + 1
}

// session returns the session of the claim. If it has ended, what it had made is gone, and there is
// a new one.
func (p *place) session(ctx context.Context) (*session, error) {
	if p.s != nil && p.s.alive() {
		return p.s, nil
	}
	s, err := p.st.session(ctx, p)
	if err != nil {
		return nil, err
	}
	p.unwatch()
	p.s, p.wait, p.turn, p.doubt = s, "", false, false
	return s, nil
}

// settle returns when nothing that makes nodes is under way. The requests of a session are done in
// order, also if it came to another server in between: the server that it left can do nothing for it
// any more. So what is sent after that finds all that was made.
func (p *place) settle(ctx context.Context) error {
	u := p.flying
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		select {
		case <-u.done: // its end is not for a later call
		default:
			return ctx.Err()
		}
	}
	p.flying, p.landed = nil, u
	u.land()
	return nil
}

// granted makes the claim a hold. asked is when the request was sent that the session's end is counted
// from.
func (p *place) granted(token backend.Token, reserved int, counter draws, asked backend.Instant) {
	p.unwatch()
	p.wait, p.turn, p.doubt, p.counter = "", false, false, counter
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grant, p.renewed = &backend.Grant{Token: token, Reserved: reserved, Asked: asked}, asked
	if p.timer == nil && !p.stopped {
		s := p.s
		p.timer = time.AfterFunc(p.length(), func() { p.expire(s) })
	}
}

// hand answers with the grant. It is not if it was lost before, and nobody was told: then the claim
// is one that was never granted.
func (p *place) hand(ctx context.Context) error {
	p.mu.Lock()
	p.handed = true // from here on a loss is told
	p.mu.Unlock()
	alive := p.s.alive()
	p.mu.Lock()
	p.handed = alive || p.told
	handed := p.handed
	if handed {
		p.c.Grant = *p.grant
	}
	p.mu.Unlock()
	if handed {
		return nil
	}
	return p.forgetGrant(ctx)
}

// errNotKept: the lock was granted, and lost before the caller could be told.
var errNotKept = errors.New("the lock was granted, and lost again before the answer was sure")

// forgetGrant makes the claim one that was never granted. It returns when what ends the grant by
// itself has done so.
func (p *place) forgetGrant(ctx context.Context) error {
	p.mu.Lock()
	cleared, handed := p.cleared, p.handed
	p.mu.Unlock()
	if handed {
		return backend.ErrLost
	}
	if cleared != nil {
		select {
		case <-cleared:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.grant, p.expired, p.cleared, p.timer = nil, false, nil, nil
	p.wait, p.doubt = "", true
	return errNotKept
}

// again confirms a grant that was given before, or whose answer was lost: it asks until the session
// surely lasts for the TTL and the grace after the asking.
func (p *place) again(ctx context.Context) error {
	if p.lapsed() {
		return p.forgetGrant(ctx)
	}
	for {
		asked := backend.Now()
		i, err := p.s.multi(ctx, &zk.CheckVersionRequest{Path: p.held, Version: -1})
		switch {
		case i == 0 && errors.Is(err, zk.ErrNoNode), errors.Is(err, errEnded):
			return p.forgetGrant(ctx)
		case err != nil:
			return err
		case p.s.covers(asked, p.length()):
			if !p.renew(asked) {
				return p.forgetGrant(ctx)
			}
			p.grant.Asked = asked
			return p.hand(ctx)
		}
		timer := time.NewTimer(p.s.report())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// recover finds what a request did that was not answered.
func (p *place) recover(ctx context.Context, s *session) error {
	if err := s.sync(ctx); err != nil {
		return err
	}
	l, err := s.line(ctx, p.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	p.wait, p.turn = "", false
	if l.held == heldMark+p.r.Nonce {
		n, err := get(ctx, s, p.held)
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return err
		default:
			r, ok := readRecord(n.data)
			if !ok || n.stat.EphemeralOwner != s.owner() {
				return errEnded // left by a session of ours that is over: it goes by itself
			}
			counter := draws{version: r.version, last: r.token + r.ahead}
			p.st.bucket(p.r.Name).hint(counter.version, counter.last)
			p.granted(r.token, 0, counter, backend.Now()) // the time is confirmed next
			return nil
		}
	}
	for _, w := range l.waiters {
		if w[len(waitMark):len(waitMark)+nonceLen] != p.r.Nonce {
			continue
		}
		n, err := get(ctx, s, p.lock+"/"+w)
		if err == nil && n.stat.EphemeralOwner == s.owner() {
			p.wait = w
		} else if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	p.doubt = false
	return nil
}

func (p *place) isGranted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.grant != nil && !p.stopped
}

// sessionEnded ends the hold, and tells the holder.
func (p *place) sessionEnded(tell bool) {
	p.mu.Lock()
	granted := p.grant != nil
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	if granted && tell {
		p.tellLost(&backend.LostError{Reason: backend.SessionLost})
	}
}

// tellLost tells the holder, once. A release that is under way knows better.
func (p *place) tellLost(err error) {
	p.mu.Lock()
	tell := !p.told && !p.leaving && !p.stopped && p.handed
	p.told = p.told || tell
	p.mu.Unlock()
	if tell {
		p.r.Lost(err)
	}
}

// renew sets the end of the hold anew; false: it is over.
func (p *place) renew(asked backend.Instant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expired || p.grant == nil {
		return false
	}
	p.renewed = asked
	return true
}

// lapsed reports whether the hold is over because nobody renewed it.
func (p *place) lapsed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expired || p.grant != nil && p.renewed.Elapsed() >= p.length()
}

// expire runs on the timer. Pings keep the session alive whatever the holder does, so a hold that
// nobody renews is ended here.
func (p *place) expire(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.grant == nil || p.expired || !s.alive() {
		return
	}
	if left := p.length() - p.renewed.Elapsed(); left > 0 {
		p.timer.Reset(left)
		return
	}
	p.expired = true
	cleared := make(chan struct{})
	p.cleared = cleared
	p.st.flying.Go(func() {
		defer close(cleared)
		p.clear(s)
	})
}

// clear deletes what a hold that is over has in the store, as long as its session does not end by
// itself.
func (p *place) clear(s *session) {
	pause := 20 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := s.erase(ctx, p.lock, []string{p.held})
		cancel()
		if err == nil || backend.Final(err) || !s.alive() {
			return
		}
		select {
		case <-s.over:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// stop ends what runs by itself, and counts the claim out of its session.
func (p *place) stop() {
	p.mu.Lock()
	stopped := p.stopped
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
	armed := p.armed
	p.mu.Unlock()
	p.st.mu.Lock()
	if p.st.places[p.r.Nonce] == p {
		delete(p.st.places, p.r.Nonce)
	}
	p.st.mu.Unlock()
	if stopped || p.s == nil {
		return
	}
	p.unwatch()
	if armed != nil {
		p.s.ignore(p.held, armed)
	}
	p.s.unuse(p)
}

// unwatch takes back what wakes a waiter.
func (p *place) unwatch() {
	if p.watch != nil {
		p.s.ignore(p.watched, p.watch)
	}
	p.watch, p.watched = nil, ""
}
