package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// grip is one round of votes as the nodes know it: by an id of its own, for what is late of one round must not touch the
// next. It is the driver's handle of a hold.
type grip struct {
	id     string
	queued bool // the nodes may have its request among the waiters

	mu      sync.Mutex
	answers <-chan answer // of the votes; those of stragglers come later
	sure    []bool        // nodes whose vote or refusal has come: nothing of the round is under way to them
	voted   bool          // a node has voted for it, in time for the round or not
}

// take notes an answer of the round.
func (g *grip) take(a answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.note(a)
}

// note is take; g.mu is held.
func (g *grip) note(a answer) {
	g.sure[a.node] = a.err == nil && !a.twice
	if a.err == nil {
		reply, _ := a.replies[0].([]any)
		g.voted = g.voted || len(reply) > 0 && reply[0] == int64(0)
	}
}

// nothing reports whether no node has anything of the round, or ever will.
func (g *grip) nothing() bool {
	sure := g.surely()
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.voted && !slices.Contains(sure, false)
}

// surely reports, for each node, that nothing of the round is under way to it.
func (g *grip) surely() []bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		select {
		case a := <-g.answers:
			g.note(a)
			continue
		default:
		}
		return g.sure
	}
}

func (d *Driver) keep(nonce string, g *grip) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grips[nonce] = g
}

func (d *Driver) forget(nonce string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.grips, nonce)
}

// gripOf returns the round of a request that may hold something; the first if none is known.
func (d *Driver) gripOf(r *backend.Request) *grip {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.grips[r.Nonce]; g != nil {
		return g
	}
	return d.grip(r.Nonce)
}

// grip makes one of which nothing is under way.
func (d *Driver) grip(id string) *grip {
	sure := make([]bool, len(d.nodes))
	for i := range sure {
		sure[i] = true
	}
	return &grip{id: id, sure: sure}
}

// held returns the round that a hold came of.
func (d *Driver) held(h *backend.Hold) *grip {
	if g, ok := h.Handle.(*grip); ok {
		return g
	}
	return d.gripOf(h.Request)
}

// free sends the release of a round to every node, with a tombstone where something of it may be under way and not surely come
// first. A node that does not answer gets it when it does.
func (d *Driver) free(to *round, r *backend.Request, g *grip, remember, leave bool) {
	lock := d.prefix + r.Name
	b := bucket(lock)
	keep := r.TTL + r.Grace + tombstone
	until := time.Now().Add(keep)
	release := func(keep time.Duration) []op {
		how := ""
		if keep > 0 || !remember || leave {
			how = fmt.Sprint(millis(keep), " ", flag(remember), " ", flag(leave))
		}
		return []op{{lock, []any{"r", g.id, b, how}}}
	}
	certain, doubtful := release(0), []op(nil)
	sure := g.surely()
	for _, n := range to.nodes() {
		q := &request{ops: certain, done: to.done, until: until}
		l, ok := to.take(n)
		if !sure[n.index] {
			if doubtful == nil {
				doubtful = release(keep)
			}
			if ok && l.owes(g.answers) {
				q.otherwise = doubtful
			} else {
				q.ops = doubtful
			}
		}
		to.send(n, l, q)
	}
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// count waits for a majority of answers to a release: how many nodes freed the lock, and how many say that it was not ours.
func (d *Driver) count(ctx context.Context, answers *round, enough func(ours, not int) bool) (ours, not int, silent *silence, err error) {
	silent = &silence{d: d}
	err = d.each(ctx, answers, callMost, func(a answer) bool {
		switch {
		case a.err != nil:
			silent.add(a.node, a.err)
		case a.replies[0] == int64(1):
			ours++
		case a.replies[0] == int64(0):
			not++
		case a.replies[0] == int64(-1):
			silent.add(a.node, errQuarantine)
		default:
			silent.add(a.node, unexpected(a.replies[0]))
		}
		return enough(ours, not)
	})
	return ours, not, silent, err
}

// Release implements backend.Driver. It returns when a majority has freed the lock; the others follow.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	g := d.held(h)
	answers := d.begin()
	d.free(answers, h.Request, g, true, g.queued)
	ours, not, silent, err := d.count(ctx, answers, func(ours, not int) bool {
		return ours >= d.quorum || len(d.nodes)-not < d.quorum
	})
	switch {
	case ours >= d.quorum:
	case len(d.nodes)-not < d.quorum:
		err = backend.ErrLost
	case err == nil:
		return silent.err(ours + not)
	default:
		return err
	}
	d.forget(h.Nonce)
	return err
}

// Abandon implements backend.Driver.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	answers := d.begin()
	d.free(answers, r, d.gripOf(r), false, r.Wait)
	ours, not, silent, err := d.count(ctx, answers, func(ours, not int) bool { return ours+not >= d.quorum })
	if ours+not >= d.quorum {
		d.forget(r.Nonce)
		return nil
	}
	if err == nil {
		err = silent.err(ours + not)
	}
	return err
}

// Renew implements backend.Driver: one request to each node, whatever the number of holds.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return d.verdicts(ctx, hs, func(h *backend.Hold, id string) []any {
		return []any{"e", id, millis(h.TTL + h.Grace)}
	})
}

// Check implements backend.Checker.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	return d.verdicts(ctx, hs, func(_ *backend.Hold, id string) []any { return []any{"c", id} })
}

// verdicts asks about many holds: nil where a majority says ours, ErrLost where so many say
// that it is not ours that no majority can, and otherwise why not.
func (d *Driver) verdicts(ctx context.Context, hs []*backend.Hold, args func(*backend.Hold, string) []any) []error {
	ops := make([]op, len(hs))
	for i, h := range hs {
		ops[i] = op{d.prefix + h.Name, args(h, d.held(h).id)}
	}
	ours, not := make([]int, len(hs)), make([]int, len(hs))
	answered, silent := 0, &silence{d: d}
	errs := make([]error, len(hs))
	open := len(hs)
	for i := range errs {
		errs[i] = errUndecided
	}
	err := d.each(ctx, d.ask(ops, callMost), callMost, func(a answer) bool {
		if a.err != nil {
			silent.add(a.node, a.err)
			return false
		}
		answered++
		for i, reply := range a.replies {
			switch reply {
			case int64(1):
				ours[i]++
			case int64(0):
				not[i]++
			}
			if !errors.Is(errs[i], errUndecided) {
				continue
			}
			switch {
			case ours[i] >= d.quorum:
				errs[i] = nil
				open--
			case len(hs) > 0 && len(d.nodes)-not[i] < d.quorum:
				errs[i] = backend.ErrLost
				open--
			}
		}
		return open == 0
	})
	if err == nil {
		err = silent.err(answered)
	}
	for i := range errs {
		if errors.Is(errs[i], errUndecided) {
			errs[i] = err
		}
	}
	return errs
}
