package etcd

import (
	"context"
	"sync"
	"time"
)

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
	d *Driver

	mu      sync.Mutex
	waiters map[*waiter]slotKey
	running bool
	over    chan struct{} // closed by close
}

// add begins to keep leases for w; the zero slotKey stands for none but the waiters' own.
func (k *keeper) add(w *waiter, s slotKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiters[w] = s
	if !k.running {
		k.running = true
		k.d.flying.Go(k.run)
	}
}

func (k *keeper) remove(w *waiter) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiters, w)
}

// close ends the keeper for good.
func (k *keeper) close() { close(k.over) }

func (k *keeper) isOver() bool {
	select {
	case <-k.over:
		return true
	default:
		return false
	}
}

// run renews until nobody waits.
func (k *keeper) run() {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		due, on := k.due()
		if !on {
			return
		}
		k.renew(due)
		select {
		case <-tick.C:
		case <-k.over:
		}
	}
}

// due returns the leases that are to be renewed; on is false when nobody waits any more.
func (k *keeper) due() (due []*lease, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiters) == 0 || k.isOver() {
		k.running = false
		return nil, false
	}
	slots := map[slotKey]bool{waitSlot: true}
	for _, s := range k.waiters {
		slots[s] = true
	}
	for s := range slots {
		if s.kind == "" {
			continue
		}
		ls := &k.d.leases
		ls.mu.Lock()
		l := ls.slot(s).cur
		ls.mu.Unlock()
		if l != nil && !l.isDead() && l.within(l.granted) && !l.within(l.granted/4) {
			due = append(due, l)
		}
	}
	return due, true
}

// renew renews leases. If that fails for one, the waiters look for themselves: their
// places may be gone, or the store may be down, for which each has its own patience.
func (k *keeper) renew(due []*lease) {
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(k.d.ctx, keepMost)
	defer cancel()
	for _, err := range k.d.leases.keepAlive(ctx, due) {
		if err != nil {
			k.mu.Lock()
			for w := range k.waiters {
				w.poke()
			}
			k.mu.Unlock()
			return
		}
	}
}
