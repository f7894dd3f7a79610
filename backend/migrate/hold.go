package migrate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Outage implements core.Caller.
func (d *member) Outage(name string) error {
	for _, s := range d.sides() {
		if err := s.Outage(name); err != nil {
			return err
		}
	}
	return nil
}

// Renew implements core.Caller: both stores at once. A hold that one of them does not know any more is lost.
func (d *member) Renew(ctx context.Context, hs []*core.Hold) []error {
	return d.each(hs, func(s core.Caller, legs []*core.Hold) []error { return s.Renew(ctx, legs) })
}

// Check implements core.Caller, of both stores.
func (d *member) Check(ctx context.Context, hs []*core.Hold) []error {
	return d.each(hs, func(s core.Caller, legs []*core.Hold) []error {
		return s.Check(ctx, legs)
	})
}

// each asks the stores of this phase, all at once, about the legs of hs, and joins their answers.
func (d *member) each(hs []*core.Hold, ask func(core.Caller, []*core.Hold) []error) []error {
	sides := d.sides()
	answers := make([][]error, len(sides))
	var all sync.WaitGroup
	for i, s := range sides {
		these := make([]*core.Hold, len(hs))
		for j, h := range hs {
			l := legsOf(h)
			switch {
			case l.one() != nil:
				these[j] = &l.one().hold
			case i == 0:
				these[j] = &l.from.hold
			default:
				these[j] = &l.to.hold
			}
		}
		all.Go(func() { answers[i] = ask(s, these) })
	}
	all.Wait()
	errs := answers[0]
	for _, more := range answers[1:] {
		for j, err := range more {
			errs[j] = worse(errs[j], err)
		}
	}
	return errs
}

func legsOf(h *core.Hold) *legs { return h.Grant.Handle.(*legs) }

// worse returns the answer that counts for both: lost in one store is lost; one that is not known is not known.
func worse(a, b error) error {
	switch {
	case errors.Is(a, backend.ErrLost) || b == nil:
		return a
	case errors.Is(b, backend.ErrLost) || a == nil:
		return b
	}
	return a
}

// Release implements core.Caller: both stores at once, so that one which does not answer holds
// up nobody in the other. nil: it was ours in both until now.
func (d *member) Release(ctx context.Context, h *core.Hold) error {
	l := legsOf(h)
	if one := l.one(); one != nil {
		return one.caller.Release(ctx, &one.hold)
	}
	to, from := together(l.to, l.from, func(l *leg) error { return l.caller.Release(ctx, &l.hold) })
	var undone *backend.UndoneError
	unknown := func(err error) bool {
		return err != nil && !errors.Is(err, backend.ErrLost) && !errors.As(err, &undone)
	}
	switch {
	case unknown(to):
		return to // it is sent again: what has been released stays so
	case unknown(from):
		return from
	}
	return worse(to, from)
}

// Abandon implements core.Caller: both stores at once.
func (d *member) Abandon(ctx context.Context, r *backend.Request) error {
	if d.phase != backend.PhaseBoth {
		l := d.only(r)
		return l.caller.Abandon(ctx, &l.req)
	}
	from, to := d.pairOf(r, d.nonceOf(r))
	a, b := together(from, to, func(l *leg) error {
		err := l.caller.Abandon(ctx, &l.req)
		if errors.Is(err, backend.ErrLost) {
			return nil
		}
		return err
	})
	for _, err := range []error{a, b} {
		if err != nil && !backend.Final(err) {
			return err // which may come to another end, whatever the other store says
		}
	}
	return errors.Join(a, b)
}

// together does the same to two legs at once.
func together(a, b *leg, do func(*leg) error) (ofA, ofB error) {
	var other sync.WaitGroup
	other.Go(func() { ofB = do(b) })
	ofA = do(a)
	other.Wait()
	return ofA, ofB
}

// drop abandons a leg in the background, for as long as its store may keep it.
func (d *member) drop(l *leg) {
	end := time.Now().Add(l.req.TTL + l.req.Grace)
	d.dropping.Go(func() {
		for pause := 20 * time.Millisecond; time.Now().Before(end); pause = min(2*pause, time.Second) {
			ctx, cancel := context.WithTimeout(d.ctx, sideMost)
			err := l.caller.Abandon(ctx, &l.req)
			cancel()
			if err == nil || backend.Final(err) {
				return
			}
			select {
			case <-time.After(pause):
			case <-d.ctx.Done():
				return
			}
		}
	})
}
