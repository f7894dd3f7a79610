package simulation

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// common is a name that several hold at once: readers, or permits. In some worlds each client has sharers of it,
// which the oracles below judge and those of exclusive locks do not.
const common = "common"

// share is one of several that hold the name at the store.
type share struct {
	a       *acq
	token   backend.Token
	slot    int
	expires time.Time
	pending bool // it was woken, and has not asked yet
}

// group is the name at the store. The world's mutex guards it.
type group struct {
	s      *store
	shares []*share
	queue  []*place
	era    backend.Token // of the readers that hold, or held last
	last   backend.Token // the greatest that was granted
}

// there are those who hold the name, by the rule that the store goes by.
func (g *group) there() []*backend.Request {
	var all []*backend.Request
	for _, h := range g.shares {
		all = append(all, h.a.r)
	}
	return all
}

// admits is Request.Admits, but for the flaw.
func (g *group) admits(a *acq) bool {
	mine := *a.r
	there := g.there()
	switch g.s.flaw {
	case modesMixed:
		there = slices.DeleteFunc(there, func(r *backend.Request) bool { return r.Mode != mine.Mode })
	case onePermitMore:
		mine.Limit++
		for i, r := range there {
			more := *r
			more.Limit++
			there[i] = &more
		}
	case ownLimit:
		for i, r := range there {
			more := *r
			more.Limit = backend.MostPermits
			there[i] = &more
		}
	}
	return mine.Admits(there)
}

// find returns the share of an acquisition that is not over.
func (g *group) find(a *acq) *share {
	g.serve()
	i := slices.IndexFunc(g.shares, func(h *share) bool { return h.a == a })
	if i < 0 {
		return nil
	}
	return g.shares[i]
}

// serve ends what is over, and keeps the name for all at the head of the queue who may have it.
func (g *group) serve() {
	now := time.Now()
	g.shares = slices.DeleteFunc(g.shares, func(h *share) bool {
		over := !now.Before(h.expires)
		if over && !h.pending {
			g.ended(h, "expired")
		}
		return over
	})
	g.queue = slices.DeleteFunc(g.queue, func(p *place) bool { return now.Sub(p.seen) >= deadFor })
	for len(g.queue) > 0 && g.admits(g.queue[0].a) {
		a := g.queue[0].a
		g.queue = g.queue[1:]
		g.shares = append(g.shares, &share{a: a, expires: now.Add(claimed), pending: true})
		g.s.w.wake(a)
	}
}

func (g *group) ended(h *share, why string) {
	h.a.ended, h.a.endedAt = why, time.Now()
	g.s.w.note("store: the share of %s ends: %s", h.a.id, why)
}

// acquire grants the name, keeps a place in the queue, or refuses.
func (g *group) acquire(a *acq) reply {
	h := g.find(a)
	if how := g.s.past[a.nonce]; how == released || how == abandoned {
		return reply{err: backend.ErrLost}
	}
	if h != nil && !h.pending && g.s.flaw == permitNotFound && a.r.Mode == backend.Permit {
		h = nil
	}
	at := slices.IndexFunc(g.queue, func(p *place) bool { return p.a == a })
	first := at == 0 || len(g.queue) == 0 || g.s.flaw == newcomersPass && a.r.Mode == backend.Reader
	switch {
	case h == nil && !(first && g.admits(a)):
		if a.r.Wait && at < 0 {
			g.queue = append(g.queue, &place{a, time.Now(), time.Now()})
		} else if at >= 0 {
			g.queue[at].seen = time.Now()
		}
		return reply{err: backend.ErrLocked, in: g.look()}
	case h == nil:
		h = &share{a: a, pending: true}
		g.granting(a)
		g.shares = append(g.shares, h)
		g.queue = slices.DeleteFunc(g.queue, func(p *place) bool { return p.a == a })
	}
	if h.pending {
		g.number(h)
	}
	g.extend(h)
	g.serve()
	return reply{token: h.token, slot: h.slot}
}

// look says when a waiter has to look again.
func (g *group) look() time.Duration {
	in := lookAll
	for _, h := range g.shares {
		in = min(in, time.Until(h.expires))
	}
	return max(in, 50*time.Millisecond)
}

// number gives a share its token, and a permit its slot.
func (g *group) number(h *share) {
	others := slices.DeleteFunc(slices.Clone(g.shares), func(o *share) bool { return o == h || o.pending })
	reads := h.a.r.Mode == backend.Reader
	switch {
	case reads && g.era != 0 && g.s.flaw == eraKept, reads && len(others) > 0 && g.s.flaw != tokenEach:
		h.token = g.era
	default:
		h.token = max(g.s.counter+1, time.Now().UnixMicro())
		g.s.counter = h.token
	}
	if reads {
		g.era = h.token
	}
	if h.a.r.Mode == backend.Permit {
		for h.slot = 0; slices.ContainsFunc(others, func(o *share) bool { return o.slot == h.slot }); {
			h.slot++
		}
		if g.s.flaw == slotIsCount {
			h.slot = len(others)
		}
	}
	h.pending, h.a.ended = false, ""
	g.granted(h, others)
}

// extend sets the expiry of a share.
func (g *group) extend(h *share) {
	h.a.applied = time.Now()
	h.expires = h.a.applied.Add(h.a.r.TTL + h.a.r.Grace)
	if g.s.flaw == oneExpiry {
		for _, o := range g.shares {
			o.expires = h.expires
		}
	}
}

// renew is one renewal, or with extend false one look.
func (g *group) renew(a *acq, extend bool) error {
	h := g.find(a)
	if h == nil || h.pending {
		return backend.ErrLost
	}
	if extend {
		g.extend(h)
	}
	return nil
}

// leave ends an acquisition: released or abandoned.
func (g *group) leave(a *acq, how string) error {
	h := g.find(a)
	was := g.s.past[a.nonce]
	if a.over.IsZero() {
		a.over = time.Now()
	}
	mine := h != nil && !h.pending
	if mine {
		g.ended(h, how)
	}
	g.shares = slices.DeleteFunc(g.shares, func(o *share) bool { return o == h })
	g.queue = slices.DeleteFunc(g.queue, func(p *place) bool { return p.a == a })
	g.serve()
	switch {
	case mine || how == abandoned:
		if was == "" {
			g.s.past[a.nonce] = how
		}
	case was != released && was != freed:
		return backend.ErrLost
	}
	return nil
}

// clear ends all shares: an operator's Break, or the loss of the data.
func (g *group) clear(why string) {
	g.serve()
	for _, h := range g.shares {
		if !h.pending {
			h.a.excused = why
			g.ended(h, why)
			g.s.w.tell(h.a)
		}
	}
	g.shares = nil
	g.serve()
}

func (g *group) inspect() backend.Info {
	g.serve()
	info := backend.Info{Name: common, Waiters: len(g.queue), Held: len(g.shares) > 0, Holders: len(g.shares)}
	for _, h := range g.shares {
		info.Mode, info.Token = h.a.r.Mode, max(info.Token, h.token)
		info.ExpiresIn = max(info.ExpiresIn, time.Until(h.expires))
	}
	return info
}

// granting checks a grant to one who was not woken: nobody who waits stands in front of it.
func (g *group) granting(a *acq) {
	for _, p := range g.queue {
		if p.a == a {
			return
		}
		if time.Since(p.seen) < deadFor {
			g.s.w.violation("%s is granted %q before %s, which waits", a.id, common, p.a.id)
		}
	}
}

// granted checks a grant beside others: what tokens and slots are.
func (g *group) granted(h *share, others []*share) {
	w, a := g.s.w, h.a
	beside := false
	for _, o := range others {
		if a.r.Mode == backend.Reader && o.a.r.Mode == backend.Reader {
			beside = true
			if o.token != h.token {
				w.violation("the readers %s and %s have the tokens %d and %d", a.id, o.a.id, h.token, o.token)
			}
		}
		if a.r.Mode == backend.Permit && o.slot == h.slot {
			w.violation("the permits %s and %s have slot %d", a.id, o.a.id, h.slot)
		}
	}
	if !beside && h.token <= g.last {
		w.violation("%s is granted token %d after %d", a.id, h.token, g.last)
	}
	if a.r.Mode == backend.Permit && h.slot >= a.r.Limit {
		w.violation("%s has slot %d of %d", a.id, h.slot, a.r.Limit)
	}
	g.last = max(g.last, h.token)
	a.tokens = append(a.tokens, h.token)
}
