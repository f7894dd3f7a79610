package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// callMost bounds one call to a node. A caller waits for a majority for less: see patience.
	callMost = 2 * time.Second
	// stuckAfter is how long a call may take before what comes next no longer waits for it.
	stuckAfter = 20 * time.Millisecond
	// silentAfter is how long a call may take without an answer when the driver is closed.
	silentAfter = 500 * time.Millisecond
	// maxCalls is how many calls may be under way to a node that does not answer.
	maxCalls = 8
	// maxOps is how many operations go into one call, if they are not of one request.
	maxOps = 128
	// maxQueued is how many requests may wait for a node that does not answer. Further ones fail at
	// once.
	maxQueued = 1 << 16
	// maxOwed is how many undos are kept for a node that does not answer.
	maxOwed = 4096
	// owedFirst and owedMost are the pauses, growing, after which such a node is asked again for no
	// other reason.
	owedFirst = 200 * time.Millisecond
	owedMost  = 5 * time.Second
)

// op is one operation of the script: its lock and its kind with arguments.
type op struct {
	lock string
	args []any
}

// request is what one caller wants of one node.
type request struct {
	ops  []op
	to   *question    // nil: nobody waits
	note func(answer) // gets the answer first, also one that nobody waits for any more
	// certain, if there are any, are the operations where nothing of the ballot is under way to the
	// node when this is sent.
	certain []op
	of      *ballot
	// until: try again until then, when the node answers. The zero time: never.
	until time.Time
	// by: of no use to anybody later than this; the zero time: always.
	by time.Time
}

// answer gives an answer to the caller that waits for it.
func (r *request) answer(a answer) {
	if r.note != nil {
		r.note(a)
	}
	if r.to != nil {
		r.to.answered(a)
	}
}

var errBehind = errors.New("it has not answered for long: too many requests wait for it")

// node is one of the Redis servers. Requests that come while a call is under way go into the next call
// together.
type node struct {
	index    int
	client   goredis.UniversalClient
	addr     string
	settings string // as state.lua has it
	s        *store

	scripts atomic.Bool  // it has no functions for us
	took    atomic.Int64 // how long the last call took that it answered; 0: it is silent

	mu      sync.Mutex
	queue   []*request
	owed    []*request
	calls   int           // workers that are busy
	rests   bool          // one more waits for work: a new one would have to grow its stack in each call
	roused  chan bool     // of size 1, for that one: true, there is work; false, it is to end
	begun   []time.Time   // when the calls that are under way were begun
	again   *time.Timer   // until what is owed is tried again
	pause   time.Duration // how long that is
	closing bool
}

// send asks the node, and returns at once.
func (n *node) send(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closing:
		n.unsent(r, goredis.ErrClosed)
	case len(n.queue) >= maxQueued:
		n.unsent(r, errBehind)
	default:
		n.queue = append(n.queue, r)
		n.rouse()
	}
}

// unsent answers a request that was never sent.
func (n *node) unsent(r *request, err error) { r.answer(answer{node: n.index, err: err, sure: true}) }

// rouse makes a worker take what is queued, if no other will soon; n.mu is held.
func (n *node) rouse() {
	if n.calls == 0 || n.calls < maxCalls && n.stuck() {
		n.calls++
		if n.rests {
			n.rests = false
			n.roused <- true
			return
		}
		n.s.flying.Go(n.work)
	}
}

// stuck reports whether all calls that are under way have been for long; n.mu is held.
func (n *node) stuck() bool {
	for _, at := range n.begun {
		if time.Since(at) <= stuckAfter {
			return false
		}
	}
	return len(n.begun) == n.calls // the other workers are about to begin
}

// work makes calls until nothing is queued, and waits for more if no other worker does.
func (n *node) work() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		batch := n.take()
		if len(batch) == 0 {
			n.calls--
			if n.rests || n.closing {
				return
			}
			n.rests = true
			n.mu.Unlock()
			more := <-n.roused
			n.mu.Lock()
			if !more {
				return
			}
			continue
		}
		began := time.Now()
		n.begun = append(n.begun, began)
		n.mu.Unlock()
		err := n.call(batch)
		switch took := time.Since(began); {
		case err == nil:
			n.took.Store(int64(took))
		case took > 4*time.Duration(n.took.Load()): // and not slow
			n.took.Store(0)
		}
		n.mu.Lock()
		i := slices.Index(n.begun, began)
		n.begun = slices.Delete(n.begun, i, i+1)
		n.settle(err)
	}
}

// take removes from the queue what the next call carries; n.mu is held.
func (n *node) take() []*request {
	now := time.Now()
	var batch []*request
	ops := 0
	i := 0
	for ; i < len(n.queue); i++ {
		r := n.queue[i]
		if !r.by.IsZero() && now.After(r.by) {
			n.unsent(r, context.DeadlineExceeded) // its caller has gone
			continue
		}
		if ops += len(r.ops); ops > maxOps && len(batch) > 0 {
			break
		}
		if r.certain != nil && r.of.sure(n.index) {
			r.ops = r.certain
		}
		batch = append(batch, r)
	}
	n.queue = append(n.queue[:0], n.queue[i:]...)
	clear(n.queue[len(n.queue):cap(n.queue)])
	return batch
}

// call makes one call and hands out its replies.
func (n *node) call(batch []*request) error {
	var limit struct { // in one piece
		core.Deadline
		lazy redisnode.Lazy
	}
	limit.Context, limit.At = context.Background(), time.Now().Add(callMost)
	defer limit.End()
	ctx := context.Context(&limit.Deadline)
	if n.s.own {
		ctx = limit.lazy.Of(ctx)
	}
	args, ops := n.asked(batch)
	replies, err := n.run(ctx, args)
	if len(batch) > 1 && ofOne(err) {
		for _, r := range batch {
			err = n.call([]*request{r})
		}
		return err
	}
	if err == nil && len(replies) != ops {
		err = redisnode.Unexpected(replies)
	}
	a := answer{node: n.index, err: meaning(err), sure: err == nil || full(err)}
	for _, r := range batch {
		if err == nil {
			a.replies, replies = replies[:len(r.ops)], replies[len(r.ops):]
		} else {
			n.owe(r)
		}
		r.answer(a)
	}
	return a.err
}

// asked returns a call of body for these requests, with the number of keys, but without the command
// and what it runs. The terms of a vote are left out if they are the same as of the vote before.
func (n *node) asked(batch []*request) (args []any, ops int) {
	for _, r := range batch {
		ops += len(r.ops)
	}
	args = make([]any, 4, 8+6*ops)
	args[2], args[3] = 1+ops, stateKey
	for _, r := range batch {
		for i := range r.ops {
			args = append(args, &r.ops[i].lock)
		}
	}
	args = append(args, &n.settings)
	var terms any
	for _, r := range batch {
		for _, o := range r.ops {
			args = append(args, o.args...)
			if last := &args[len(args)-1]; o.args[0] == "v" {
				if *last == terms {
					*last = ""
				} else {
					terms = *last
				}
			}
		}
	}
	return args, ops
}

// ofOne reports whether the server refused a call for what one of its requests needs, and the others may not: memory,
// or a key that the user has no right to or that is of another type.
func ofOne(err error) bool {
	return full(err) || redisnode.Forbidden(err) || err != nil && strings.Contains(err.Error(), "WRONGTYPE")
}

// full reports whether the server refused a write for lack of memory: in a script, where it has no
// functions for us. A vote that was refused so is none.
func full(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// owe keeps a request for when the node answers again.
func (n *node) owe(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closing && time.Now().Before(r.until) && len(n.owed) < maxOwed {
		n.owed = append(n.owed, &request{ops: r.ops, until: r.until, by: r.until})
	}
}

// settle queues what is owed to a node that has answered, and sees to it that one that has not is
// asked again. When closing, a node that does not answer is given up. n.mu is held.
func (n *node) settle(err error) {
	switch {
	case err == nil:
		n.pause = 0
		n.repay()
	case n.closing:
		for _, r := range n.queue {
			n.unsent(r, err)
		}
		n.queue = nil
	case len(n.owed) > 0 && n.again == nil:
		n.pause = min(max(2*n.pause, owedFirst), owedMost)
		n.again = time.AfterFunc(n.pause, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.again = nil
			if !n.closing {
				n.repay()
				n.rouse()
			}
		})
	}
}

// repay queues what is owed; n.mu is held.
func (n *node) repay() { n.queue, n.owed = append(n.queue, n.owed...), nil }

// close refuses new requests. Those that are queued are sent, and so is what is owed: a node that does
// not answer is given up (settle). It reports whether the node is silent.
func (n *node) close() (silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closing = true
	if n.again != nil {
		n.again.Stop()
	}
	if n.repay(); len(n.queue) > 0 {
		n.rouse()
	}
	if n.rests {
		n.rests = false
		n.roused <- false
	}
	return len(n.begun) > 0 && time.Since(n.begun[0]) > silentAfter
}

const ofCluster = "the server is a node of a cluster, and Redlock wants servers that know nothing of each other"

// meaning returns an error of a server as the contract has it.
func meaning(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v", callMost)
	case errors.Is(err, goredis.ErrPoolTimeout):
		return fmt.Errorf("the client's pool is used up: %w", err)
	case goredis.HasErrorPrefix(err, "READONLY"):
		return fmt.Errorf("the server is a replica, or the client reads from one, and Redlock "+
			"wants masters that do not replicate to each other: %w", err)
	}
	return redisnode.Meaning(err, redisnode.Answer{Code: "MOVED", Means: ofCluster},
		redisnode.Answer{Code: "CROSSSLOT", Means: ofCluster})
}

// errForeignType is the answer for a key that holds no string.
var errForeignType = backend.Invalid("the lock's key holds a value of another type, which some other program put there")
