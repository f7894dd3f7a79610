package redlock

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// lineIdle is after how long without use a line is not trusted any more: something on the way may have forgotten it.
	lineIdle = 20 * time.Second
	// lineAgain is the pause between two tries to open a line.
	lineAgain = time.Second
	// lineOwed is how many answers a line may owe, and lineBytes how long a command on it may be: so that it fits into
	// buffers, and writing never waits.
	lineOwed  = 4
	lineBytes = 4 << 10
)

// line is one more connection to a node, on which a lone caller writes and reads by itself: handing both to other goroutines costs
// it more than the node's work. go-redis makes the connection, with the options of the node's client.
type line struct {
	node    *node
	options *goredis.Options // nil: such a client has no line

	mu     chan struct{} // of size 1, full while somebody uses what follows, who may hand it on to a goroutine
	left   atomic.Bool   // somebody left it owing answers
	client *goredis.Client
	conn   net.Conn // nil: not open
	tried  time.Time
	used   time.Time
	limit  time.Time // deadline of writes
	in     []byte    // read, and not decoded yet
	owed   []owed    // written and not answered, in order
}

// owed is a request that a line has written.
type owed struct {
	r   *request
	tag string // which its reply ends with
	at  time.Time
}

// lock reports whether it got the line, which it waits for until then. Whoever got it calls unlock.
func (l *line) lock(most time.Duration) bool {
	select {
	case l.mu <- struct{}{}:
		return true
	default:
	}
	if most == 0 {
		return false
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case l.mu <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

func (l *line) unlock() {
	l.left.Store(len(l.owed) > 0)
	<-l.mu
}

// after waits for what somebody left on the line: what is asked next in another way is to come after it, if the node answers soon.
func (l *line) after() {
	if l.left.Load() && l.lock(stuckAfter) {
		l.read(time.Now().Add(stuckAfter))
		l.unlock()
	}
}

// lineOptions are those of a client for one connection, or nil for a client whose connections are not its own.
func lineOptions(c *goredis.Client) *goredis.Options {
	o := *c.Options()
	if o.Limiter != nil || o.StreamingCredentialsProvider != nil {
		return nil // which want to see each command, or change the connection later
	}
	o.Protocol = 2
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0
	o.DialerRetries, o.MaxRetries = 1, -1
	o.ContextTimeoutEnabled = true
	o.PushNotificationProcessor, o.ClientSideCache, o.ClientSideCacheConfig = nil, nil, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}

// take gives its caller, who unlocks it, the line if it is open and owes little. Otherwise it is opened for another time.
func (l *line) take(now time.Time, often bool) bool {
	if l.node.scripts.Load() || !l.lock(0) {
		return false
	}
	switch {
	case l.options == nil:
	case l.conn == nil:
		if often && now.Sub(l.tried) > lineAgain {
			l.tried = now
			l.node.d.flying.Go(l.open)
			return false
		}
	case len(l.owed) == 0 && now.Sub(l.used) > lineIdle:
		l.drop()
	case len(l.owed) < lineOwed && (len(l.owed) == 0 || now.Sub(l.owed[0].at) < stuckAfter):
		return true
	}
	l.unlock()
	return false
}

// open connects, and unlocks the line.
func (l *line) open() {
	defer l.unlock()
	o, conn := *l.options, net.Conn(nil)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := l.options.Dialer(ctx, network, addr)
		conn = c
		return c, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callMost)
	defer cancel()
	client := goredis.NewClient(&o)
	if err := client.Conn().Time(ctx).Err(); err != nil || conn == nil || conn.SetDeadline(time.Time{}) != nil {
		_ = client.Close()
		return
	}
	l.client, l.conn, l.used = client, conn, time.Now()
}

// drop closes the connection.
func (l *line) drop() {
	_ = l.client.Close()
	l.client, l.conn, l.in, l.limit = nil, nil, nil, time.Time{}
}

// write sends a command, and reports whether it may have been.
func (l *line) write(r *request, tag string, command []byte, now time.Time) bool {
	if l.limit.Sub(now) < callMost/2 {
		l.limit = now.Add(callMost)
		if l.conn.SetWriteDeadline(l.limit) != nil {
			return false
		}
	}
	l.used = now
	l.owed = append(l.owed, owed{r, tag, now})
	if _, err := l.conn.Write(command); err != nil {
		l.fail(err)
	}
	return true
}

// owes reports whether the request that has this channel is yet to be answered. What is written next comes after it.
func (l *line) owes(answers <-chan answer) bool {
	return slices.ContainsFunc(l.owed, func(o owed) bool { return o.r.done == answers })
}

// read takes in the answers that the line owes. It is false if they have not all come by then.
func (l *line) read(by time.Time) bool {
	if len(l.owed) > 0 && l.conn.SetReadDeadline(by) != nil {
		l.fail(net.ErrClosed)
	}
	for len(l.owed) > 0 {
		reply, size := decode(l.in)
		if size == 0 {
			l.in = slices.Grow(l.in, 512)
			n, err := l.conn.Read(l.in[len(l.in):cap(l.in)])
			l.in = l.in[:len(l.in)+n]
			switch {
			case n > 0:
			case errors.Is(err, os.ErrDeadlineExceeded):
				return false
			default:
				l.fail(err)
			}
			continue
		}
		l.in = slices.Delete(l.in, 0, size)
		o := l.owed[0]
		replies, ok := reply.([]any)
		if ok && (len(replies) != len(o.r.ops)+1 || replies[len(o.r.ops)] != o.tag) {
			l.fail(unexpected(reply))
			continue
		}
		l.owed = slices.Delete(l.owed, 0, 1)
		if ok {
			o.r.answer(answer{node: l.node.index, replies: replies[:len(o.r.ops)]})
		} else {
			l.node.send(o.r.elsewhere()) // an error, which go-redis is to get
		}
	}
	return true
}

// drain waits for the answers that the line owes, as long as a call to a node may take, and unlocks the line.
func (l *line) drain() {
	defer l.unlock()
	for len(l.owed) > 0 {
		if by := l.owed[0].at.Add(callMost); !l.read(by) && !time.Now().Before(by) {
			l.fail(context.DeadlineExceeded)
		}
	}
}

// fail gives the connection up. What it owes is asked for in another way: at once if it is broken, and when the node answers again if
// it did not in time.
func (l *line) fail(err error) {
	again := l.owed
	l.owed = nil
	l.drop()
	for _, o := range again {
		r := o.r.elsewhere()
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
			l.node.owe(r)
			l.node.fail(r, meaning(context.DeadlineExceeded))
			l.node.settle(err)
			continue
		}
		r.twice = true
		l.node.send(r)
	}
}

// close waits for what the line owes, and ends it.
func (l *line) close() {
	l.mu <- struct{}{}
	l.options = nil
	l.drain()
	l.mu <- struct{}{}
	defer l.unlock()
	if l.conn != nil {
		l.drop()
	}
}
