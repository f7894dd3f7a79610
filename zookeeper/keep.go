package zookeeper

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxChecks is how many holds are renewed by one multi, and requestLoad how many bytes the paths in a request may have:
// each operation has a little more, and all has to fit into the smallest jute.maxbuffer.
const maxChecks, requestLoad = 500, maxLoad / 2

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
			n, load := 0, 0
			for n < min(len(all), maxChecks) && load < requestLoad {
				load += all[n].p.load()
				n++
			}
			some := all[:n:n]
			all = all[n:]
			wg.Go(func() { s.renew(ctx, some) })
		}
	}
	wg.Wait()
	return errs
}

// refusedMost is how many holds of a multi that are gone or refused are found one by one.
const refusedMost = 10

// kept is a hold, and where its answer goes.
type kept struct {
	p   *place
	err *error
}

// renew renews the holds of one multi. Those that turn out to be gone, or are refused, are left out, until the rest
// is done. After refusedMost of them it asks for each that is left whether it is there; where they are refused, the
// rest gets the last refusal.
func (s *session) renew(ctx context.Context, ks []kept) {
	for out := 0; len(ks) > 0; out++ {
		ops := make([]any, len(ks))
		for i, k := range ks {
			ops[i] = &zk.CheckVersionRequest{Path: k.p.held, Version: -1}
		}
		asked := backend.Now()
		bad, err := s.multi(ctx, ops...)
		gone := errors.Is(err, zk.ErrNoNode)
		if bad >= 0 && (gone || err != nil && out < refusedMost) {
			if *ks[bad].err = ended(err); gone {
				*ks[bad].err = backend.ErrLost
			}
			if ks = slices.Delete(ks, bad, bad+1); out >= refusedMost {
				ks = s.there(ctx, ks)
			}
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

// there leaves out the holds that are gone, as far as the server knows that the session is connected to.
func (s *session) there(ctx context.Context, ks []kept) []kept {
	abreast(len(ks), func(i int) {
		if _, err := get(ctx, s, ks[i].p.held); errors.Is(err, zk.ErrNoNode) {
			*ks[i].err = backend.ErrLost
		}
	})
	return slices.DeleteFunc(ks, func(k kept) bool { return *k.err != nil })
}

func (p *place) isArmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed != nil
}

// arm makes the end of the holder's node tell the holder.
func (p *place) arm(ctx context.Context) error {
	w, err := p.s.watchEnd(ctx, p.held, false, func(gone bool) {
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
	over := p.grant == nil
	if !over {
		p.armed = w
	}
	p.mu.Unlock()
	if over {
		p.s.ignore(p.held, w)
	}
	return nil
}

// granted makes the claim the hold of a node. The session's end is counted from the request that was
// sent at Asked.
func (p *place) granted(held string, g backend.Grant) {
	p.unwatch()
	p.wait, p.turn, p.doubt, p.fresh, p.seen = "", nil, false, false, line{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.grant, p.renewed = held, &g, g.Asked
	if p.timer == nil {
		p.timer = time.AfterFunc(p.length(), p.expire)
	}
}

func (p *place) isGranted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.grant != nil
}

// isFresh reports whether a grant needs no confirmation: its request was answered, its session surely
// lasts for the TTL and the grace, and no caller has it. The call that asked for it may have ended.
func (p *place) isFresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fresh && p.grant != nil && p.cleared == nil && !p.handed && p.s.alive() &&
		p.s.covers(p.grant.Asked, p.length())
}

// errNotKept: the lock was granted, and lost before the caller could be told.
var errNotKept = errors.New("the lock was granted, and lost again before the answer was sure")

// hand gives the caller the grant, unless it is lost already. From here on a loss is told.
func (p *place) hand(c *backend.Claim) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grant == nil || p.cleared != nil || !p.s.alive() { // nil: an operator has ended it
		return errNotKept
	}
	p.handed = true
	c.Grant = *p.grant
	return nil
}

// confirm makes sure of a grant that was given before, or whose answer was lost: it asks until the
// session surely lasts for the TTL and the grace after the asking.
func (p *place) confirm(ctx context.Context) error {
	for !p.lapsed() {
		asked := backend.Now()
		i, err := p.s.multi(ctx, &zk.CheckVersionRequest{Path: p.held, Version: -1})
		switch {
		case i == 0 && errors.Is(err, zk.ErrNoNode), errors.Is(err, errEnded):
			return p.forgetGrant(ctx)
		case err != nil:
			return err
		case p.s.covers(asked, p.length()) && p.renew(asked):
			p.grant.Asked = asked
			return nil
		}
		tick := p.st.tick()
		timer := time.NewTimer(tick + tick/grains) // by then the leader has surely heard of what was answered
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return p.forgetGrant(ctx)
}

// forgetGrant makes the claim one that was never granted, unless somebody was given the grant. It
// returns when what ends the grant by itself has done so.
func (p *place) forgetGrant(ctx context.Context) error {
	p.mu.Lock()
	cleared, handed := p.cleared, p.handed
	p.mu.Unlock()
	if handed {
		return backend.ErrLost
	}
	if cleared != nil {
		select {
		case <-cleared:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	p.grant, p.cleared, p.timer = nil, nil, nil
	p.wait, p.doubt = "", true
	return errNotKept
}

// tellLost tells the holder. Where nobody was given the grant the claim waits on, and may be
// granted once more.
func (p *place) tellLost(err error) {
	p.mu.Lock()
	handed := p.handed
	p.mu.Unlock()
	if handed {
		p.r.Lost(err)
	}
}

// renew sets the end of the hold anew; false: it is over.
func (p *place) renew(asked backend.Instant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cleared != nil || p.grant == nil {
		return false
	}
	p.renewed = asked
	return true
}

// lapsed reports whether the hold is over because nobody renewed it.
func (p *place) lapsed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cleared != nil || p.grant != nil && p.renewed.Elapsed() >= p.length()
}

// inGrace reports whether nobody has released the hold, and it has a grace that is not over.
func (p *place) inGrace() bool { return p.r.Grace > 0 && p.isGranted() && !p.lapsed() }

// expire runs on the timer. Pings keep the session alive whatever the holder does, so a hold that
// nobody renews is ended here.
func (p *place) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grant == nil || p.cleared != nil || !p.s.alive() {
		return
	}
	if left := p.length() - p.renewed.Elapsed(); left > 0 {
		p.timer.Reset(left)
		return
	}
	s, cleared := p.s, make(chan struct{})
	p.cleared = cleared
	p.st.flying.Go(func() {
		defer close(cleared)
		p.clear(s)
	})
}

// refusedFor is the longest pause between two tries to delete what the servers refuse to.
const refusedFor = 30 * time.Second

// clear deletes what a claim that is over has in the store, as long as its session does not end by
// itself. Rights that were taken away may come back.
func (p *place) clear(s *session) {
	pause, most := 20*time.Millisecond, time.Second
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := s.eraseOf(ctx, p.lock, p.r.Nonce)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-s.over:
			return
		case <-time.After(pause):
		}
		if backend.Final(err) {
			most = refusedFor
		}
		pause = min(2*pause, most)
	}
}

// stop ends what runs by itself, and counts the claim out of its session.
func (p *place) stop() {
	p.mu.Lock()
	p.grant = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	armed := p.armed
	p.mu.Unlock()
	p.st.mu.Lock()
	if p.st.places[p.r.Nonce] == p {
		delete(p.st.places, p.r.Nonce)
	}
	p.st.mu.Unlock()
	if p.s == nil {
		return
	}
	p.unwatch()
	if armed != nil {
		p.s.ignore(p.held, armed)
	}
	p.s.unuse(p)
}
