package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// basics is group A.
var basics = []Rule{
	{Name: "A1", What: "one holder per name", Why: "Two holders is what a lock is there to prevent.", Check: oneHolder},
	{
		Name: "A2", What: "different names are independent",
		Why:   "A lock that blocks strangers stops programs that have nothing to do with each other.",
		Check: independentNames,
	},
	{
		Name: "A3", What: "lock and unlock ten times in a row",
		Why:   "State that a release leaves behind shows in the next acquire.",
		Check: tenTimes,
	},
	{
		Name: "A4", What: "re-entry: ErrDeadlock, or another lease on the same hold",
		Why:   "A call that waits for its own caller never ends.",
		Check: reentry,
	},
	{
		Name: "A5", What: "TryLock on a held name answers at once",
		Why:   "A try that waits for the holder is no try.",
		modes: true, Check: promptTry,
	},
	{
		Name: "A6", What: "a wait ends with its ctx and says why",
		Why:   "A caller with a deadline must get its time back, and tell a busy lock from a broken store.",
		modes: true, Check: boundedWait,
	},
	{
		Name: "A7", What: "a ctx that is done sends nothing and leaves nothing",
		Why:   "A request of a caller that has gone can only do harm.",
		Needs: Needs{Link: true}, Check: doneCtx,
	},
	{
		Name:  "A8",
		What:  "a cancelled waiter leaves the queue, wherever it stands, and the others go on",
		Why:   "A place that nobody stands in blocks everybody behind it.",
		Check: cancelledWaiter,
	},
	{
		Name: "A9", What: "bad arguments fail before any request",
		Why:   "A name that one store refuses and another cuts short is two different locks.",
		Needs: Needs{Link: true}, Check: badArguments,
	},
	{
		Name: "A10", What: "hostile names work and never meet",
		Why:   "Two names that meet lock each other out; a name that is refused on one store cannot move to it.",
		Check: hostileNames,
	},
	{
		Name: "A11", What: "many contenders count exactly",
		Why:   "The plainest proof of exclusion is a counter that needs it.",
		Check: exactCounter,
	},
	{
		Name: "A12", What: "prefixes isolate",
		Why:   "Two programs that share a store must not share locks by accident.",
		Check: prefixesIsolate,
	},
	{
		Name: "A13", What: "a dead lock is taken by TryLock too",
		Why:   "A program that only tries would find the lock taken for ever.",
		Needs: Needs{Link: true}, modes: true, Check: deadLockByTry,
	},
}

func oneHolder(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	check(held(ctx, b, name, "held by the first client"))
	check(held(ctx, a, name, "held by the same client"))
	if le.Token() <= 0 && e.traits.Fencing != backend.NoFencing {
		return fmt.Errorf("token: got %d, want a positive one", le.Token())
	}
	check(live(le, "a lease that was just granted"))
	check(unlock(ctx, le, "the first client"))
	le = must(try(ctx, b, name, "after the unlock"))
	return unlock(ctx, le, "the second client")
}

func independentNames(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	for _, l := range []*fencelock.Locker{a, b, a, b} {
		le := must(try(ctx, l, e.Name(), "a name of its own"))
		defer func() { _ = le.Unlock(ctx) }()
	}
	return nil
}

func tenTimes(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	for i := range 10 {
		must(cycle(ctx, a, name, fmt.Sprintf("round %d", i+1)))
	}
	_, err := cycle(ctx, b, name, "another client after ten rounds")
	return err
}

func reentry(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	inside, cancel := le.Context(ctx)
	defer cancel()
	least := time.Hour // of several, as for A5
	for range 3 {
		began := time.Now()
		_, err := a.Mutex(name).Lock(inside)
		check(want(err, fencelock.ErrDeadlock, "Lock inside"))
		least = min(least, time.Since(began))
	}
	if least > e.Slack() {
		return fmt.Errorf("ErrDeadlock took at least %v, want at once", least)
	}
	again, err := a.Mutex(name, fencelock.WithReentrancy()).Lock(inside)
	if err != nil {
		return fmt.Errorf("Lock inside with re-entry: got %w, want a lease", err)
	}
	if again.Token() != le.Token() {
		return fmt.Errorf("token of the second lease: got %d, want %d", again.Token(), le.Token())
	}
	check(unlock(ctx, le, "the first lease"))
	check(held(ctx, b, name, "one of two leases unlocked"))
	check(unlock(ctx, again, "the second lease"))
	check(want(again.Unlock(ctx), fencelock.ErrReleased, "Unlock once more"))
	_, err = try(ctx, b, name, "both unlocked")
	return err
}

func promptTry(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	must(try(ctx, a, name, "a free lock"))
	least := time.Hour // of several, because a busy machine adds time to some
	for range 5 {
		_, try := methods(e.mode, b, name)
		began := time.Now()
		check(refused(ctx, try, "held"))
		least = min(least, time.Since(began))
	}
	if least > e.Slack() {
		return fmt.Errorf("TryLock on a held name took at least %v, want at most %v", least, e.Slack())
	}
	return nil
}

func boundedWait(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	must(try(ctx, a, name, "a free lock"))
	why := errors.New("the caller's own reason")
	const bound = time.Second
	least := time.Hour // of several, as for A5
	for range 3 {
		began := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, bound, why)
		lock, _ := methods(e.mode, b, name)
		_, err := lock(limited)
		took := time.Since(began)
		cancel()
		for _, target := range []error{context.DeadlineExceeded, why, fencelock.ErrLocked} {
			check(want(err, target, "a wait whose ctx ended"))
		}
		if took < bound {
			return fmt.Errorf("a wait bounded by %v ended after %v", bound, took)
		}
		least = min(least, took)
	}
	if least > bound+350*time.Millisecond {
		return fmt.Errorf("a wait bounded by %v took at least %v, want at most 350ms more", bound, least)
	}
	return nil
}

func doneCtx(ctx context.Context, e *Env) error {
	l, link := must2(e.OpenThrough(ctx))
	name := e.Name()
	must(cycle(ctx, l, name, "before"))
	done, cancel := context.WithCancel(ctx)
	cancel()
	before := settled(ctx, link)
	for range 2 * idle {
		for _, lock := range []locks{l.Mutex(name).Lock, l.Mutex(name).TryLock} {
			_, err := lock(done)
			check(want(err, context.Canceled, "with a ctx that is done"))
		}
	}
	check(e.quiet(ctx, link, before, e.TTL()/4))
	_, err := try(ctx, l, name, "afterwards")
	return err
}

// idle is how many requests a connection to one store may send by itself in a short time, such as pings. A rule does
// more often than that what must send nothing.
const idle = 4

// settled waits until earlier calls have no request under way, and returns how many requests there were by then.
func settled(ctx context.Context, link Link) int64 {
	before := link.Counts().Requests
	for range 40 {
		check(sleep(ctx, 50*time.Millisecond))
		now := link.Counts().Requests
		if now == before {
			break
		}
		before = now
	}
	return before
}

// quiet returns an error if more than the upkeep of the connections was sent since before.
func (e *Env) quiet(ctx context.Context, link Link, before int64, d time.Duration) error {
	check(sleep(ctx, d))
	if sent := link.Counts().Requests - before; sent > idle*int64(max(e.h.Stores, 1)) {
		return fmt.Errorf("requests sent: got %d, want none but the connections' upkeep", sent)
	}
	return nil
}

func cancelledWaiter(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	const n = 5
	var line [n]<-chan result
	var giveUp [n]context.CancelFunc
	for i := range line {
		l := must(e.Open(ctx))
		impatient, cancel := context.WithCancel(ctx)
		defer cancel()
		lock, _ := methods(e.modes()[i%len(e.modes())], l, name) // each of those that give up is of another mode
		line[i], giveUp[i] = calling(impatient, lock), cancel
		check(waiting(ctx, a, name, i+1))
	}
	left := n
	for _, i := range []int{0, n / 2, n - 1} { // the first, one in the middle, the last
		left--
		who := fmt.Sprintf("the cancelled waiter %d of %d", i+1, n)
		giveUp[i]()
		r, in, err := comes(ctx, line[i], time.Second)
		switch {
		case err != nil:
			return err
		case !in:
			return fmt.Errorf("%s has not come back within 1s", who)
		}
		check(want(r.err, context.Canceled, who))
		check(until(ctx, time.Second+e.Slack(), who+" has left the queue", func() (bool, error) {
			info, err := a.Inspect(ctx, name)
			return info.Waiters <= left, err
		}))
	}
	check(unlock(ctx, le, "the holder"))
	rest := merged(line[1], line[3])
	for i := range left {
		who := fmt.Sprintf("waiter %d of the %d that are left", i+1, left)
		check(turn(ctx, rest, time.Second+e.Slack()+e.traits.DeadWaiter, who))
	}
	return nil
}

func badArguments(ctx context.Context, e *Env) error {
	l, link := must2(e.OpenThrough(ctx))
	must(cycle(ctx, l, e.Name(), "before"))
	before := settled(ctx, link)
	for _, bad := range []fencelock.Mutex{
		l.Mutex(""), l.Mutex("a\x00b"), l.Mutex("\xff"), l.Mutex(strings.Repeat("x", 513)),
		l.Mutex("n", fencelock.WithTTL(-1)), l.Mutex("n", fencelock.WithTTL(1)),
		l.Mutex("n", fencelock.WithMaxHold(-1)),
		l.Mutex("n", fencelock.WithOwner("\x00")),
	} {
		for range idle {
			for _, lock := range []locks{bad.Lock, bad.TryLock} {
				_, err := lock(ctx)
				check(want(err, fencelock.ErrInvalid, fmt.Sprintf("name %.20q", bad.Name())))
			}
		}
	}
	return e.quiet(ctx, link, before, 50*time.Millisecond)
}

func exactCounter(ctx context.Context, e *Env) error {
	const clients, contenders = 4, 100
	name := e.Name()
	var counter, inside atomic.Int64 // loads and stores, no Add: an update can be lost
	ls := e.several(ctx, clients)
	check(together(contenders, func(i int) error {
		return ls[i%clients].Do(ctx, name, func(ctx context.Context, _ *fencelock.Lease) error {
			if n := inside.Add(1); n != 1 {
				return fmt.Errorf("%d holders at once", n)
			}
			defer inside.Add(-1)
			read := counter.Load()
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
			counter.Store(read + 1)
			return nil
		})
	}))
	if got := counter.Load(); got != contenders {
		return fmt.Errorf("counter: got %d, want %d", got, contenders)
	}
	return nil
}

func deadLockByTry(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, e.short()))
	b := must(e.Open(ctx))
	name := e.Name()
	must(e.try(ctx, a, name, "a free lock"))
	link.Set(blackHole) // the holder is never heard of again
	began := time.Now()
	err := until(ctx, 2*e.TTL()+e.Slack(), "a TryLock takes the dead lock", freeFor(ctx, b, name))
	e.Notef("taken by TryLock %v after the holder went silent (TTL %v)",
		time.Since(began).Round(time.Millisecond), e.TTL())
	return err
}

// hostile are names that some store's naming cannot take as they are.
func hostile() []string {
	return []string{
		"a", "a/b", "a/b/", "a//b", "/a", "/", "//", "A", "a ", " a", " ", ".", "..", "../a", "a/../b", "a/./b",
		"{}", "{a}", "{a}b", "}{", "a{", "%", "%2F", "a%2Fb", "a:b", ":", "*", "?", "[a]", "\\",
		"\"", "'", "$", "\n", "\t", "\x01", "\x7f",
		"é", "e\u0301", "名前", "\U0001F512", "\u202e", "fl", "-", "--", "_c_", "lock-0000000001",
		strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("x", 511), strings.Repeat("é", 256),
	}
}

func hostileNames(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx, fencelock.WithOwner("who: \"ä\"\n%41\\\x01")))
	b := must(e.Open(ctx))
	leases := map[string]*fencelock.Lease{}
	modes := e.modes()
	for i, name := range hostile() {
		_, try := methods(modes[i%len(modes)], a, name)
		leases[name] = must(take(ctx, try, fmt.Sprintf("name %.40q (with %d others held)", name, i)))
	}
	for _, pattern := range []string{"*b", "?", "[b]", "_", "%b", ".*"} {
		check(want(b.Break(ctx, "a"+pattern), nil, "Break of a free name"))
	}
	for _, prefix := range []string{"", "a", "*", "?", "[a]", "%", "_", "\\", "é"} {
		check(listed(ctx, b, prefix, leases))
	}
	for name, le := range leases {
		check(held(ctx, b, name, fmt.Sprintf("name %.40q", name)))
		check(shown(ctx, b, le, "while it is held"))
		check(unlock(ctx, le, fmt.Sprintf("name %.40q", name)))
		if info, err := b.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("Inspect of %.40q after Unlock: got %+v, %v; want it free", name, info, err)
		}
	}
	return nil
}

// listed checks that List names each lease whose name begins with prefix once, and no others.
func listed(ctx context.Context, l *fencelock.Locker, prefix string, leases map[string]*fencelock.Lease) error {
	got := map[string]bool{}
	for info, err := range l.List(ctx, prefix) {
		check(want(err, nil, fmt.Sprintf("List of %q", prefix)))
		if leases[info.Name] == nil || !strings.HasPrefix(info.Name, prefix) {
			return fmt.Errorf("List of %q names %.40q", prefix, info.Name)
		}
		if got[info.Name] {
			return fmt.Errorf("List of %q names %.40q twice", prefix, info.Name)
		}
		got[info.Name] = true
	}
	for name := range leases {
		if !got[name] && strings.HasPrefix(name, prefix) {
			return fmt.Errorf("List of %q does not name %.40q", prefix, name)
		}
	}
	return nil
}

func prefixesIsolate(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	b := must(e.open(ctx, Client{Prefix: e.prefix + "other:"}))
	name := e.Name()
	one := must(try(ctx, a, name, "the first prefix"))
	two := must(try(ctx, b, name, "the second prefix"))
	for info, err := range b.List(ctx, "") {
		if err != nil || info.Name != name {
			return fmt.Errorf("List under the second prefix: got %q, %v; want %q only", info.Name, err, name)
		}
	}
	return errors.Join(unlock(ctx, one, "the first prefix"), unlock(ctx, two, "the second prefix"))
}
