package conformance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
)

// longName is the i-th of many names of 512 bytes, of which each byte but the first few needs an escape where names are
// part of a path or a URL.
func longName(i int) string {
	head := fmt.Sprintf("%06d-", i)
	return head + strings.Repeat("é", (512-len(head))/2)
}

// lockMany locks so many long names, several at once, and keeps them.
func (c *child) lockMany(ctx context.Context, n int, ttl time.Duration) error {
	return atOnce(n, func(i int) error {
		_, err := c.l.Mutex(longName(i), fencelock.WithTTL(ttl)).Lock(ctx)
		return err
	})
}

// manyLongNames kills a process that holds many locks with long names. The store has to forget all of them at once,
// and to survive that.
func manyLongNames(ctx context.Context, e *Env) error {
	n, ttl := e.count(200, 3000, 10_000), ample/2 // to take many on a busy machine takes long
	if e.h.Short {
		ttl = e.Kept()
	}
	switch {
	case e.h.tiny:
		n = 100
	case e.traits.LeasePerConn:
		n = 20
	}
	b := must(e.Open(ctx))
	p := must(e.Process(ctx))
	began := time.Now()
	must(p.Ask(ctx, "many", strconv.Itoa(n), ttl.String()))
	took := time.Since(began)
	check(held(ctx, b, longName(n-1), "one of many"))
	p.Kill()
	began = time.Now()
	for i := range n { // in turn: a name is looked at when most others are free already
		bound := ttl + time.Second + e.Slack() + e.traits.Resolution - time.Since(began)
		what := fmt.Sprintf("name %d of %d, of 512 bytes, of a process that was killed", i+1, n)
		check(until(ctx, max(bound, time.Second), what, e.freeAgain(ctx, b, longName(i))))
	}
	e.Notef("%d locks with names of 512 bytes, taken in %v: free %v after the death of their process (TTL %v)",
		n, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), ttl)
	if e.h.Server == nil || !e.h.Server.KeepsData() {
		return nil
	}
	// The store can read all that it has written.
	check(restart(e.h.Server, nil))
	return until(ctx, 10*time.Second, "a lock after the restart", func() (bool, error) {
		_, err := cycle(ctx, b, e.Name(), "after the restart")
		return err == nil, nil
	})
}

// freeAgain is for until: the name is free. It asks for less than a lock would cost.
func (e *Env) freeAgain(ctx context.Context, l *fencelock.Locker, name string) func() (bool, error) {
	return func() (bool, error) {
		info, err := l.Inspect(ctx, name)
		if errors.Is(err, fencelock.ErrUnavailable) {
			return false, nil // it may be busy with the many
		}
		return err == nil && !info.Held, err
	}
}
