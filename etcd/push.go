package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// idleFor is how long the watch of a queue that nobody of this process is in is kept.
	idleFor = 10 * time.Second
	// idleMost is how many such watches are kept.
	idleMost = 64
)

// hubs are the watches of a driver: one for each queue that it has a waiter in. A
// watch sees the deletions of the whole queue, so that the waiter ticks off those in
// front of it, and its own.
type hubs struct {
	s      *store
	idle   atomic.Int64 // how many have no waiter
	silent atomic.Int64 // how many in a row did not begin in time

	mu      sync.Mutex
	byQueue map[string]*hub
	stream  *watches // that new ones go over; nil: another
	closed  bool
}

// watches are those of one stream, to one member.
type watches struct {
	clientv3.Watcher
	hubs int // that go over it
}

// hub is the watch of one queue. It is opened at the store's present, not at a
// revision of the past: the server sends what such a watch sees at once, where one that
// has to catch up is served ten times a second.
type hub struct {
	hubs   *hubs
	queue  string
	stream *watches
	born   time.Time
	cancel context.CancelFunc
	ready  chan struct{} // closed when since is set, or the hub is over

	mu      sync.Mutex
	since   int64 // what was deleted after this revision is seen
	over    bool
	waiters map[*waiter]struct{}
	idle    *time.Timer // runs while nobody waits
}

var errHub = errors.New("the watch of the queue ended")

// open reports whether a queue is watched.
func (hs *hubs) open(queue string) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byQueue[queue]
	return h != nil && h.isReady()
}

func (h *hub) isReady() bool {
	select {
	case <-h.ready:
		return true
	default:
		return false
	}
}

// listensSince returns the revision after which a hub that is ready sees deletions, or 0 if it is over.
func (h *hub) listensSince() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return 0
	}
	return h.since
}

// get returns the hub of a queue with w among its waiters.
func (hs *hubs) get(queue string, w *waiter) *hub {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byQueue[queue]
	if h == nil {
		if hs.closed {
			return nil
		}
		ctx, cancel := context.WithCancel(hs.s.ctx)
		if hs.stream == nil {
			hs.stream = &watches{Watcher: clientv3.NewWatcher(hs.s.client)}
		}
		h = &hub{
			hubs: hs, queue: queue, stream: hs.stream, born: time.Now(), cancel: cancel, ready: make(chan struct{}),
			waiters: map[*waiter]struct{}{},
		}
		h.stream.hubs++
		hs.byQueue[queue] = h
		hs.s.flying.Go(func() { h.run(ctx) })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[w] = struct{}{}
	h.busy()
	return h
}

// close ends all watches.
func (hs *hubs) close() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.closed = true
	for _, h := range hs.byQueue {
		h.cancel()
	}
	if hs.stream != nil && hs.stream.hubs == 0 { // otherwise the last of them does it
		_ = hs.stream.Close()
	}
}

// run watches until the hub is closed or the watch breaks off.
func (h *hub) run(ctx context.Context) {
	defer h.end()
	// clientv3 goes on with another member by itself, without a gap, when a connection breaks. A
	// member that has lost its leader ends the watch (ErrNoLeader, clientv3 3.7): the waiters look
	// for themselves and open another.
	for resp := range h.stream.Watch(clientv3.WithRequireLeader(ctx), h.queue,
		clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()) {
		if resp.Err() != nil {
			return
		}
		if resp.Created && !h.isReady() {
			h.hubs.silent.Store(0)
			h.mu.Lock()
			h.since = resp.Header.Revision
			h.mu.Unlock()
			close(h.ready)
		}
		h.deliver(resp.Events)
	}
}

// most is how long a hub may take to begin: a member may hang, or be slow. It is less than a look has.
func (hs *hubs) most() time.Duration { return firstMost << min(hs.silent.Load(), 1) }

// forsake ends a hub that has not begun in time, and makes new ones go over another stream, and so to
// another member.
func (h *hub) forsake() {
	h.hubs.mu.Lock()
	if h.hubs.stream == h.stream {
		h.hubs.stream = nil
		h.hubs.silent.Add(1)
	}
	if h.hubs.byQueue[h.queue] == h {
		delete(h.hubs.byQueue, h.queue)
	}
	h.hubs.mu.Unlock()
	h.cancel()
}

// deliver hands deletions to the waiters.
func (h *hub) deliver(events []*clientv3.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if e.Type == mvccpb.DELETE {
			for w := range h.waiters {
				w.deleted(string(e.Kv.Key), e.Kv.ModRevision)
			}
		}
	}
}

// end takes the hub out of use; its waiters open another.
func (h *hub) end() {
	h.cancel()
	h.hubs.mu.Lock()
	if h.hubs.byQueue[h.queue] == h {
		delete(h.hubs.byQueue, h.queue)
	}
	// The client keeps a stream that a watch has left before it began (clientv3 3.7).
	h.stream.hubs--
	left := h.stream.hubs == 0 && (h.hubs.closed || h.hubs.stream != h.stream)
	h.hubs.mu.Unlock()
	if left {
		_ = h.stream.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.busy()
	if !h.isReady() {
		close(h.ready) // those who wait for it see that it is over
		return
	}
	for w := range h.waiters {
		w.c.Wake(0)
	}
}

// busy ends the hub's idle time; h.mu is held.
func (h *hub) busy() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
		h.hubs.idle.Add(-1)
	}
}

// remove takes a waiter out; the last one starts the time after which the hub
// ends, or ends it at once if there are many idle ones.
func (h *hub) remove(w *waiter) {
	h.mu.Lock()
	delete(h.waiters, w)
	many := false
	if len(h.waiters) == 0 && !h.over && h.idle == nil {
		h.idle = time.AfterFunc(idleFor, h.retire)
		many = h.hubs.idle.Add(1) > idleMost
	}
	h.mu.Unlock()
	if many {
		h.retire()
	}
}

// retire ends the hub if still nobody waits.
func (h *hub) retire() {
	h.hubs.mu.Lock()
	defer h.hubs.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiters) == 0 && h.hubs.byQueue[h.queue] == h {
		delete(h.hubs.byQueue, h.queue)
		h.cancel()
	}
}

// Enter implements backend.Driver. A claim that no answer came to has nothing to listen for yet: the
// lock may be free, and the watch go to a member that is silent.
func (s *store) Enter(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	if !p.locked {
		return nil
	}
	if p.w == nil {
		s.wait(c, p)
	}
	session, err := s.leases.get(ctx, waitSlot, sessionAge)
	if err != nil {
		return word(err)
	}
	p.session = session
	p.since, err = p.w.join(ctx, p.queue)
	return err
}

// listen makes a waiter listen at once where others of this process wait for the same name: then
// its first request queues.
func (s *store) listen(c *backend.Claim, p *place) {
	if !c.Wait || p.w != nil || !s.hubs.open(p.queue) {
		return
	}
	session := s.leases.peek(waitSlot, sessionAge)
	if session == nil {
		return
	}
	s.wait(c, p)
	p.session = session
	if p.w.hub = s.hubs.get(p.queue, p.w); p.w.hub != nil && p.w.hub.isReady() {
		if p.since = p.w.hub.listensSince(); p.since > 0 {
			return
		}
	}
	s.quiet(c) // the watch has ended just now
}

// wait makes the waiter of a claim.
func (s *store) wait(c *backend.Claim, p *place) {
	p.w = &waiter{s: s, c: c, gone: map[string]int64{}}
	if p.rev > 0 {
		p.w.expect(p.key, p.listed, p.front)
	}
	var interest slotKey
	if c.Auto {
		interest = slotOf(c.Request)
	}
	s.keeper.add(p.w, interest)
}

// quiet ends listening.
func (s *store) quiet(c *backend.Claim) {
	if p := s.place(c); p.w != nil {
		s.keeper.remove(p.w)
		p.w.leave()
		p.w = nil
	}
}

// waiter is one wait of this process.
type waiter struct {
	s   *store
	c   *backend.Claim
	hub *hub // for Enter, Ask and Leave only

	mu    sync.Mutex
	me    string
	front map[string]struct{} // the entries in front
	gone  map[string]int64    // deletions seen, with their revisions
	known int64               // the revision of the list that front was made from
}

// join makes w listen to its queue and returns the revision since when it does.
func (w *waiter) join(ctx context.Context, queue string) (since int64, err error) {
	if w.hub != nil && w.hub.isReady() && w.hub.listensSince() == 0 {
		w.leave()
	}
	if w.hub == nil {
		if w.hub = w.s.hubs.get(queue, w); w.hub == nil {
			return 0, context.Canceled
		}
	}
	if !w.hub.isReady() { // an old one is past its time to begin, too
		most := w.s.hubs.most()
		late := time.NewTimer(most - time.Since(w.hub.born))
		defer late.Stop()
		select {
		case <-w.hub.ready:
		case <-late.C:
			w.hub.forsake()
			w.leave()
			return 0, fmt.Errorf("no answer within %v to a watch", most)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if since = w.hub.listensSince(); since == 0 {
		return 0, errHub
	}
	return since, nil
}

// leave ends listening.
func (w *waiter) leave() {
	if w.hub != nil {
		w.hub.remove(w)
		w.hub = nil
	}
}

// expect sets who is in front, as listed at a revision.
func (w *waiter) expect(me string, listed int64, front []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.me, w.known = me, listed
	w.front = make(map[string]struct{}, len(front))
	for _, f := range front {
		if w.gone[f] <= listed {
			w.front[f] = struct{}{}
		}
	}
	if w.gone[me] > listed {
		w.front[me] = struct{}{} // look again
		w.c.Wake(0)
	}
	clear(w.gone)
}

// deleted ticks off an entry. The waiter looks when nobody is in front any more, or
// when the entry is its own.
func (w *waiter) deleted(key string, rev int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.front == nil || rev > w.known {
		w.gone[key] = rev
	}
	if _, ok := w.front[key]; ok && rev > w.known {
		delete(w.front, key)
		if len(w.front) == 0 {
			w.c.Wake(0)
		}
	}
	if key == w.me && rev > w.known {
		w.front = map[string]struct{}{key: {}} // look at the queue
		w.c.Wake(0)
	}
}

// blocked reports whether somebody is in front.
func (w *waiter) blocked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.front) > 0
}

const (
	// keepEvery is how often the leases that waiters need are looked at.
	keepEvery = 500 * time.Millisecond
	// keepMost bounds one round.
	keepMost = time.Second
)

// keeper keeps the leases alive that this process's waiters need: the one that
// their entries are under, and those that they will need when they are granted the lock. It has one
// goroutine while anybody waits. The leases of held locks are the engine's to renew.
type keeper struct {
	s *store

	mu      sync.Mutex
	waiters map[*waiter]slotKey // the zero one stands for none but the waiters' own
	running bool
}

// add begins to keep leases for w.
func (k *keeper) add(w *waiter, of slotKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiters[w] = of
	if !k.running {
		k.running = true
		k.s.flying.Go(k.run)
	}
}

func (k *keeper) remove(w *waiter) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiters, w)
}

// run renews until nobody waits.
func (k *keeper) run() {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		slots := k.slots()
		if slots == nil {
			return
		}
		k.renew(k.s.leases.aging(slots))
		select {
		case <-tick.C:
		case <-k.s.closing:
		}
	}
}

// slots are the places of the leases that waiters need; nil when nobody waits any more.
func (k *keeper) slots() map[slotKey]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.s.closing:
		clear(k.waiters)
	default:
	}
	if k.running = len(k.waiters) > 0; !k.running {
		return nil
	}
	slots := map[slotKey]bool{waitSlot: true}
	for _, of := range k.waiters {
		slots[of] = true
	}
	return slots
}

// renew renews leases. If that fails for one, the waiters look for themselves: their
// places may be gone, or the store may be down, for which each has its own patience.
func (k *keeper) renew(due []*lease) {
	ctx, cancel := context.WithTimeout(k.s.ctx, keepMost)
	defer cancel()
	for _, err := range k.s.leases.keepAlive(ctx, due) {
		if err != nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			for w := range k.waiters {
				w.c.Wake(0)
			}
			return
		}
	}
}
