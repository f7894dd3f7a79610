package postgres

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

const (
	// slack is how long after its last sign of life a process counts as alive.
	slack = 4 * time.Second
	// beatEvery is how often a process that waits gives one, which is also the floor timer of its
	// waiters.
	beatEvery = time.Second
	// beatAlone is the same where no push arrives.
	beatAlone = 250 * time.Millisecond
	// idleFor is how long the listening connection is kept when nobody waits.
	idleFor = 30 * time.Second
	// hearMost is how long a push that the process sends to itself may take to arrive.
	hearMost = 3 * time.Second
	// deafFor is how long to go without pushes where they do not arrive.
	deafFor = time.Minute
)

// hub is what the waiters of a process share: a channel of its own that it listens to, and its sign
// of life.
type hub struct {
	st      *store
	process string
	config  *pgx.ConnConfig // nil: as the pool connects, or over a sql.DB not at all
	began   backend.Instant

	mu      sync.Mutex
	waiters map[string]*waiter // by nonce, as hex
	idle    *time.Timer        // runs while nobody waits
	stop    context.CancelFunc // nil while the hub is not running
	hears   bool               // a push has arrived on the present connection
	closed  bool
}

// waiter is the place of a claim that waits for a push.
type waiter struct {
	claim  *backend.Claim
	ticket int64 // the place in the queue, kept if the server forgets it; 0: none yet
	// asked is when its last request was sent. Until the first one is answered, the same is asked again.
	asked backend.Instant
	given atomic.Pointer[given]
}

// given is a grant that a push tells of. It came after the request of that number was sent, so it may be trusted for
// lasts from then.
type given struct {
	ask   int64
	token backend.Token
	lasts time.Duration
}

func newHub(st *store, process string, config *pgx.ConnConfig) *hub {
	return &hub{st: st, process: process, config: config, began: backend.Now(), waiters: map[string]*waiter{}}
}

// channel is what the server pushes to.
func (h *hub) channel() string { return "fl_" + h.process }

// ready reports whether a waiter would hear a push, so that it can join the queue with its first
// request.
func (h *hub) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hears
}

// join adds a waiter, if it is not there. The first one starts the hub.
func (h *hub) join(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[w.claim.Nonce] = w
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop == nil && !h.closed {
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		if h.config != nil || h.st.own != nil {
			h.st.flying.Go(func() { h.listen(ctx) })
		}
		h.st.flying.Go(func() { h.beat(ctx) })
	}
}

// leave takes a waiter out. The last one starts the time after which the hub is stopped.
func (h *hub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters, w.claim.Nonce)
	if len(h.waiters) == 0 && h.idle == nil && !h.closed {
		h.idle = time.AfterFunc(idleFor, h.retire)
	}
}

// retire stops the hub if still nobody waits.
func (h *hub) retire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiters) == 0 {
		h.stopLocked()
	}
}

func (h *hub) stopLocked() {
	if h.stop != nil {
		h.stop()
		h.stop, h.hears = nil, false
	}
}

// close stops the hub for good; its goroutines are among those that the driver waits for.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.idle != nil {
		h.idle.Stop()
	}
	h.stopLocked()
}

// listen keeps a connection that hears what is pushed to this process, until ctx ends.
func (h *hub) listen(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		heard := h.hear(ctx)
		h.mu.Lock()
		if ctx.Err() == nil {
			h.hears = false
		}
		h.mu.Unlock()
		switch {
		case heard:
			pause = 0
		case pause == 0:
			pause = 100 * time.Millisecond
		default:
			pause = min(2*pause, 2*time.Second)
		}
		sleep(ctx, pause)
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// hear listens on one connection until that ends, and reports whether pushes arrived.
func (h *hub) hear(ctx context.Context) bool {
	var config *pgx.ConnConfig
	if h.config != nil {
		config = h.config.Copy()
	} else {
		of := h.st.own.Config()
		config = of.ConnConfig
		if of.BeforeConnect != nil {
			if err := of.BeforeConnect(ctx, config); err != nil {
				return false
			}
		}
	}
	config.OnNotification = nil // one of the program's would get the pushes instead of us
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false
	}
	defer func() {
		done, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(done)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+h.channel(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false
	}
	// A pooler in transaction mode takes the LISTEN and drops the pushes. So one is sent by another
	// connection.
	hello, cancel := context.WithTimeout(ctx, hearMost)
	defer cancel()
	sent := make(chan error, 1)
	h.st.flying.Go(func() {
		sent <- h.st.upkeep(hello, "SELECT pg_notify($1, 'hello')", []any{h.channel()}, nil)
	})
	n, err := conn.WaitForNotification(hello)
	if err != nil {
		if ctx.Err() == nil && !conn.IsClosed() {
			h.silence(ctx, conn)
			if <-sent == nil {
				sleep(ctx, deafFor)
			}
		}
		return false
	}
	h.mu.Lock()
	if ctx.Err() == nil {
		h.hears = true // the next sign of life finds what was pushed before
	}
	h.mu.Unlock()
	for {
		if n.Payload != "hello" {
			h.push(n.Payload)
		}
		if n, err = conn.WaitForNotification(ctx); err != nil {
			return true
		}
	}
}

// silence is for a way that carries no pushes: the pooler's connection is told to listen no more.
func (h *hub) silence(ctx context.Context, conn *pgx.Conn) {
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = conn.Exec(limited, "UNLISTEN "+h.channel(), pgx.QueryExecModeSimpleProtocol)
	_ = conn.Close(limited)
}

// number is the number of a request that was sent at a moment: the ns since the hub began.
func (h *hub) number(asked backend.Instant) int64 { return int64(asked.Sub(h.began)) }

// ask returns the number of a request that a waiter is about to send, or 0 if no push may grant by it.
func (h *hub) ask(w *waiter, now backend.Instant) int64 {
	if w.ticket > 0 || w.asked.IsZero() {
		w.asked = now
	}
	if c := w.claim; !c.Auto || c.Floor > 0 || c.Reserve > 0 || c.Move != "" {
		return 0
	}
	return h.number(w.asked)
}

// pushed reports whether a push has told a claim of a grant.
func pushed(c *backend.Claim) bool {
	w, ok := c.Place.(*waiter)
	return ok && w.given.Load() != nil
}

// taken takes the lock that a push has given a claim, and reports whether it has one. A push has a third of the
// grant's time, as the first renewal has: where the way is slower than that, no renewal comes through either. A push
// that tells of another request is old or early: what it gave, the next request finds.
func (h *hub) taken(c *backend.Claim) bool {
	if !pushed(c) {
		return false
	}
	w := c.Place.(*waiter)
	g := w.given.Swap(nil)
	if g.ask != h.number(w.asked) || w.asked.Elapsed() > min(g.lasts, c.TTL)/3 {
		return false
	}
	c.Grant = backend.Grant{Token: g.token, Asked: w.asked, Short: g.lasts}
	h.leave(w)
	return true
}

// readGiven reads "<ask>:<token>:<ms>"; nil: it is something else.
func readGiven(text string) *given {
	words := strings.Split(text, ":")
	if len(words) != 3 {
		return nil
	}
	var n [3]int64
	for i, word := range words {
		var err error
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil || n[i] <= 0 {
			return nil
		}
	}
	if n[2] > millis(claim) {
		return nil
	}
	return &given{n[0], n[1], time.Duration(n[2]) * time.Millisecond}
}

// push is one message: "h<ask>:<token>:<ms> nonce", it is yours for so long, by that request; "g nonce",
// it is yours if you ask; or "w<ms> nonce", look in that time.
func (h *hub) push(payload string) {
	what, nonce, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waiters[nonce]
	switch {
	case w == nil: // it has left; its Leave passes the grant on
	case what == "g" || strings.HasPrefix(what, "h"):
		if g := readGiven(what[1:]); g != nil {
			w.given.Store(g)
		}
		w.claim.Wake(0)
	case strings.HasPrefix(what, "w"):
		if ms, err := strconv.Atoi(what[1:]); err == nil && ms >= 0 {
			w.claim.Wake(time.Duration(ms)*time.Millisecond + 5*time.Millisecond)
		}
	}
}

// beat gives the sign of life of the process, for all its waiters in one statement, and wakes those
// that have missed something.
func (h *hub) beat(ctx context.Context) {
	for ctx.Err() == nil {
		every := beatAlone
		if h.ready() {
			every = beatEvery
		}
		sleep(ctx, every)
		h.beatOnce(ctx)
	}
}

func (h *hub) beatOnce(ctx context.Context) {
	h.mu.Lock()
	var nonces array
	for nonce := range h.waiters {
		nonces.hex(nonce)
	}
	h.mu.Unlock()
	if nonces == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	s := statement{
		conn: (*store).spare, again: 1,
		text: "SELECT coalesce(string_agg(encode(n, 'hex'), ' '), '') FROM fencelock_beat($1, $2, $3) n",
		raw:  [][]byte{[]byte(h.process), number(millis(slack)), nonces.end()},
	}
	if err := h.st.send(limited, &s); err != nil {
		return // the waiters see the outage themselves
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for nonce := range strings.FieldsSeq(s.told) {
		if w := h.waiters[nonce]; w != nil {
			w.claim.Wake(0)
		}
	}
}
