package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Env is the tools of one rule. Everything that it opens is closed when the rule is done.
type Env struct {
	h      *Harness
	traits backend.Traits
	rule   string
	mode   backend.Mode
	prefix string

	mu      sync.Mutex
	names   int
	closers []func() error
	notes   []string
}

// runs numbers the rules that were begun, so that each has a prefix of its own.
var runs atomic.Int64

// started is in each prefix of this process, so that it differs from the prefixes of other processes.
var started = time.Now().UnixNano()

func newEnv(h *Harness, t backend.Traits, rule string) *Env {
	return &Env{h: h, traits: t, rule: rule, prefix: fmt.Sprintf("conf-%x-%d-%s:", started, runs.Add(1), rule)}
}

// modes are the modes in which the backend's locks can be held.
func (e *Env) modes() []backend.Mode {
	all := []backend.Mode{backend.Exclusive}
	if e.traits.Readers {
		all = append(all, backend.Reader)
	}
	if e.traits.Permits >= permits {
		all = append(all, backend.Permit)
	}
	return all
}

// inModes returns a check of a rule in each mode that the backend has, all at once: try, locking and Request of its Env
// are of that mode. Of readers and permits it leaves one out unless the run is a full one. Which one depends on the
// rule and the harness.
func inModes(check func(context.Context, *Env) error) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		modes := e.modes()
		if len(modes) > 2 && !e.h.Full && !e.h.tiny {
			sum := 0
			for _, b := range []byte(e.h.Name + e.rule) {
				sum += int(b)
			}
			modes = slices.Delete(modes, 1+sum%2, 2+sum%2)
		}
		return together(len(modes), func(i int) error {
			if modes[i] == backend.Exclusive {
				return check(ctx, e)
			}
			what := fmt.Sprintf("as a %v: ", modes[i])
			of := newEnv(e.h, e.traits, e.rule+"-"+modes[i].String())
			of.mode = modes[i]
			e.onClose(of.close)
			err := check(ctx, of)
			for _, n := range of.noted() {
				e.Notef("%s%s", what, n)
			}
			if err != nil {
				return fmt.Errorf("%s%w", what, err)
			}
			return nil
		})
	}
}

// Name returns a fresh name.
func (e *Env) Name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names++
	return fmt.Sprintf("lock-%d", e.names)
}

// count chooses the number of a run's size.
func (e *Env) count(short, normal, full int) int {
	switch {
	case e.h.Short:
		return short
	case e.h.Full:
		return full
	}
	return normal
}

// ample is the TTL of a rule that is not about expiry, so that a busy machine cannot make it so.
const ample = 30 * time.Second

// TTL is the TTL of a lease that a rule lets expire: as short as the backend and the suite's clock allow.
func (e *Env) TTL() time.Duration {
	return max(1500*time.Millisecond, e.traits.MinTTL, 2*e.traits.Resolution)
}

// Kept is the TTL of a lease that a rule keeps by renewal: long enough for a machine that stalls between two.
func (e *Env) Kept() time.Duration { return max(3*time.Second, e.TTL()) }

// short and kept are these TTLs as options.
func (e *Env) short() fencelock.Option { return fencelock.WithTTL(e.TTL()) }
func (e *Env) kept() fencelock.Option  { return fencelock.WithTTL(e.Kept()) }

// Slack is added to a bound for a busy machine and for the store's resolution.
func (e *Env) Slack() time.Duration { return 300*time.Millisecond + 2*e.traits.Resolution }

// Notef keeps a measurement for the report.
func (e *Env) Notef(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// noted returns the measurements so far.
func (e *Env) noted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.notes)
}

// onClose adds a function that is called at the end. The last one is called first.
func (e *Env) onClose(f func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closers = append(e.closers, f)
}

func (e *Env) close() error {
	var errs []error
	for {
		e.mu.Lock()
		if len(e.closers) == 0 {
			e.mu.Unlock()
			return errors.Join(errs...)
		}
		last := e.closers[len(e.closers)-1]
		e.closers = e.closers[:len(e.closers)-1]
		e.mu.Unlock()
		if err := last(); err != nil {
			errs = append(errs, fmt.Errorf("at the end: %w", err))
		}
	}
}

// caller returns a new client of the store without a Locker.
func (e *Env) caller(ctx context.Context) core.Caller {
	return e.called(must(e.h.Driver(ctx, Client{Prefix: e.prefix})))
}

// callerThrough returns a new client without a Locker, and the link that it uses.
func (e *Env) callerThrough(ctx context.Context) (core.Caller, Link) {
	link := must(e.Link(ctx))
	return e.called(must(e.h.Driver(ctx, Client{Prefix: e.prefix, Link: link}))), link
}

// called closes a driver at the end.
func (e *Env) called(d backend.Driver) core.Caller {
	of := core.Of(d)
	e.onClose(func() error { defer of.Land(); return of.Close() })
	return of
}

// Open returns a new client of the store. Its TTL is ample unless opts say otherwise.
func (e *Env) Open(ctx context.Context, opts ...fencelock.Option) (*fencelock.Locker, error) {
	return e.open(ctx, Client{Prefix: e.prefix}, opts...)
}

// OpenThrough returns a new client and the link that it uses.
func (e *Env) OpenThrough(ctx context.Context, opts ...fencelock.Option) (*fencelock.Locker, Link, error) {
	link, err := e.Link(ctx)
	if err != nil {
		return nil, nil, err
	}
	l, err := e.open(ctx, Client{Prefix: e.prefix, Link: link}, opts...)
	return l, link, err
}

// Link returns a new link. It passes everything again before the clients that use it are closed.
func (e *Env) Link(ctx context.Context) (Link, error) {
	link, err := e.h.Link(ctx)
	if err != nil {
		return nil, fmt.Errorf("a new link: %w", err)
	}
	e.onClose(link.Close)
	return link, nil
}

func (e *Env) open(ctx context.Context, c Client, opts ...fencelock.Option) (*fencelock.Locker, error) {
	d, err := e.h.Driver(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("a new client: %w", err)
	}
	l, err := locker(d, opts...)
	if err != nil {
		return nil, err
	}
	// A rule leaves requests unconfirmed on purpose, of which Close may tell.
	e.onClose(func() error {
		if c.Link != nil {
			c.Link.Set(passAll)
		}
		_ = l.Close()
		return nil
	})
	return l, nil
}

// locker returns a Locker over a driver, which it closes if there is an error. Its TTL is ample unless opts say
// otherwise.
func locker(d backend.Driver, opts ...fencelock.Option) (*fencelock.Locker, error) {
	l, err := fencelock.New(d, append([]fencelock.Option{fencelock.WithTTL(ample)}, opts...)...)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return l, nil
}

// Two returns two clients of the store.
func (e *Env) Two(ctx context.Context, opts ...fencelock.Option) (a, b *fencelock.Locker, err error) {
	if a, err = e.Open(ctx, opts...); err != nil {
		return nil, nil, err
	}
	b, err = e.Open(ctx, opts...)
	return a, b, err
}

// emptyWithin waits until the store has nothing of the rule, at most so long.
func (e *Env) emptyWithin(ctx context.Context, most time.Duration) error {
	var left []string
	err := until(ctx, most, "nothing is left in the store", func() (bool, error) {
		var err error
		left, err = e.h.Store.Left(ctx, e.prefix)
		return err == nil && len(left) == 0, err
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("%w, but %.10q", err, left)
	}
	return err
}

// Request returns a request for a bare driver, in the mode of e.
func (e *Env) Request(name string, wait bool) *backend.Request {
	r := e.exclusive(name, wait)
	r.Mode, r.Limit = e.mode, limitOf(e.mode)
	return r
}

// exclusive is Request for a Mutex.
func (e *Env) exclusive(name string, wait bool) *backend.Request {
	return &backend.Request{
		Name: name, Nonce: nonce(), Owner: "conformance", TTL: e.TTL(), Wait: wait, Auto: true,
		Lost: func(error) {},
	}
}
