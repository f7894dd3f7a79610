package fencelock

import (
	"context"
	"slices"
)

// line is the queue for one name inside this process: the first caller of Lock
// is with the store, the others wait here in order. So one process is one waiter
// at the store, however many goroutines wait.
type line struct {
	behind []chan struct{} // closed when it is that caller's turn
}

// queue takes a place in the line of name and returns when it is first, or
// with ctx's error. leave must be called once after a nil return.
func (l *Locker) queue(ctx context.Context, name string) error {
	l.mu.Lock()
	q := l.lines[name]
	if q == nil {
		l.lines[name] = &line{}
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q.behind = append(q.behind, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(q.behind, turn)
	if i >= 0 {
		q.behind = slices.Delete(q.behind, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was given the turn just now: pass it on
		l.leave(name)
	}
	return ctxError(ctx, true, nil)
}

// leave gives the turn to the next in line.
func (l *Locker) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[name]
	if len(q.behind) == 0 {
		delete(l.lines, name)
		return
	}
	close(q.behind[0])
	q.behind = q.behind[1:]
}

// lined reports whether somebody in this process is locking name or waits for it.
func (l *Locker) lined(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[name] != nil
}
