package file

import (
	"context"

	"github.com/fencelock/fencelock/backend"
)

// Renew implements [backend.Driver]: the holds of one bucket cost one write.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	ear := d.ears.address()
	return d.each(hs, func(b *bucket, hs []*backend.Hold, result func(int, error)) error {
		return b.update(ctx, func(st *state, _ backend.Instant, now int64) bool {
			changed := false
			for i, h := range hs {
				e := st.find(d.prefix, h.Name)
				if !e.ours(h.Nonce) || e.hold.until <= now {
					result(i, backend.ErrLost)
					continue
				}
				e.hold.until, e.hold.ear, changed = now+int64(h.TTL+h.Grace), ear, true
			}
			return changed
		})
	})
}

// Check implements [backend.Checker]. It reads only.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	return d.each(hs, func(b *bucket, hs []*backend.Hold, result func(int, error)) error {
		st, now, err := b.snapshot(ctx)
		if err != nil {
			return err
		}
		for i, h := range hs {
			if e := st.find(d.prefix, h.Name); !e.ours(h.Nonce) || e.hold.until <= now {
				result(i, backend.ErrLost)
			}
		}
		return nil
	})
}

// each calls fn once for every bucket of hs, with its holds. An error of fn is that of
// all of them; otherwise result sets one's.
func (d *Driver) each(hs []*backend.Hold, fn func(b *bucket, hs []*backend.Hold, result func(int, error)) error) []error {
	errs := make([]error, len(hs))
	var groups [buckets][]int
	for i, h := range hs {
		p := place(d.prefix, h.Name)
		groups[p] = append(groups[p], i)
	}
	for p, group := range groups {
		if len(group) == 0 {
			continue
		}
		these := make([]*backend.Hold, len(group))
		for i, at := range group {
			these[i] = hs[at]
		}
		if err := fn(d.buckets[p], these, func(i int, err error) { errs[group[i]] = err }); err != nil {
			for _, at := range group {
				errs[at] = err
			}
		}
	}
	return errs
}

// Release implements [backend.Driver].
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	var answer error
	err := d.free(ctx, h.Name, func(st *state, e *entry, now int64) bool {
		m := st.marked(h.Nonce)
		switch {
		case e.ours(h.Nonce):
			e.clear(now)
			st.mark(h.Nonce, true, now+keep(h.Request))
			return true
		case m == nil || !m.released:
			answer = backend.ErrLost
		}
		return false
	})
	if err != nil {
		return err
	}
	d.ears.forget(h.Nonce)
	return answer
}

// Abandon implements [backend.Driver].
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	err := d.free(ctx, r.Name, func(st *state, e *entry, now int64) bool {
		if e.ours(r.Nonce) {
			e.clear(now)
		} else if e != nil {
			e.drop(r.Nonce, now)
		}
		st.mark(r.Nonce, false, now+keep(r))
		return true
	})
	if err == nil {
		d.ears.forget(r.Nonce)
	}
	return err
}

// Break implements [backend.Driver].
func (d *Driver) Break(ctx context.Context, name string) error {
	var was hold
	err := d.free(ctx, name, func(st *state, e *entry, now int64) bool {
		if e == nil || e.hold == nil {
			return false
		}
		was = *e.hold
		st.mark(was.nonce, false, was.until+int64(markMore))
		e.clear(now)
		return true
	})
	if was.nonce != "" && err == nil {
		d.ears.say(sayLost, was.nonce, was.ear)
	}
	return err
}

// free runs fn, which may free the lock or change its queue, and then tells
// whom it is free for. e is settled, and nil for a name that is neither held nor waited for.
func (d *Driver) free(ctx context.Context, name string, fn func(st *state, e *entry, now int64) bool) error {
	b := d.bucket(name)
	var h heirs
	err := b.update(ctx, func(st *state, _ backend.Instant, now int64) bool {
		e := st.find(d.prefix, name)
		changed := e != nil && e.settle(now, "")
		changed = fn(st, e, now) || changed
		h = e.heirs()
		return changed
	})
	if err != nil {
		return err
	}
	d.pass(ctx, b, name, h, "")
	return nil
}

// keep is how long the mark of a request stays.
func keep(r *backend.Request) int64 { return int64(r.TTL + r.Grace + markMore) }

// verify tells a request of its loss if it holds no more. It is called on a
// rumour, so it looks.
func (d *Driver) verify(r *backend.Request) {
	if r.Lost == nil {
		return
	}
	st, _, err := d.bucket(r.Name).snapshot(context.Background())
	if err == nil && !st.find(d.prefix, r.Name).ours(r.Nonce) {
		r.Lost(backend.ErrLost)
	}
}
