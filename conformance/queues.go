package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func noFIFO(t backend.Traits) string {
	if !t.FIFO {
		return "Traits.FIFO is false"
	}
	return ""
}

// queues is group F.
var queues = []Rule{
	{
		Name: "F1", What: "first come, first served",
		Why:   "Without a queue some waiter starves.",
		Trait: noFIFO, Needs: Needs{Waiters: true}, Check: firstCome,
	},
	{
		Name: "F2", What: "a dead waiter does not stop the others, however long its TTL",
		Why:   "A queue that waits for a dead process waits for ever.",
		Needs: Needs{Process: true}, Check: deadWaiter,
	},
	{
		Name: "F3", What: "the next in line dies: the one after it still waits for the holder",
		Why:   "A waiter must not take the death of the one before it for the end of the holder.",
		Needs: Needs{Process: true}, Check: nextInLineDies,
	},
	{
		Name: "F4", What: "a lost wake-up costs a while, not the lock",
		Why:   "Pushes get lost; a waiter that relies on them waits for ever.",
		Needs: Needs{Wire: true}, Check: lostWakeUp,
	},
	{
		Name: "F5", What: "requests per hand-over do not grow with the waiters",
		Why:   "A crowd that is woken for each release is a storm.",
		Needs: Needs{Link: true, Told: true}, Check: constantHandOver,
	},
	{
		Name: "F6", What: "1,000 waiters of a process are one waiter at the store",
		Why:   "A queue entry, a connection or a watch for each goroutine brings a store down.",
		Needs: Needs{Store: true}, Check: thousandWaiters,
	},
	{
		Name: "F7",
		What: "an outage ends all waits of a process: ErrUnavailable 5 to 11 s after it began",
		Why: "A waiter that hears nothing of a dead store waits for ever, and one after the " +
			"other they wait for minutes.",
		Needs: Needs{Wire: true}, Check: outageEndsWaits,
	},
	{
		Name: "F8", What: "a lock that was waited for is kept for its whole TTL, after a Break too",
		Why: "A grant that another's release has made lasts for moments until it is confirmed, " +
			"and nobody renews it so soon.",
		modes: true, Check: waitedForIsKept,
	},
}

func waitedForIsKept(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	b := must(e.Open(ctx, fencelock.WithManualRenew(), fencelock.WithOwner("one who waits")))
	le, line := e.lined(ctx, a, e.Name(), b)
	check(unlock(ctx, le, "the holder"))
	leases := []*fencelock.Lease{must(granted(ctx, line[0], 2*time.Second+e.Slack(), "the waiter")).lease}
	if e.h.Link != nil { // and of a holder that is never heard of again, by the operator
		dead, link := must2(e.OpenThrough(ctx, fencelock.WithManualRenew()))
		le, line := e.lined(ctx, dead, e.Name(), b)
		link.Set(blackHole)
		check(want(a.Break(ctx, le.Name()), nil, "Break"))
		r := must(granted(ctx, line[0], 2*time.Second+e.Slack(), "the waiter after a Break"))
		leases = append(leases, r.lease)
	}
	check(sleep(ctx, 5*time.Second)) // longer than any claim
	for _, le := range leases {
		check(held(ctx, a, le.Name(), "5 s after a grant that was waited for, with a TTL of 30 s"))
		check(shown(ctx, a, le, "after a grant that was waited for"))
		check(unlock(ctx, le, "the waiter, within its TTL"))
	}
	return nil
}

// skipped is how long it may take until a waiter behind a dead one is granted the lock, the hand-over included.
func (e *Env) skipped() time.Duration {
	return min(e.traits.DeadWaiter, 5*time.Second) + time.Second + e.Slack()
}

// startWaiter makes a second process wait for a name, as the n-th.
func (e *Env) startWaiter(ctx context.Context, look *fencelock.Locker, name string, ttl time.Duration, n int) *Process {
	p := must(e.Process(ctx))
	answer := p.Send("lock", name, ttl.String(), "0s")
	err := waiting(ctx, look, name, n)
	select {
	case text := <-answer:
		err = errors.Join(fmt.Errorf("the second process: lock: %s", text), err)
	default:
	}
	check(err)
	return p
}

func deadWaiter(ctx context.Context, e *Env) error {
	const long = time.Minute // what is promised does not grow with the TTL of the dead
	a := must(e.Open(ctx, fencelock.WithTTL(10*e.TTL())))
	for _, way := range []struct {
		how string
		ttl time.Duration
		end func(*Process) error
	}{
		{"killed", e.TTL(), func(p *Process) error { p.Kill(); return nil }},
		{"killed", long, func(p *Process) error { p.Kill(); return nil }},
		{"stopped", e.TTL(), (*Process).Stop},
		{"stopped", long, (*Process).Stop},
	} {
		if way.how == "stopped" && !canStop {
			break
		}
		who := fmt.Sprintf("the waiter behind a %s one with a TTL of %v", way.how, way.ttl)
		// A process that dies as it confirms its grant is a dead holder: the trial shows nothing. Three in a row are a
		// store that keeps the lock for dead waiters.
		for trial := 1; ; trial++ {
			took, err := e.behindDeadWaiter(ctx, a, way.ttl, way.end, who)
			if errors.Is(err, errDiedAsHolder) && trial < 3 {
				continue
			}
			if err != nil {
				return err
			}
			e.Notef("%s: granted after %v", who, took.Round(time.Millisecond))
			break
		}
	}
	return nil
}

// errDiedAsHolder is matched by the error of a trial in which the dead process holds the lock for its whole TTL.
var errDiedAsHolder = errors.New("the dead process holds it for its whole TTL")

// behindDeadWaiter ends a process that waits behind a, and returns how long the one behind it waited after the release.
func (e *Env) behindDeadWaiter(
	ctx context.Context, a *fencelock.Locker, ttl time.Duration, end func(*Process) error,
	who string,
) (time.Duration, error) {
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	p := e.startWaiter(ctx, a, name, ttl, 1)
	behind := locking(ctx, must(e.Open(ctx)), name)
	check(waiting(ctx, a, name, 2))
	check(end(p))
	began := time.Now()
	check(unlock(ctx, le, "the holder"))
	r, err := granted(ctx, behind, e.skipped(), who)
	if err != nil {
		if info, look := a.Inspect(ctx, name); look == nil && info.ExpiresIn > ttl/2 && ttl > 2*e.skipped() {
			err = fmt.Errorf("%w: %w", err, errDiedAsHolder)
		}
		return 0, err
	}
	return r.at.Sub(began), unlock(ctx, r.lease, who)
}

func nextInLineDies(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	p := e.startWaiter(ctx, a, name, e.TTL(), 1)
	c := must(e.Open(ctx))
	behind := locking(ctx, c, name)
	check(waiting(ctx, a, name, 2))
	p.Kill()
	select {
	case r := <-behind:
		return fmt.Errorf("the waiter behind a killed one came back while the lock is held: %v", r.err)
	case <-time.After(2 * e.TTL()):
	}
	check(live(le, "the holder"))
	check(unlock(ctx, le, "the holder"))
	return turn(ctx, behind, e.skipped(), "the waiter behind a killed one")
}

func lostWakeUp(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	b, link := must2(e.OpenThrough(ctx))
	le, line := e.lined(ctx, a, e.Name(), b)
	// A push of the store never arrives from now on: it is held, and then its connection is reset.
	link.Set(holdReplies)
	began := time.Now()
	check(unlock(ctx, le, "the holder"))
	check(sleep(ctx, 100*time.Millisecond))
	link.Cut()
	link.Set(passAll)
	r := must(granted(
		ctx, line[0], 5*time.Second+e.traits.DeadWaiter+e.Slack(),
		"the waiter whose wake-up was lost",
	))
	e.Notef("after a lost wake-up: granted after %v", r.at.Sub(began).Round(time.Millisecond))
	return unlock(ctx, r.lease, "the waiter")
}

func constantHandOver(ctx context.Context, e *Env) error {
	few := e.handOverCost(ctx, 3)
	// A busy machine adds looks of the floor timers, more of them the longer a hand-over takes. A
	// crowd that is woken for each release shows in every measurement, so the least of three
	// counts.
	many := math.Inf(1)
	for range 3 {
		cost := e.handOverCost(ctx, 24)
		if many = min(many, cost); many <= 2*few+2 {
			break
		}
	}
	e.Notef("requests per hand-over: %.1f with 3 waiters, %.1f with 24", few, many)
	if many > 2*few+2 {
		return fmt.Errorf("requests per hand-over: got %.1f with 3 waiters and %.1f with 24, want no growth", few, many)
	}
	return nil
}

// handOverCost counts the requests of all clients while n of them get the lock one after the other.
func (e *Env) handOverCost(ctx context.Context, n int) float64 {
	name := e.Name()
	long := fencelock.WithTTL(30 * time.Second) // no renewals among the requests
	holder, link := must2(e.OpenThrough(ctx, long))
	le := must(try(ctx, holder, name, "a free lock"))
	links := []Link{link}
	done := make(chan error, n)
	for i := range n {
		l, link := must2(e.OpenThrough(ctx, long))
		links = append(links, link)
		go func() {
			// It holds for a moment, in which waiters that were woken in vain ask.
			done <- l.Do(ctx, name, func(ctx context.Context, _ *fencelock.Lease) error {
				return sleep(ctx, 5*time.Millisecond)
			})
		}()
		check(waiting(ctx, holder, name, i+1))
	}
	sent := func() (sum int64) {
		for _, l := range links {
			sum += l.Counts().Requests
		}
		return sum
	}
	before := sent()
	check(unlock(ctx, le, "the holder"))
	for range n {
		select {
		case err := <-done:
			check(want(err, nil, "a waiter"))
		case <-time.After(30 * time.Second):
			check(errors.New("not every waiter got the lock within 30s"))
		}
	}
	return float64(sent()-before) / float64(n)
}

func thousandWaiters(ctx context.Context, e *Env) error {
	n := e.count(200, 1000, 1000)
	a, b := must2(e.Two(ctx, fencelock.WithTTL(30*time.Second)))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	done := running(func() error {
		return together(n, func(int) error {
			return b.Do(ctx, name, func(context.Context, *fencelock.Lease) error { return nil })
		})
	})
	check(waiting(ctx, a, name, 1))
	for range 10 {
		info, err := a.Inspect(ctx, name)
		if err != nil || info.Waiters > 1 {
			return fmt.Errorf("with %d goroutines waiting: got %d waiters "+
				"at the store (%v), want 1", n, info.Waiters, err)
		}
		check(sleep(ctx, 20*time.Millisecond))
	}
	check(unlock(ctx, le, "the holder"))
	check(<-done)
	return e.emptyWithin(ctx, e.TTL())
}

func outageEndsWaits(ctx context.Context, e *Env) error {
	long := fencelock.WithTTL(time.Minute)
	a := must(e.Open(ctx, long))
	b, link := must2(e.OpenThrough(ctx, long))
	le, waiters := e.lined(ctx, a, e.Name(), b)
	for range 5 {
		waiters = append(waiters, locking(ctx, b, le.Name()))
	}
	// Its patience counts from the start of the first look that fails: none may be under way when
	// the store falls silent.
	var quiet time.Time // no look that fails began before it, even if this process stands still now
	for n := int64(-1); n != link.Counts().Requests; quiet = time.Now() {
		n = link.Counts().Requests
		check(sleep(ctx, 200*time.Millisecond))
	}
	began := time.Now()
	link.Set(blackHole)
	const least, most = core.Patience, core.Patience + 6*time.Second
	for i, waiter := range waiters {
		select {
		case r := <-waiter:
			check(want(r.err, fencelock.ErrUnavailable,
				fmt.Sprintf("waiter %d of a process whose store is silent", i+1)))
			took := r.at.Sub(began)
			if r.at.Sub(quiet) < least-e.Slack() || took > most+e.Slack() {
				return fmt.Errorf("waiter %d of a process whose store is silent: got %w after "+
					"%v, want it after %v to %v",
					i+1, r.err, took.Round(time.Millisecond), least, most)
			}
			if i == 0 || i == len(waiters)-1 {
				e.Notef("waiter %d of %d: ErrUnavailable after %v", i+1, len(waiters), took.Round(time.Millisecond))
			}
		case <-time.After(most + 2*e.Slack()):
			return fmt.Errorf("waiter %d of a process whose store is silent still waits after %v",
				i+1, time.Since(began).Round(time.Millisecond))
		}
	}
	link.Set(passAll)
	link.Cut()
	return unlock(ctx, le, "the holder")
}

func firstCome(ctx context.Context, e *Env) error {
	const n = 6
	holder, stranger := must2(e.Two(ctx))
	newcomer := must(e.Open(ctx)) // another client than those that try: a process that waits sends no try
	name := e.Name()
	le, line := e.lined(ctx, holder, name, e.several(ctx, n)...)
	var late []<-chan result // Locks of newcomers, each called just when the lock is freed for others
	for i, ch := range line {
		pushed := e.push(ctx, name, holder, stranger)
		late = append(late, locking(ctx, newcomer, name))
		if err := unlock(ctx, le, fmt.Sprintf("holder %d", i)); err != nil {
			return errors.Join(err, pushed())
		}
		r, err := granted(ctx, ch, 2*time.Second+e.Slack(), fmt.Sprintf("waiter %d of %d, in its turn", i+1, n))
		check(errors.Join(pushed(), err))
		check(held(ctx, holder, name, "a newcomer's try while others wait"))
		le = r.lease
	}
	check(unlock(ctx, le, "the last"))
	for rest := merged(late...); len(late) > 0; late = late[1:] {
		check(turn(ctx, rest, 2*time.Second+e.Slack(), "a newcomer, after all who waited before it"))
	}
	return firstComeInside(ctx, e, holder, stranger)
}

// firstComeInside is the same for a Lock that waits in the holder's own process.
func firstComeInside(ctx context.Context, e *Env, holder, stranger *fencelock.Locker) error {
	name := e.Name()
	le := must(try(ctx, holder, name, "a free lock"))
	for range 6 {
		ch := locking(ctx, holder, name)
		check(waiting(ctx, stranger, name, 1))
		pushed := e.push(ctx, name, holder, stranger)
		if err := unlock(ctx, le, "the holder"); err != nil {
			return errors.Join(err, pushed())
		}
		r, err := granted(ctx, ch, 2*time.Second+e.Slack(), "a waiter of the holder's process")
		check(errors.Join(pushed(), err))
		le = r.lease
	}
	return unlock(ctx, le, "the last of the holder's process")
}

// push tries a lock for which somebody is known to wait, again and again and with each of ls, until
// the function that it returns is called: that returns an error if a try got the lock.
func (e *Env) push(ctx context.Context, name string, ls ...*fencelock.Locker) (pushed func() error) {
	began := time.Now()
	ctx, stop := context.WithCancel(ctx)
	tries := func(l *fencelock.Locker) error {
		for i := 1; ctx.Err() == nil; i++ {
			le, err := l.Mutex(name).TryLock(ctx)
			switch {
			case err == nil:
				took := time.Since(began)
				_ = le.Unlock(ctx)
				// After longer than that the waiter may have been taken for dead.
				if dead := e.traits.DeadWaiter; dead == 0 || took < dead/2 {
					return fmt.Errorf("try %d of a newcomer while others wait got the lock (token %d)", i, le.Token())
				}
			case ctx.Err() == nil:
				check(want(err, fencelock.ErrLocked, "a newcomer's try while others wait"))
			}
			if i%10 == 0 {
				_ = sleep(ctx, 100*time.Microsecond)
			}
		}
		return nil
	}
	done := running(func() error { return together(len(ls), func(i int) error { return tries(ls[i]) }) })
	return func() error { stop(); return <-done }
}

// hostilePushes are rules K8: a push channel that dies with several names waited for.
var hostilePushes = []Rule{
	{
		Name: "K8", What: "after its connections were cut with several names waited for, a process is woken as before",
		Why: "A subscription that comes back for one name only, or not at all, makes every " +
			"later hand-over wait for a timer.",
		Needs: Needs{Wire: true}, Check: pushesComeBack,
	},
}

func pushesComeBack(ctx context.Context, e *Env) error {
	const names = 3
	a := must(e.Open(ctx))
	b, link := must2(e.OpenThrough(ctx))
	name := e.Name()
	for round := range 3 {
		var held [names]*fencelock.Lease
		var waits [names]<-chan result
		for i := range names {
			held[i] = must(try(ctx, a, name+strconv.Itoa(i), "a free lock"))
			waits[i] = locking(ctx, b, held[i].Name())
			check(waiting(ctx, a, held[i].Name(), 1))
		}
		most := time.Second + e.Slack()
		if round == 1 { // what is pushed now is lost, and a timer makes up for it
			link.Cut()
			most = 5*time.Second + e.traits.DeadWaiter + e.Slack()
		}
		for i := range names {
			check(unlock(ctx, held[i], "the holder"))
			r := must(granted(
				ctx, waits[i], most,
				fmt.Sprintf("round %d (the cut is in 2), waiter %d", round+1, i+1),
			))
			check(unlock(ctx, r.lease, "the waiter"))
		}
	}
	return nil
}
