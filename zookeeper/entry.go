package zookeeper

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// entry is one acquisition, from its first request until it has been released or abandoned.
type entry struct {
	d    *Driver
	r    *backend.Request
	lock string // the name's node
	held string // the holder's node, if it is ours
	wake chan struct{}

	// Of the one call about it that is under way at a time.
	s       *session
	wait    string // our node in the queue; empty if there is none
	doubt   bool   // a request that makes nodes of ours was not answered
	others  bool   // somebody waited behind us when we last looked
	parting *unit  // a release whose end we did not wait for
	ungated bool   // as in backend.Grant, when the lock was last asked for
	watched string // the node whose end wakes us
	watch   *watch
	counter draws // what our grant made of it

	news atomic.Pointer[news]

	mu      sync.Mutex
	flights int           // requests that make nodes, and are not answered
	landed  chan struct{} // closed when there are none
	grant   *backend.Grant
	expired bool // the TTL and the grace are over, and nobody renewed
	leaving bool // a release is under way, or was
	told    bool
	renewed backend.Instant // the last renewal
	timer   *time.Timer     // ends a hold that nobody renews
	armed   *watch          // tells when the holder's node goes
	stopped bool
}

// news is that the node which ours in the queue stood behind has gone.
type news struct{ mine, gone string }

func newEntry(d *Driver, r *backend.Request) *entry {
	lock := d.at.lock(r.Name)
	return &entry{d: d, r: r, lock: lock, held: lock + "/" + heldMark + r.Nonce, wake: make(chan struct{}, 1)}
}

// poke makes a waiter look.
func (e *entry) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// takeOff notes that a request which makes nodes leaves; the function it returns, that it has ended.
func (e *entry) takeOff() func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flights == 0 {
		e.landed = make(chan struct{})
	}
	e.flights++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.flights--
		if e.flights == 0 {
			close(e.landed)
		}
	}
}

// quiet returns when no request that makes nodes is under way. The requests of a session are
// done in order, also if it came to another server in between: the server that it left can do nothing for it any
// more. So what is sent after that finds all that was made.
func (e *entry) quiet(ctx context.Context) error {
	e.mu.Lock()
	flights, landed := e.flights, e.landed
	e.mu.Unlock()
	if flights == 0 {
		return nil
	}
	select {
	case <-landed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// session returns the session of the acquisition. If it has ended, what it had made is gone, and there is a new one.
func (e *entry) session(ctx context.Context) (*session, error) {
	if e.s != nil && e.s.alive() {
		return e.s, nil
	}
	s, err := e.d.session(ctx, e.r.TTL+e.r.Grace)
	if err != nil {
		return nil, err
	}
	if e.s != nil {
		e.unwatch()
		e.s.unuse()
	}
	e.s, e.wait, e.doubt = s, "", false
	return s, nil
}

// granted makes the acquisition a hold. asked is when the request was sent that the session's end is counted from.
func (e *entry) granted(token backend.Token, reserved int, counter draws, asked backend.Instant) backend.Grant {
	e.unwatch()
	e.wait, e.doubt, e.counter = "", false, counter
	e.mu.Lock()
	defer e.mu.Unlock()
	g := backend.Grant{Token: token, Reserved: reserved, Asked: asked, Ungated: e.ungated}
	e.grant, e.renewed = &g, asked
	if e.timer == nil && !e.stopped {
		e.timer = time.AfterFunc(e.r.TTL+e.r.Grace, e.expire)
	}
	return g
}

// holdsOn reports whether the acquisition is a hold of a session.
func (e *entry) holdsOn(s *session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.grant != nil && e.s == s
}

// tellLost tells the holder, once. A release that is under way knows better.
func (e *entry) tellLost(err error) {
	e.mu.Lock()
	tell := !e.told && !e.leaving && !e.stopped && e.grant != nil
	e.told = e.told || tell
	e.mu.Unlock()
	if tell {
		e.r.Lost(err)
	}
}

// renew sets the end of the hold anew; false: it is over.
func (e *entry) renew(asked backend.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.expired || e.grant == nil {
		return false
	}
	e.renewed = asked
	return true
}

// lapsed reports whether the hold is over because nobody renewed it.
func (e *entry) lapsed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.expired || e.grant != nil && e.renewed.Elapsed() >= e.r.TTL+e.r.Grace
}

// expire runs on the timer. Pings keep the session alive whatever the holder does, so a hold that
// nobody renews is ended here.
func (e *entry) expire() {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return
	}
	if left := e.r.TTL + e.r.Grace - e.renewed.Elapsed(); left > 0 {
		e.timer.Reset(left)
		e.mu.Unlock()
		return
	}
	e.expired = true
	e.d.flying.Go(e.clear)
	e.mu.Unlock()
}

// clear deletes what a hold that is over has in the store, as long as its session does not end by itself.
func (e *entry) clear() {
	pause := 20 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := e.s.erase(ctx, e.lock, []string{e.held})
		cancel()
		if err == nil || backend.Final(err) || !e.s.alive() {
			return
		}
		select {
		case <-e.s.over:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// stop ends what runs by itself, and counts the session's user out.
func (e *entry) stop() {
	e.mu.Lock()
	stopped := e.stopped
	e.stopped = true
	if e.timer != nil {
		e.timer.Stop()
	}
	armed := e.armed
	e.mu.Unlock()
	if stopped || e.s == nil {
		return
	}
	e.unwatch()
	if armed != nil {
		e.s.ignore(e.held, armed)
	}
	e.s.unuse()
}

// unwatch takes back what wakes a waiter.
func (e *entry) unwatch() {
	if e.watch != nil {
		e.s.ignore(e.watched, e.watch)
	}
	e.watch, e.watched = nil, ""
}
