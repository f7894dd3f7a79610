package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
)

// tokenOfTheGrant checks that a token comes with its grant: one that is read by a second
// request, when the lock was lost in between, is the next holder's.
func (e *Env) tokenOfTheGrant(ctx context.Context) error {
	d, link := e.callerThrough(ctx)
	b := must(e.Open(ctx))
	first := e.Request(e.Name(), false)
	first.TTL = 10 * e.TTL() // as below, where a session for this TTL is to be there already
	// It connects now, so that the first reply to be held is the grant's.
	check(release(ctx, d, must(acquire(ctx, d, first, "the first")), "the first"))
	r := e.Request(first.Name, false) // of a store of several nodes, it is at the same one
	r.TTL = 10 * e.TTL()
	link.Set(holdReplies)
	var g backend.Grant
	late := running(func() (err error) {
		g, err = d.Acquire(ctx, r)
		return err
	})
	check(until(ctx, time.Second+e.Slack(), "the grant whose reply is held", func() (bool, error) {
		info, err := b.Inspect(ctx, r.Name)
		return info.Held, err
	}))
	check(b.Break(ctx, r.Name))
	next := must(try(ctx, b, r.Name, "after Break"))
	link.Set(passAll)
	if err := <-late; err == nil && g.Token >= next.Token() {
		return fmt.Errorf("a grant that was lost before its reply came: "+
			"its token is %d, the next holder's %d", g.Token, next.Token())
	}
	return unlock(ctx, next, "the next")
}

func guardRefuses(ctx context.Context, e *Env) error {
	l := must(e.Open(ctx))
	name := e.Name()
	var ts []fencelock.Token
	for range 8 {
		t := must(cycle(ctx, l, name, "a round"))
		ts = append(ts, t)
	}
	// Writers with all these tokens at once: the values that are accepted never go back.
	var memory fence.Memory
	written := fencelock.Token(0)
	check(race(ts, 100, func(t fencelock.Token) error {
		return memory.Do(ctx, name, t, func() error {
			if t < written {
				return fmt.Errorf("token %d was let through after %d", t, written)
			}
			written = t
			return nil
		})
	}))
	guards := e.guards(ctx)
	guards["fence.Memory after concurrent writes"] = &memory
	for what, guard := range guards {
		part(what, func() error { return guardOrders(ctx, guard, name, ts) })
	}
	return nil
}

// guards are the guards that the rules are about, by name.
func (e *Env) guards(ctx context.Context) map[string]fence.Guard {
	guards := map[string]fence.Guard{"fence.Memory": &fence.Memory{}}
	if e.h.Guard != nil {
		guards["the store's guard"] = must(e.h.Guard(ctx, e.prefix))
	}
	return guards
}

// overHTTP returns the guard of a resource behind HTTP.
func (e *Env) overHTTP() fence.Guard {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	page := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s := &http.Server{Handler: fence.Handler(&fence.Memory{}, nil, page), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }() // until Close
	e.onClose(func() error { defer func() { <-done }(); return s.Close() })
	return httpGuard("http://" + l.Addr().String() + "/")
}

// httpGuard writes to resources below a URL.
type httpGuard string

// Check implements fence.Guard.
func (g httpGuard) Check(ctx context.Context, resource string, t fencelock.Token) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, string(g)+url.PathEscape(resource), nil)
	if err != nil {
		return err
	}
	fence.Set(r, t)
	r.Close = true // no connection is left when the rule is done
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := fence.Response(res); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("PUT %s: %s", r.URL, res.Status)
	}
	return nil
}

// race calls access with every token from a goroutine each, n times. ErrStale is no error of it.
func race(ts []fencelock.Token, n int, access func(fencelock.Token) error) error {
	return together(len(ts), func(i int) error {
		for range n {
			if err := access(ts[i]); !errors.Is(err, fencelock.ErrStale) {
				check(err)
			}
		}
		return nil
	})
}

// guardOrders checks a guard with rising tokens, each used by a writer of its own.
func guardOrders(ctx context.Context, guard fence.Guard, name string, ts []fencelock.Token) error {
	var mu sync.Mutex
	var accepted fencelock.Token // the greatest whose check has returned
	check(race(ts, 10, func(t fencelock.Token) error {
		mu.Lock()
		before := accepted
		mu.Unlock()
		if err := guard.Check(ctx, name, t); err != nil {
			return err
		}
		if t < before {
			return fmt.Errorf("token %d was let through after %d", t, before)
		}
		mu.Lock()
		accepted = max(accepted, t)
		mu.Unlock()
		return nil
	}))
	last := ts[len(ts)-1]
	check(want(guard.Check(ctx, name, last), nil, "the newest token again"))
	var stale *fencelock.StaleError
	if err := guard.Check(ctx, name, ts[0]); !errors.As(err, &stale) || stale.Max != last {
		return fmt.Errorf("the oldest token: got %v, want a StaleError with Max %d", err, last)
	}
	check(want(guard.Check(ctx, name+"/other", ts[0]), nil, "the oldest token for another resource"))
	return want(guard.Check(ctx, name, 0), fencelock.ErrInvalid, "no token")
}

func zombieWriter(ctx context.Context, e *Env) error {
	p := must(e.Process(ctx))
	b := must(e.Open(ctx))
	name := e.Name()
	guards := e.guards(ctx)
	guards["fence.Handler"] = e.overHTTP()
	// write writes every resource with a token.
	write := func(t fencelock.Token) (errs []error) {
		for what, guard := range guards {
			if err := guard.Check(ctx, name, t); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
			}
		}
		return errs
	}
	old := must(p.Lock(ctx, name, e.TTL()))
	check(want(errors.Join(write(old)...), nil, "the first holder's write"))
	check(p.Stop())
	r := must(granted(ctx, locking(ctx, b, name), 2*e.TTL()+time.Second+e.Slack(), "the next"))
	check(want(errors.Join(write(r.lease.Token())...), nil, "the next holder's write"))
	check(p.Continue())
	refused := write(old)
	if len(refused) != len(guards) {
		return fmt.Errorf("the resumed holder's write: %d of %d guards refused it: %w",
			len(refused), len(guards), errors.Join(refused...))
	}
	for _, err := range refused {
		check(want(err, fencelock.ErrStale, "the resumed holder's write"))
	}
	// Its late Unlock frees nobody.
	if _, err := p.Ask(ctx, "unlock", name); err == nil || !strings.Contains(err.Error(), backend.ErrLost.Error()) {
		return fmt.Errorf("the resumed holder's Unlock: got %v, want a loss", err)
	}
	check(held(ctx, b, name, "after the resumed holder's Unlock"))
	return unlock(ctx, r.lease, "the next")
}
