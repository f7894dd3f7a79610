package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// promptMost bounds the first send of a request. It is made on the caller's
	// own goroutine, which go-redis does not interrupt when ctx is cancelled, only at a deadline.
	promptMost = 700 * time.Millisecond
	// requestMost bounds every request on one connection.
	requestMost = 3 * time.Second
)

// do sends a request: at first on this goroutine, which is the fastest way, and
// if no answer comes for a while once more on one of its own, so that the end of ctx is
// heeded at once. send must have the same effect sent twice as once.
func do[T any](ctx context.Context, d *Driver, send func(context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if d.prompt {
		res, err := send(deadlined(ctx, promptMost))
		if !timedOut(err) {
			return res, d.meaning(err)
		}
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
	}
	type outcome struct {
		res T
		err error
	}
	done := make(chan outcome, 1)
	d.flying.Go(func() {
		res, err := send(ctx)
		done <- outcome{res, err}
	})
	select {
	case o := <-done:
		return o.res, d.meaning(o.err)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// deadlineCtx is a ctx with an earlier deadline that no timer watches: go-redis
// makes the connection's deadline of it.
type deadlineCtx struct {
	context.Context
	at     time.Time
	looked atomic.Bool
}

func deadlined(ctx context.Context, most time.Duration) context.Context {
	at := time.Now().Add(most)
	if d, ok := ctx.Deadline(); ok && d.Before(at) {
		return ctx
	}
	return &deadlineCtx{Context: ctx, at: at}
}

// Deadline returns the earlier deadline.
func (c *deadlineCtx) Deadline() (time.Time, bool) { return c.at, true }

// Done is nil at the first call. go-redis looks there before it takes a connection, which needs no more than Err, and waits there only
// if the pool has none; what Done costs the engine's contexts is saved for every other request.
func (c *deadlineCtx) Done() <-chan struct{} {
	if !c.looked.Swap(true) && c.Err() == nil {
		return nil
	}
	return c.Context.Done()
}

// Err knows it too.
func (c *deadlineCtx) Err() error {
	if err := c.Context.Err(); err != nil || time.Now().Before(c.at) {
		return err
	}
	return context.DeadlineExceeded
}

// timedOut reports whether a request ended because its time was over.
func timedOut(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// meaning returns an error of the server as the contract has it: what another
// try cannot mend is ErrInvalid.
func (d *Driver) meaning(err error) error {
	if err == nil {
		return nil
	}
	msg := err.Error()
	for _, m := range []struct{ code, means string }{
		{"WRONGTYPE", "the key of the lock, prefix and name, or one of ours beside it, which begin with fl, holds a value of another type, which some other program put there: delete it, or use another name or prefix"},
		{"NOPERM", "the Redis user lacks rights: it needs the lock keys, the keys and channels that begin with fl, and the commands of the package documentation"},
		{"ERR The user executing the script", "the Redis user lacks rights: it needs the commands of the package documentation, which the scripts call"},
		{"NOAUTH", "the server wants a password"},
		{"WRONGPASS", "the server refuses the user or password"},
		{"ERR AUTH", "the server refuses the password"},
		{"ERR invalid DB index", "the server has no such database"},
		{"ERR DB index is out of range", "the server has no such database"},
		{"ERR This instance has cluster support disabled", "the server is not one of a cluster: use redis://"},
		{"ERR unknown command", "the server is too old or the command is disabled: Redis 6.2 or later is needed, 7.0 for a cluster"},
	} {
		if strings.HasPrefix(msg, m.code) || strings.Contains(msg, " "+m.code+" ") {
			return &refused{m.means, err}
		}
	}
	if d.cluster == nil && (strings.HasPrefix(msg, "MOVED") || strings.HasPrefix(msg, "CROSSSLOT")) {
		return &refused{"the server is a node of a cluster: use redis+cluster:// or a ClusterClient", err}
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
