package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// hostileDeaths are rules K3 and K35: a client dies in the middle of a request, or with many long
// names held.
var hostileDeaths = []Rule{
	{
		Name: "K3",
		What: "a process dies or stops while the store is at work for it: free within twice " +
			"TTL + grace and a second",
		Why:   "A holder rarely dies idle: work that the store does for it must not keep the lock.",
		Needs: Needs{Process: true, Busy: true}, Check: diesAtWork,
	},
	{
		Name: "K35", What: "a process with many long names held is killed",
		Why:   "A store that forgets them all in one step may choke on it, and take everybody's locks along.",
		Needs: Needs{Process: true}, Alone: true, Check: manyLongNames,
	},
}

func diesAtWork(ctx context.Context, e *Env) error {
	b, ttl := must(e.Open(ctx)), e.Kept() // it is kept until the store is at work
	for _, way := range []struct {
		how    string
		unread bool
		stop   bool
		bound  time.Duration
	}{
		{how: "killed at work", bound: ttl + time.Second},
		{how: "killed with an answer that it has not read", unread: true, bound: ttl + time.Second},
		{how: "stopped at work", stop: true, bound: 2*ttl + time.Second},
		{how: "stopped with an answer that it has not read", unread: true, stop: true, bound: 2*ttl + time.Second},
	} {
		p := must(e.Process(ctx))
		name := e.Name()
		key := strings.TrimRight(e.prefix, ":") + "-" + name
		old := must(p.Lock(ctx, name, ttl))
		must(p.Ask(ctx, "busy", name, key, strconv.FormatBool(way.unread)))
		check(until(ctx, 10*time.Second, "the store is at work", func() (bool, error) {
			return e.h.Busy.Working(ctx, key, way.unread)
		}))
		began := time.Now()
		if way.stop {
			check(p.Stop())
		} else {
			p.Kill()
		}
		r := must(granted(
			ctx, locking(ctx, b, name), way.bound+e.Slack(),
			"the next, after the holder was "+way.how,
		))
		e.Notef("%s: free after %v (TTL %v)", way.how, time.Since(began).Round(time.Millisecond), ttl)
		check(e.above(r.lease.Token(), old, way.how))
		if way.stop {
			check(p.Continue())
			if said, err := p.Ask(ctx, "err", name); err != nil || said == "held" {
				return fmt.Errorf("%s, and continued: its first look says %q, %w; want a loss", way.how, said, err)
			}
		}
		check(unlock(ctx, r.lease, "the next"))
	}
	return nil
}
