package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	d    *Driver
	idle atomic.Int64 // how many have no waiter

	mu      sync.Mutex
	byQueue map[string]*hub
	closed  bool
}

// hub is the watch of one queue. It is opened at the store's present, not at a
// revision of the past: the server sends what such a watch sees at once, where one that
// has to catch up is served ten times a second.
type hub struct {
	hubs   *hubs
	queue  string
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

// get returns the hub of a queue with w among its waiters.
func (hs *hubs) get(queue string, w *waiter) *hub {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byQueue[queue]
	if h == nil {
		if hs.closed {
			return nil
		}
		ctx, cancel := context.WithCancel(hs.d.ctx)
		h = &hub{hubs: hs, queue: queue, cancel: cancel, ready: make(chan struct{}), waiters: map[*waiter]struct{}{}}
		hs.byQueue[queue] = h
		hs.d.flying.Go(func() { h.run(ctx) })
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
}

// run watches until the hub is closed or the watch breaks off.
func (h *hub) run(ctx context.Context) {
	defer h.end()
	// A member that has lost its leader ends the watch; clientv3 goes on elsewhere by itself, without a gap.
	for resp := range h.hubs.d.client.Watch(clientv3.WithRequireLeader(ctx), h.queue,
		clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()) {
		if resp.Err() != nil {
			return
		}
		if resp.Created && !h.isReady() {
			h.mu.Lock()
			h.since = resp.Header.Revision
			h.mu.Unlock()
			close(h.ready)
		}
		h.deliver(resp.Events)
	}
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
	h.hubs.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.busy()
	if !h.isReady() {
		close(h.ready) // those who wait for it see that it is over
		return
	}
	for w := range h.waiters {
		w.poke()
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

// waiter is one wait of this process.
type waiter struct {
	d    *Driver
	wake chan struct{}
	hub  *hub // for the waiter's own goroutine only

	mu    sync.Mutex
	me    string
	front map[string]struct{} // the entries in front
	gone  map[string]int64    // deletions seen, with their revisions
	known int64               // the revision of the list that front was made from
}

func newWaiter(d *Driver) *waiter {
	return &waiter{d: d, wake: make(chan struct{}, 1), gone: map[string]int64{}}
}

// join makes w listen to its queue and returns the revision since when it does.
func (w *waiter) join(ctx context.Context, queue string) (since int64, err error) {
	if w.hub != nil {
		w.hub.mu.Lock()
		over := w.hub.over
		w.hub.mu.Unlock()
		if over {
			w.leave()
		}
	}
	if w.hub == nil {
		if w.hub = w.d.hubs.get(queue, w); w.hub == nil {
			return 0, context.Canceled
		}
	}
	select {
	case <-w.hub.ready:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.hub.over {
		return 0, errHub
	}
	return w.hub.since, nil
}

// leave ends listening.
func (w *waiter) leave() {
	if w.hub != nil {
		w.hub.remove(w)
		w.hub = nil
	}
}

// expect sets who is in front, as listed at a revision.
func (w *waiter) expect(me string, listed int64, front []ahead) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.me, w.known = me, listed
	w.front = make(map[string]struct{}, len(front))
	for _, f := range front {
		if w.gone[f.key] <= listed {
			w.front[f.key] = struct{}{}
		}
	}
	if w.gone[me] > listed {
		w.front[me] = struct{}{} // look again
		w.poke()
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
			w.poke()
		}
	}
	if key == w.me && rev > w.known {
		w.front = map[string]struct{}{key: {}} // look at the queue
		w.poke()
	}
}

// blocked reports whether somebody is in front.
func (w *waiter) blocked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.front) > 0
}

// poke makes the waiter look.
func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
