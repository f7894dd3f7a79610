package conformance

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// The mistakes that a driver makes, over a sound store. Each returns d with one behaviour changed.

// lessTold is a driver that tells less of its locks, which is no mistake.
type lessTold struct {
	core.Caller
	hide func(*backend.Info)
}

func (d lessTold) Inspect(ctx context.Context, name string) (backend.Info, error) {
	info, err := d.Caller.Inspect(ctx, name)
	d.hide(&info)
	return info, err
}

func (d lessTold) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for info, err := range d.Caller.List(ctx, prefix) {
			d.hide(&info)
			if !yield(info, err) {
				return
			}
		}
	}
}

// uncounted is d, which cannot tell who waits.
func uncounted(d core.Caller) core.Caller {
	return lessTold{d, func(i *backend.Info) { i.Waiters = -1 }}
}

// withoutNews is d, which promises no holder to tell it of a loss, and does not. Nor is that a mistake.
func withoutNews(_ *rig, d core.Caller, _ Client) core.Caller {
	return newsless{&changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		mine := *r
		mine.Lost = func(error) {}
		return d.Acquire(ctx, &mine)
	}}}
}

type newsless struct{ core.Caller }

func (d newsless) Traits() backend.Traits {
	t := d.Caller.Traits()
	t.Revoked = 0
	return t
}

// tokenless is a driver without tokens.
type tokenless struct{ lessTold }

func withoutTokens(_ *rig, d core.Caller, _ Client) core.Caller {
	return tokenless{lessTold{d, func(i *backend.Info) { i.Token = 0 }}}
}

func (d tokenless) Traits() backend.Traits {
	t := d.Caller.Traits()
	t.Fencing = backend.NoFencing
	return t
}

func (d tokenless) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	g, err := d.Caller.Acquire(ctx, r)
	g.Token, g.Reserved = 0, 0
	return g, err
}

// only makes a mistake under one rule alone: for rules that the engine keeps, which no mistake of a
// driver's own breaks without breaking most others.
func only(rule string, alter alteration) alteration {
	return func(r *rig, d core.Caller, c Client) core.Caller {
		if strings.HasSuffix(c.Prefix, "-"+rule+":") {
			return alter(r, d, c)
		}
		return d
	}
}

// outageIsFree takes a look at a name that was not answered for one that found nothing.
func outageIsFree(_ *rig, d core.Caller, _ Client) core.Caller { return surelyFree{d} }

type surelyFree struct{ core.Caller }

func (d surelyFree) Inspect(ctx context.Context, name string) (backend.Info, error) {
	info, err := d.Caller.Inspect(ctx, name)
	if err != nil && !backend.Final(err) {
		return backend.Info{Name: name}, nil
	}
	return info, err
}

// outageIsHolder takes a try that was not answered for one that was refused.
func outageIsHolder(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err != nil && !r.Wait && !backend.Final(err) {
			err = backend.ErrLocked
		}
		return g, err
	}}
}

// outageIsBreak takes a Break that was not answered for one that was done.
func outageIsBreak(_ *rig, d core.Caller, _ Client) core.Caller { return sureOfBreak{d} }

type sureOfBreak struct{ core.Caller }

func (d sureOfBreak) Break(ctx context.Context, name string) error {
	if err := d.Caller.Break(ctx, name); backend.Final(err) {
		return err
	}
	return nil
}

// slowTry asks again and again before it says that the lock is taken.
func slowTry(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		for range 10 {
			if r.Wait || !errors.Is(err, backend.ErrLocked) || sleep(ctx, 50*time.Millisecond) != nil {
				break
			}
			g, err = d.Acquire(ctx, r)
		}
		return g, err
	}}
}

// looksLate looks at its ctx only when its poll of 900 ms comes round.
func looksLate(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		began := time.Now()
		g, err := d.Acquire(ctx, r)
		if r.Wait && ctx.Err() != nil {
			round := 900 * time.Millisecond
			time.Sleep(round - time.Since(began)%round)
		}
		return g, err
	}}
}

// nilOnCancel returns no lock and no error when its ctx ends.
func nilOnCancel(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if r.Wait && ctx.Err() != nil {
			return backend.Grant{}, nil
		}
		return g, err
	}}
}

// endsWithTheStore ends a wait as soon as its store is down.
func endsWithTheStore(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		if !r.Wait {
			return d.Acquire(ctx, r)
		}
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			for sleep(limited, 100*time.Millisecond) == nil {
				if _, err := d.Inspect(limited, r.Name); errors.Is(err, errDown) {
					cancel()
				}
			}
		}()
		g, err := d.Acquire(limited, r)
		if err != nil && ctx.Err() == nil {
			err = core.Outlast(errDown)
		}
		return g, err
	}}
}

// reservesNothing says that tokens are reserved for the holder's process, and the store knows nothing of it.
func reservesNothing(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		g.Reserved = r.Reserve
		return g, err
	}}
}

// falseLoss reports every lock as lost, at the earliest moment: any later one is sometimes after what the rule does.
func falseLoss(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err == nil {
			r.Lost(backend.ErrLost)
		}
		return g, err
	}}
}

// upkeep asks the store 200 times a second whether it is still there.
func upkeep(_ *rig, d core.Caller, c Client) core.Caller {
	if c.Link == nil {
		return d
	}
	stop := inBackground(func(ctx context.Context) {
		for sleep(ctx, 5*time.Millisecond) == nil {
			_, _ = d.Inspect(ctx, "upkeep")
		}
	})
	return &changed{Caller: d, close: stop}
}

// inBackground runs f until the returned function is called, which waits for its end.
func inBackground(f func(context.Context)) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	return func() error { cancel(); wg.Wait(); return nil }
}

// slowRelease takes longer than an Unlock whose ctx is done has.
func slowRelease(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, release: func(ctx context.Context, h *core.Hold) error {
		if err := sleep(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
		return d.Release(ctx, h)
	}}
}

// swallowed takes a release that did not arrive for one that did.
func swallowed(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, release: func(ctx context.Context, h *core.Hold) error {
		if err := d.Release(ctx, h); backend.Final(err) {
			return err
		}
		return nil
	}}
}

// freesAtClose frees with its Close what is held yet.
func freesAtClose(_ *rig, d core.Caller, _ Client) core.Caller {
	var all sync.Map
	return &changed{
		Caller: d,
		acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
			all.Store(r, true)
			return d.Acquire(ctx, r)
		},
		close: func() error {
			for r := range all.Range {
				_ = d.Abandon(context.Background(), r.(*backend.Request))
			}
			return nil
		},
	}
}

// deliveredTwice delivers a release once more with the client's next request, and frees whoever holds.
func deliveredTwice(r *rig, d core.Caller, c Client) core.Caller {
	var mu sync.Mutex
	var last *core.Hold
	return &changed{
		Caller: d,
		acquire: func(ctx context.Context, req *backend.Request) (backend.Grant, error) {
			mu.Lock()
			h := last
			last = nil
			mu.Unlock()
			if h != nil {
				r.store.freeAnybody(&order{Prefix: c.Prefix, Name: h.Name})
			}
			return d.Acquire(ctx, req)
		},
		release: func(ctx context.Context, h *core.Hold) error {
			err := d.Release(ctx, h)
			mu.Lock()
			defer mu.Unlock()
			last = h
			return err
		},
	}
}

// freeAnybody frees a lock without a look at its holder.
func (s *toy) freeAnybody(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[s.key(o)]; l != nil {
		l.order = nil
		s.serve(s.key(o), l)
	}
}

// stopsAtFailure gives up its connection after one lock was lost: nothing can be released any more.
// (A failing Release alone would not show: the engine abandons what it could not release.)
func stopsAtFailure(_ *rig, d core.Caller, _ Client) core.Caller {
	var failed atomic.Bool
	return &changed{
		Caller: d,
		acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
			mine := *r
			mine.Lost = func(err error) { failed.Store(true); r.Lost(err) }
			return d.Acquire(ctx, &mine)
		},
		release: func(ctx context.Context, h *core.Hold) error {
			if failed.Load() {
				return errCut
			}
			return d.Release(ctx, h)
		},
		abandon: func(ctx context.Context, r *backend.Request) error {
			if failed.Load() {
				return errCut
			}
			return d.Abandon(ctx, r)
		},
	}
}

// releasesOnce forgets a hold with the first release, whether that came through or not.
func releasesOnce(_ *rig, d core.Caller, _ Client) core.Caller {
	var failed sync.Map
	return &changed{Caller: d, release: func(ctx context.Context, h *core.Hold) error {
		if _, again := failed.Load(h.Nonce); again {
			return backend.ErrLost
		}
		err := d.Release(ctx, h)
		if err != nil {
			failed.Store(h.Nonce, true)
		}
		return err
	}}
}

// unknownIsLost takes every failed renewal for a loss.
func unknownIsLost(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, renew: func(ctx context.Context, hs []*core.Hold) []error {
		errs := d.Renew(ctx, hs)
		for i, err := range errs {
			if err != nil {
				errs[i] = backend.ErrLost
			}
		}
		return errs
	}}
}

// hundredOnly renews the first hundred of a batch.
func hundredOnly(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, renew: func(ctx context.Context, hs []*core.Hold) []error {
		errs := make([]error, len(hs))
		copy(errs, d.Renew(ctx, hs[:min(100, len(hs))]))
		return errs
	}}
}

// upToALoss renews a batch until one of it is lost.
func upToALoss(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, renew: func(ctx context.Context, hs []*core.Hold) []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			if errs[i] = d.Renew(ctx, []*core.Hold{h})[0]; errs[i] != nil {
				break
			}
		}
		return errs
	}}
}

// renewsOn goes on renewing after the release.
func renewsOn(_ *rig, d core.Caller, c Client) core.Caller {
	if c.Link == nil {
		return d
	}
	holds := make(chan *core.Hold, 1000)
	stop := inBackground(func(ctx context.Context) {
		var released []*core.Hold
		for {
			select {
			case h := <-holds:
				released = append(released, h)
			case <-time.After(300 * time.Millisecond):
				d.Renew(ctx, released)
			case <-ctx.Done():
				return
			}
		}
	})
	return &changed{Caller: d, close: stop, release: func(ctx context.Context, h *core.Hold) error {
		err := d.Release(ctx, h)
		holds <- h
		return err
	}}
}

// askedLate counts the lease from the reply.
func askedLate(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		g.Asked = backend.Now()
		return g, err
	}}
}

// stalePush takes the late news of its own release for the loss of the next lock.
func stalePush(_ *rig, d core.Caller, _ Client) core.Caller {
	var mu sync.Mutex
	var newest *backend.Request
	return &changed{
		Caller: d,
		acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
			mu.Lock()
			newest = r
			mu.Unlock()
			return d.Acquire(ctx, r)
		},
		release: func(ctx context.Context, h *core.Hold) error {
			time.AfterFunc(100*time.Millisecond, func() {
				mu.Lock()
				defer mu.Unlock()
				if newest != h.Request {
					newest.Lost(backend.ErrLost)
				}
			})
			return d.Release(ctx, h)
		},
	}
}

// neverAgain cannot lock a name that it has lost once.
func neverAgain(_ *rig, d core.Caller, _ Client) core.Caller {
	var mu sync.Mutex
	lost := map[string]bool{}
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		mu.Lock()
		over := lost[r.Name]
		mu.Unlock()
		if over {
			return backend.Grant{}, errors.New("session closed")
		}
		mine := *r
		mine.Lost = func(err error) {
			mu.Lock()
			lost[r.Name] = true
			mu.Unlock()
			r.Lost(err)
		}
		return d.Acquire(ctx, &mine)
	}}
}

// secondTrip reads the token by a command of its own.
func secondTrip(_ *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		g, err := d.Acquire(ctx, r)
		if err != nil {
			return g, err
		}
		info, err := d.Inspect(ctx, r.Name)
		g.Token = info.Token
		return g, err
	}}
}

// storm wakes every waiter for a name at each release of it, and each asks again.
func storm(r *rig, d core.Caller, c Client) core.Caller {
	type sleeper struct{ prefix, name, nonce string }
	return &changed{
		Caller: d,
		acquire: func(ctx context.Context, req *backend.Request) (backend.Grant, error) {
			me := sleeper{c.Prefix, req.Name, req.Nonce}
			for {
				woken, cancel := context.WithCancel(ctx)
				r.crowd.Store(me, cancel)
				g, err := d.Acquire(woken, req)
				again := err != nil && woken.Err() != nil && ctx.Err() == nil
				cancel()
				r.crowd.Delete(me)
				if !again {
					return g, err
				}
			}
		},
		release: func(ctx context.Context, h *core.Hold) error {
			err := d.Release(ctx, h)
			r.crowd.Range(func(who, wake any) bool {
				if s := who.(sleeper); s.prefix == c.Prefix && s.name == h.Name {
					wake.(context.CancelFunc)()
				}
				return true
			})
			return err
		},
	}
}

// leaks starts a goroutine for each lock, and forgets it.
func leaks(r *rig, d core.Caller, _ Client) core.Caller {
	return &changed{Caller: d, acquire: func(ctx context.Context, req *backend.Request) (backend.Grant, error) {
		go func() { <-r.store.stop }()
		return d.Acquire(ctx, req)
	}}
}

// poisoned keeps the connections that broke: the next three requests fail.
func poisoned(_ *rig, d core.Caller, c Client) core.Caller {
	link, _ := c.Link.(*CallLink)
	if link == nil {
		return d
	}
	dead, cut := 0, link.cut
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		link.mu.Lock()
		if link.cut != cut {
			dead, cut = 3, link.cut
		}
		bad := dead > 0
		dead--
		link.mu.Unlock()
		if bad {
			return backend.Grant{}, errCut
		}
		return d.Acquire(ctx, r)
	}}
}

// sixtyFourWaits serves so many waits of a client at a time.
func sixtyFourWaits(_ *rig, d core.Caller, _ Client) core.Caller { return someWaits(d, time.Hour) }

// lineIsOutage does too, and tells the others of an outage after 3 s.
func lineIsOutage(_ *rig, d core.Caller, _ Client) core.Caller { return someWaits(d, 3*time.Second) }

// someWaits serves 64 waits at a time. The others stand in line for so long.
func someWaits(d core.Caller, most time.Duration) core.Caller {
	places := make(chan struct{}, 64)
	return &changed{Caller: d, acquire: func(ctx context.Context, r *backend.Request) (backend.Grant, error) {
		if !r.Wait {
			return d.Acquire(ctx, r)
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			return d.Acquire(ctx, r)
		case <-ctx.Done():
			return backend.Grant{}, core.Ended(ctx, true, nil)
		case <-time.After(most):
			return backend.Grant{}, core.Outlast(errDown)
		}
	}}
}
