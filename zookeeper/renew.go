package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	maxChecks = 500 // holds in one multi
	maxLooks  = 32  // watches that are armed at once
)

// errUnsettled: the session was silent for so long that the leader may have been about to end it.
var errUnsettled = errors.New("the session has only just come back")

// Renew implements backend.Driver: a multi for each session and 500 holds. It goes through the leader, which answers only for
// sessions that live.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	bySession := map[*session][]int{}
	for i, h := range hs {
		e := d.find(h.Nonce)
		if e == nil || e.grant == nil || e.lapsed() {
			errs[i] = backend.ErrLost
			continue
		}
		bySession[e.s] = append(bySession[e.s], i)
	}
	var wg sync.WaitGroup
	for s, all := range bySession {
		for len(all) > 0 {
			some := all[:min(len(all), maxChecks)]
			all = all[len(some):]
			wg.Go(func() { s.renew(ctx, hs, some, errs) })
		}
	}
	wg.Wait()
	return errs
}

// renew renews the holds of one multi. Those that turn out to be gone are left out, until the rest is done.
func (s *session) renew(ctx context.Context, hs []*backend.Hold, some []int, errs []error) {
	var es []*entry
	var at []int
	for _, i := range some {
		if e := s.d.find(hs[i].Nonce); e != nil {
			es, at = append(es, e), append(at, i)
		} else {
			errs[i] = backend.ErrLost
		}
	}
	for len(es) > 0 {
		ops := make([]any, len(es))
		for i, e := range es {
			ops[i] = &zk.CheckVersionRequest{Path: e.held, Version: -1}
		}
		asked := backend.Now()
		bad, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			for i, e := range es {
				switch {
				case !s.covers(asked, e.r.TTL):
					errs[at[i]] = errUnsettled
				case !e.renew(asked):
					errs[at[i]] = backend.ErrLost
				}
			}
			return
		case bad >= 0 && errors.Is(err, zk.ErrNoNode):
			errs[at[bad]] = backend.ErrLost
			es = append(es[:bad], es[bad+1:]...)
			at = append(at[:bad], at[bad+1:]...)
		default:
			if errors.Is(err, errEnded) {
				err = &backend.LostError{Reason: backend.SessionLost}
			}
			for _, i := range at {
				errs[i] = err
			}
			return
		}
	}
}

// Check implements backend.Checker. The first time it arms a watch on the holder's node, which tells at once when the
// node goes; after that there is nothing to ask.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	places := make(chan struct{}, maxLooks)
	var wg sync.WaitGroup
	for i, h := range hs {
		e := d.find(h.Nonce)
		switch {
		case e == nil || e.grant == nil || e.lapsed():
			errs[i] = backend.ErrLost
		case !e.s.alive():
			errs[i] = &backend.LostError{Reason: backend.SessionLost}
		case !e.isArmed():
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				errs[i] = e.arm(ctx)
			})
		}
	}
	wg.Wait()
	return errs
}

func (e *entry) isArmed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.armed != nil
}

// arm makes the end of the holder's node tell the holder.
func (e *entry) arm(ctx context.Context) error {
	w, _, err := e.s.watchEnd(ctx, e.held, func(gone bool) {
		e.mu.Lock()
		e.armed = nil
		e.mu.Unlock()
		if gone {
			e.tellLost(backend.ErrLost)
		}
	})
	if errors.Is(err, zk.ErrNoNode) {
		return backend.ErrLost
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	stopped := e.stopped
	if !stopped {
		e.armed = w
	}
	e.mu.Unlock()
	if stopped {
		e.s.ignore(e.held, w)
	}
	return nil
}
