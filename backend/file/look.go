package file

import (
	"cmp"
	"context"
	"iter"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Look implements [backend.Driver]. Each bucket is read as of one moment.
func (s *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	places := s.buckets[:]
	if r.Name != "" {
		places = []*bucket{s.bucket(r.Name)}
	}
	return func(yield func(backend.Info, error) bool) {
		for _, b := range places {
			st, err := b.snapshot(ctx)
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			if r.Name != "" {
				yield(st.locks[s.key(r.Name)].info(r.Name, st.now), nil)
				return
			}
			for k, l := range st.locks {
				if k.prefix != s.prefix || !strings.HasPrefix(k.name, r.Prefix) {
					continue
				}
				if i := l.info(k.name, st.now); (i.Held || i.Waiters > 0) && !yield(i, nil) {
					return
				}
			}
		}
	}
}

// info describes the lock without changing it.
func (l *lock) info(name string, now int64) backend.Info {
	i := backend.Info{Name: name}
	if l == nil {
		return i
	}
	for _, h := range l.holds {
		if h.until <= now {
			continue
		}
		i.Held, i.Owner, i.Token = true, h.owner, max(i.Token, h.token)
		i.ExpiresIn = max(i.ExpiresIn, time.Duration(h.until-now))
		i.Both = cmp.Or(i.Both, h.both)
		if i.Mode = h.mode; h.shared() {
			i.Holders++
			i.Holds = append(i.Holds, backend.Held{
				ID: h.nonce, Owner: h.owner, Token: h.token, Slot: int(h.slot), ExpiresIn: time.Duration(h.until - now),
			})
		}
	}
	i.Holds = backend.FirstHolds(i.Holds)
	if i.Holders > 1 {
		i.Owner = ""
	}
	for _, w := range l.queue {
		if w.until > now {
			i.Waiters++
		}
	}
	return i
}
