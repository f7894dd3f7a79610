package core

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// sends is how often a claim is sent while no answer comes.
	sends = 5
	// prompts is how many of them are bounded by promptMost: a leader that died swallows what is sent before the
	// others have chosen another, which takes them two seconds. The first is made on the caller's own goroutine: a
	// store may heed the deadline of a ctx at once, and its cancellation late. Another that ctx ends within sendMost
	// has all the time that is left: on a slow way a new connection needs it.
	prompts    = 3
	promptMost = 700 * time.Millisecond
	// sendMost bounds each further one, and each that comes later than these take: by less than a look, which sends
	// again then. A store that is slow and not dead has answered by then.
	sendMost = 1900 * time.Millisecond
	// leaveLeast is how long a release is sent again at least. After an outage a client may give the
	// last error of a dial for a second, and an Unlock then is not to fail for that.
	leaveLeast = 1500 * time.Millisecond
	// pauseFirst is the pause after a send that failed at once; the pauses double.
	pauseFirst = 20 * time.Millisecond
)

// send sends a claim, at most so many times, until the store has answered. It returns when ctx
// ends.
func (d *Client) send(ctx context.Context, c *claim, l *lane, most int) error {
	pause, first := pauseFirst, time.Now()
	var slow error // the store's word that it is that
	sent := false  // some send of it had no answer
	for n := 1; ; n++ {
		if err := c.land(ctx); err != nil {
			return cmp.Or(slow, err)
		}
		if err := ctx.Err(); err != nil {
			return cmp.Or(slow, err)
		}
		c.Unsure = c.unsure
		began := time.Now()
		limit := promptMost
		if n > prompts || began.Sub(first) >= prompts*promptMost {
			limit = sendMost
		}
		var err error
		switch end, ok := ctx.Deadline(); {
		case !sent:
			err = l.send(ctx, c, limit)
		case ok && end.Sub(began) < sendMost:
			err = l.again(ctx, c, end.Sub(began))
		default:
			err = l.again(ctx, c, limit)
		}
		if err == nil || final(err) {
			return err
		}
		sent = sent || !backend.Refused(err)
		c.unsure = c.unsure || !c.Leaving && !backend.Refused(err)
		if silence := backend.Silence(0); errors.As(err, &silence) {
			slow = err
		}
		if ctx.Err() != nil {
			return cmp.Or(slow, ctx.Err())
		}
		took := time.Since(first)
		if took >= Patience || n >= most && (!c.Leaving || took >= leaveLeast) {
			return err
		}
		if errors.Is(err, errSilent) && most == sends {
			n--
			continue
		}
		wait := pause - time.Since(began)
		if c.Next > 0 {
			wait = c.Next
		}
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		pause *= 2
	}
}

// final reports whether err is the store's word, so that no copy of the send is under way.
func final(err error) bool {
	_, undone := errors.AsType[*backend.UndoneError](err)
	return undone || backend.Final(err) || errors.Is(err, backend.ErrGates)
}

// Do makes a request that is about no claim: on this goroutine, and if no answer comes soon once
// more on one of its own, counted by flying, so that it returns when ctx ends. With aside, for a
// client that may not heed the deadline of a ctx, only there. Sent twice it has the effect of once.
func Do[T any](ctx context.Context, aside bool, flying *Group,
	send func(context.Context) (T, error),
) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if !aside {
		limited, cancel := context.WithTimeout(ctx, promptMost)
		res, err := send(limited)
		cancel()
		if !TimedOut(err) {
			return res, err
		}
		if err := ctx.Err(); err != nil {
			return none, err
		}
	}
	type outcome struct {
		res T
		err error
	}
	done := make(chan outcome, 1)
	flying.Go(func() {
		res, err := send(ctx)
		done <- outcome{res, err}
	})
	select {
	case o := <-done:
		return o.res, o.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// TimedOut reports whether a request ended because its time was over.
func TimedOut(err error) bool {
	if err == nil {
		return false
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}
