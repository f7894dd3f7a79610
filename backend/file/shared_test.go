package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// reading and permit make a request another one.
func reading(r *backend.Request) *backend.Request {
	r.Mode = backend.Reader
	return r
}

func permit(n int, r *backend.Request) *backend.Request {
	r.Mode, r.Limit = backend.Permit, n
	return r
}

// wantEmpty requires that nothing is left of a bucket's locks.
func wantEmpty(t testing.TB, d caller, name string) {
	t.Helper()
	raw, err := os.ReadFile(d.store.bucket(name).path)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"\nlock ", "\nera ", "\nholder ", "\nwaiter "} {
		if strings.Contains(string(raw), kind) {
			t.Errorf("the state is not empty:\n%s", raw)
			return
		}
	}
}

func TestReadersHaveOneToken(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		w := take(t, a, try("x", time.Minute))
		release(t, a, w)
		one, two := take(t, a, reading(try("x", time.Minute))), take(t, b, reading(try("x", time.Minute)))
		if one.Token <= w.Token || one.Token != two.Token {
			t.Errorf("tokens: got %d and %d after a writer's %d", one.Token, two.Token, w.Token)
		}
		r := reading(try("x", time.Minute))
		r.Floor, r.Reserve = one.Token, 5
		three := take(t, a, r)
		if three.Token <= one.Token || three.Reserved != 0 {
			t.Errorf("over a floor: got %d and %d reserved after %d", three.Token, three.Reserved, one.Token)
		}
		release(t, a, three)
		four := take(t, b, reading(try("x", time.Minute)))
		if four.Token != three.Token {
			t.Errorf("a later reader: got %d, want the last one's %d", four.Token, three.Token)
		}
		if i := inspect(t, a, "x"); i.Mode != backend.Reader || i.Holders != 3 ||
			i.Token != four.Token || i.Owner != "" {
			t.Errorf("Inspect: got %+v", i)
		}
		for _, h := range []*core.Hold{one, two, four} {
			_, err := a.Acquire(t.Context(), try("x", time.Minute))
			wantErr(t, "a writer beside readers", err, backend.ErrLocked)
			release(t, a, h)
		}
		wantEmpty(t, a, "x")
		five := take(t, a, reading(try("x", time.Minute)))
		if five.Token <= four.Token {
			t.Errorf("another group of readers: got %d after %d", five.Token, four.Token)
		}
	})
}

func TestSharedHoldsExpireAlone(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		short, long := take(t, a, permit(2, try("x", time.Second))), take(t, b, permit(2, try("x", 3*time.Second)))
		if short.Slot != 0 || long.Slot != 1 {
			t.Errorf("slots: got %d and %d, want 0 and 1", short.Slot, long.Slot)
		}
		began := time.Now()
		third := later(t.Context(), b, permit(2, wait("x", time.Minute)))
		time.Sleep(900 * time.Millisecond)
		if err := b.Renew(t.Context(), []*core.Hold{long})[0]; err != nil {
			t.Fatal(err)
		}
		g := <-third
		took := time.Since(began)
		if g.err != nil || took < time.Second || took > 1200*time.Millisecond || g.h.Slot != 0 {
			t.Fatalf("got %+v, %v after %v, want slot 0 after 1 s", g.h.Grant, g.err, took)
		}
		errs := a.Renew(t.Context(), []*core.Hold{short, g.h, long})
		wantErr(t, "Renew of the one that expired", errs[0], backend.ErrLost)
		wantErr(t, "Renew of the others", errors.Join(errs[1:]...), nil)
		wantErr(t, "Release of the one that expired", a.Release(t.Context(), short), backend.ErrLost)
		release(t, b, g.h)
		release(t, b, g.h)
		release(t, b, long)
		wantEmpty(t, a, "x")
	})
}

// A ghost at the head, and whatever lets it in or not, delays those behind it for no longer than promised.
func TestDeadSharedWaiter(t *testing.T) {
	limit := backend.TraitsOf("file").DeadWaiter
	readers := func(r *backend.Request) *backend.Request { return reading(r) }
	writer := func(r *backend.Request) *backend.Request { return r }
	ofTwo := func(r *backend.Request) *backend.Request { return permit(2, r) }
	ofThree := func(r *backend.Request) *backend.Request { return permit(3, r) }
	for _, c := range []struct {
		name              string
		holds, dead, next func(r *backend.Request) *backend.Request
		releases          bool
	}{
		{"a writer before readers", readers, writer, readers, false},
		{"a writer before readers, and all leave", readers, writer, readers, true},
		{"a reader before permits", ofTwo, readers, ofTwo, true},
		{"a permit before permits", ofTwo, ofTwo, ofTwo, true},
		{"a permit of two before one of three", ofThree, ofTwo, ofThree, false},
		{"a reader before a writer", writer, readers, writer, true},
		{"a permit before a writer", ofTwo, ofTwo, writer, true},
	} {
		for _, expires := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", expiry ", expires), func(t *testing.T) {
				bubble(t, func(t *testing.T, a, b caller) {
					holds := []*core.Hold{take(t, a, c.holds(try("x", 10*time.Second)))}
					for h := c.holds(try("x", 10*time.Second)); len(holds) < 2 && h.Mode != backend.Exclusive; {
						holds = append(holds, take(t, a, h))
					}
					r := c.dead(wait("x", time.Minute))
					dead := &backend.Claim{Request: r, Place: ""}
					a.store.Ask(t.Context(), []*backend.Claim{dead})
					wantErr(t, "the ghost", dead.Err, backend.ErrLocked)
					next := later(t.Context(), b, c.next(wait("x", time.Minute)))
					synctest.Wait()
					switch {
					case c.releases && expires:
						time.Sleep(10 * time.Second)
					case c.releases:
						for _, h := range holds {
							release(t, a, h)
						}
					}
					freed := time.Now()
					g := <-next
					if took := time.Since(freed); g.err != nil || took > limit+pollEvery+maxJitter {
						t.Errorf("got %v after %v, want the lock within %v", g.err, took, limit)
					}
				})
			})
		}
	}
}

// maxJitter is what the engine adds to a look.
const maxJitter = pollEvery / 10

// A stopped waiter that comes back while its turn lasts has it, and afterwards if nobody came meanwhile.
func TestKeptForThoseWhoWereCalled(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		one, two := take(t, a, permit(2, try("x", time.Hour))), take(t, a, permit(2, try("x", time.Hour)))
		slow := permit(2, wait("x", time.Hour))
		claim := &backend.Claim{Request: slow, Place: ""}
		a.store.Ask(t.Context(), []*backend.Claim{claim})
		wantErr(t, "the waiter", claim.Err, backend.ErrLocked)
		release(t, a, one)
		_, err := b.Acquire(t.Context(), permit(2, try("x", time.Hour)))
		wantErr(t, "what is kept for another", err, backend.ErrLocked)
		time.Sleep(time.Minute)
		three := take(t, a, slow) // nobody has looked meanwhile
		if three.Slot != 0 || three.Token <= two.Token {
			t.Errorf("got %+v after %+v", three.Grant, two.Grant)
		}
		_, err = b.Acquire(t.Context(), permit(3, try("x", time.Hour)))
		wantErr(t, "one of three beside two of two", err, backend.ErrLocked)
		if again := take(t, a, slow); again.Slot != three.Slot || again.Token != three.Token {
			t.Errorf("sent again: got %+v after %+v", again.Grant, three.Grant)
		}
		if err := b.Break(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "after Break", errors.Join(a.Check(t.Context(), []*core.Hold{two, three})...), backend.ErrLost)
		_, err = a.Acquire(t.Context(), slow)
		wantErr(t, "sent again after Break", err, backend.ErrLost)
		wantEmpty(t, a, "x")
	})
}

// A newcomer may stand beside those who were called, and waits behind those who were not.
func TestNewcomersBesideTheCalled(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		w := take(t, a, try("x", time.Hour))
		for range 3 {
			c := &backend.Claim{Request: reading(wait("x", time.Hour)), Place: ""}
			a.store.Ask(t.Context(), []*backend.Claim{c})
			wantErr(t, "a reader that waits", c.Err, backend.ErrLocked)
		}
		_, err := b.Acquire(t.Context(), reading(try("x", time.Hour)))
		wantErr(t, "a reader beside a writer", err, backend.ErrLocked)
		release(t, a, w)
		r := take(t, b, reading(try("x", time.Hour)))
		_, err = b.Acquire(t.Context(), permit(9, try("x", time.Hour)))
		wantErr(t, "a permit beside a reader", err, backend.ErrLocked)
		release(t, b, r)
		_, err = b.Acquire(t.Context(), try("x", time.Hour))
		wantErr(t, "a writer while the lock is kept for readers", err, backend.ErrLocked)
		time.Sleep(turn)
		take(t, b, try("x", time.Hour))
	})
}

// observer sees what the holders of one name believe.
type observer struct {
	t    *testing.T
	mu   sync.Mutex
	live map[string]*core.Hold
	all  int
	// The greatest tokens so far: of readers, of them and writers, and in each slot.
	era, token backend.Token
	permits    [4]backend.Token
	together   int
}

// began checks a grant against all who trust theirs at this moment.
func (o *observer) began(h *core.Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var there []*backend.Request
	for _, l := range o.live {
		if l.Asked.Elapsed() >= l.TTL {
			continue
		}
		there = append(there, l.Request)
		if l.Slot == h.Slot && h.Mode == backend.Permit {
			o.t.Errorf("two permits have slot %d", h.Slot)
		}
		if h.Mode == backend.Reader && l.Token != h.Token {
			o.t.Errorf("readers have the tokens %d and %d", l.Token, h.Token)
		}
	}
	if !h.Admits(there) {
		o.t.Errorf("a %v of %d was granted beside %d others, the first a %v",
			h.Mode, h.Limit, len(there), there[0].Mode)
	}
	if h.Mode == backend.Permit && h.Slot >= h.Limit || h.Mode != backend.Permit && h.Slot != 0 {
		o.t.Errorf("a %v of %d has slot %d", h.Mode, h.Limit, h.Slot)
		return
	}
	last := o.token // two permits that are granted at once may get here in any order
	for slot, p := range o.permits {
		if h.Mode != backend.Permit || slot == h.Slot {
			last = max(last, p)
		}
	}
	if h.Token < last || h.Token == last && (h.Mode != backend.Reader || last != o.era) {
		o.t.Errorf("a %v has token %d after %d", h.Mode, h.Token, last)
	}
	switch h.Mode {
	case backend.Permit:
		o.permits[h.Slot] = h.Token
	case backend.Reader:
		o.era, o.token = h.Token, h.Token
	default:
		o.token = h.Token
	}
	o.live[h.Nonce] = h
	o.all++
	o.together = max(o.together, len(there)+1)
}

func (o *observer) ends(nonces ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range nonces {
		delete(o.live, n)
	}
}

func (o *observer) nonces() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []string
	for n := range o.live {
		all = append(all, n)
	}
	return all
}

// Claims of all modes come, renew, give up, die and are broken in any order, for some hours of virtual time.
func TestSharedAtRandom(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { atRandom(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func atRandom(t *testing.T, dice *rand.Rand) {
	bubble(t, func(t *testing.T, a, b caller) {
		o := &observer{t: t, live: map[string]*core.Hold{}}
		var all sync.WaitGroup
		for i := range 8 {
			d := []caller{a, b}[i%2]
			mine := rand.New(rand.NewPCG(dice.Uint64(), 2))
			all.Go(func() {
				for range 25 {
					act(t, d, o, mine)
					time.Sleep(time.Duration(mine.IntN(100)) * time.Millisecond)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		w := take(t, a, try("x", time.Minute))
		o.began(w)
		release(t, a, w)
		wantEmpty(t, b, "x")
		if o.all < 50 || o.together < 2 {
			t.Errorf("%d were granted, up to %d at once: the test shows little", o.all, o.together)
		}
	})
}

// act is one acquisition, and what becomes of it.
func act(t *testing.T, d caller, o *observer, dice *rand.Rand) {
	ttl := time.Duration(200+dice.IntN(2000)) * time.Millisecond
	r := wait("x", ttl)
	switch dice.IntN(5) {
	case 0, 1:
		r = reading(r)
	case 2, 3:
		r = permit(2+dice.IntN(3), r)
	}
	r.Wait = dice.IntN(5) > 0
	ctx, cancel := t.Context(), func() {}
	if dice.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(dice.IntN(1000))*time.Millisecond)
	}
	defer cancel()
	if r.Wait && dice.IntN(10) == 0 { // it dies as it waits
		c := &backend.Claim{Request: r, Place: ""}
		if d.store.Ask(t.Context(), []*backend.Claim{c}); c.Err == nil {
			o.began(&core.Hold{Request: r, Grant: c.Grant})
		}
		return
	}
	g, err := d.Acquire(ctx, r)
	h := &core.Hold{Request: r, Grant: g}
	if err != nil {
		if !errors.Is(err, backend.ErrLocked) && ctx.Err() == nil {
			t.Errorf("Acquire: %v", err)
		}
		wantErr(t, "Abandon", d.Abandon(t.Context(), r), nil)
		return
	}
	o.began(h)
	held := time.Duration(dice.Int64N(int64(ttl))) * 3 / 4
	time.Sleep(held / 2)
	if dice.IntN(3) == 0 {
		if err := d.Renew(t.Context(), []*core.Hold{h})[0]; err != nil && !errors.Is(err, backend.ErrLost) {
			t.Errorf("Renew: %v", err)
		}
	}
	time.Sleep(held / 2)
	switch dice.IntN(12) {
	case 0: // it dies
		return
	case 1: // who has believed to hold it learns that it is over before somebody else holds
		o.ends(o.nonces()...)
		wantErr(t, "Break", d.Break(t.Context(), "x"), nil)
		return
	}
	o.ends(r.Nonce)
	if err := d.Release(t.Context(), h); err != nil && !errors.Is(err, backend.ErrLost) {
		t.Errorf("Release: %v", err)
	}
}

// oldWords is how many words stand behind each kind in the format before shared holds, whose programs take a line with
// more, or of another kind, for damage.
var oldWords = map[string]int{
	"fencelock": 4, "boot": 1, "counter": 1, "record": 4, "lock": 3, "holder": 5, "waiter": 3,
	"released": 2, "abandoned": 2, "sum": 1,
}

// oldReads reports whether a program from before shared holds reads a state.
func oldReads(raw []byte) bool {
	holders := 0
	for text := range strings.Lines(string(raw)) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
		switch words, known := oldWords[kind]; {
		case !known, strings.Count(rest, " ")+1 != words:
			return false
		case kind == "lock":
			holders = 0
		case kind == "holder":
			if holders++; holders > 1 {
				return false
			}
		}
	}
	return true
}

func TestOldProgramsRefuseSharedHolds(t *testing.T) {
	bubble(t, func(t *testing.T, a, b caller) {
		reads := func(what string, want bool) {
			t.Helper()
			raw, err := os.ReadFile(a.store.bucket("x").path)
			if err != nil {
				t.Fatal(err)
			}
			if got := oldReads(raw); got != want {
				t.Errorf("%s: an old program reads it: got %v, want %v\n%s", what, got, want, raw)
			}
		}
		w := take(t, a, try("x", time.Minute))
		writer := later(t.Context(), b, wait("x", time.Minute))
		synctest.Wait()
		reads("a writer that another waits for", true)
		ctx, cancel := context.WithCancel(t.Context())
		gone := reading(wait("x", time.Minute))
		reader := later(ctx, b, gone)
		synctest.Wait()
		reads("a reader that waits for writers", false)
		cancel()
		<-reader
		wantErr(t, "Abandon", a.Abandon(t.Context(), gone), nil)
		reads("writers, once it has given up", true)
		release(t, a, w)
		release(t, b, (<-writer).h)
		reads("nobody", true)
		for _, r := range []*backend.Request{reading(try("x", time.Minute)), permit(2, try("x", time.Minute))} {
			h := take(t, a, r)
			reads(r.Mode.String(), false)
			release(t, a, h)
			reads("nobody, after a "+r.Mode.String(), true)
		}
	})
}

// What time and the waiters' turns do to a lock that only exclusive claims want is told as ever.
func TestExclusiveStateIsAsEver(t *testing.T) {
	st := newState("b", 7)
	st.locks[key{"p", "n"}] = &lock{
		freed: 3,
		holds: []holder{{nonce: "h", owner: "o w", token: 5, until: 9, both: "m"}},
		queue: []waiter{{nonce: "w", until: 8, socket: "wake-1.sock"}, {nonce: "v", until: 6}},
	}
	const want = "fencelock state 1 bucket 7\nboot b\ncounter 7\nlock p n 3\nholder h 5 9 m o%20w\n" +
		"waiter w 8 wake-1.sock\nwaiter v 6 \n"
	if got := withoutSum(st); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if !oldReads(seal(st.encode(7), 0)) || slices.Contains(strings.Fields(want), "exclusive") {
		t.Error("an old program does not read it")
	}
}
