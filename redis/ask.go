package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// place is what the store remembers of a claim. What is sent for the claim lies in this one piece of
// memory, since go-redis takes pointers: a lock that nobody else wants costs few allocations.
type place struct {
	claim *backend.Claim
	keys  keys

	counter, queue, tombstone, nonce string // as KEYS and ARGV have them
	kind                             string // of run.lua
	millis                           int64  // the TTL, or how long to keep a tombstone, as run.lua has it
	ctx                              redisnode.Lazy

	ticket   int64 // the place in the queue, kept if the server forgets it
	asks     int64 // how many were sent
	answered int64 // the one whose answer was the last "queued"
	since    backend.Instant
	given    atomic.Pointer[given]
	again    bool // a release of it went unanswered
	released bool // the server has confirmed its release

	listener redisnode.Listener
	placed   *redisnode.Hub // the one with which the server had its place in the queue last

	reply any
	err   error
}

// freshest is how old an ask may be for a push to grant by it: the rest of the claim is what the
// holder has for its first renewal. A lease counts from its ask too, so half its TTL is to be left.
const freshest = claim / 2

// shared reports whether several may have what the claim wants at once: share.lua is for those, run.lua
// for the others.
func shared(c *backend.Claim) bool { return c.Mode != backend.Exclusive }

// script is the one that takes the claim's asks and leaves.
func (p *place) script() *script {
	if shared(p.claim) {
		return shareScript
	}
	return runScript
}

// taken takes the lock that a push has given the claim, and reports whether it has one. A push that
// tells of another ask is old or early: what it gave, the next ask finds.
func (p *place) taken() bool {
	g := p.given.Swap(nil)
	if g == nil || g.ask != p.answered || p.since.Elapsed() > min(freshest, p.claim.TTL/2) {
		return false
	}
	p.claim.Grant = backend.Grant{Token: g.token, Slot: g.slot, Asked: p.since, Short: claim}
	p.listener.Leave()
	return true
}

func (s *store) place(c *backend.Claim) *place {
	if p, ok := c.Place.(*place); ok {
		return p
	}
	p, tag := &place{claim: c}, tagOf(s.prefix, c.Name)
	head := len(tag) + 6
	text := "fl\x00{" + tag + "}cfl\x00{" + tag + "}q" + s.prefix + c.Name + "fl\x00{" + tag + "}x" + c.Nonce + ":"
	tomb, end := 2*head+len(s.prefix)+len(c.Name), len(text)-1
	p.keys = keys{text[2*head : tomb], tag}
	p.counter, p.queue, p.tombstone, p.nonce = text[:head], text[head:tomb], text[tomb:end], text[tomb+head:]
	p.listener = redisnode.Listener{Waiter: p, Nonce: c.Nonce, Channel: s.channel(p.keys)}
	c.Place = p
	return p
}

// The kinds of run.lua.
const (
	tries    = "t"
	abandons = "0"
	releases = "1"
	repeats  = "2" // a release that was sent before, to which no answer came
)

// ungated is the version of no gates.
var ungated = "-"

// prepare sets what is asked about the claim, and reports whether the server must be asked.
func (s *store) prepare(c *backend.Claim) bool {
	p := s.place(c)
	if !c.Leaving {
		if c.Wait && p.listener.Hub() == nil {
			s.hear(p)
		}
		if p.taken() {
			return false
		}
		p.millis, p.released = redisnode.Millis(c.TTL+c.Grace), false
		ask := ""
		if p.listener.Hub() != nil && c.Auto && c.Floor == 0 && c.Reserve == 0 && c.Move == "" {
			p.asks++
			ask = strconv.FormatInt(p.asks, 10)
		}
		switch {
		case shared(c):
			p.kind = p.sharing(ask)
		case p.listener.Hub() != nil:
			p.kind = fmt.Sprintf("w%s:%d:%d:%d", ask, p.ticket, c.Floor, c.Reserve)
		case c.Floor > 0 || c.Reserve > 0:
			p.kind = fmt.Sprintf("t:0:%d:%d", c.Floor, c.Reserve)
		default:
			p.kind = tries
		}
		return true
	}
	p.listener.Leave()
	p.millis = redisnode.Millis(c.TTL + c.Grace + tombstone)
	if !c.Unsure { // no copy of it may come yet
		p.millis = -p.millis
	}
	switch {
	case !c.Held:
		p.kind = abandons
	case p.again:
		p.kind = repeats
	default:
		p.kind = releases
	}
	return !p.released
}

// sharing is the kind of an acquire of share.lua.
func (p *place) sharing(ask string) string {
	kind, mode := tries, "r"
	if p.listener.Hub() != nil {
		kind = "w" + ask
	}
	if p.claim.Mode == backend.Permit {
		mode = "p"
	}
	return fmt.Sprintf("%s:%s%d:%d:%d", kind, mode, p.claim.Limit, p.ticket, p.claim.Floor)
}

// Ask implements backend.Driver: one script in one round trip, for one claim or for many. Claims that
// were judged by other gates than the first one go in a call of their own, and so do those of another
// script.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	if len(cs) == 1 {
		if !s.prepare(cs[0]) {
			return
		}
		if p := cs[0].Place.(*place); s.own {
			ctx = p.ctx.Of(ctx)
		}
		r := 0
		if cs[0].Leaving {
			r = 1
		}
		s.send(ctx, cs, r)
		return
	}
	var all, asks, others []*backend.Claim
	for _, c := range cs {
		switch {
		case shared(c) != shared(cs[0]), !c.Leaving && len(asks) > 0 && version(c) != version(asks[0]):
			others = append(others, c)
		case !s.prepare(c):
		case c.Leaving:
			all = append(all, c)
		default:
			asks = append(asks, c)
		}
	}
	r := len(all)
	all = append(all, asks...)
	if len(all) > 0 {
		s.send(ctx, all, r)
	}
	if len(others) > 0 {
		s.Ask(ctx, others)
	}
}

// Leave implements backend.Driver. It is not called, since Ask takes leaves too.
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) { s.Ask(ctx, cs) }

// send asks about claims in one command. The first r of them leave.
func (s *store) send(ctx context.Context, cs []*backend.Claim, r int) {
	asked := backend.Now()
	var space []any
	if s.own && len(cs) == 1 { // a client of the program's may have a hook that keeps the command
		all := spaces.Get().(*[20]any)
		defer func() {
			clear(all[:])
			spaces.Put(all)
		}()
		space = all[:0]
	}
	cmd := s.command(ctx, cs, r, false, space)
	err := s.client.Process(ctx, sentOnce{cmd})
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = s.command(ctx, cs, r, true, space)
		err = s.client.Process(ctx, sentOnce{cmd})
	}
	if half := len(cs) / 2; half > 0 && redisnode.Forbidden(err) { // the name of one is no other's business
		s.send(ctx, cs[:half], min(r, half))
		s.send(ctx, cs[half:], max(r-half, 0))
		return
	}
	replies, _ := cmd.Val().([]any)
	if err == nil && len(replies) != len(cs) {
		err = redisnode.Unexpected(cmd.Val())
	}
	for i, c := range cs {
		p := c.Place.(*place)
		if p.err = err; err == nil {
			p.reply = replies[i]
		}
		s.answer(c, p, asked)
	}
}

// sentOnce is a command that go-redis never sends a second time by itself: the engine must know of
// a second copy, to make the server refuse the first one when it comes late.
type sentOnce struct{ *goredis.Cmd }

// NoRetry tells go-redis so.
func (sentOnce) NoRetry() bool { return true }

// version is the version of the gates by which the claim was judged.
func version(c *backend.Claim) string {
	if c.Gates == nil {
		return ungated
	}
	return c.Gates.Version
}

// spaces have room for the command about one claim, on a cluster too.
var spaces = sync.Pool{New: func() any { return new([20]any) }}

// command makes the command of run.lua or share.lua, in the space that is given for it.
func (s *store) command(
	ctx context.Context, cs []*backend.Claim, r int, byText bool, args []any,
) *goredis.Cmd {
	if args == nil {
		args = make([]any, 0, 12+8*len(cs))
	}
	sc := cs[0].Place.(*place).script()
	args = append(args, "evalsha", &sc.hash, 0)
	if byText {
		args[0], args[1] = "eval", &sc.text
	}
	keys := len(args)
	of := func(i int) *place { return cs[i].Place.(*place) }
	for i := range r {
		args = append(args, &of(i).keys.lock)
	}
	known := &ungated
	for i := r; i < len(cs); i++ {
		args = append(args, &of(i).counter)
	}
	args = append(args, s.gatesIn(of(0).keys.tag))
	if len(cs) > r && cs[r].Gates != nil {
		known = &cs[r].Gates.Version
	}
	for i := range cs {
		args = append(args, &of(i).queue)
	}
	for i := r; i < len(cs); i++ {
		args = append(args, &of(i).tombstone)
	}
	for i := r; i < len(cs); i++ {
		args = append(args, &of(i).keys.lock)
	}
	if s.cluster != nil {
		args = append(args, of(0).others()...)
	}
	args[2] = len(args) - keys
	args = append(args, r, known, &s.rest)
	for i, c := range cs {
		p := of(i)
		args = append(args, &p.nonce)
		if i >= r {
			args = append(args, mark(c.Request))
		}
		args = append(args, &p.millis, &p.kind)
	}
	cmd := goredis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// others returns the keys that a claim may need besides, which a cluster wants to be declared.
func (p *place) others() []any {
	return []any{p.keys.ours() + "m" + p.keys.lock, p.counter, p.tombstone, p.keys.holds(), p.keys.parts()}
}

// mark returns the owner as the value of a lock has it, without a copy where it has no marks. A grant
// that is not confirmed has one more NUL at its end.
func mark(r *backend.Request) *string {
	if r.Phase != backend.PhaseBoth {
		return &r.Owner
	}
	text := redisnode.Mark(r)
	return &text
}

// answer takes in what the server says to a claim.
func (s *store) answer(c *backend.Claim, p *place, asked backend.Instant) {
	res, _ := p.reply.([]any)
	if p.err == nil && len(res) == 2 && res[0] == "err" {
		p.err = scriptError(fmt.Sprint(res[1]))
		p.again = p.again || c.Leaving // what it did before that stays done
	}
	switch {
	case p.err != nil:
		c.Err = s.meaning(p.err)
		if redisnode.Replied(p.err) && !backend.Final(c.Err) {
			c.Err = backend.Refusal(c.Err)
		}
		p.again = p.again || c.Leaving && !redisnode.Replied(p.err) && !unsent(p.err)
	case c.Leaving:
		c.Err = p.left()
	default:
		c.Err = s.asked(c, p, res, asked)
	}
	if !c.Queued && c.Err != nil && backend.Final(c.Err) {
		p.listener.Leave()
	}
}

// unsent reports whether a request with this error never left: the client had no connection for it, or no sentinel
// told it of a server.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial" || errors.Is(err, goredis.ErrPoolTimeout) ||
		strings.HasPrefix(err.Error(), noSentinel)
}

// left takes in the answer to a release.
func (p *place) left() error {
	n, ok := p.reply.(int64)
	switch {
	case !ok:
		return redisnode.Unexpected(p.reply)
	case n == 0 && p.kind != abandons:
		return backend.ErrLost
	}
	p.released = true
	return nil
}

// asked takes in the answer to an acquire.
func (s *store) asked(c *backend.Claim, p *place, res []any, asked backend.Instant) error {
	if token, n, ok := granted(p.reply, res); ok {
		c.Grant = backend.Grant{Token: token, Reserved: n, Asked: asked}
		if shared(c) {
			c.Reserved, c.Slot = 0, n
		}
		p.listener.Leave()
		return nil
	}
	if len(res) == 0 {
		return redisnode.Unexpected(p.reply)
	}
	switch res[0] {
	case "gates":
		return s.shown(c, p, res)
	case "badgate":
		return badGate(*s.gatesIn(p.keys.tag))
	case "gone":
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	case "locked":
		return backend.ErrLocked
	case "floor":
		return tooFar(c.Floor, res)
	case "queued":
		return p.queued(res, asked)
	}
	return redisnode.Unexpected(p.reply)
}

// granted reads token, {token, reserved}, or {token, slot}.
func granted(reply any, res []any) (token backend.Token, second int, ok bool) {
	if len(res) != 2 {
		token, ok = reply.(int64)
		return token, 0, ok && token > 0
	}
	token, ok = res[0].(int64)
	n, _ := res[1].(int64)
	return token, int(n), ok && token > 0
}

// shown reads {"gates", version, list}.
func (s *store) shown(c *backend.Claim, p *place, res []any) error {
	var known, list string
	switch {
	case !redisnode.Read(res, new(string), &known, &list):
		return redisnode.Unexpected(res)
	case known == "":
		c.Gates = nil
	case known != versionOf(list):
		return badGate(*s.gatesIn(p.keys.tag))
	default:
		c.Gates = &backend.Record{Key: backend.GateKey, Data: []byte(list), Version: known}
	}
	return backend.ErrGates
}

// tooFar reads {"floor", now}.
func tooFar(floor backend.Token, res []any) error {
	var text string
	if redisnode.Read(res, new(string), &text) {
		now, err := strconv.ParseInt(text, 10, 64)
		if err == nil && backend.CheckFloor(floor, now) != nil {
			return backend.CheckFloor(floor, now)
		}
	}
	return redisnode.Unexpected(res)
}

// queued reads {"queued", ticket, pttl, foreign, dropped}. If the claim's place in the queue is gone
// although it had it with this very hub, a script found no listener there: the hub hears nothing
// without knowing it. So it ends, and all its waiters look again, with the next hub.
func (p *place) queued(res []any, asked backend.Instant) error {
	var ticket string
	var left, foreign, dropped int64
	ok := redisnode.Read(res, new(string), &ticket, &left, &foreign, &dropped)
	n, err := strconv.ParseInt(ticket, 10, 64)
	if !ok || err != nil || p.listener.Hub() == nil {
		return redisnode.Unexpected(res)
	}
	p.ticket, p.answered, p.since = n, p.asks, asked
	p.claim.Queued, p.claim.Next = true, redisnode.UntilExpiry(left, floor)
	if foreign == 1 {
		p.claim.Next = min(p.claim.Next, foreignFloor)
	}
	if h := p.listener.Hub(); dropped == 1 && h == p.placed {
		_ = h.End(redisnode.ErrUnheard)
	} else {
		p.placed = h
	}
	return backend.ErrLocked
}
