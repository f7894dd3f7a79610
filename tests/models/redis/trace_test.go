package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	driver "github.com/fencelock/fencelock/redis"
)

// The model and the code are one: what the scripts answer on a real server, and what they leave
// there, is what some run of the model has. Random runs of three claims, with their asks, pushes,
// renewals and releases and one change of the gates; no time passes, and nothing is lost.
func TestTraces(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	runs, steps, slow := 300, 0, 0
	defer func() { t.Logf("%d steps, %d grants by a push, %d runs in which time passed", steps, r.pushed, slow) }()
	if testing.Short() {
		runs = 60
	}
	for seed := range runs {
		n, err := r.run(t, Config{Gate: true, Asks: 40}, uint64(seed))
		steps += n
		switch {
		case errors.Is(err, errSlow):
			slow++
		case err != nil:
			t.Fatalf("seed %d, %v", seed, err)
		}
	}
	if r.pushed == 0 || slow > runs/10 {
		t.Error("want a grant by a push, and one run in ten at most in which time passed")
	}
}

// errSlow: the machine stood still for so long that a claim which nobody confirmed may be over, 2 s.
var errSlow = errors.New("time passed")

// errStranger: the code has done what the model does not.
var errStranger = errors.New("no run of the model has this")

// A model that is not the code is told apart from it.
func TestTracesOfAnotherModel(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	for what, c := range map[string]Config{
		"a grant by release compares no gates": {Gate: true, Asks: 40, NoGates: true},
		"the gates never change":               {Asks: 40},
		"a client asks once":                   {Gate: true, Asks: 1},
	} {
		var err error
		for seed := uint64(0); err == nil; seed++ {
			if seed == 300 {
				t.Fatalf("%s: 300 runs are those of the code", what)
			}
			if _, err = r.run(t, c, seed); errors.Is(err, errSlow) {
				err = nil
			}
		}
		if !errors.Is(err, errStranger) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// real is a server, and a client of it for each claim.
type real struct {
	server *goredis.Client
	ds     [clients]backend.Driver
	gates  core.Gater
	runs   int
	pushed int // grants by a push
}

func newReal(t *testing.T) *real {
	s := servers.Redis(t, servers.RedisOptions{})
	r := &real{server: goredis.NewClient(&goredis.Options{Addr: s.Addr()})}
	t.Cleanup(func() { _ = r.server.Close() })
	for i := range r.ds {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		d, err := driver.New(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		r.ds[i] = d
	}
	r.gates = core.Of(r.ds[0]).(core.Gater)
	return r
}

// trace is one run: the real claims, and the states of the model in which they may be.
type trace struct {
	*real
	m      *machine
	name   string
	cs     [clients]*backend.Claim
	phases [clients]uint8
	states map[state]bool
	wakers [clients]waker
	did    []string
}

// waker hears that a claim is to look again, of which the run waits for a push only.
type waker chan struct{}

func (w waker) Wake(in time.Duration) {
	if in > 0 {
		return
	}
	select {
	case w <- struct{}{}:
	default:
	}
}

// run makes random steps until two claims are over, and follows them in the model.
func (r *real) run(t *testing.T, c Config, seed uint64) (steps int, err error) {
	r.runs++
	tr := &trace{
		real: r, m: &machine{Config: c, named: true}, name: fmt.Sprint("trace-", r.runs),
		phases: [clients]uint8{holding}, states: map[state]bool{first(): true},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range tr.cs {
		tr.wakers[i] = make(waker, 1)
		tr.cs[i] = &backend.Claim{
			Request: &backend.Request{
				Name: tr.name, Nonce: strings.Repeat(fmt.Sprintf("%04x%04x", r.runs, i), 4), Owner: "o",
				TTL: time.Minute, Wait: true, Auto: true, Lost: func(error) {},
			},
			Waker: tr.wakers[i],
		}
		if err := r.ds[i].Enter(ctx, tr.cs[i]); err != nil {
			t.Fatal(err)
		}
	}
	defer tr.clear(t)
	random := rand.New(rand.NewPCG(seed, 1))
	for n := 0; ; n++ { // the first holder's asks; with the second one it knows the gates of earlier runs
		r.ds[0].Ask(ctx, tr.cs[:1])
		if tr.cs[0].Err == nil {
			break
		}
		if !errors.Is(tr.cs[0].Err, backend.ErrGates) || n == 3 {
			t.Fatal(tr.cs[0].Err)
		}
	}
	tr.cs[0].Held = true
	for _, c := range tr.cs {
		c.Gates = tr.cs[0].Gates
	}
	changed, began := false, time.Now()
	for steps = 0; steps < 30 && tr.over() < 2; steps++ {
		i := random.IntN(clients)
		switch tr.phases[i] {
		case asking:
			err = tr.ask(ctx, i)
		case holding:
			if random.IntN(2) == 0 {
				err = tr.renew(ctx, i)
			} else {
				err = tr.release(ctx, i, random.IntN(2) == 0)
			}
		}
		if err == nil && !changed && random.IntN(6) == 0 {
			changed = true
			tr.change(t)
			err = tr.step("the gates change", whatever, false, "the gates change")
		}
		switch {
		case time.Since(began) > time.Second:
			return steps, errSlow
		case err != nil:
			return steps, fmt.Errorf("%w after:\n\t%s", err, strings.Join(tr.did, "\n\t"))
		}
	}
	return steps, nil
}

func (tr *trace) over() (n int) {
	for _, p := range tr.phases {
		if p == over {
			n++
		}
	}
	return n
}

// change makes the gates others than before. They are about no name of a run.
func (tr *trace) change(t *testing.T) {
	g := backend.Gate{
		Move: tr.name, Scope: backend.Scope{{Match: "other/*"}}, State: backend.GateBoth, Epoch: time.Now().UnixMicro(),
	}
	if err := tr.gates.SetGate(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
}

// clear ends what is left of a run.
func (tr *trace) clear(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	for i, c := range tr.cs {
		if tr.phases[i] == over {
			continue
		}
		c.Leaving = true
		tr.ds[i].Ask(ctx, []*backend.Claim{c})
	}
}

func (tr *trace) ask(ctx context.Context, i int) error {
	c := tr.cs[i]
	c.Err, c.Queued, c.Next = nil, false, 0
	tr.ds[i].Ask(ctx, []*backend.Claim{c})
	who, phase := 'A'+rune(i), asking
	switch {
	case c.Err == nil:
		c.Held, phase = true, holding
		tr.phases[i] = holding
		if c.Short > 0 {
			tr.pushed++
		}
	case !errors.Is(c.Err, backend.ErrLocked) && !errors.Is(c.Err, backend.ErrGates):
		return c.Err
	}
	fits := func(s state) bool {
		m := &s.clients[i]
		return m.phase == phase && (phase == holding || !m.waits &&
			(m.answered == m.asks) == errors.Is(c.Err, backend.ErrLocked))
	}
	return tr.step(fmt.Sprintf("%c asks: %v", who, c.Err), fits, c.Err == nil && c.Short > 0,
		fmt.Sprintf("%c asks", who), fmt.Sprintf("the server has %c's ask", who), fmt.Sprintf("%c has its answer", who))
}

func (tr *trace) renew(ctx context.Context, i int) error {
	err := tr.ds[i].Keep(ctx, tr.cs[i:i+1], true)[0]
	if err != nil {
		return fmt.Errorf("renewal of %c: %w", 'A'+i, err) // the model has the server agree, for the time stands still
	}
	return tr.step(fmt.Sprintf("%c renews", 'A'+i), whatever, false)
}

// whatever is for what tells nothing of the claims.
func whatever(state) bool { return true }

// release releases a claim, and may wait until the one that has the lock next was pushed that.
func (tr *trace) release(ctx context.Context, i int, wait bool) error {
	c := tr.cs[i]
	c.Leaving = true
	tr.ds[i].Ask(ctx, []*backend.Claim{c})
	if c.Err != nil {
		return c.Err
	}
	tr.phases[i] = over
	who := 'A' + rune(i)
	unlocks, gone := fmt.Sprintf("%c unlocks", who), fmt.Sprintf("%c's release", who)
	fits := func(s state) bool { return s.clients[i].phase == over && !s.clients[i].release }
	err := tr.step(unlocks, fits, false, unlocks, gone)
	seen, _ := tr.look()
	if err != nil || !wait || seen.holder < 0 || tr.phases[seen.holder] != asking {
		return err
	}
	select {
	case <-tr.wakers[seen.holder]:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no push to %c: %w", 'A'+rune(seen.holder), ctx.Err())
	}
}

// step is what was done for real. The model does it by these actions, in this order, with pushes
// that are heard between them; or, if pushed, by such a push alone. What was answered has to fit,
// and what the server has.
func (tr *trace) step(did string, fits func(state) bool, pushed bool, actions ...string) error {
	tr.did = append(tr.did, did)
	now := tr.heard(tr.states)
	if pushed {
		actions = nil
	}
	for _, a := range actions {
		after := map[state]bool{}
		for s := range now {
			for _, st := range tr.m.Steps(&s) {
				if strings.Contains(st.Action, a) {
					after[st.Next] = true
				}
			}
		}
		now = tr.heard(after)
	}
	seen, err := tr.look()
	if err != nil {
		return err
	}
	tr.did = append(tr.did, fmt.Sprintf("    %+v", seen))
	maps.DeleteFunc(now, func(s state, _ bool) bool { return !fits(s) || !seen.is(&s) })
	if tr.states = now; len(now) == 0 {
		return errStranger
	}
	return nil
}

// heard adds the states that come by pushes that are heard.
func (tr *trace) heard(states map[state]bool) map[state]bool {
	all := maps.Clone(states)
	for list := slices.Collect(maps.Keys(states)); len(list) > 0; list = list[1:] {
		for _, st := range tr.m.Steps(&list[0]) {
			if strings.HasSuffix(st.Action, "hears a push") && !all[st.Next] {
				all[st.Next] = true
				list = append(list, st.Next)
			}
		}
	}
	return all
}

// sight is what the server has.
type sight struct {
	holder int8
	sure   bool
	queued [clients]uint8
}

func (w sight) is(s *state) bool {
	return w.holder == s.holder && w.queued == s.queued && (w.holder < 0 || w.sure == s.sure)
}

func (tr *trace) look() (w sight, err error) {
	lock := backend.DefaultPrefix + tr.name
	value, err := tr.server.Get(context.Background(), lock).Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return w, err
	}
	w.holder, w.sure = -1, !strings.HasSuffix(value, "\x00")
	keys, err := tr.server.Keys(context.Background(), "fl\x00*m"+lock).Result()
	if err != nil {
		return w, err
	}
	waiters := map[string]string{}
	for _, k := range keys {
		if waiters, err = tr.server.HGetAll(context.Background(), k).Result(); err != nil {
			return w, err
		}
	}
	for i, c := range tr.cs {
		if strings.HasPrefix(value, c.Nonce+":") {
			w.holder = int8(i)
		}
		if said := strings.Fields(waiters[c.Nonce]); len(said) > 2 { // until process said owner
			ask, _, _ := strings.Cut(said[2], "/")
			n, err := strconv.Atoi(ask)
			if err != nil {
				return w, fmt.Errorf("the waiter has said %q", said[2])
			}
			w.queued[i] = uint8(n)
		}
	}
	return w, nil
}
