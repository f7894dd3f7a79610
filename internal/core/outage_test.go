package core_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// answers gives the answers in turn, and the last one again and again.
func answers(errs ...error) func(context.Context, []*backend.Claim) {
	return func(_ context.Context, cs []*backend.Claim) {
		cs[0].Err = errs[0]
		if len(errs) > 1 {
			errs = errs[1:]
		}
	}
}

// TestSendsArePaced: what fails at once is sent five times, each after twice the pause.
func TestSendsArePaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}, ask: answers(errBroken)}
		began := time.Now()
		_, err := core.Of(s).Acquire(t.Context(), request("n", false))
		want(t, "acquire", err, errBroken)
		if took := time.Since(began); len(s.sizes) != 5 || took != 300*time.Millisecond {
			t.Errorf("got %d sends in %v, want 5 in 20 + 40 + 80 + 160 ms", len(s.sizes), took)
		}
	})
}

// TestNothingIsSentAfterTheEnd of its caller's ctx, which comes in the pause after a send that failed.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}, ask: answers(errBroken)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(10*time.Millisecond, cancel)
		_, err := core.Of(s).Acquire(ctx, request("n", false))
		want(t, "acquire", err, context.Canceled)
		synctest.Wait()
		if len(s.sizes) != 1 {
			t.Errorf("it was sent %d times, want once", len(s.sizes))
		}
	})
}

// TestOutageIsNoLock: an outage from the first send on ends a wait with what the store said, not with ErrLocked, also
// if the last look had no answer at all.
func TestOutageIsNoLock(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ask   func(context.Context, []*backend.Claim)
		enter error
	}{
		{"asks fail", answers(errBroken), nil},
		{"the queue is silent", answers(errBroken), context.DeadlineExceeded},
		{"the queue fails", answers(backend.ErrLocked), errBroken},
		{"the first ask is silent", answers(context.DeadlineExceeded), errBroken},
		{"a second ask fails", answers(backend.ErrLocked, errBroken), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &store{calls: backend.Calls{Most: 1}, ask: tt.ask}
				s.enter = func(*backend.Claim) error { return tt.enter }
				began := time.Now()
				_, err := core.Of(s).Acquire(t.Context(), request("n", true))
				want(t, "acquire", err, errBroken)
				if errors.Is(err, backend.ErrLocked) || !core.Outlasted(err) {
					t.Errorf("got %v, want an outage and nothing else", err)
				}
				if took := time.Since(began); took < core.Patience || took > core.Patience+3*time.Second {
					t.Errorf("the wait took %v, want its patience, %v", took, core.Patience)
				}
			})
		})
	}
}

// TestFinalAnswerEndsAnOutage: the queue's final answer ends a wait at once, and is what is told, whatever
// the first ask said.
func TestFinalAnswerEndsAnOutage(t *testing.T) {
	for _, final := range []error{backend.Invalid("x"), backend.ErrClosed} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 1}, ask: answers(errBroken)}
			s.enter = func(*backend.Claim) error { return final }
			began := time.Now()
			_, err := core.Of(s).Acquire(t.Context(), request("n", true))
			want(t, "acquire", err, final)
			if took := time.Since(began); took > 0 {
				t.Errorf("the wait took %v, want it to end at once", took)
			}
		})
	}
}

// TestLaterOutageIsTold: what the last ask said is the outage that a silent queue is told with.
func TestLaterOutageIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		errFirst, entered := errors.New("the first"), 0
		s := &store{calls: backend.Calls{Most: 1}, ask: answers(errFirst, errBroken)}
		s.enter = func(*backend.Claim) error {
			if entered++; entered == 1 {
				return nil
			}
			return context.DeadlineExceeded
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", true))
		want(t, "acquire", err, errBroken)
		if errors.Is(err, errFirst) {
			t.Errorf("got %v, want the later one alone", err)
		}
	})
}

// TestSilenceIsTold: a TryLock ends with the word of a store that says for how long it has been silent, though a send
// after that is under way.
func TestSilenceIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if len(s.sizes) == 1 {
				cs[0].Err = backend.Silence(time.Second)
				return
			}
			hangs(ctx, cs)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := core.Of(s).Acquire(ctx, request("n", false))
		if silence := backend.Silence(0); !errors.As(err, &silence) {
			t.Errorf("got %v, want the store's word", err)
		}
	})
}

// TestWakeIsPutOff: the last of several times to be woken at counts.
func TestWakeIsPutOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}, ask: answers(backend.ErrLocked)}
		s.enter = func(c *backend.Claim) error {
			c.Waker.Wake(time.Second)
			c.Waker.Wake(3 * time.Second)
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := core.Of(s).Acquire(ctx, request("n", true))
		want(t, "acquire", err, backend.ErrLocked)
		if len(s.sizes) != 2 {
			t.Errorf("got %d asks in 2 s, want the first and that of the queue", len(s.sizes))
		}
	})
}

// TestLandWaitsForSends: what outlives its caller is waited for.
func TestLandWaitsForSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var over atomic.Bool
		s.ask = func(_ context.Context, cs []*backend.Claim) {
			if cs[0].Err = errBroken; len(s.sizes) > 1 {
				time.Sleep(3 * time.Second) // it heeds its ctx late
				over.Store(true)
			}
		}
		c := core.Of(s)
		for range 2 {
			s.sizes = nil
			over.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Acquire(ctx, request("n", false))
			cancel()
			want(t, "acquire", err, context.DeadlineExceeded)
			if over.Load() {
				t.Fatal("the caller has waited for it")
			}
			if c.Land(); !over.Load() {
				t.Error("Land has not waited for it")
			}
		}
	})
}

// TestCheckExtendsNothing: a check is one call that extends nothing, whatever its ctx; so is a renewal
// without an end.
func TestCheckExtendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		c, hs := core.Of(s), []*core.Hold{{Request: request("n", false)}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		want(t, "check", c.Check(ctx, hs)[0], nil)
		want(t, "check", c.Check(t.Context(), hs)[0], nil)
		want(t, "renew", c.Renew(t.Context(), hs)[0], nil)
		if !slices.Equal(s.extend, []bool{false, false, true}) {
			t.Errorf("the calls extend: %v, want the last alone", s.extend)
		}
	})
}

// TestAbandonTellsOfAFailure: what could not be given up is told, so that it is tried again; what is gone is not.
func TestAbandonTellsOfAFailure(t *testing.T) {
	for answer, told := range map[error]error{nil: nil, errBroken: errBroken, backend.ErrLost: nil} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 1}}
			s.leave = func(_ context.Context, cs []*backend.Claim) { cs[0].Err = answer }
			err := core.Of(s).Abandon(t.Context(), request("n", false))
			if !errors.Is(err, told) || told == nil && err != nil {
				t.Errorf("the store says %v: got %v, want %v", answer, err, told)
			}
		})
	}
}

// TestReleaseOfAnothersGrant: a hold that this client was not asked for is released with what was granted.
func TestReleaseOfAnothersGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var token backend.Token
		s.leave = func(_ context.Context, cs []*backend.Claim) { token = cs[0].Grant.Token }
		h := &core.Hold{Request: request("n", false), Grant: backend.Grant{Token: 7}}
		want(t, "release", core.Of(s).Release(t.Context(), h), nil)
		if token != 7 {
			t.Errorf("got token %d, want 7", token)
		}
	})
}

// TestInspectAsksAgain: a look without an answer is repeated once, the store's word is not.
func TestInspectAsksAgain(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		errs  []error
		want  error
		looks int
	}{
		{"answered", t.Context(), []error{nil}, nil, 1},
		{"lost once", t.Context(), []error{errBroken, nil}, nil, 2},
		{"lost twice", t.Context(), []error{errBroken, errBroken, nil}, errBroken, 2},
		{"refused", t.Context(), []error{backend.ErrUnsupported, nil}, backend.ErrUnsupported, 1},
		{"ended", ended, []error{errBroken, nil}, errBroken, 1},
	} {
		s, looks := &store{names: []backend.Info{{Name: "n"}}}, 0
		s.look = func() error { looks++; return tt.errs[looks-1] }
		i, err := core.Of(s).Inspect(tt.ctx, "n")
		if !errors.Is(err, tt.want) || looks != tt.looks || err == nil && i.Name != "n" {
			t.Errorf("%s: got %+v, %v after %d looks, want %v after %d", tt.name, i, err, looks, tt.want, tt.looks)
		}
	}
}

// TestCtxOfACallEndsWithIt: a driver that asks for the end of a call's ctx, in the call or after it, has it then.
func TestCtxOfACallEndsWithIt(t *testing.T) {
	for _, listens := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 1}}
			var of context.Context
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				if of = ctx; listens {
					ctx.Done()
				}
				grants(ctx, cs)
			}
			_, err := core.Of(s).Acquire(t.Context(), request("n", false))
			want(t, "acquire", err, nil)
			select {
			case <-of.Done():
			default:
				t.Error("it goes on")
			}
			want(t, "the call's ctx", of.Err(), context.Canceled)
		})
	}
}

// TestCtxOfACall: a call's ctx ends with its caller's, or when the call's time is over, whether its channel was asked
// for or not.
func TestCtxOfACall(t *testing.T) {
	for _, listens := range []bool{false, true} {
		for _, cancels := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := context.DeadlineExceeded
				s := &store{calls: backend.Calls{Most: 1}}
				s.ask = func(of context.Context, cs []*backend.Claim) {
					cs[0].Err = backend.ErrLocked
					if listens {
						of.Done()
					}
					want(t, "before", of.Err(), nil)
					if at, ok := of.Deadline(); !ok || time.Until(at) != 700*time.Millisecond {
						t.Errorf("its end: in %v, %v", time.Until(at), ok)
					}
					if cancels {
						cancel()
						ended = context.Canceled
					} else {
						time.Sleep(700 * time.Millisecond)
					}
					synctest.Wait()
					want(t, "after", of.Err(), ended)
				}
				_, err := core.Of(s).Acquire(ctx, request("n", false))
				want(t, "acquire", err, backend.ErrLocked)
			})
		}
	}
}

// TestDo: what has no answer in time is sent once more, and nobody waits for longer than its ctx.
func TestDo(t *testing.T) {
	type call = func(context.Context) (int, error)
	swallowed := func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	gives := func(n int, err error) call { return func(context.Context) (int, error) { return n, err } }
	for _, tt := range []struct {
		name  string
		aside bool
		calls []call
		want  int
		err   error
		took  time.Duration
	}{
		{"answered", false, []call{gives(1, nil)}, 1, nil, 0},
		{"refused", false, []call{gives(0, errBroken)}, 0, errBroken, 0},
		{"swallowed once", false, []call{swallowed, gives(2, nil)}, 2, nil, 700 * time.Millisecond},
		{"swallowed twice", false, []call{swallowed, swallowed}, 0, context.DeadlineExceeded, 5 * time.Second},
		{"aside", true, []call{gives(1, nil)}, 1, nil, 0},
		{"aside, swallowed", true, []call{swallowed}, 0, context.DeadlineExceeded, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				var flying core.Group
				var calls atomic.Int32
				began := time.Now()
				got, err := core.Do(ctx, tt.aside, &flying, func(ctx context.Context) (int, error) {
					return tt.calls[calls.Add(1)-1](ctx)
				})
				if took := time.Since(began); got != tt.want || !errors.Is(err, tt.err) || took != tt.took {
					t.Errorf("got %d, %v after %v, want %d, %v after %v", got, err, took, tt.want, tt.err, tt.took)
				}
				flying.Wait()
				if int(calls.Load()) != len(tt.calls) {
					t.Errorf("got %d calls, want %d", calls.Load(), len(tt.calls))
				}
				cancel()
				if _, err := core.Do(ctx, tt.aside, &flying, gives(1, nil)); !errors.Is(err, context.Canceled) &&
					!errors.Is(err, context.DeadlineExceeded) || int(calls.Load()) != len(tt.calls) {
					t.Errorf("after the end of ctx: got %v, want its error and no call", err)
				}
			})
		})
	}
}

// TestDoIsCounted: a send that outlives its caller is waited for by whoever waits for flying.
func TestDoIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var flying core.Group
		over := false
		_, err := core.Do(ctx, true, &flying, func(context.Context) (int, error) {
			time.Sleep(3 * time.Second)
			over = true
			return 1, nil
		})
		want(t, "do", err, context.DeadlineExceeded)
		if flying.Wait(); !over {
			t.Error("it was not waited for")
		}
	})
}

type timeout bool

func (timeout) Error() string   { return "a network's error" }
func (t timeout) Timeout() bool { return bool(t) }
func (timeout) Temporary() bool { return false }

var _ net.Error = timeout(true)

func TestTimedOut(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errBroken, false},
		{timeout(false), false},
		{context.Canceled, false},
		{timeout(true), true},
		{fmt.Errorf("wrapped: %w", timeout(true)), true},
		{fmt.Errorf("wrapped: %w", os.ErrDeadlineExceeded), true},
		{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), true},
		{errors.Join(timeout(false), context.DeadlineExceeded), true},
		{errors.Join(timeout(false), os.ErrDeadlineExceeded), true},
	} {
		if got := core.TimedOut(tt.err); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestComposite: what is made of other drivers takes no claim, and looks.
func TestComposite(t *testing.T) {
	s := &store{names: []backend.Info{{Name: "n"}, {Name: "no"}}}
	d := core.Composite{Caller: core.Of(s)}
	for what, call := range map[string]func(context.Context, []*backend.Claim){"ask": d.Ask, "leave": d.Leave} {
		cs := []*backend.Claim{{}, {}}
		call(t.Context(), cs)
		for _, c := range cs {
			want(t, what, c.Err, backend.ErrUnsupported)
		}
	}
	for _, tt := range []struct {
		r    backend.Range
		want int
	}{{backend.Range{Name: "n"}, 1}, {backend.Range{Prefix: "n"}, 2}} {
		n := 0
		for _, err := range d.Look(t.Context(), tt.r) {
			want(t, "look", err, nil)
			n++
		}
		if n != tt.want {
			t.Errorf("%+v: got %d names, want %d", tt.r, n, tt.want)
		}
	}
}

// TestSlowAndThenSilent: a store that was slow at first, as it said, and then answers nobody ends a wait as any outage
// does: what was true of the first ask is no word about the looks after it.
func TestSlowAndThenSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, began := &store{calls: backend.Calls{Most: 1}}, time.Now()
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			<-ctx.Done()
			cs[0].Err = backend.Silence(700 * time.Millisecond)
		}
		s.enter = func(*backend.Claim) error {
			time.Sleep(2 * time.Second)
			return context.DeadlineExceeded
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := core.Of(s).Acquire(ctx, request("n", true))
		if took := time.Since(began); !errors.Is(err, backend.ErrUnavailable) || took > core.Patience+2*time.Second {
			t.Errorf("got %v after %v, want an outage", err, took)
		}
	})
}
