package migrate

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Outage implements core.Caller.
func (d *member) Outage(name string) error {
	for _, s := range d.sides {
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
	return d.each(hs, func(s core.Caller, legs []*core.Hold) []error { return s.Check(ctx, legs) })
}

// each asks the stores of this phase, all at once, about the legs of hs, and joins their answers.
func (d *member) each(hs []*core.Hold, ask func(core.Caller, []*core.Hold) []error) []error {
	answers := make([][]error, len(d.sides))
	var all sync.WaitGroup
	for i, s := range d.sides {
		these := make([]*core.Hold, len(hs))
		for j, h := range hs {
			l := legsOf(h).from
			if i > 0 {
				l = legsOf(h).to
			}
			these[j] = &l.hold
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
	if l.to == nil {
		return l.from.caller.Release(ctx, &l.from.hold)
	}
	to, from := together(l.to, l.from, func(l *leg) error { return l.caller.Release(ctx, &l.hold) })
	for _, err := range []error{to, from} {
		if err != nil && !errors.Is(err, backend.ErrLost) {
			return err // it is sent again: what has been released stays so
		}
	}
	return cmp.Or(to, from)
}

// Abandon implements core.Caller: both stores at once.
func (d *member) Abandon(ctx context.Context, r *backend.Request) error {
	l := d.legsFor(r)
	if l.to == nil {
		return l.from.abandon(ctx)
	}
	a, b := together(l.from, l.to, func(l *leg) error { return l.abandon(ctx) })
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
