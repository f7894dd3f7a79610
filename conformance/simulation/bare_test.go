package simulation

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// bare is the backend.Driver of a client: it sends each thing once, and what the engine has over a
// store waits, sends again and sends together. It remembers of an abandoned acquisition only what a
// claim that is Unsure makes it remember, so that a copy of any other is granted if it comes late.
type bare struct{ d *driver }

func (b bare) Traits() backend.Traits { return b.d.Traits() }

func (b bare) Calls() backend.Calls {
	w := b.d.w
	return backend.Calls{
		Most: w.plan.most, Abreast: 1, Mixed: w.plan.mixed, Aside: w.plan.patient, Tells: b.d.Tells(),
	}
}

func (b bare) Close() error { return b.d.Close() }

// Enter lets a push reach the claim from now on.
func (b bare) Enter(_ context.Context, c *backend.Claim) error {
	a := b.d.acq(c.Request)
	b.d.begin("enter", a)
	defer b.d.end("enter", a)
	b.d.w.mu.Lock()
	defer b.d.w.mu.Unlock()
	a.claim = c
	return nil
}

// Ask sends one message for all, with the leaves among them where the plan mixes.
func (b bare) Ask(ctx context.Context, cs []*backend.Claim) {
	d, w := b.d, b.d.w
	as, ops, unsure := make([]*acq, len(cs)), make([]string, len(cs)), make([]bool, len(cs))
	for i, c := range cs {
		as[i], ops[i], unsure[i] = d.acq(c.Request), "acquire", c.Unsure
		if c.Leaving {
			ops[i] = abandoned
			if c.Held {
				ops[i] = released
			}
		} else if c.Wait {
			d.hears(as[i], true)
		}
		d.begin(ops[i], as[i])
	}
	rep, asked, err := d.c.once(ctx, d.id(as[0], ops[0]), func() reply {
		each := make([]reply, len(as))
		for i, a := range as {
			if ops[i] == "acquire" {
				each[i] = w.store.acquire(a)
				w.refusal(a, each[i])
				continue
			}
			each[i].err = w.store.leaveBare(a, ops[i], unsure[i])
		}
		return reply{each: each}
	})
	for i, c := range cs {
		a, e := as[i], reply{err: err}
		if err == nil {
			e = rep.each[i]
		}
		c.Err = e.err
		switch {
		case ops[i] != "acquire":
			d.hears(a, false)
			if c.Err == nil && ops[i] == released {
				w.mu.Lock()
				d.gone[a.nonce] = time.Now()
				w.mu.Unlock()
			}
		case c.Err == nil:
			c.Grant = d.granted(a, e, asked)
			d.hears(a, false)
		case errors.Is(c.Err, backend.ErrLocked):
			// Before Enter the store has taken the claim into its queue too, and nobody would wake it.
			c.Next, c.Queued = e.in, c.Wait && a.claim != nil
			d.hears(a, c.Wait)
		}
		d.end(ops[i], a)
	}
}

// Leave is the same message.
func (b bare) Leave(ctx context.Context, cs []*backend.Claim) { b.Ask(ctx, cs) }

func (b bare) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	as := make([]*acq, len(cs))
	for i, c := range cs {
		as[i] = b.d.acq(c.Request)
	}
	if extend {
		return b.d.many(ctx, "renew", as, b.d.c.once, b.d.w.store.renew)
	}
	return b.d.many(ctx, "check", as, b.d.c.once, b.d.w.store.check)
}

func (b bare) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		of := names
		if r.Name != "" {
			of = []string{r.Name}
		}
		for _, name := range of {
			b.d.begin("inspect")
			rep, _, err := b.d.c.once(ctx, b.d.c.next("inspect"), func() reply {
				return reply{info: b.d.w.store.inspect(name)}
			})
			b.d.end("inspect")
			if !yield(rep.info, err) || err != nil {
				return
			}
		}
	}
}

func (b bare) Break(ctx context.Context, name string) error {
	return b.d.breakBy(ctx, b.d.c.once, name)
}
