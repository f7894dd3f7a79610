package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxChecks is how many holds are renewed by one multi.
const maxChecks = 500

// errUnsettled: the session was silent for so long that the leader may be about to end it, should
// the server that answered fall silent now.
var errUnsettled = errors.New("the session was silent for too long, " +
	"and the leader may not have heard of it again")

// Keep implements backend.Driver. A renewal is a multi for each session and 500 holds, which goes
// through the leader: it answers only for sessions that live. The first look arms a watch on the
// holder's node, which tells at once when the node goes; after that there is nothing to ask.
func (st *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	bySession := map[*session][]kept{}
	var bare []kept
	for i, c := range cs {
		p := st.find(c)
		switch {
		case p == nil || !p.isGranted() || p.lapsed():
			errs[i] = backend.ErrLost
		case extend:
			bySession[p.s] = append(bySession[p.s], kept{p, &errs[i]})
		case !p.s.alive():
			errs[i] = &backend.LostError{Reason: backend.SessionLost}
		case !p.isArmed():
			bare = append(bare, kept{p, &errs[i]})
		}
	}
	abreast(len(bare), func(i int) { *bare[i].err = bare[i].p.arm(ctx) })
	var wg sync.WaitGroup
	for s, all := range bySession {
		for len(all) > 0 {
			some := all[:min(len(all), maxChecks)]
			all = all[len(some):]
			wg.Go(func() { s.renew(ctx, some) })
		}
	}
	wg.Wait()
	return errs
}

// kept is a hold, and where its answer goes.
type kept struct {
	p   *place
	err *error
}

// renew renews the holds of one multi. Those that turn out to be gone are left out, until the rest
// is done.
func (s *session) renew(ctx context.Context, ks []kept) {
	for len(ks) > 0 {
		ops := make([]any, len(ks))
		for i, k := range ks {
			ops[i] = &zk.CheckVersionRequest{Path: k.p.held, Version: -1}
		}
		asked := backend.Now()
		bad, err := s.multi(ctx, ops...)
		if bad >= 0 && errors.Is(err, zk.ErrNoNode) {
			*ks[bad].err = backend.ErrLost
			ks = append(ks[:bad], ks[bad+1:]...)
			continue
		}
		for _, k := range ks {
			switch {
			case err != nil:
				*k.err = ended(err)
			case !s.covers(asked, k.p.length()):
				*k.err = errUnsettled
			case !k.p.renew(asked):
				*k.err = backend.ErrLost
			}
		}
		return
	}
}

func (p *place) isArmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed != nil
}

// arm makes the end of the holder's node tell the holder.
func (p *place) arm(ctx context.Context) error {
	w, _, err := p.s.watchEnd(ctx, p.held, func(gone bool) {
		p.mu.Lock()
		p.armed = nil
		p.mu.Unlock()
		if gone {
			p.tellLost(backend.ErrLost)
		}
	})
	if errors.Is(err, zk.ErrNoNode) {
		return backend.ErrLost
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	stopped := p.stopped
	if !stopped {
		p.armed = w
	}
	p.mu.Unlock()
	if stopped {
		p.s.ignore(p.held, w)
	}
	return nil
}
