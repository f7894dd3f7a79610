package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// tries is how many rounds a single attempt has when the votes are split.
const tries = 4

var errUndecided = errors.New("undecided")

// attempt is one acquisition. It takes one round of votes or more, each with an id of its own.
type attempt struct {
	d      *Driver
	r      *backend.Request
	lock   string
	bucket string
	stamp  int64  // its place among the waiters
	id     string // of the round
	splits int
	queued bool   // it has joined the waiters
	old    []bool // nodes to which a request with this id went unanswered before; nil if none did
	grant  backend.Grant
}

// Acquire implements backend.Driver: one round trip if the lock is free and the votes' numbers agree.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if longest := r.TTL + r.Grace; longest > d.quarantine {
		return backend.Grant{}, backend.Invalid("the TTL and grace of %v are above the quarantine of %v: a node that restarts would vote before they are over; raise the quarantine on all clients or lower the TTL", longest, d.quarantine)
	}
	if d.fresh.Load() {
		if err := d.settle(ctx); err != nil {
			return backend.Grant{}, err
		}
	}
	a := &attempt{d: d, r: r, lock: d.prefix + r.Name, id: r.Nonce}
	a.bucket = bucket(a.lock)
	d.mu.Lock()
	if g := d.grips[r.Nonce]; g != nil { // sent again
		a.id = g.id
		a.old = g.surely()
	}
	d.mu.Unlock()
	if !r.Wait {
		return a.try(ctx)
	}
	a.stamp = d.number()
	var outage error
	if !d.hub.ready() {
		res, err := a.ask(ctx, false)
		switch {
		case err == nil && res.granted:
			return a.grant, nil
		case backend.Final(err):
			return backend.Grant{}, err
		}
		outage = err
	}
	w := d.hub.waiter(r.Nonce)
	defer w.leave()
	err := backend.Wait(ctx, w.wake, func(ctx context.Context) (bool, time.Duration, error) {
		if err := w.join(ctx); err != nil {
			if outage != nil {
				err = outage // says more than that there was no answer
			}
			return false, 0, err
		}
		w.looking()
		res, err := a.ask(ctx, true)
		outage = err
		return res.granted, res.look, err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return a.grant, nil
}

// try is an attempt that does not wait for a holder. It goes on while nobody holds the lock and several want it.
func (a *attempt) try(ctx context.Context) (backend.Grant, error) {
	for n := 1; ; n++ {
		res, err := a.ask(ctx, false)
		switch {
		case err != nil && (n > 1 || backend.Final(err) || ctx.Err() != nil):
			return backend.Grant{}, err
		case err != nil:
			res.look = 0 // once more, as with any lost packet
		case res.granted:
			return a.grant, nil
		case !res.split || n == tries:
			a.d.forget(a.r.Nonce) // it is not abandoned
			return backend.Grant{}, backend.ErrLocked
		}
		timer := time.NewTimer(res.look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return backend.Grant{}, ctx.Err()
		}
	}
}

// result of one round.
type result struct {
	granted bool
	split   bool          // refused, but not by a majority that one holder has
	look    time.Duration // when to look again
}

// poll is the votes of a round as they come in.
type poll struct {
	a         *attempt
	grip      *grip
	numbers   []int64 // by node; 0: no vote
	votes     int
	held      map[string]int // refusals by holder
	kept      int            // refusals for a waiter that was told
	gates     int            // refusals by a gate
	refusal   *backend.GateError
	gated     int  // votes of nodes that have a gate of the request's own migration for the name
	unsettled bool // a node is in quarantine
	gone      bool
	foreign   bool
	left      []time.Duration // until the refusing nodes are free
	silent    silence
	heard     int // answers of any kind
}

// ask asks for votes once. queue: where the lock is held, join the waiters.
// A round that did not win is undone at once, in the background.
func (a *attempt) ask(ctx context.Context, queue bool) (result, error) {
	d := a.d
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	stamp := "0"
	if queue {
		stamp = strconv.FormatInt(a.stamp, 10)
	}
	most := patience(a.r.TTL)
	asked := backend.Now()
	a.queued = a.queued || queue
	g := &grip{id: a.id, queued: a.queued, sure: make([]bool, len(d.nodes))}
	phase := ""
	if a.r.Move != "" {
		phase = string(a.r.Phase) + " " + a.r.Move
	}
	terms := strconv.FormatInt(millis(a.r.TTL+a.r.Grace), 10) + " " + strconv.FormatInt(a.r.Floor, 10) + " " + stamp + " " + d.process +
		"\x00" + phase + "\x00" + mark(a.r)
	ops := []op{{a.lock, []any{"v", a.id, d.number(), a.bucket, terms}}}
	votes := d.begin()
	g.answers = votes.done
	for _, n := range votes.nodes() {
		l, _ := votes.take(n)
		votes.send(n, l, &request{ops: ops, by: votes.began.Add(most)})
	}
	p := &poll{a: a, grip: g, numbers: make([]int64, len(d.nodes)), silent: silence{d: d}}
	d.keep(a.r.Nonce, g)
	err := d.each(ctx, votes, most, p.take)
	if p.forgetful() {
		d.mendSoon()
	}
	for i, sure := range a.old {
		if !sure { // an older request with this id may still be under way
			g.sure[i] = false
		}
	}
	if err != nil {
		a.old = g.surely()
		return result{}, err // Abandon undoes it, or the next look asks again
	}
	if p.votes >= d.quorum {
		token, err := a.agree(ctx, p, most)
		if ctx.Err() != nil {
			return result{}, ctx.Err()
		}
		trust := a.trust()
		if err == nil && asked.Elapsed() < trust {
			d.saw(token)
			a.grant = backend.Grant{Token: token, Asked: asked, Max: trust, Ungated: a.r.Move != "" && p.gated == 0, Handle: g}
			return result{granted: true}, nil
		}
		a.next(p)
		if err == nil {
			err = fmt.Errorf("the votes took longer than the lease would have lasted, %v", trust)
		}
		return result{}, err
	}
	res, err := p.refused()
	if p.gone {
		return result{}, err
	}
	a.next(p)
	return res, err
}

// trust is how long after its request a grant may be trusted: the TTL without the drift.
func (a *attempt) trust() time.Duration {
	return a.r.TTL - time.Duration(float64(a.r.TTL)*a.d.drift) - driftLeast
}

// next undoes a round that did not win, if any node may have voted for it, and begins another.
func (a *attempt) next(p *poll) {
	if p.grip.nothing() {
		return
	}
	a.d.free(a.d.round(), a.r, p.grip, false, false)
	base, n, _ := strings.Cut(a.id, ".")
	round, _ := strconv.Atoi(n)
	a.id = base + "." + strconv.Itoa(round+1)
	a.old = nil
	a.d.keep(a.r.Nonce, a.d.grip(a.id))
}

// take reads one answer, and reports whether the round is decided.
func (p *poll) take(an answer) bool {
	d := p.a.d
	p.grip.take(an)
	p.heard++
	if an.err != nil {
		p.silent.add(an.node, an.err)
	} else if err := p.read(an.node, an.replies[0]); err != nil {
		p.silent.add(an.node, err)
	}
	rest := len(d.nodes) - p.heard
	return p.gone || p.votes >= d.quorum || p.most() >= d.quorum ||
		p.votes+rest < d.quorum && p.votes+p.refusals() >= d.quorum
}

// read takes in a reply of vote.lua.
func (p *poll) read(node int, reply any) error {
	res, ok := reply.([]any)
	if !ok || len(res) == 0 {
		return unexpected(reply)
	}
	n := int64(0)
	if len(res) > 1 {
		n, _ = res[1].(int64)
	}
	switch res[0] {
	case int64(0):
		if n <= 0 {
			return unexpected(reply)
		}
		p.numbers[node] = n
		p.votes++
		if len(res) == 3 {
			p.gated++
		}
	case int64(1):
		if len(res) != 3 {
			return unexpected(reply)
		}
		holder, _ := res[2].(string)
		if p.held == nil {
			p.held = map[string]int{}
		}
		p.held[holder]++
		p.foreign = p.foreign || holder == ""
		p.wait(n)
	case int64(2):
		p.unsettled = true
		return fmt.Errorf("in quarantine for %v more, since it was restarted or is new", (time.Duration(n) * time.Millisecond).Round(100*time.Millisecond))
	case int64(3):
		p.gone = true
	case int64(4):
		p.kept++
		p.wait(n)
	case int64(5):
		return errForeignType
	case int64(6):
		return p.refuse(res)
	case int64(7):
		return p.a.d.badGate()
	default:
		return unexpected(reply)
	}
	return nil
}

func (p *poll) wait(pttl int64) {
	left := floor
	if pttl >= 0 {
		left = min(left, time.Duration(pttl)*time.Millisecond+5*time.Millisecond)
	}
	p.left = append(p.left, left)
}

// most is how many nodes refuse for one and the same holder.
func (p *poll) most() int {
	most := 0
	for _, n := range p.held {
		most = max(most, n)
	}
	return most
}

// refusals is how many nodes answered that they have voted for somebody else, or that a gate is closed.
func (p *poll) refusals() int {
	sum := p.kept + p.gates
	for _, n := range p.held {
		sum += n
	}
	return sum
}

// refused says what a round without a majority of votes means: an error is not a refusal.
func (p *poll) refused() (result, error) {
	d := p.a.d
	switch {
	case p.gone:
		return result{}, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	case p.gates >= d.quorum || p.gates > 0 && p.gates == p.refusals() && p.votes+p.gates >= d.quorum:
		return result{}, p.refusal
	case p.most() >= d.quorum:
		p.a.splits = 0
		slices.Sort(p.left)
		look := p.left[min(d.quorum, len(p.left))-1]
		if p.foreign {
			look = min(look, foreignFloor)
		}
		return result{look: look}, nil
	case p.votes+p.refusals() >= d.quorum && p.refusals() > 0:
		// Several want it and none has a majority: each undoes its votes and comes back at a moment of its own.
		p.a.splits = min(p.a.splits+1, 5)
		return result{split: true, look: 2*time.Millisecond + time.Duration(rand.Int64N(int64(4*time.Millisecond)<<p.a.splits))}, nil
	}
	return result{}, p.silent.err(p.votes + p.refusals())
}

// agree makes a majority carry one number: the greatest of the votes that won, which is the token. Votes that come
// later do not change it.
func (a *attempt) agree(ctx context.Context, p *poll, most time.Duration) (int64, error) {
	d := a.d
	token := slices.Max(p.numbers)
	done := 0
	answers := make(chan answer, len(d.nodes))
	asked := 0
	for _, n := range p.numbers {
		if n == token {
			done++
		}
	}
	if done >= d.quorum {
		return token, nil
	}
	by := time.Now().Add(most)
	for i, n := range p.numbers {
		if n == 0 || n == token {
			continue
		}
		asked++
		d.nodes[i].send(&request{done: answers, by: by, ops: []op{{a.lock, []any{
			"w", a.id, strconv.FormatInt(n, 10), strconv.FormatInt(token, 10), a.bucket,
		}}}})
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	for range asked {
		select {
		case an := <-answers:
			if an.err == nil && an.replies[0] == int64(1) {
				if done++; done >= d.quorum {
					return token, nil
				}
			}
		case <-timer.C:
			return 0, errors.New("no majority took the token in time")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 0, errors.New("no majority took the token")
}
