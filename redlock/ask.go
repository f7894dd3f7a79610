package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// tries is how many rounds a claim that does not wait has when the votes are split: fewer than the
// engine sends it, for one send may go unanswered.
const tries = 3

var (
	errSplit = errors.New("several clients want the lock, and none of them has the votes of a majority")
	errGates = errors.New("the nodes have different gates of migrations, and are being given the latest ones")
)

// place is what the store remembers of a claim.
type place struct {
	grip   *grip         // the round that may hold something
	rounds int           // how many were undone
	token  backend.Token // that the round was granted with: asked again, it has it again
	stamp  int64         // its place among the waiters
	queued bool          // the nodes may have it among the waiters
	splits int           // rounds in a row in which the votes were split
}

// place returns the claim's, as of one that was never sent if the store knows nothing of it.
func (s *store) place(c *backend.Claim) *place {
	if p, ok := c.Place.(*place); ok {
		return p
	}
	p := &place{grip: s.grip(c.Nonce)}
	if c.Unsure { // another client has sent it
		p.grip.sent()
	}
	return p
}

// Ask implements backend.Driver: a round of votes, in one round trip if the lock is free and the
// votes' numbers agree. A round that did not win is undone at once, in the background.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		c.Err = s.vote(ctx, c)
		if !c.Queued && (c.Err == nil || backend.Final(c.Err)) {
			s.hub.leave(c)
		}
	}
}

func (s *store) vote(ctx context.Context, c *backend.Claim) error {
	if longest := c.TTL + c.Grace; longest > s.quarantine {
		return backend.Invalid("the TTL and grace of %v are above the "+
			"quarantine of %v: a node that restarts would vote before they are over; raise the "+
			"quarantine on all clients or lower the TTL", longest, s.quarantine)
	}
	if s.fresh.Load() {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	p := s.place(c)
	c.Place = p
	stamp := int64(0)
	queue := c.Wait && s.hub.hears(c)
	if queue {
		if p.stamp == 0 {
			p.stamp = s.number()
		}
		stamp, p.queued = p.stamp, true
	}
	lock, most, asked := s.prefix+c.Name, patience(c.TTL), backend.Now()
	terms := strconv.FormatInt(millis(c.TTL+c.Grace), 10) + " " +
		strconv.FormatInt(c.Floor, 10) + " " + strconv.FormatInt(stamp, 10) + " " + s.process +
		"\x00" + version(c.Gates) + "\x00" + mark(c.Request)
	p.grip.sent()
	v := &poll{
		c: c, known: p.token, numbers: make([]backend.Token, len(s.nodes)),
		round: s.ask(ctx, most, []op{{lock, []any{"v", p.grip.id, s.number(), bucket(lock), terms}}}, p.grip.answered),
	}
	err := v.round.each(ctx, most, v.take, v.decided)
	if v.forgetful() {
		s.mendSoon()
	}
	if err != nil {
		return v.round.err() // what is sent next is a copy of the same round
	}
	if v.gone {
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	if v.votes < s.quorum {
		err = s.refused(p, v)
		s.undo(c, p)
		c.Queued = queue && errors.Is(err, backend.ErrLocked)
		return err
	}
	token, err := s.agree(ctx, c, p.grip, v, most)
	trust := c.TTL - time.Duration(float64(c.TTL)*s.drift) - driftLeast
	if err == nil && asked.Elapsed() >= trust {
		err = fmt.Errorf("the votes took longer than the lease would have lasted, %v", trust)
	}
	if err != nil {
		s.undo(c, p)
		return err
	}
	s.saw(token)
	p.token, p.splits = token, 0
	c.Grant = backend.Grant{Token: token, Asked: asked, Max: trust}
	return nil
}

// undo gives up a round that did not win, if any node may have voted for it, and begins another.
func (s *store) undo(c *backend.Claim, p *place) {
	if p.grip.nothing() {
		return
	}
	s.free(nil, c.Request, p.grip, false, false)
	p.rounds++
	p.token, p.grip = 0, s.grip(c.Nonce+"."+strconv.Itoa(p.rounds))
}

// version is that of the gates that a claim was judged by: their records.
func version(gates *backend.Record) string {
	if gates == nil {
		return ""
	}
	return gates.Version
}

// poll is the votes of a round as they come in.
type poll struct {
	c         *backend.Claim
	round     *round
	known     backend.Token   // that the round was granted with before
	numbers   []backend.Token // by node; 0: no vote
	votes     int
	held      map[string]int // refusals by holder
	kept      int            // refusals for a waiter that was told
	gates     []gateList     // of the nodes that have others than the claim was judged by
	unsettled bool           // a node is in quarantine
	gone      bool
	foreign   bool
	left      []time.Duration // until the refusing nodes are free
}

// decided reports whether the answers that are still to come change nothing.
func (v *poll) decided() bool {
	quorum, rest := v.round.s.quorum, v.round.rest()
	return v.gone || v.votes >= quorum && (v.known == 0 || v.have(v.known) >= quorum) || v.most() >= quorum ||
		v.votes+rest < quorum && v.round.good >= quorum
}

// have is how many votes have this number.
func (v *poll) have(n backend.Token) int {
	sum := 0
	for _, o := range v.numbers {
		if o == n {
			sum++
		}
	}
	return sum
}

// take reads a reply of vote.lua.
func (v *poll) take(a answer) error {
	res, ok := a.replies[0].([]any)
	if !ok || len(res) == 0 {
		return unexpected(a.replies[0])
	}
	n := int64(0)
	if len(res) > 1 {
		n, _ = res[1].(int64)
	}
	switch res[0] {
	case int64(0):
		if n <= 0 {
			return unexpected(res)
		}
		v.numbers[a.node] = n
		v.votes++
	case int64(1):
		if len(res) != 3 {
			return unexpected(res)
		}
		holder, _ := res[2].(string)
		if v.held == nil {
			v.held = map[string]int{}
		}
		v.held[holder]++
		v.foreign = v.foreign || holder == ""
		v.wait(n)
	case int64(2):
		v.unsettled = true
		return fmt.Errorf("in quarantine for %v more, since it was restarted or is new",
			(time.Duration(n) * time.Millisecond).Round(100*time.Millisecond))
	case int64(3):
		v.gone = true
	case int64(4):
		v.kept++
		v.wait(n)
	case int64(5):
		return errForeignType
	case int64(6):
		gates, err := v.round.s.gateList(res[1:])
		if err != nil {
			return err
		}
		v.gates = append(v.gates, gates)
	case int64(7):
		return v.round.s.badGate()
	case int64(8):
		return cmp.Or(backend.CheckFloor(v.c.Floor, n), unexpected(res))
	default:
		return unexpected(res)
	}
	return nil
}

func (v *poll) wait(pttl int64) {
	left := floor
	if pttl >= 0 {
		left = min(left, time.Duration(min(pttl, floor.Milliseconds()))*time.Millisecond+5*time.Millisecond)
	}
	v.left = append(v.left, left)
}

// most is how many nodes refuse for one and the same holder.
func (v *poll) most() int {
	most := 0
	for _, n := range v.held {
		most = max(most, n)
	}
	return most
}

// refused says what a round without a majority of votes means: an error is not a refusal.
func (s *store) refused(p *place, v *poll) error {
	c := v.c
	switch {
	case v.most() >= s.quorum:
		p.splits = 0
		slices.Sort(v.left)
		c.Next = v.left[min(s.quorum, len(v.left))-1]
		if v.foreign {
			c.Next = min(c.Next, foreignFloor)
		}
		return backend.ErrLocked
	case v.round.good < s.quorum:
		return v.round.err()
	case v.round.good-len(v.gates) < s.quorum:
		return v.otherGates()
	}
	// Several want it and none has a majority: each undoes its votes and comes back at a moment of its own.
	p.splits++
	c.Next = 2*time.Millisecond + time.Duration(rand.Int64N(int64(4*time.Millisecond)<<min(p.splits, 5)))
	if !c.Wait && p.splits%tries != 0 {
		return backend.Refusal(errSplit)
	}
	return backend.ErrLocked
}

// agree makes a majority carry one number: the greatest of the votes that won, which is the token.
// Votes that come later do not change it.
func (s *store) agree(ctx context.Context, c *backend.Claim, g *grip, v *poll, most time.Duration,
) (backend.Token, error) {
	if v.known > 0 && v.have(v.known) >= s.quorum {
		return v.known, nil
	}
	token := slices.Max(v.numbers)
	done := v.have(token)
	if done >= s.quorum {
		return token, nil
	}
	var nodes []*node
	for i, n := range v.numbers {
		if n != 0 && n != token {
			nodes = append(nodes, s.nodes[i])
		}
	}
	r := s.round(nodes, s.quorum-done)
	lock, by := s.prefix+c.Name, time.Now().Add(most)
	for _, n := range nodes {
		n.send(&request{to: r, by: by, ops: []op{{lock, []any{
			"w", g.id, strconv.FormatInt(v.numbers[n.index], 10), strconv.FormatInt(token, 10), bucket(lock),
		}}}})
	}
	err := r.each(ctx, most, func(a answer) error {
		if a.replies[0] == int64(1) {
			done++
		}
		return nil
	}, func() bool { return done >= s.quorum })
	if done < s.quorum && err == nil {
		err = fmt.Errorf("no majority took the token: %d of %d nodes have it, %d are needed",
			done, len(s.nodes), s.quorum)
	}
	return token, err
}
