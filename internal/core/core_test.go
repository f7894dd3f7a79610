package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// store is a backend.Mover whose answers a test gives.
type store struct {
	calls backend.Calls
	ask   func(ctx context.Context, cs []*backend.Claim)
	leave func(ctx context.Context, cs []*backend.Claim)
	keep  func(cs []*backend.Claim) []error
	// keepIn stands in for keep where ctx counts.
	keepIn func(ctx context.Context) []error
	extend []bool // of the calls of Keep
	close  func()
	enter  func(c *backend.Claim) error
	look   func() error // of the next Look

	records []backend.Record
	swaps   int
	moved   bool // the next Swap finds another version
	names   []backend.Info

	mu     sync.Mutex
	sizes  []int // of the batches
	in     int   // calls of Ask
	most   int
	unsure []bool // of the claims that left
}

func (s *store) Traits() backend.Traits { return backend.TraitsOf("memory") }
func (s *store) Calls() backend.Calls   { return s.calls }

func (s *store) Close() error {
	if s.close != nil {
		s.close()
	}
	return nil
}

func (s *store) Enter(_ context.Context, c *backend.Claim) error {
	if s.enter != nil {
		return s.enter(c)
	}
	return nil
}

func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	s.mu.Lock()
	s.sizes = append(s.sizes, len(cs))
	s.in++
	s.most = max(s.most, s.in)
	s.mu.Unlock()
	s.ask(ctx, cs)
	s.mu.Lock()
	s.in--
	s.mu.Unlock()
}

// mostAtOnce is for where a call may have outlived those that it was made for.
func (s *store) mostAtOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (s *store) Leave(ctx context.Context, cs []*backend.Claim) {
	s.mu.Lock()
	for _, c := range cs {
		s.unsure = append(s.unsure, c.Unsure)
	}
	s.mu.Unlock()
	if s.leave != nil {
		s.leave(ctx, cs)
	}
}

func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	s.mu.Lock()
	s.extend = append(s.extend, extend)
	s.mu.Unlock()
	if s.keepIn != nil {
		return s.keepIn(ctx)
	}
	if s.keep == nil {
		return make([]error, len(cs))
	}
	return s.keep(cs)
}

func (s *store) Look(context.Context, backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		if s.look != nil {
			if err := s.look(); err != nil {
				yield(backend.Info{}, err)
				return
			}
		}
		for _, i := range s.names {
			if !yield(i, nil) {
				return
			}
		}
	}
}
func (s *store) Break(context.Context, string) error                        { return nil }
func (s *store) Source(context.Context) (backend.Token, error)              { return 0, nil }
func (s *store) Raise(context.Context, backend.Token, *backend.Claim) error { return nil }

func (s *store) Load(context.Context, string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		for _, r := range slices.Clone(s.records) {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *store) Swap(_ context.Context, rs []backend.Record, _ time.Duration) error {
	for _, r := range rs {
		s.swaps++
		i := slices.IndexFunc(s.records, func(o backend.Record) bool {
			return o.Place == r.Place && (o.Key == r.Key || o.Data == nil)
		})
		if s.moved || s.records[i].Version != r.Version {
			s.moved = false
			return backend.ErrGates
		}
		r.Version = fmt.Sprint("v", s.swaps)
		s.records[i] = r
	}
	return nil
}

func request(name string, wait bool) *backend.Request {
	return &backend.Request{
		Name: name, Nonce: fmt.Sprintf("%-32s", name), TTL: 30 * time.Second, Wait: wait,
		Lost: func(error) {},
	}
}

func bubble(t *testing.T, fn func(t *testing.T)) { t.Helper(); synctest.Test(t, fn) }

func want(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var errBroken = errors.New("connection reset by peer")

// grants answers yes to all.
func grants(_ context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		c.Grant = backend.Grant{Token: 7, Asked: backend.Now()}
	}
}

// hangs answers when ctx ends.
func hangs(ctx context.Context, cs []*backend.Claim) {
	<-ctx.Done()
	for _, c := range cs {
		c.Err = ctx.Err()
	}
}

// TestSentAgain: what had no answer is sent again, with the same claim, and the claim stays in
// doubt.
func TestSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var seen []*backend.Claim
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			seen = append(seen, cs...)
			if len(seen) < 3 {
				cs[0].Err = errBroken
				return
			}
			grants(ctx, cs)
		}
		d := core.Of(s)
		r := request("n", false)
		g, err := d.Acquire(t.Context(), r)
		want(t, "acquire", err, nil)
		if len(seen) != 3 || seen[0] != seen[2] || g.Token != 7 {
			t.Errorf("got %d sends, token %d, want three of one claim, and token 7", len(seen), g.Token)
		}
		want(t, "release", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), nil)
		if !slices.Equal(s.unsure, []bool{true}) {
			t.Errorf("the claim left with Unsure %v, want true: two copies may come yet", s.unsure)
		}
	})
}

// TestSwallowedIsSentSoon: a leader that died swallows what it is sent, and its successor, chosen after a second or
// two, has the claim soon.
func TestSwallowedIsSentSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		chosen := time.Now().Add(1500 * time.Millisecond)
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if time.Now().Before(chosen) {
				<-ctx.Done()
				cs[0].Err = ctx.Err()
				return
			}
			grants(ctx, cs)
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", false))
		want(t, "acquire", err, nil)
		if late := time.Since(chosen); late > 700*time.Millisecond {
			t.Errorf("granted %v after there was a leader, want 700ms at the most", late)
		}
	})
}

// TestAnswersAreFinal: what the store has said is not asked again, and leaves no doubt.
func TestAnswersAreFinal(t *testing.T) {
	for _, answer := range []error{
		backend.ErrLocked, backend.ErrLost, backend.ErrInvalid, backend.ErrUnsupported,
	} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 1}}
			s.ask = func(_ context.Context, cs []*backend.Claim) { cs[0].Err = answer }
			d, r := core.Of(s), request("n", false)
			_, err := d.Acquire(t.Context(), r)
			want(t, "acquire", err, answer)
			want(t, "abandon", d.Abandon(t.Context(), r), nil)
			if len(s.sizes) != 1 || s.unsure[0] {
				t.Errorf("%v: got %d sends, Unsure %v; want one, and no doubt", answer, len(s.sizes), s.unsure)
			}
		})
	}
}

// TestUndoneReleaseIsFinal: what was rolled back with the lock is not released again.
func TestUndoneReleaseIsFinal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(_ context.Context, cs []*backend.Claim) { cs[0].Token = 1 }
		s.leave = func(_ context.Context, cs []*backend.Claim) { cs[0].Err = &backend.UndoneError{Err: errBroken} }
		d, r := core.Of(s), request("n", false)
		g, err := d.Acquire(t.Context(), r)
		want(t, "acquire", err, nil)
		want(t, "release", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), errBroken)
		if len(s.unsure) != 1 {
			t.Errorf("sent %d times, want once", len(s.unsure))
		}
	})
}

// TestUndrained: whom a gate waits for. A lock whose name the store does not know may be any.
func TestUndrained(t *testing.T) {
	s := &store{names: []backend.Info{
		{Name: "in/x", Held: true},
		{Name: "in/free"},
		{Name: "in/both", Held: true, Both: "m"},
		{Name: "in/other", Held: true, Both: "o"},
		{Name: "in/claim", Held: true, Pending: true},
		{Name: "out", Held: true},
		{Name: "process 7", Held: true, Nameless: true},
	}}
	g := backend.Gate{Move: "m", Scope: []backend.Pattern{{Match: "in/*"}}}
	left, err := core.Of(s).(*core.Mover).Undrained(t.Context(), g)
	want(t, "undrained", err, nil)
	var names []string
	for _, i := range left {
		names = append(names, i.Name)
	}
	if want := []string{"in/x", "in/other", "process 7"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestWhatMayStand: the store may have something of a request that was granted, that waits, or whose answer is missing.
func TestWhatMayStand(t *testing.T) {
	says := func(answers ...error) func(context.Context, []*backend.Claim) {
		return func(_ context.Context, cs []*backend.Claim) {
			cs[0].Err = answers[0]
			answers = answers[min(1, len(answers)-1):]
		}
	}
	for name, tt := range map[string]struct {
		ask  func(context.Context, []*backend.Claim)
		wait bool
		want bool
	}{
		"granted":                 {grants, false, true},
		"refused":                 {says(backend.ErrInvalid), true, false},
		"a try that was too late": {says(backend.ErrLocked), false, false},
		"refused once it waits":   {says(backend.ErrLocked, backend.ErrInvalid), true, true},
		"waits after an outage": {
			says(backend.Refusal(errBroken), backend.ErrLocked, backend.ErrInvalid), true, true,
		},
		"no answer": {says(errBroken, backend.ErrInvalid), false, true},
	} {
		bubble(t, func(t *testing.T) {
			r := request("n", tt.wait)
			_, _ = core.Of(&store{calls: backend.Calls{Most: 1}, ask: tt.ask}).Acquire(t.Context(), r)
			if got := core.Stands(r); got != tt.want {
				t.Errorf("%s: got %v, want %v", name, got, tt.want)
			}
		})
	}
	if core.Stands(request("n", false)) {
		t.Error("a request that nobody has sent stands somewhere")
	}
}

// TestRefusedTryIsGivenUp, if it was sent twice: its first copy may find the lock free yet.
func TestRefusedTryIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(_ context.Context, cs []*backend.Claim) {
			if cs[0].Err = backend.ErrLocked; len(s.sizes) == 1 {
				cs[0].Err = errBroken
			}
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", false))
		want(t, "acquire", err, backend.ErrLocked)
		if !slices.Equal(s.unsure, []bool{true}) {
			t.Errorf("left with Unsure %v, want once, and true", s.unsure)
		}
	})
}

// TestEnterWaitsForTheCall that outlived the look before it: the store touches the claim in both.
func TestEnterWaitsForTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1, Aside: true}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if len(s.sizes) > 1 {
				time.Sleep(4 * time.Second) // whatever becomes of ctx
			}
			cs[0].Err = backend.ErrLocked
		}
		entered := 0
		s.enter = func(c *backend.Claim) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if entered++; s.in > 0 {
				t.Errorf("Enter of %q beside its Ask", c.Name)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := core.Of(s).Acquire(ctx, request("n", true))
		if err == nil || entered < 2 {
			t.Errorf("got %v after %d calls of Enter, want an outage and some", err, entered)
		}
		time.Sleep(4 * time.Second)
	})
}

// TestSilentStoreIsLeft: a store that hangs, and whose client heeds no deadline, ends a wait as any
// outage does.
func TestSilentStoreIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, began := &store{calls: backend.Calls{Most: 1, Aside: true}}, time.Now()
		s.ask = func(_ context.Context, cs []*backend.Claim) {
			time.Sleep(time.Minute)
			cs[0].Err = errBroken
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", true))
		if took := time.Since(began); err == nil || took > 2*core.Patience {
			t.Errorf("got %v after %v, want an outage within %v", err, took, 2*core.Patience)
		}
		time.Sleep(time.Minute)
	})
}

// TestRefusedSendLeavesNoDoubt: the store has said that nothing was done.
func TestRefusedSendLeavesNoDoubt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if grants(ctx, cs); len(s.sizes) < 3 {
				cs[0].Err = backend.Refusal(errBroken)
			}
		}
		d, r := core.Of(s), request("n", false)
		g, err := d.Acquire(t.Context(), r)
		want(t, "acquire", err, nil)
		want(t, "release", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), nil)
		if len(s.sizes) != 3 || !slices.Equal(s.unsure, []bool{false}) {
			t.Errorf("got %d sends, left with Unsure %v; want three, and no doubt", len(s.sizes), s.unsure)
		}
	})
}

// TestAbandonOfAStrangersRequest: nobody knows what became of the copies of a request that another
// driver has sent, and that driver goes on with its own claim.
func TestAbandonOfAStrangersRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := &store{calls: backend.Calls{Most: 1}, ask: grants}
		b := &store{calls: backend.Calls{Most: 1}, ask: grants}
		r := request("n", false)
		_, err := core.Of(a).Acquire(t.Context(), r)
		want(t, "acquire", err, nil)
		want(t, "abandon", core.Of(b).Abandon(t.Context(), r), nil)
		if !slices.Equal(b.unsure, []bool{true}) {
			t.Errorf("left with Unsure %v, want true", b.unsure)
		}
	})
}

// TestReleaseOutlastsADial: a client that gives the error of its last dial for a second keeps no
// lock, and a store that stays away is left in the end.
func TestReleaseOutlastsADial(t *testing.T) {
	for _, away := range []time.Duration{1200 * time.Millisecond, time.Minute} {
		bubble(t, func(t *testing.T) {
			s, began := &store{calls: backend.Calls{Most: 1}, ask: grants}, time.Now()
			s.leave = func(_ context.Context, cs []*backend.Claim) {
				if time.Since(began) < away {
					cs[0].Err = errBroken
				}
			}
			d, r := core.Of(s), request("n", false)
			g, err := d.Acquire(t.Context(), r)
			want(t, "acquire", err, nil)
			var unknown error
			if away == time.Minute {
				unknown = errBroken
			}
			want(t, "release", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), unknown)
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("returned after %v, want soon", took)
			}
		})
	}
}

// TestCallerGoesWhenItsContextEnds, while a store that heeds only deadlines still has its claim.
// Nothing else is done with the claim before that is over.
func TestCallerGoesWhenItsContextEnds(t *testing.T) {
	for name, aside := range map[string]bool{"a store that heeds deadlines": false, "aside": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &store{calls: backend.Calls{Most: 1, Aside: aside}}
				busy := false
				s.ask = func(ctx context.Context, cs []*backend.Claim) {
					busy = true
					at, _ := ctx.Deadline()
					time.Sleep(time.Until(at))
					cs[0].Err = errBroken
					busy = false
				}
				s.leave = func(context.Context, []*backend.Claim) {
					if busy {
						t.Error("Leave while Ask is in flight")
					}
				}
				d, r := core.Of(s), request("n", false)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(1500*time.Millisecond, cancel)
				began := time.Now()
				_, err := d.Acquire(ctx, r)
				want(t, "acquire", err, context.Canceled)
				if took := time.Since(began); took != 1500*time.Millisecond {
					t.Errorf("the caller was kept for %v, want 1.5s", took)
				}
				want(t, "abandon", d.Abandon(t.Context(), r), nil)
				if !slices.Equal(s.unsure, []bool{true}) {
					t.Errorf("Unsure %v, want true", s.unsure)
				}
			})
		})
	}
}

// TestCrowdGoesTogether: while calls are under way, what comes goes together, no more than Most at
// a time, and no more than Abreast calls of a store that answers soon.
func TestCrowdGoesTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 10, Abreast: 2}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			time.Sleep(500 * time.Microsecond)
			grants(ctx, cs)
		}
		d := core.Of(s)
		var all sync.WaitGroup
		for i := range 102 {
			all.Go(func() {
				g, err := d.Acquire(t.Context(), request(fmt.Sprint(i), false))
				if err != nil || g.Token != 7 {
					t.Errorf("acquire: token %d, %v", g.Token, err)
				}
			})
		}
		all.Wait()
		sum := 0
		for _, n := range s.sizes {
			sum += n
		}
		if sum != 102 || slices.Max(s.sizes) != 10 || s.most != 2 || len(s.sizes) > 14 {
			t.Errorf("got batches of %v, %d at a time, want 102 claims in some 12, two at a time", s.sizes, s.most)
		}
	})
}

// TestCrowdLeavesASilentStore: who stands behind a call that hangs goes when its own ctx ends, and
// is told so with the others when the call is given up.
func TestCrowdLeavesASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 10, Abreast: 1}}
		s.ask = hangs
		d := core.Of(s)
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				_, err := d.Acquire(ctx, request(fmt.Sprint(i), false))
				want(t, "acquire", err, context.DeadlineExceeded)
				if took := time.Since(began); took != time.Second {
					t.Errorf("took %v, want 1s", took)
				}
			})
		}
		all.Wait()
		d.Land()
	})
}

// TestOneLeavesTheLine: its place is given to the next, and a claim that leaves in the middle of a
// batch is not touched before the batch is back.
func TestOneLeavesTheLine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 10, Abreast: 1, Mixed: true}}
		left := map[*backend.Claim]bool{}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			s.mu.Lock()
			for _, c := range cs {
				if left[c] {
					t.Errorf("the claim %q was sent after it had left", c.Name)
				}
				left[c] = c.Leaving
			}
			s.mu.Unlock()
			time.Sleep(300 * time.Millisecond)
			grants(ctx, cs)
		}
		d := core.Of(s)
		var all sync.WaitGroup
		for i := range 24 { // wide × Abreast go at once, the rest stands in line
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Duration(i)*60*time.Millisecond+time.Millisecond, cancel)
				r := request(fmt.Sprint(i), false)
				_, err := d.Acquire(ctx, r)
				if err != nil {
					want(t, "acquire", err, context.Canceled)
				}
				want(t, "abandon", d.Abandon(t.Context(), r), nil)
			})
		}
		all.Wait()
	})
}

// TestBatchHasItsTime, however long its claims have stood in line.
func TestBatchHasItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 10, Abreast: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			end, _ := ctx.Deadline()
			if left := time.Until(end); left < 700*time.Millisecond {
				t.Errorf("a batch of %d has %v, want 700ms", len(cs), left)
			}
			time.Sleep(500 * time.Millisecond)
			grants(ctx, cs)
		}
		d := core.Of(s)
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				_, err := d.Acquire(t.Context(), request(fmt.Sprint(i), false))
				want(t, "acquire", err, nil)
			})
		}
		all.Wait()
	})
}

// TestUnansweredClaimGoesAlone: a name for which the store does not answer, and for which somebody
// waits, holds up the others once.
func TestUnansweredClaimGoesAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 10, Abreast: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if slices.ContainsFunc(cs, func(c *backend.Claim) bool { return c.Wait }) {
				hangs(ctx, cs)
				return
			}
			time.Sleep(10 * time.Millisecond)
			grants(ctx, cs)
		}
		d := core.Of(s)
		var all sync.WaitGroup
		var slow atomic.Int32
		for g := range 30 {
			all.Go(func() {
				for i := range 60 {
					began := time.Now()
					_, err := d.Acquire(t.Context(), request(fmt.Sprint(g, "-", i), false))
					want(t, "acquire", err, nil)
					if time.Since(began) > 500*time.Millisecond {
						slow.Add(1)
					}
				}
			})
		}
		all.Go(func() {
			time.Sleep(25 * time.Millisecond)
			if _, err := d.Acquire(t.Context(), request("stuck", true)); err == nil {
				t.Error("granted by a store that never answered")
			}
		})
		all.Wait()
		if got := slow.Load(); got > 9 {
			t.Errorf("%d calls were held up, want those of one batch at most", got)
		}
	})
}

// TestLeadIsPassedOn: a claim may be told to lead at the moment at which its caller goes.
func TestLeadIsPassedOn(t *testing.T) {
	for range 200 {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 2, Abreast: 1}}
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				time.Sleep(100 * time.Millisecond)
				grants(ctx, cs)
			}
			d := core.Of(s)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			var all sync.WaitGroup
			for i, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
				all.Go(func() {
					time.Sleep(time.Duration(i)) // in this order
					_, err := d.Acquire(ctx, request(fmt.Sprint(i), false))
					if i != 1 {
						want(t, "acquire", err, nil)
					}
				})
			}
			all.Wait()
		})
	}
}

// TestWaiterIsWoken: pushes that come early count, and a floor timer makes up for lost ones.
func TestWaiterIsWoken(t *testing.T) {
	for name, wakes := range map[string]bool{"by a push": true, "by the floor timer": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &store{calls: backend.Calls{Most: 1}}
				began, entered := time.Now(), 0
				s.enter = func(*backend.Claim) error { entered++; return nil }
				s.ask = func(ctx context.Context, cs []*backend.Claim) {
					c := cs[0]
					if time.Since(began) >= time.Second {
						grants(ctx, cs)
						return
					}
					c.Err, c.Queued, c.Next = backend.ErrLocked, true, 3*time.Second
					if wakes && entered == 0 {
						c.Wake(0) // too early
						return
					}
					if wakes {
						c.Wake(time.Second - time.Since(began))
					}
				}
				_, err := core.Of(s).Acquire(t.Context(), request("n", true))
				want(t, "acquire", err, nil)
				took := time.Since(began)
				if wakes && took != time.Second || !wakes && (took < 3*time.Second || took > 3200*time.Millisecond) {
					t.Errorf("granted after %v", took)
				}
				if entered == 0 {
					t.Error("the waiter had not entered before it asked again")
				}
			})
		})
	}
}

// TestLockedIsTold: a wait that its ctx ends before the store could be asked a second time tells
// what the first answer was.
func TestLockedIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{
			calls: backend.Calls{Most: 1},
			ask:   func(_ context.Context, cs []*backend.Claim) { cs[0].Err = backend.ErrLocked },
			enter: func(*backend.Claim) error { time.Sleep(time.Second); return context.DeadlineExceeded },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := core.Of(s).Acquire(ctx, request("x", true))
		want(t, "a wait without a subscription", err, context.DeadlineExceeded)
		want(t, "a wait without a subscription", err, backend.ErrLocked)
	})
}

// TestWaiterRidesOutAnOutage, and not more than that.
func TestWaiterRidesOutAnOutage(t *testing.T) {
	for _, down := range []time.Duration{4 * time.Second, time.Hour} {
		bubble(t, func(t *testing.T) {
			s := &store{calls: backend.Calls{Most: 1}}
			began := time.Now()
			s.ask = func(ctx context.Context, cs []*backend.Claim) {
				if time.Since(began) < down {
					cs[0].Err = errBroken
					return
				}
				grants(ctx, cs)
			}
			_, err := core.Of(s).Acquire(t.Context(), request("n", true))
			if down == time.Hour {
				want(t, "acquire", err, backend.ErrUnavailable)
			} else {
				want(t, "acquire", err, nil)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestSlowStoreIsNoOutage: a store that is slow to answer what a waiter has to ask first is not
// taken for one that is down, whatever became of the first request.
func TestSlowStoreIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		slow := func() bool { return time.Since(began) < 2*core.Patience }
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if cs[0].Err = errBroken; !slow() {
				cs[0].Err = nil
				grants(ctx, cs)
			}
		}
		s.enter = func(*backend.Claim) error {
			time.Sleep(time.Second)
			if slow() {
				return backend.Silence(time.Millisecond)
			}
			return nil
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", true))
		want(t, "acquire", err, nil)
	})
}

// TestKeepAsksAgain about those alone that had no answer.
func TestKeepAsksAgain(t *testing.T) {
	s := &store{calls: backend.Calls{Most: 1}}
	var asked [][]string
	s.keep = func(cs []*backend.Claim) []error {
		var names []string
		errs := make([]error, len(cs))
		for i, c := range cs {
			names = append(names, c.Name)
			switch {
			case c.Name == "gone":
				errs[i] = backend.ErrLost
			case c.Name == "silent" && len(asked) == 0:
				errs[i] = errBroken
			}
		}
		asked = append(asked, names)
		return errs
	}
	var hs []*core.Hold
	for _, name := range []string{"held", "gone", "silent"} {
		hs = append(hs, &core.Hold{Request: request(name, false)})
	}
	errs := core.Of(s).Renew(t.Context(), hs)
	if errs[0] != nil || !errors.Is(errs[1], backend.ErrLost) || errs[2] != nil {
		t.Errorf("got %v, want nil, lost, nil", errs)
	}
	if len(asked) != 2 || !slices.Equal(asked[1], []string{"silent"}) {
		t.Errorf("asked about %v, want the silent one again", asked)
	}
}

// TestHungKeepIsSentAgain: a renewal whose request is swallowed is sent again while there is time.
func TestHungKeepIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var sends atomic.Int32
		s.keepIn = func(ctx context.Context) []error {
			if sends.Add(1) == 1 {
				<-ctx.Done()
				return []error{ctx.Err()}
			}
			return []error{nil}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hs := []*core.Hold{{Request: request("n", false)}}
		began := time.Now()
		if err := core.Of(s).Renew(ctx, hs)[0]; err != nil || sends.Load() != 2 {
			t.Errorf("got %v after %d sends, want nil after 2", err, sends.Load())
		}
		if took := time.Since(began); took != time.Second/2 {
			t.Errorf("it took %v, want the half of the second: the first answer counts", took)
		}
	})
}

// TestFailedKeepIsSentBesideTheSecond: a renewal that fails is sent again at once, though its second
// send is under way: that one may have been swallowed.
func TestFailedKeepIsSentBesideTheSecond(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var sends atomic.Int32
		s.keepIn = func(ctx context.Context) []error {
			switch sends.Add(1) {
			case 1:
				time.Sleep(600 * time.Millisecond)
				return []error{errBroken}
			case 2:
				<-ctx.Done()
				return []error{ctx.Err()}
			}
			return []error{nil}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hs := []*core.Hold{{Request: request("n", false)}}
		if err := core.Of(s).Renew(ctx, hs)[0]; err != nil {
			t.Errorf("got %v after %d sends, want nil", err, sends.Load())
		}
	})
}

// TestCloseWaitsForTheSecondKeep: no renewal is with a driver that is closed.
func TestCloseWaitsForTheSecondKeep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		var sends, in atomic.Int32
		s.keepIn = func(context.Context) []error {
			in.Add(1)
			defer in.Add(-1)
			sends.Add(1)
			time.Sleep(600 * time.Millisecond) // it heeds its ctx late
			return []error{nil}
		}
		s.close = func() {
			if in.Load() > 0 {
				t.Error("closed under a renewal")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := core.Of(s)
		hs := []*core.Hold{{Request: request("n", false)}}
		want(t, "renew", c.Renew(ctx, hs)[0], nil)
		want(t, "close", c.Close(), nil)
		if sends.Load() != 2 {
			t.Errorf("%d sends, want 2", sends.Load())
		}
	})
}

// TestRenewalsBesideSettle: who waits for the second sends does not mind that others begin.
func TestRenewalsBesideSettle(t *testing.T) {
	s := &store{calls: backend.Calls{Most: 1}}
	s.keepIn = func(context.Context) []error { return []error{nil} }
	c := core.Of(s)
	hs := []*core.Hold{{Request: request("n", false)}}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 5000 {
				want(t, "renew", c.Renew(ctx, hs)[0], nil)
			}
		})
		wg.Go(func() {
			for range 5000 {
				c.Settle()
			}
		})
	}
	wg.Wait()
}

// TestSlowKeepIsTaken: an answer that takes most of the time is one.
func TestSlowKeepIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		s.keepIn = func(ctx context.Context) []error {
			select {
			case <-time.After(800 * time.Millisecond):
				return []error{nil}
			case <-ctx.Done():
				return []error{ctx.Err()}
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hs := []*core.Hold{{Request: request("n", false)}}
		if err := core.Of(s).Renew(ctx, hs)[0]; err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

// TestGatesOfSeveralPlaces: a gate is written in each place, the first one decides, and a migration
// whose name begins another's is none of its business.
func TestGatesOfSeveralPlaces(t *testing.T) {
	s := &store{records: []backend.Record{{Place: "a"}, {Place: "b"}}}
	d := core.Of(s).(*core.Mover)
	gate := func(move string, epoch int64) backend.Gate {
		return backend.Gate{
			Move: move, Scope: backend.Scope{{Match: "x*"}}, State: backend.GateOpen, Epoch: epoch,
		}
	}
	want(t, "set", d.SetGate(t.Context(), gate("m", 5), 0), nil)
	if s.swaps != 2 {
		t.Errorf("got %d swaps, want one for each place", s.swaps)
	}
	want(t, "set again", d.SetGate(t.Context(), gate("m", 5), 0), nil)
	if s.swaps != 2 {
		t.Errorf("what stands already was written again")
	}
	s.moved = true // another migration's gate came in between
	want(t, "set, beside another", d.SetGate(t.Context(), gate("m", 6), 5), nil)
	want(t, "set what another has set", d.SetGate(t.Context(), gate("m", 7), 5), backend.ErrGateMoved)
	s.records = append(s.records, backend.Record{Place: "a"}, backend.Record{Place: "b"})
	want(t, "set a longer name", d.SetGate(t.Context(), gate("m2", 9), 0), nil)
	gates, err := d.Gates(t.Context())
	if err != nil || len(gates) != 2 || gates[0].Torn || gates[1].Torn {
		t.Errorf("got %v, %v, want two gates that every place has", gates, err)
	}
	s.records[3].Data, s.records[3].Version = nil, ""
	gates, err = d.Gates(t.Context())
	if err != nil || !gates[1].Torn {
		t.Errorf("got %v, %v, want the second gate torn", gates, err)
	}
}

// TestGatesOfASilentPlace: it is no part of what stands, and has to take what is set.
func TestGatesOfASilentPlace(t *testing.T) {
	g := backend.Gate{Move: "m", Scope: backend.Scope{{Match: "x*"}}, State: backend.GateOpen, Epoch: 5}
	data, _ := json.Marshal(g)
	has := backend.Record{Key: backend.GateKey + "m", Place: "a", Data: data, Version: string(data)}
	s := &store{records: []backend.Record{
		has, {Key: backend.GateKey, Place: "b", Version: backend.UnknownVersion},
	}}
	d := core.Of(s).(*core.Mover)
	gates, err := d.Gates(t.Context())
	if err != nil || len(gates) != 1 || gates[0].Torn {
		t.Errorf("got %v, %v, want the gate whole", gates, err)
	}
	want(t, "set again", d.SetGate(t.Context(), g, 0), nil)
	if s.swaps != 1 {
		t.Errorf("got %d swaps, want that of the silent place", s.swaps)
	}
}

// TestStoreSaysWhenToSendAgain, instead of the engine's own pauses.
func TestStoreSaysWhenToSendAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &store{calls: backend.Calls{Most: 1}}
		began, asked := time.Now(), 0
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if asked++; asked == 1 {
				cs[0].Err, cs[0].Next = backend.Refusal(errBroken), 3*time.Millisecond
				return
			}
			grants(ctx, cs)
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", false))
		want(t, "acquire", err, nil)
		if took := time.Since(began); took != 3*time.Millisecond {
			t.Errorf("took %v, want 3ms", took)
		}
	})
}

// twoPlaces are the records of two places, which a client of the store writes at moments of its
// own.
type twoPlaces struct {
	store
	mu     *sync.Mutex
	shared *[2]backend.Record
	after  [2]time.Duration // how long after the call it writes them
}

func (s *twoPlaces) Load(context.Context, string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		s.mu.Lock()
		seen := *s.shared
		s.mu.Unlock()
		for _, r := range seen {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *twoPlaces) Swap(_ context.Context, rs []backend.Record, _ time.Duration) (err error) {
	began := time.Now()
	for _, r := range rs {
		i := int(r.Place[0] - 'a')
		time.Sleep(s.after[i] - time.Since(began))
		s.mu.Lock()
		if s.shared[i].Version != r.Version {
			err = backend.ErrGates
		} else {
			r.Version = string(r.Data)
			s.shared[i] = r
		}
		s.mu.Unlock()
	}
	return err
}

// TestOneOfTwoChangesAGate, though each of them comes first in one place.
func TestOneOfTwoChangesAGate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		shared := &[2]backend.Record{{Place: "a"}, {Place: "b"}}
		errs := make([]error, 2)
		var mu sync.Mutex
		var both sync.WaitGroup
		for i, after := range [][2]time.Duration{{0, 10}, {2, 2}} {
			d := core.Of(&twoPlaces{mu: &mu, shared: shared, after: after}).(*core.Mover)
			both.Go(func() {
				errs[i] = d.SetGate(t.Context(), backend.Gate{
					Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateOpen, Epoch: int64(5 + i),
				}, 0)
			})
		}
		both.Wait()
		want(t, "the one that is first in the first place", errs[0], nil)
		want(t, "the other", errs[1], backend.ErrGateMoved)
	})
}

// TestGatesAreLearned: a request goes with the gates that are known, and once more where the store
// has others; what they refuse is refused by the store's word only.
func TestGatesAreLearned(t *testing.T) {
	closed := backend.Record{Version: "2", Data: backend.EncodeGates([]backend.Gate{{
		Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateBoth, Epoch: 5,
	}})}
	now := &closed
	s := &store{calls: backend.Calls{Most: 1}}
	s.ask = func(ctx context.Context, cs []*backend.Claim) {
		c := cs[0]
		if (c.Gates == nil) != (now == nil) || c.Gates != nil && c.Gates.Version != now.Version {
			c.Gates, c.Err = now, backend.ErrGates
			return
		}
		grants(ctx, cs)
	}
	d := core.Of(s)
	_, err := d.Acquire(t.Context(), request("x", false))
	want(t, "a closed name", err, backend.ErrUnsupported)
	_, err = d.Acquire(t.Context(), request("y", false))
	want(t, "another name", err, nil)
	if len(s.sizes) != 2 {
		t.Errorf("got %d asks, want 2: the second goes with what the first has learned", len(s.sizes))
	}
	now = nil
	_, err = d.Acquire(t.Context(), request("x", false))
	want(t, "the name, without gates", err, nil)
	if len(s.sizes) != 4 {
		t.Errorf("got %d asks, want 4", len(s.sizes))
	}
	_, err = d.Acquire(t.Context(), request("z", false))
	want(t, "a name, with what is known", err, nil)
	if len(s.sizes) != 5 {
		t.Errorf("got %d asks, want one more", len(s.sizes))
	}
}

// TestRefusedWaiterLeaves: a waiter that the store's gates refuse may stand in the queue, and leaves it; and what has
// left can ask again.
func TestRefusedWaiterLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		closed := backend.Record{Version: "2", Data: backend.EncodeGates([]backend.Gate{{
			Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateBoth, Epoch: 5,
		}})}
		s := &store{calls: backend.Calls{Most: 1}}
		var leaving []bool
		s.ask = func(_ context.Context, cs []*backend.Claim) {
			leaving = append(leaving, cs[0].Leaving)
			cs[0].Gates, cs[0].Err = &closed, backend.ErrGates
		}
		d, r := core.Of(s), request("x", true)
		for range 2 {
			_, err := d.Acquire(t.Context(), r)
			want(t, "a closed name", err, backend.ErrUnsupported)
		}
		if len(s.unsure) != 2 || slices.Contains(leaving, true) {
			t.Errorf("left %d times, and asked while leaving: %v; want twice, and never", len(s.unsure), leaving)
		}
	})
}

// TestGateOfASilentPlace: a place that has not answered is told of a gate too, which is whole.
func TestGateOfASilentPlace(t *testing.T) {
	s := &store{records: []backend.Record{
		{Place: "a"}, {Place: "b", Version: backend.UnknownVersion},
	}}
	g := backend.Gate{
		Move: "m", Scope: backend.Scope{{Match: "x"}}, State: backend.GateOpen, Epoch: 5, Torn: true,
	}
	d := core.Of(s).(*core.Mover)
	want(t, "set", d.SetGate(t.Context(), g, 0), nil)
	s.records[1] = backend.Record{Place: "b", Version: backend.UnknownVersion}
	g.Epoch++
	want(t, "change", d.SetGate(t.Context(), g, g.Epoch-1), nil)
	for _, r := range s.records {
		var got backend.Gate
		if err := json.Unmarshal(r.Data, &got); err != nil || got.Move != "m" || got.Torn || got.Epoch != g.Epoch {
			t.Errorf("place %s has %s (%v), want the later gate, not torn", r.Place, r.Data, err)
		}
	}
}

// TestSlowAskIsNoOutage: nor is a store that is slow to answer the claim itself.
func TestSlowAskIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(ctx context.Context, cs []*backend.Claim) {
			if time.Since(began) > 3*core.Patience {
				grants(ctx, cs)
				return
			}
			<-ctx.Done()
			cs[0].Err = backend.Silence(time.Millisecond)
		}
		_, err := core.Of(s).Acquire(t.Context(), request("n", true))
		want(t, "acquire", err, nil)
	})
}

// Who waits or tries in vain until ctx ends, for a store that says nothing, learns that it is not there: a deadline
// that is no shorter than a healthy store needs is no word of "held".
func TestContextEndsInSilence(t *testing.T) {
	for _, wait := range []bool{true, false} {
		for _, most := range []time.Duration{900 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second} {
			bubble(t, func(t *testing.T) {
				d := core.Of(&store{calls: backend.Calls{Most: 1}, ask: hangs})
				ctx, cancel := context.WithTimeout(t.Context(), most)
				defer cancel()
				_, err := d.Acquire(ctx, request("n", wait))
				want(t, "acquire", err, context.DeadlineExceeded)
				want(t, "acquire", err, backend.ErrUnavailable)
				if errors.Is(err, backend.ErrLocked) {
					t.Errorf("got %v, and nobody said that it is held", err)
				}
			})
		}
	}
	bubble(t, func(t *testing.T) { // it may be slow
		d := core.Of(&store{calls: backend.Calls{Most: 1}, ask: hangs})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := d.Acquire(ctx, request("n", true)); errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("got %v after 100ms", err)
		}
	})
}

// The outage that a waiter rides out is known, until it has an answer or has ended.
func TestOutageOfAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		s := &store{calls: backend.Calls{Most: 1}}
		s.ask = func(_ context.Context, cs []*backend.Claim) {
			if cs[0].Err = backend.ErrLocked; down.Load() {
				cs[0].Err = errBroken
			}
			cs[0].Queued, cs[0].Next = !down.Load(), time.Second
		}
		d := core.Of(s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.Acquire(ctx, request("n", true))
		}()
		time.Sleep(time.Second)
		want(t, "in the outage", d.Outage("n"), errBroken)
		want(t, "of another name", d.Outage("m"), nil)
		down.Store(false)
		time.Sleep(2 * time.Second)
		want(t, "after an answer", d.Outage("n"), nil)
		down.Store(true)
		time.Sleep(3 * time.Second)
		want(t, "in the next one", d.Outage("n"), errBroken)
		cancel()
		<-done
		want(t, "after its end", d.Outage("n"), nil)
	})
}
