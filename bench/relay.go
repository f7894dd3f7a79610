package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// grantMost bounds how long a waiter waits for what was freed.
const grantMost = 30 * time.Second

// relay hands one name from one client to another, and again. One goroutine uses it.
type relay struct {
	hold  func(context.Context) error // of the first client; nil: nothing to do
	free  func(context.Context) error
	wait  func(context.Context) error // of the second; returns with the grant
	after func(context.Context) error // frees what wait got; nil: nothing to do
	seen  func(context.Context) error // returns when the second client stands in the queue; nil: it cannot be seen
	shut  func()                      // nil: nothing to do

	got chan granted // of the waiter that was started
}

type granted struct {
	at  time.Time
	err error
}

// arm returns when the first client holds the name and the second one waits for it.
func (r *relay) arm(ctx context.Context) error {
	if r.hold != nil {
		if err := r.hold(ctx); err != nil {
			return err
		}
	}
	r.got = make(chan granted, 1)
	go func(got chan<- granted) {
		limited, cancel := context.WithTimeout(ctx, grantMost)
		defer cancel()
		err := r.wait(limited)
		got <- granted{time.Now(), err}
	}(r.got)
	if r.seen == nil {
		return nil
	}
	return r.seen(ctx)
}

// fire frees it, and returns how long it took from that call to the second client's grant.
func (r *relay) fire(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := r.free(ctx); err != nil {
		return 0, err
	}
	g := <-r.got
	r.got = nil
	if g.err != nil {
		return 0, fmt.Errorf("the waiter: %w", g.err)
	}
	if r.after == nil {
		return g.at.Sub(began), nil
	}
	return g.at.Sub(began), r.after(ctx)
}

// close frees what is held, in the middle too.
func (r *relay) close(ctx context.Context) error {
	var err error
	if r.got != nil { // it was armed, and not fired
		err = r.free(ctx)
		g := <-r.got
		r.got = nil
		if g.err == nil && r.after != nil {
			err = errors.Join(err, r.after(ctx))
		}
	}
	if r.shut != nil {
		r.shut()
	}
	return err
}
