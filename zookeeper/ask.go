package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxDraws is how often a claim is sent again because others have changed what it depends on.
const maxDraws = 30

// errAgain: nothing was done, and the claim is to be sent again.
var errAgain = errors.New("again")

// place is what the store remembers of a claim.
type place struct {
	st         *store
	r          *backend.Request
	lock, held string // the name's node; and the holder's, once it is ours

	turns  chan struct{}      // of size 1, full while a call is in do: an operator's may come beside the claim's own
	c      *backend.Claim     // changed only while no operation is under way
	doing  kind               // the operation that is under way, or ended and not answered yet
	ended  chan error         // of size 1
	cancel context.CancelFunc // ends the one that is under way aside

	// The operation that is under way writes these.
	s       *session  // changed only while there is none
	doubt   bool      // a request that makes nodes of ours was not answered
	wait    string    // our node in the queue; empty if there is none
	stands  int       // how often it has joined the queue
	turn    *turn     // the lock is ours to take from the queue
	taken   bool      // the lock was not free when it was asked for
	unsure  bool      // it may not be free: others that were asked for with it are not
	empty   bool      // its node is there, and nothing under it
	missing bool      // a node is missing that carries everything else
	bare    bool      // the release is to delete, and to write nothing
	others  bool      // somebody else stood there when we last looked
	said    time.Time // when it last said that it lives; see head
	next    time.Duration
	gates   *backend.Record // by which it was judged; the servers', with ErrGates
	fresh   bool            // the request that made the grant was answered
	left    bool            // it was given up: nothing may come of it any more
	undone  bool            // by undo
	watched string
	watch   *watch
	seen    line // what it has read of a long queue that it stands in; see known

	news atomic.Pointer[news]

	mu      sync.Mutex
	grant   *backend.Grant
	handed  bool            // a caller was given it
	cleared chan struct{}   // there once nobody renewed the hold in time; closed when its node is gone
	renewed backend.Instant // the last renewal
	timer   *time.Timer     // ends a hold that nobody renews
	armed   *watch          // tells when the holder's node goes
}

// news is that the node which ours in the queue stood behind has gone. It is of one stand in the queue: in a lock's
// next node the numbers of the queue begin again, and ours may have its old name there.
type news struct {
	stand int
	gone  string
}

// place returns what is remembered of a claim. It is found by the nonce too: the engine may have
// made another claim of the request.
func (st *store) place(c *backend.Claim) *place {
	p := st.find(c)
	if p == nil {
		lock := st.at.lock(c.Name)
		p = &place{st: st, r: c.Request, c: c, lock: lock, turns: make(chan struct{}, 1), ended: make(chan error, 1)}
		st.mu.Lock()
		st.places[c.Nonce] = p
		st.mu.Unlock()
	}
	if c.Place == nil { // Keep may read it beside a Leave
		c.Place = p
	}
	return p
}

// find returns what is remembered of a claim, or nil.
func (st *store) find(c *backend.Claim) *place {
	if p, ok := c.Place.(*place); ok {
		return p
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.places[c.Nonce]
}

// length is how long the hold lasts.
func (p *place) length() time.Duration { return p.r.TTL + p.r.Grace }

// load is what the claim adds to the transaction that ends its session: the path of its node, with
// its length. It has one at a time; what of its name is neither the lock's nor the nonce is bounded.
func (p *place) load() int {
	const sizes, exclusive, shared = 4, len(waitMark + "--2147483648"), len(waitPermMark + "-1024--2147483648")
	if p.r.Mode == backend.Exclusive {
		return sizes + len(p.lock) + len("/") + nonceLen + exclusive
	}
	return sizes + len(p.lock) + len("/") + nonceLen + shared
}

// kind is what an operation does; each is for the calls of one method.
type kind int

const (
	idle kind = iota
	asking
	entering
	releasing
	undoing
)

// do runs the operation of a call of Enter, Ask or Leave, and returns when that has ended or ctx has.
// A request that was sent cannot be taken back, and a second copy would only delay a slow server more:
// so the operation goes on when ctx ends. The next call waits for it; a Leave ends it.
func (p *place) do(ctx context.Context, c *backend.Claim, k kind) error {
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.doing == idle {
		p.c = c
	}
	if p.doing != idle && p.doing != k {
		if k > entering {
			p.cancel()
		}
		if _, over := p.await(ctx); over != nil {
			return p.s.unheard(over, p.c.Wait && k <= entering)
		}
	}
	for {
		fresh := p.doing == idle
		if fresh {
			if err := p.join(k); err != nil {
				return err
			}
			p.doing, p.gates = k, p.c.Gates
			p.operate(ctx, k)
		}
		err, over := p.await(ctx)
		switch {
		case over != nil:
			return p.s.unheard(over, p.c.Wait && k <= entering)
		case fresh, err == nil, backend.Final(err), errors.Is(err, backend.ErrGates):
			return err
		}
		// The operation of an earlier call has had no answer: it is asked again.
	}
}

// operate does an operation, or begins it. Most Asks and releases send a unit and ask nothing else:
// these stay on this goroutine. Where ctx ends before the unit has, the rest is done aside.
func (p *place) operate(ctx context.Context, k kind) {
	switch k {
	case entering:
		p.aside(p.enter)
		return
	case undoing:
		p.aside(p.undo)
		return
	}
	u, err := p.each(ctx, k, nil, false)
	if u == nil && !errors.Is(err, context.Canceled) {
		p.ended <- err
		return
	}
	p.gates = p.c.Gates
	p.aside(func(ctx context.Context) error {
		_, err := p.each(ctx, k, u, true)
		return err
	})
}

// unasked is a ctx that has ended: under it nothing is asked.
var unasked = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// aside does an operation on a goroutine of its own.
func (p *place) aside(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.st.flying.Go(func() {
		defer cancel()
		p.ended <- f(ctx)
	})
}

// await returns how the operation has ended, or over if ctx has before.
func (p *place) await(ctx context.Context) (err, over error) {
	select {
	case err = <-p.ended:
		p.doing = idle
		return err, nil
	default:
	}
	select {
	case err = <-p.ended:
		p.doing = idle
		return err, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join chooses the session of a claim that is asked for. If the one before has ended, what it had
// made is gone.
func (p *place) join(k kind) error {
	if k > entering || p.left || p.isGranted() || p.s != nil && p.s.alive() {
		return nil
	}
	s, err := p.st.session(p)
	if err != nil {
		return err
	}
	p.unwatch()
	p.s, p.wait, p.turn, p.doubt, p.seen = s, "", nil, false, line{}
	return nil
}

// Ask implements backend.Driver: one multi, if the lock is free. If others have changed something
// meanwhile, it looks, and sends the claim again.
func (st *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		p := st.place(c)
		c.Err = p.do(ctx, c, asking)
		switch {
		case c.Err == nil:
			c.Err = p.hand(c)
		case errors.Is(c.Err, backend.ErrGates):
			c.Gates = p.gates
		case !errors.Is(c.Err, backend.ErrLocked):
		case c.Wait:
			c.Queued, c.Next = p.wait != "" && p.s.watching(p.watched, p.watch), p.next
			if !c.Queued { // Enter joins, or stands again
				c.Next = time.Millisecond
			}
		default: // it has made nothing, and will not be given up
			p.stop()
			c.Place = nil
		}
	}
}

// each sends a unit after the other until one is answered; u is one that was sent already. On the
// caller's goroutine it sends units only: where something else has to be asked the error is
// Canceled, and where ctx ends first it returns the unit that is not answered yet. Aside, the end of
// ctx takes back a unit that has not left.
func (p *place) each(ctx context.Context, k kind, u *unit, aside bool) (*unit, error) {
	prepare, answer, asks := p.attempt, p.asked, unasked
	if k == releasing {
		prepare, answer = p.prepareRelease, p.released
	}
	if aside {
		asks = ctx
	}
	for tries := 0; ; tries++ {
		if u == nil {
			var err error
			if u, err = prepare(asks); u == nil {
				return nil, err
			}
			p.s.send(u)
		}
		if !u.await(ctx, aside) {
			return u, nil
		}
		err := answer(asks, u)
		switch {
		case !errors.Is(err, errAgain):
			return nil, err
		case tries == maxDraws:
			return nil, backend.Refusal(u.err)
		}
		u = nil
	}
}

// attempt returns what is to be sent for a grant; nothing where the answer is known without.
func (p *place) attempt(ctx context.Context) (*unit, error) {
	switch {
	case p.left:
		return nil, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	case p.isFresh():
		return nil, nil
	case p.isGranted():
		return nil, p.confirm(ctx)
	}
	u, err := p.prepare(ctx)
	if err != nil && !p.isGranted() && !backend.Final(err) && !errors.Is(err, backend.ErrGates) {
		err = backend.Refusal(err) // nothing was sent but questions
	}
	return u, err
}

// prepare returns what is to be sent where there is no grant yet.
func (p *place) prepare(ctx context.Context) (*unit, error) {
	st, c, s := p.st, p.c, p.s
	if err := s.covered(ctx, p.length()); err != nil {
		return nil, err
	}
	if p.doubt {
		if err := p.recover(ctx); err != nil {
			return nil, err
		}
		if p.isGranted() {
			return nil, p.confirm(ctx)
		}
	}
	set, err := st.gates.judged(ctx, s, p.gates)
	if err != nil {
		p.gates = set.record
		return nil, err
	}
	u := &unit{p: p, gates: set.version, grants: true}
	if c.Wait && (p.wait != "" && p.turn == nil || p.wait == "" && (p.taken || st.wasHeld(p.lock))) {
		p.taken = true
		return nil, backend.ErrLocked
	}
	looked := false
	if p.turn == nil {
		if looked, err = p.look(ctx); err != nil {
			return nil, err
		}
	}
	if t := p.turn; t != nil {
		u.ops = []any{&zk.DeleteRequest{Path: p.lock + "/" + p.wait, Version: -1}}
		if t.beside != "" {
			u.ops = append(u.ops, &zk.CheckVersionRequest{Path: p.lock + "/" + t.beside, Version: -1},
				&zk.CheckVersionRequest{Path: p.lock, Version: t.version})
		}
		u.era, u.tells, u.slot = t.era, t.beside != "" && t.era == 0, t.slot
	} else {
		if p.empty {
			// The container is taken down only if it is empty, and what is not there can be made.
			u.ops = []any{&zk.DeleteRequest{Path: p.lock, Version: -1}}
		}
		if !looked {
			u.guess = free
		}
		u.ops = append(u.ops,
			&zk.CreateRequest{Path: p.lock, Acl: st.acl, Flags: zk.FlagContainer})
	}
	if err := p.draw(ctx); err != nil {
		return nil, err
	}
	return u, nil
}

// draw makes it known what a grant depends on.
func (p *place) draw(ctx context.Context) error {
	if p.missing {
		if err := p.s.ensure(ctx); err != nil {
			return err
		}
		p.missing = false
	}
	if _, err := p.st.gates.load(ctx, p.s, false); err != nil {
		return err
	}
	return p.st.base.load(ctx, p.s, p.r.Floor)
}

// look returns nil if the lock is free, as far as that is known, and whether it has looked. To ask for a lock
// that is held costs the servers a write that fails, to look costs a read: so it looks only where the lock was
// held just now, or others that were asked for with it are.
func (p *place) look(ctx context.Context) (looked bool, err error) {
	if p.wait != "" {
		return true, p.step(ctx)
	}
	if !p.taken {
		if !p.unsure && !p.st.wasHeld(p.lock) {
			return false, nil
		}
		if err := p.s.sync(ctx); err != nil { // another's release may be on its way to our server
			return true, err
		}
	}
	l, err := p.s.line(ctx, p.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return true, err
	}
	p.taken, p.unsure, p.empty = false, false, false
	if err := p.s.saw(ctx, p.lock, l, "", silentHead); err != nil {
		return true, err
	}
	switch {
	case len(l.holds)+len(l.waiters) == 0:
		p.empty = err == nil // its holder died, and the servers have not taken it down yet
		return true, nil
	case p.c.Wait: // it goes to the end of the queue
		p.taken = true
	case l.soon(p.r, len(l.waiters)):
		return true, p.step(ctx)
	}
	return true, backend.ErrLocked
}

// asked is the answer to a claim whose unit has ended.
func (p *place) asked(ctx context.Context, u *unit) error {
	switch i := u.index; {
	case u.err == nil:
		p.granted(u.held, backend.Grant{
			Token: u.token, Reserved: u.reserved, Slot: u.slot, Asked: u.asked,
		})
		p.fresh = true
		if p.isFresh() {
			return nil
		}
		return p.confirm(ctx) // the session had been silent for long
	case i < 0 && !u.sent:
		return backend.Refusal(u.err)
	case i < 0:
		p.doubt = true
		return u.err
	case errors.Is(u.err, errGates):
		p.st.gates.outdated(u.gates)
	case errors.Is(u.err, errBase):
	case errors.Is(u.err, errGuess):
		p.unsure = true
	case p.turn != nil && i > 0 && (errors.Is(u.err, zk.ErrNoNode) || errors.Is(u.err, zk.ErrBadVersion) ||
		errors.Is(u.err, zk.ErrNodeExists)):
		// The reader that it was to join has left, there is a newer era, or a session of ours that ended has its hold.
		p.unwatch()
		if p.turn = nil; p.c.Wait {
			return backend.ErrLocked
		}
	case errors.Is(u.err, zk.ErrNodeExists):
		if p.taken = true; p.c.Wait {
			return backend.ErrLocked
		}
	case p.turn != nil && i == 0 && errors.Is(u.err, zk.ErrNoNode): // taken for dead, or cleaned up
		p.wait, p.turn, p.taken = "", nil, true
		return backend.ErrLocked
	case p.empty && (errors.Is(u.err, zk.ErrNotEmpty) || errors.Is(u.err, zk.ErrNoNode)):
		p.empty = false
	case errors.Is(u.err, zk.ErrNoNode):
		p.missing = true
	default:
		return u.err
	}
	return errAgain
}

// recover finds what a request did that was not answered.
func (p *place) recover(ctx context.Context) error {
	s := p.s
	if err := s.sync(ctx); err != nil {
		return err
	}
	l, err := s.line(ctx, p.lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	p.wait, p.turn = "", nil
	for _, e := range l.of(p.c.Nonce) {
		path := p.lock + "/" + e.node
		n, err := get(ctx, s, path)
		switch ours := err == nil && n.stat.EphemeralOwner == s.owner(); {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return err
		case e.waits && ours:
			p.wait = e.node
			p.stands++
		case e.waits, !ours && p.r.Mode != backend.Exclusive: // of a session of ours that is over
		default:
			r, ok := readRecord(n)
			if !ok || !ours {
				return errEnded // left by a session of ours that is over: it goes by itself
			}
			p.st.base.saw(p.st.base.state(), 0, false, r.Token+stride-1)
			// The time is confirmed next.
			p.granted(path, backend.Grant{Token: r.Token, Slot: e.slot, Asked: backend.Now()})
			return nil
		}
	}
	p.doubt = false
	return nil
}
