package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

const (
	// callMost bounds one call to a node. How long a caller waits for a majority is another matter: patience.
	callMost = 2 * time.Second
	// voteMost is how long a round of votes waits for a majority at the most.
	voteMost = 1500 * time.Millisecond
	// stuckAfter is how long a call may take before what comes next no longer waits for it.
	stuckAfter = 20 * time.Millisecond
	// maxCalls is how many calls may be under way to a node that does not answer.
	maxCalls = 8
	// maxOps is how many operations go into one call, if they are not of one request.
	maxOps = 128
	// maxQueued is how many requests may wait for a node that does not answer. What comes then fails at once.
	maxQueued = 1 << 16
	// maxOwed is how many undos are kept for a node that does not answer.
	maxOwed = 4096
	// owedFirst and owedMost are the pauses, growing, after which such a node is asked again for no other reason.
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
	done chan answer // nil: nobody waits. It has room for the answer.
	to   *round      // whose done that is; nil: none
	// otherwise, if there are any: the operations where this does not come after what was sent on the same line before.
	otherwise []op
	twice     bool // it may have been sent before
	// until: try again until then, whenever the node answers. The zero time: never.
	until time.Time
	// by: of no use to anybody later than this; the zero time: always.
	by time.Time
}

// answer is a node's to a request: one reply for each operation.
type answer struct {
	node    int
	replies []any
	err     error
	twice   bool // it was sent twice, and the first of them may still be under way
}

// elsewhere is the request as it is sent after its line.
func (r *request) elsewhere() *request {
	if r.otherwise != nil {
		r.ops, r.otherwise = r.otherwise, nil
	}
	return r
}

// answer gives one to whoever waits for it.
func (r *request) answer(a answer) {
	if r.done != nil {
		r.done <- a
	}
	if r.to != nil {
		r.to.came()
	}
}

var errBehind = errors.New("it has not answered for long: too many requests wait for it")

// node is one of the Redis servers. What is asked while a call is under way
// goes into the next call together.
type node struct {
	d      *Driver
	index  int
	client goredis.UniversalClient
	addr   string

	scripts atomic.Bool // it has no functions for us
	line    line

	mu      sync.Mutex
	queue   []*request
	owed    []*request
	calls   int           // workers that are busy
	since   time.Time     // when the last call was begun
	idle    bool          // the worker that is kept waits for a wake
	wake    chan struct{} // of size 1
	again   *time.Timer   // until what is owed is tried again
	pause   time.Duration // how long that is
	closing bool
}

// send asks the node, and returns at once. One worker is kept once there is one, for a new goroutine's stack would have to
// grow for each call; others come where it is stuck.
func (n *node) send(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		n.fail(r, goredis.ErrClosed)
		return
	}
	if len(n.queue) >= maxQueued {
		n.fail(r, errBehind)
		return
	}
	n.queue = append(n.queue, r)
	n.rouse()
}

// rouse makes a worker take what is queued; n.mu is held.
func (n *node) rouse() {
	switch {
	case n.idle:
		n.idle = false
		n.calls++
		n.wake <- struct{}{}
	case n.wake == nil:
		n.wake = make(chan struct{}, 1)
		n.calls++
		n.d.flying.Go(func() {
			for n.work(true) {
				<-n.wake
			}
		})
	case n.calls == 0 || n.calls < maxCalls && time.Since(n.since) > stuckAfter:
		n.calls++
		n.since = time.Now()
		n.d.flying.Go(func() { n.work(false) })
	}
}

// fail answers a request that has no reply.
func (n *node) fail(r *request, err error) {
	r.answer(answer{node: n.index, err: err})
}

// work makes calls until nothing is queued. The worker that is kept is idle then, and done when the node is closed.
func (n *node) work(kept bool) (goOn bool) {
	for {
		n.mu.Lock()
		batch := n.take()
		if len(batch) == 0 {
			n.calls--
			n.idle = n.idle || kept && !n.closing
			goOn = kept && !n.closing
			n.mu.Unlock()
			return goOn
		}
		n.since = time.Now()
		n.mu.Unlock()
		n.call(batch)
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
			n.fail(r, context.DeadlineExceeded) // its caller has gone, and it was never sent
			continue
		}
		if ops += len(r.ops); ops > maxOps && len(batch) > 0 {
			break
		}
		batch = append(batch, r)
	}
	n.queue = append(n.queue[:0], n.queue[i:]...)
	clear(n.queue[len(n.queue):cap(n.queue)])
	return batch
}

// call makes one call and hands out its replies.
func (n *node) call(batch []*request) {
	ctx := deadlineCtx{context.Background(), time.Now().Add(callMost)}
	n.line.after()
	keys, args := n.d.call(batch...)
	replies, err := n.run(ctx, keys, args)
	twice := broken(err)
	if twice { // a connection that had died unnoticed, probably
		replies, err = n.run(ctx, keys, args)
	}
	if err == nil && len(replies) != len(keys)-1 {
		err = unexpected(replies)
	}
	err = meaning(err)
	at := 0
	for _, r := range batch {
		if err != nil {
			n.owe(r)
			n.fail(r, err)
			continue
		}
		r.answer(answer{node: n.index, replies: replies[at : at+len(r.ops)], twice: twice || r.twice})
		at += len(r.ops)
	}
	n.settle(err)
}

// call returns what body is called with for these requests. The terms of a vote are not said again if they are those of the one before.
func (d *Driver) call(batch ...*request) (keys []string, args []any) {
	keys = make([]string, 1, 1+len(batch))
	keys[0] = stateKey
	args = make([]any, 0, 2+5*len(batch))
	args = append(args, d.settings)
	var terms any
	for _, r := range batch {
		for _, o := range r.ops {
			keys = append(keys, o.lock)
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
	return keys, args
}

// deadlineCtx is a ctx with a deadline that no timer watches: go-redis makes the connection's deadline of it.
type deadlineCtx struct {
	context.Context
	at time.Time
}

// Deadline returns it.
func (c deadlineCtx) Deadline() (time.Time, bool) { return c.at, true }

// Err knows it too.
func (c deadlineCtx) Err() error {
	if time.Now().Before(c.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// broken reports whether a call failed with its connection, so that it is not known whether it was done.
func broken(err error) bool {
	var answered goredis.Error
	var timeout net.Error
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false // it was never sent
	}
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, goredis.ErrClosed) && (!errors.As(err, &timeout) || !timeout.Timeout())
}

// owe keeps a request for when the node answers again.
func (n *node) owe(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closing && time.Now().Before(r.until) && len(n.owed) < maxOwed {
		n.owed = append(n.owed, &request{ops: r.ops, until: r.until, by: r.until})
	}
}

// settle queues what is owed to a node that has answered, and sees to it that one that has not is asked again. When
// closing, a node that does not answer is given up.
func (n *node) settle(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.pause = 0
		n.repay()
	case n.closing:
		for _, r := range n.queue {
			n.fail(r, err)
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
func (n *node) repay() {
	n.queue = append(n.queue, n.owed...)
	n.owed = nil
}

// close refuses new requests. Those that are queued are sent.
func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closing = true
	if n.again != nil {
		n.again.Stop()
	}
	if n.idle {
		n.idle = false
		n.calls++
		n.wake <- struct{}{}
	}
}

// meaning returns an error of a server as the contract has it: what another
// try cannot mend is ErrInvalid.
func meaning(err error) error {
	if err == nil {
		return nil
	}
	msg := err.Error()
	for _, m := range []struct{ code, means string }{
		{"NOPERM", "the Redis user lacks rights: it needs the lock keys, the keys and channels that begin with fl, and the commands of the package documentation"},
		{"ERR The user executing the script", "the Redis user lacks rights: it needs the commands of the package documentation, which the scripts call"},
		{"NOAUTH", "the server wants a password"},
		{"WRONGPASS", "the server refuses the user or password"},
		{"ERR AUTH", "the server refuses the password"},
		{"ERR invalid DB index", "the server has no such database"},
		{"ERR DB index is out of range", "the server has no such database"},
		{"ERR unknown command", "the server is too old or the command is disabled: Redis 6.2 or later is needed"},
		{"MOVED", "the server is a node of a cluster, and Redlock wants servers that know nothing of each other"},
		{"CROSSSLOT", "the server is a node of a cluster, and Redlock wants servers that know nothing of each other"},
	} {
		if strings.HasPrefix(msg, m.code) || strings.Contains(msg, " "+m.code+" ") {
			return &refused{m.means, err}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", callMost)
	}
	return err
}

// refused is a server's error that matches ErrInvalid.
type refused struct {
	means string
	err   error
}

func (e *refused) Error() string {
	return fmt.Sprintf("%v: %s (%v)", backend.ErrInvalid, e.means, e.err)
}
func (e *refused) Unwrap() []error { return []error{backend.ErrInvalid, e.err} }

func unexpected(reply any) error { return fmt.Errorf("unexpected reply of the server: %v", reply) }

// errForeignType is the answer for a key that holds no string.
var errForeignType = backend.Invalid("the lock's key holds a value of another type, which some other program put there")
