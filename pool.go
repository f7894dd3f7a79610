package fencelock

import (
	"sync"
	"time"
)

const (
	poolMost = 64 // calls at once, not counting those that hang
	// a call that is under way for so long hangs, or is one of a store that is slow for all
	poolHangs = 20 * time.Millisecond
)

// pool bounds how many calls of the driver are under way at once. A call that hangs counts no more: part of a
// store may answer nothing while another part does, and must not be kept waiting for it.
type pool struct {
	busy int // calls that do not hang yet; the owner's mutex guards it
}

// full reports whether a call must wait for another one to end, or to hang.
func (p *pool) full() bool { return p.busy >= poolMost }

// begin counts a call in. mu is the owner's mutex and is held; hangs is called with it held, when the call is found
// to hang. The function that begin returns counts the call out, and is called with mu held.
func (p *pool) begin(mu *sync.Mutex, hangs func()) (end func()) {
	p.busy++
	counted := true
	timer := time.AfterFunc(poolHangs, func() {
		mu.Lock()
		defer mu.Unlock()
		if counted {
			counted = false
			p.busy--
			hangs()
		}
	})
	return func() {
		timer.Stop()
		if counted {
			counted = false
			p.busy--
		}
	}
}
