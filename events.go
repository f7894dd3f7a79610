package fencelock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// eventsMost is how many events wait for the observer before renewals and clean-ups are left out.
const eventsMost = 1 << 16

// events are those that end no call: losses, renewals in the background, clean-ups, and what Close released. One
// goroutine gives them to the observer in order, and is there only while there are any. So an observer that is slow,
// or blocks, or panics, holds up nothing but further events.
type events struct {
	l *Locker

	mu      sync.Mutex
	waiting []Event
	running bool
	drained chan struct{} // closed when nothing waits any more; nil while nobody waits for that
	panics  int
	first   error // the first panic
}

// tell is emit for an event that ends no call.
func (l *Locker) tell(e Event) {
	if l.set.observer == nil {
		return
	}
	e.Backend = l.backendOf(e.Name)
	if e.At.IsZero() {
		e.At = time.Now()
	}
	es := &l.events
	es.mu.Lock()
	defer es.mu.Unlock()
	if len(es.waiting) >= eventsMost && (e.Kind == Renewed || e.Kind == RenewFailed || e.Kind == CleanedUp) {
		return
	}
	es.waiting = append(es.waiting, e)
	if !es.running {
		es.running = true
		go es.deliver()
	}
}

// deliver gives the observer what waits for it.
func (es *events) deliver() {
	es.mu.Lock()
	defer es.mu.Unlock()
	for len(es.waiting) > 0 {
		batch := es.waiting
		es.waiting = nil
		es.mu.Unlock()
		for _, e := range batch {
			es.observe(e)
		}
		es.mu.Lock()
	}
	es.running = false
	if es.drained != nil {
		close(es.drained)
		es.drained = nil
	}
}

// observe keeps a panic of the observer for Close: it must not end the program from a goroutine
// that is not the caller's.
func (es *events) observe(e Event) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		es.mu.Lock()
		defer es.mu.Unlock()
		if es.panics++; es.panics == 1 {
			es.first = fmt.Errorf("the observer panicked on %q: %v", e.Kind, r)
		}
	}()
	es.l.set.observer.Observe(context.Background(), e)
}

// close waits until the observer has been given everything, or until late, and says what went wrong with it.
func (es *events) close(late <-chan struct{}) error {
	es.mu.Lock()
	if es.running && es.drained == nil {
		es.drained = make(chan struct{})
	}
	drained := es.drained
	es.mu.Unlock()
	var stuck error
	if drained != nil {
		select {
		case <-drained:
		case <-late:
			stuck = errors.New("the observer is behind, or does not return: it was not given every event")
		}
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	first := es.first
	if es.panics > 1 {
		first = fmt.Errorf("%w (and on %d events more)", first, es.panics-1)
	}
	return errors.Join(stuck, first)
}
