package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// tries is how many ballots a claim that does not wait has when the votes are split: fewer than the
	// engine sends it, for one send may go unanswered.
	tries = 3
	// voteMost is how long a claim waits for the votes of a majority at the most. A claim that does not
	// wait is sent five times in 5 s, and the engine ends the first three sends sooner.
	voteMost = 1200 * time.Millisecond
	// splitLeast is how long a claim waits at the least for the other nodes, once a majority has answered and has
	// not given its votes.
	splitLeast = 20 * time.Millisecond
	// connectMost is how long it waits at the most for one that may have to make a connection: the engine ends its
	// first sends after 700 ms.
	connectMost = 500 * time.Millisecond
)

var (
	errSplit = errors.New("several clients want the lock, and none of them has the votes of a majority")
	errOwn   = errors.New("an earlier attempt of this request, whose votes came too late, is being undone")
	errGates = errors.New("the nodes have different gates of migrations, " +
		"and are being given the latest ones")
)

// place is what the store remembers of a claim.
type place struct {
	ballot  *ballot       // the one that may hold something
	ballots int           // how many were undone
	token   backend.Token // that the ballot was granted with: asked again, it has it again
	stamp   int64         // its place among the waiters
	waiter  *waiter       // once it listens for pushes
	queued  bool          // the nodes may have it among the waiters
	splits  int           // ballots in a row in which the votes were split
	again   bool          // a release of it was sent before
}

// place returns the claim's, as of one that was never sent if the store knows nothing of it.
func (s *store) place(c *backend.Claim) *place {
	if p, ok := c.Place.(*place); ok {
		return p
	}
	p := &place{ballot: s.ballot(c.Nonce)}
	if c.Unsure { // another client has sent it
		p.ballot.sent()
	}
	return p
}

// ballot is one attempt of a claim at the votes of all nodes. Nodes know it by an id of its own, for
// what is late of one ballot must not touch the next.
type ballot struct {
	id string

	mu    sync.Mutex
	nodes []asked
	voted bool // a node has voted for it, in time or not
	over  bool // it was released or undone: nothing of it is sent any more
}

// asked is what a ballot remembers of one node.
type asked struct {
	open  int  // requests with its id that may be under way
	again bool // the node is being asked for its vote again
	lacks bool // the node had no vote when the lock was renewed or looked at
}

func (s *store) ballot(id string) *ballot {
	return &ballot{id: id, nodes: make([]asked, len(s.nodes))}
}

// sent notes that every node is asked for its vote.
func (b *ballot) sent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.nodes {
		b.nodes[i].open++
	}
}

// answered notes the answer to a request for a vote. An answer to one copy of a request tells
// nothing of another copy.
func (b *ballot) answered(a answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.sure {
		b.nodes[a.node].open--
	}
	if a.err == nil {
		reply, _ := a.replies[0].([]any)
		b.voted = b.voted || len(reply) > 0 && reply[0] == int64(0)
	}
}

// sure reports whether nothing of the ballot is under way to a node.
func (b *ballot) sure(node int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes[node].open == 0
}

// nothing reports whether no node has anything of the ballot, or ever will.
func (b *ballot) nothing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.voted && !slices.ContainsFunc(b.nodes, func(n asked) bool { return n.open > 0 })
}

// Ask implements backend.Driver: a ballot, in one round trip if the lock is free and the votes'
// numbers agree. A ballot that did not win is undone at once, in the background.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		if c.Err = s.lookOnce(ctx); c.Err == nil {
			c.Err = s.vote(ctx, c)
		}
		if !c.Queued && (c.Err == nil || backend.Final(c.Err)) {
			s.place(c).leave()
		}
	}
}

// tooLong refuses a TTL, with its grace.
func tooLong(longest, quarantine time.Duration) error {
	return backend.Invalid("the TTL and grace of %v are above the quarantine of %v: a node that restarts would vote "+
		"before they are over; raise the quarantine on all clients or lower the TTL", longest, quarantine)
}

func (s *store) vote(ctx context.Context, c *backend.Claim) error {
	if longest := c.TTL + c.Grace; longest > s.quarantine {
		return tooLong(longest, s.quarantine)
	}
	if s.fresh.Load() {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	p := s.place(c)
	c.Place = p
	stamp := int64(0)
	queue := c.Wait && s.hears(c, p)
	if queue {
		if p.stamp == 0 {
			p.stamp = s.number()
		}
		stamp, p.queued = p.stamp, true
	}
	lock, most, asked := s.prefix+c.Name, patience(c.TTL), backend.Now()
	terms := strconv.FormatInt(redisnode.Millis(c.TTL+c.Grace), 10) + " " +
		strconv.FormatInt(c.Floor, 10) + " " + strconv.FormatInt(stamp, 10) + " " + s.process +
		"\x00" + version(c.Gates) + "\x00" + redisnode.Mark(c.Request)
	p.ballot.sent()
	vote := []op{{lock, []any{"v", p.ballot.id, s.number(), bucket(lock), terms}}}
	v := &votes{
		c: c, known: p.token, numbers: make([]backend.Token, len(s.nodes)),
		question: s.ask(ctx, most, vote, p.ballot.answered),
	}
	err := v.each(ctx, most, v.take, func() bool { return v.decided() || v.short() })
	if err == nil && v.short() && !v.decided() {
		took := asked.Elapsed()
		err = v.each(ctx, min(v.slowest(took), most-took), v.take, v.decided)
	}
	if v.forgetful() {
		s.mendSoon()
	}
	if err != nil {
		return v.err() // what is sent next is a copy of the same ballot
	}
	if v.gone {
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	if v.count < s.quorum {
		err = s.refused(p, v)
		s.undo(c, p)
		c.Queued = queue && errors.Is(err, backend.ErrLocked)
		return err
	}
	token, err := s.agree(ctx, lock, p.ballot.id, v, most)
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

// undo gives up a ballot that did not win, if any node may have voted for it, and begins another.
func (s *store) undo(c *backend.Claim, p *place) {
	if p.ballot.nothing() {
		return
	}
	how := undone + " 0"
	if p.queued && p.splits > 0 { // its vote took it out of the waiters
		how += fmt.Sprint(" ", p.stamp, " ", s.process)
	}
	s.free(nil, c.Request, p.ballot, how)
	p.ballots++
	p.token, p.ballot = 0, s.ballot(c.Nonce+"."+strconv.Itoa(p.ballots))
}

// patience is how long a claim waits for the votes of a majority: a small part of the TTL. A node
// that does not answer delays nobody, as long as a majority does.
func patience(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 50*time.Millisecond), voteMost)
}

// version is the version of the gates that a claim was judged by: their records.
func version(gates *backend.Record) string {
	if gates == nil {
		return ""
	}
	return gates.Version
}

// votes are those for a ballot as they come in.
type votes struct {
	*question
	c         *backend.Claim
	known     backend.Token   // that the ballot was granted with before
	numbers   []backend.Token // by node; 0: no vote
	count     int
	held      map[string]int // refusals by holder
	gates     []gateList     // of the nodes that have others than the claim was judged by
	unsettled bool           // a node is in quarantine
	gone      bool
	foreign   bool
	own       bool            // a node has a vote for an earlier ballot of the claim
	left      []time.Duration // until the refusing nodes are free
}

// decided reports whether the answers that are still to come change nothing.
func (v *votes) decided() bool {
	quorum := v.s.quorum
	return v.gone || v.count >= quorum && (v.known == 0 || v.have(v.known) >= quorum) ||
		v.count+v.rest() < quorum && v.good >= quorum
}

// short reports whether a majority has answered, and only votes that are still to come can win. A node that
// is silent must not keep several clients that have split the votes from trying again.
func (v *votes) short() bool { return v.good >= v.s.quorum && v.count < v.s.quorum }

// slowest is how long a ballot that is short waits for the other nodes, after so long for the majority: twice as long
// as that, or as the last call took that one of them answered, and longer for the connection that a call may have to
// make. A node that has just become silent was as fast as any, and one that is slow decides a ballot as before.
func (v *votes) slowest(took time.Duration) time.Duration {
	took, seen := 2*took, v.seen()
	for _, n := range v.nodes {
		if !slices.ContainsFunc(seen, func(a answer) bool { return a.node == n.index }) {
			last := time.Duration(n.took.Load())
			took = max(took, 2*last, min(4*last, connectMost))
		}
	}
	return max(took, splitLeast)
}

// have is how many votes have this number.
func (v *votes) have(n backend.Token) int {
	sum := 0
	for _, o := range v.numbers {
		if o == n {
			sum++
		}
	}
	return sum
}

// take reads a reply of vote.lua.
func (v *votes) take(a answer) error {
	res, ok := a.replies[0].([]any)
	if !ok || len(res) == 0 {
		return redisnode.Unexpected(a.replies[0])
	}
	n := int64(0)
	if len(res) > 1 {
		n, _ = res[1].(int64)
	}
	switch res[0] {
	case int64(0):
		if n <= 0 {
			return redisnode.Unexpected(res)
		}
		v.numbers[a.node] = n
		v.count++
	case int64(1):
		if len(res) != 3 {
			return redisnode.Unexpected(res)
		}
		holder, _ := res[2].(string)
		if nonce, _, _ := strings.Cut(holder, "."); nonce == v.c.Nonce {
			v.own = true // the vote for a ballot before is about to be undone
			break
		}
		if v.held == nil {
			v.held = map[string]int{}
		}
		v.held[holder]++
		v.foreign = v.foreign || holder == ""
		v.left = append(v.left, redisnode.UntilExpiry(n, floor))
	case int64(2):
		v.unsettled = true
		return fmt.Errorf("in quarantine for %v more, since it was restarted or is new",
			(time.Duration(n) * time.Millisecond).Round(100*time.Millisecond))
	case int64(3):
		v.gone = true
	case int64(4):
		v.left = append(v.left, redisnode.UntilExpiry(n, floor))
	case int64(5):
		return errForeignType
	case int64(6):
		gates, err := v.s.gateList(res[1:])
		if err != nil {
			return err
		}
		v.gates = append(v.gates, gates)
	case int64(7):
		return v.s.badGate()
	case int64(8):
		return cmp.Or(backend.CheckFloor(v.c.Floor, n), redisnode.Unexpected(res))
	default:
		return redisnode.Unexpected(res)
	}
	return nil
}

// most is how many nodes refuse for one and the same holder.
func (v *votes) most() int {
	most := 0
	for _, n := range v.held {
		most = max(most, n)
	}
	return most
}

// refused says what a ballot without a majority of votes means: an error is not a refusal.
func (s *store) refused(p *place, v *votes) error {
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
	case v.good < s.quorum:
		return v.err()
	case v.good-len(v.gates) < s.quorum:
		return v.otherGates()
	case v.own && !c.Wait: // nobody else has it, as far as that node knows
		return backend.Refusal(errOwn)
	}
	// Several want it and none has a majority: each undoes its votes and comes back at a moment of its
	// own.
	p.splits++
	c.Next = 2*time.Millisecond + time.Duration(rand.Int64N(int64(4*time.Millisecond)<<min(p.splits, 5)))
	if !c.Wait && p.splits%tries != 0 {
		return backend.Refusal(errSplit)
	}
	return backend.ErrLocked
}

// agree makes a majority carry one number: the greatest of the votes that won, which is the token.
// Votes that come later do not change it.
func (s *store) agree(ctx context.Context, lock, id string, v *votes, most time.Duration,
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
	q := s.askEach(nodes, s.quorum-done, most, func(i int) op {
		seen := strconv.FormatInt(v.numbers[nodes[i].index], 10)
		return op{lock, []any{"w", id, seen, strconv.FormatInt(token, 10), bucket(lock)}}
	})
	err := q.each(ctx, most, func(a answer) error {
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
