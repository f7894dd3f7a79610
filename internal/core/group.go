package core

import "sync"

// Group counts what is under way. Unlike a sync.WaitGroup it may be added to from nothing while
// somebody waits, as by a call that Close does not wait for any longer.
type Group struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil: nobody waits
}

// Go runs f on a goroutine, and counts it. A panic of f does not end it: a caller of Wait would go on, and could exit
// before the panic is printed.
func (g *Group) Go(f func()) {
	g.Add()
	go func() {
		defer func() {
			if r := recover(); r != nil {
				panic(r)
			}
			g.Done()
		}()
		f()
	}()
}

// Add counts one more.
func (g *Group) Add() {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
}

// Done counts one less.
func (g *Group) Done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.none != nil {
		close(g.none)
		g.none = nil
	}
}

// Wait returns once nothing is under way. It does not wait for later additions.
func (g *Group) Wait() {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.none == nil {
		g.none = make(chan struct{})
	}
	none := g.none
	g.mu.Unlock()
	<-none
}
