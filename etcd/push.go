package etcd

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/fencelock/fencelock/backend"
)

const (
	// idleFor is how long the watch of a queue that nobody of this process is in is kept.
	idleFor = 10 * time.Second
	// idleMost is how many such watches are kept.
	idleMost = 64
	// beginMost is how long a stream may begin no watch while one waits: its member may hang. The next stream has
	// twice as long, which is less than a look of the engine has.
	beginMost = 700 * time.Millisecond
	// keepEvery is how often the watches, and the leases that waiters need, are looked at.
	keepEvery = 500 * time.Millisecond
	// keepMost bounds one such round.
	keepMost = waitTTL / 2
	// streamsMost is how many streams there are for new watches, and how many go over a Watcher that the program has
	// put into its client.
	streamsMost = 8
	// waitingMost is how many watches may wait for each other on a stream while there is not another: the client
	// begins them one after the other, each in a round trip (clientv3 3.7).
	waitingMost = 8
)

// push is how a store hears of deletions: by a watch of each queue that a claim of this process
// waits in. It sees the deletions of the whole queue, so that a waiter ticks off the entries in
// front of it, and notices the end of its own. push also keeps the leases alive that waiters need.
type push struct {
	s      *store
	ctx    context.Context // ends when the store is closed
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below, and fields of watches and places that say so
	watches map[string]*watch
	streams []*watcher // that new watches go over
	made    int        // streams over the client's own Watcher
	silent  bool       // the last watch did not begin in time
	keeping bool       // keep runs
}

// watcher is a stream of watches, to one member. Its numbers are guarded by push.mu.
type watcher struct {
	clientv3.Watcher
	key     string    // tells its stream from others, where it is the client's own Watcher
	watches int       // that go over it
	waiting int       // how many of them have not begun; after a reconnect the older ones begin again before these
	heard   time.Time // when the last one did, or the stream was made
}

// stream returns the one for a new watch; u.mu is held.
func (u *push) stream() *watcher {
	var least *watcher
	for _, w := range u.streams {
		if least == nil || w.waiting < least.waiting {
			least = w
		}
	}
	if least == nil || least.waiting >= waitingMost && len(u.streams) < streamsMost {
		least = u.watcher()
		u.streams = append(u.streams, least)
	}
	return least
}

// watcher returns another stream; u.mu is held. Where the program has put a Watcher of its own into the
// client, such as that of a namespace, the stream goes through it: it knows where the keys are. That
// Watcher keeps a stream that a watch has left before it began, so there is only a number of them.
func (u *push) watcher() *watcher {
	var key string
	for taken := true; taken; { // fewer than all are
		u.made++
		key = strconv.Itoa(u.made % streamsMost)
		taken = slices.ContainsFunc(u.streams, func(w *watcher) bool { return w.key == key })
	}
	return u.s.watcher(key)
}

// watcher returns a stream that ends with its Close or, over a Watcher of the program's, the one of that key.
func (s *store) watcher(key string) *watcher {
	plain := clientv3.NewWatcher(s.client)
	if reflect.TypeOf(s.client.Watcher) == reflect.TypeOf(plain) {
		return &watcher{Watcher: plain, heard: time.Now()}
	}
	return &watcher{Watcher: s.client.Watcher, key: key, heard: time.Now()}
}

// Watch implements clientv3.Watcher.
func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if w.key != "" { // the client has a stream for each metadata
		ctx = metadata.AppendToOutgoingContext(ctx, "fencelock-stream", w.key)
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// Close implements clientv3.Watcher. It leaves the client's own Watcher alone.
func (w *watcher) Close() error {
	if w.key != "" {
		return nil
	}
	return w.Watcher.Close()
}

// watch is the watch of one queue. It is opened at the store's present, not at a revision of the
// past: the server sends what such a watch sees at once, where one that has to catch up is served
// ten times a second (etcd 3.7).
type watch struct {
	queue  string
	stream *watcher
	born   time.Time
	cancel context.CancelFunc
	ready  chan struct{} // closed when the watch has begun, or is over

	// Guarded by push.mu:
	since  int64 // the revision after which deletions are seen; 0: not begun yet, or over
	places map[*place]bool
	left   time.Time // when the last place went
	why    error     // the server's word for its end
}

var errWatch = errors.New("a watch ended")

// add makes a place listen to its queue. begun: only if the queue has a watch that has begun.
func (u *push) add(p *place, begun bool) *watch {
	u.mu.Lock()
	defer u.mu.Unlock()
	w := u.watches[p.queue]
	if u.ctx.Err() != nil || begun && (w == nil || w.since == 0) {
		return nil
	}
	if w == nil {
		w = u.open(p.queue)
	}
	if p.watch != nil {
		delete(p.watch.places, p)
	}
	w.places[p], p.watch = true, w
	return w
}

// open begins to watch a queue; u.mu is held.
func (u *push) open(queue string) *watch {
	ctx, cancel := context.WithCancel(u.ctx)
	stream := u.stream()
	stream.watches++
	stream.waiting++
	w := &watch{
		queue: queue, stream: stream, born: time.Now(), cancel: cancel,
		ready: make(chan struct{}), places: map[*place]bool{},
	}
	u.watches[queue] = w
	u.s.flying.Go(func() { u.run(ctx, w) })
	if !u.keeping {
		u.keeping = true
		u.s.flying.Go(u.keep)
	}
	return w
}

// remove makes a place listen no more.
func (u *push) remove(p *place) {
	if p.watch == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(p.watch.places, p)
	p.watch.left = time.Now()
	p.watch = nil
}

// run watches until the watch is given up or breaks off.
func (u *push) run(ctx context.Context, w *watch) {
	defer u.end(w)
	// clientv3 goes on with another member by itself, without a gap, when a connection breaks. A
	// member that has lost its leader ends the watch (ErrNoLeader, clientv3 3.7): the waiters look
	// for themselves and open another.
	for resp := range w.stream.Watch(opening(clientv3.WithRequireLeader(ctx)), w.queue,
		clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify()) {
		if err := resp.Err(); err != nil {
			u.refused(ctx, w, err)
			return
		}
		u.mu.Lock()
		if resp.Created && w.since == 0 {
			w.since, u.silent = resp.Header.Revision, time.Since(w.born) > beginMost
			w.stream.waiting--
			w.stream.heard = time.Now()
			close(w.ready)
			for p := range w.places {
				if p.unheard {
					p.unheard = false
					p.c.Wake(0)
				}
			}
		}
		for _, e := range resp.Events {
			for p := range w.places {
				if e.Type == mvccpb.DELETE {
					p.deleted(string(e.Kv.Key), leftBy(e))
				}
			}
		}
		u.mu.Unlock()
	}
}

// refused takes in that the server has ended a watch. A stream keeps the login that it was opened with, and clientv3
// keeps the stream (3.7): new watches go over another if that login will not do any more.
func (u *push) refused(ctx context.Context, w *watch, why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	w.why = why
	if w.since == 0 && ctx.Err() == nil {
		u.streams = slices.DeleteFunc(u.streams, func(s *watcher) bool { return s == w.stream })
	}
}

// end takes a watch out of use; its waiters open another.
func (u *push) end(w *watch) {
	w.cancel()
	u.mu.Lock()
	u.forget(w)
	w.stream.watches--
	last := w.stream.watches == 0 && u.spare(w.stream)
	if w.since == 0 {
		w.stream.waiting--
		close(w.ready) // join sees that it is over
	}
	for p := range w.places {
		if w.since > 0 || p.unheard {
			p.c.Wake(0)
		}
	}
	w.since = 0
	u.mu.Unlock()
	if last { // the client keeps a stream that a watch has left before it began (clientv3 3.7)
		_ = w.stream.Close()
	}
}

// spare takes a stream that nothing goes over out of use, unless it is the last one that is in use, and reports whether
// it is to be closed; u.mu is held.
func (u *push) spare(stream *watcher) bool {
	if len(u.streams) == 1 && u.streams[0] == stream {
		return false
	}
	u.streams = slices.DeleteFunc(u.streams, func(w *watcher) bool { return w == stream })
	return true
}

// forget makes the next place of the queue open another watch; u.mu is held.
func (u *push) forget(w *watch) {
	if u.watches[w.queue] == w {
		delete(u.watches, w.queue)
	}
}

// join makes a place listen to its queue, and returns when it does, or when the watches in front of its own take their
// time: then the waiter looks from time to time, until its watch has begun.
func (u *push) join(ctx context.Context, p *place) error {
	w := u.add(p, false)
	if w == nil {
		return context.Canceled
	}
	most := u.patience()
	late := time.NewTimer(most - time.Since(w.born)) // others may have waited for it before
	defer late.Stop()
	select {
	case <-w.ready:
	case <-late.C:
		if u.endSilent(w, most) {
			return fmt.Errorf("no answer within %v to a watch", most)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case w.since > 0:
		return nil
	case w.why != nil:
		return fmt.Errorf("%w: %w", errWatch, w.why)
	}
	return errWatch
}

// patience is how long a watch may take to begin now.
func (u *push) patience() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.silent {
		return 2 * beginMost
	}
	return beginMost
}

// endSilent ends a watch that waits over a silent stream: no watch has begun on it for so long. New watches go over
// another stream, and so to another member. It reports whether the stream was silent.
func (u *push) endSilent(w *watch, most time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if w.since > 0 || time.Since(w.stream.heard) < most {
		return false
	}
	// Other streams on which no watch has begun since may be at the same member.
	n := len(u.streams)
	u.streams = slices.DeleteFunc(u.streams, func(s *watcher) bool {
		return s == w.stream || s.watches > 0 && !s.heard.After(w.born)
	})
	u.silent = u.silent || len(u.streams) < n
	u.forget(w)
	w.cancel()
	return true
}

// renew ends all watches: of a store that has gone back they would see nothing before it has come to where
// they are. Their waiters open others.
func (u *push) renew() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range u.watches {
		u.forget(w)
		w.cancel()
	}
}

// close ends all watches, and begins no other.
func (u *push) close() {
	u.mu.Lock()
	u.cancel()
	streams := slices.Clone(u.streams)
	u.mu.Unlock()
	for _, stream := range streams {
		_ = stream.Close()
	}
}

// keep ends idle watches, and renews the leases that waiters need: the one that their entries are
// under, and those that they will need when they are granted the lock. The leases of held locks
// are the engine's to renew.
func (u *push) keep() {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-u.ctx.Done():
		}
		slots := u.sweep()
		if slots == nil {
			return
		}
		ctx, cancel := context.WithTimeout(u.ctx, keepMost)
		u.s.leases.keepAlive(ctx, u.s.leases.aging(slots)) // what becomes of the leases the waiters find out
		cancel()
	}
}

// sweep ends idle watches, and returns the slots of the leases that waiters need; nil when there is
// no watch any more.
func (u *push) sweep() map[slotKey]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keeping = len(u.watches) > 0 && u.ctx.Err() == nil; !u.keeping {
		return nil
	}
	slots, idle := map[slotKey]bool{}, 0
	for _, w := range u.watches {
		if len(w.places) == 0 {
			if idle++; idle > idleMost || time.Since(w.left) > idleFor {
				u.forget(w)
				w.cancel()
			}
			continue
		}
		slots[waitSlot] = true
		for p := range w.places {
			if p.c.Auto {
				slots[slotOf(p.c.Request)] = true
			}
		}
	}
	return slots
}

// Enter implements backend.Driver. A claim that had no answer has nothing to listen for: the lock may
// be free, and the watch go to a member that is silent.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	if p.holds || !p.locked && !(p.watch != nil && p.session.isDead()) {
		return nil
	}
	s.push.add(p, false) // the watch begins while the lease is asked for
	age := sessionAge
	if c.Unsure || p.rev > 0 { // keep renews it too: on a slow way that is not to take the time of the request
		age = waitTTL - keepEvery
	}
	session, err := s.leases.get(ctx, waitSlot, age)
	if err != nil {
		return word(err)
	}
	p.session = session
	return s.push.join(ctx, p)
}

// listen makes a waiter listen at once where others of this process wait for the same name: then
// its first request queues.
func (s *store) listen(p *place) {
	if !p.c.Wait || p.watch != nil {
		return
	}
	if session := s.leases.peek(waitSlot, sessionAge); session != nil && s.push.add(p, true) != nil {
		p.session = session
	}
}
