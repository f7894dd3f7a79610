package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/zookeeper"
)

// Many who are wrong about what is free do not wait for each other's requests to fail, one by one.
func TestManyHeldByOthers(t *testing.T) {
	t.Parallel()
	const n = 400
	z := single(t)
	c := foreign(t, z.Addrs()...)
	waiters := open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	holder := open(t, url)
	name := func(i int) string { return fmt.Sprint("theirs-", i) }
	leases, waits := make([]*fencelock.Lease, n), make([]error, n)
	all := func(do func(i int)) time.Duration {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
		return time.Since(began)
	}
	all(func(i int) { leases[i] = lock(t, holder.Mutex(name(i))) })
	var waiting sync.WaitGroup
	for i := range n {
		waiting.Go(func() {
			var le *fencelock.Lease
			if le, waits[i] = waiters.Mutex(name(i)).Lock(t.Context()); waits[i] == nil {
				waits[i] = le.Unlock(t.Context())
			}
		})
	}
	await(t, 10*time.Second, "all wait", func() bool {
		there := 0
		for i, err := range holder.List(t.Context(), "theirs-") {
			must(t, err)
			there += i.Waiters
		}
		return there == n
	})
	far, farURL := proxied(t, z.Servers()[0])
	others := open(t, farURL)
	unlock(t, lock(t, others.Mutex("warm")))
	const way = 50 * time.Millisecond // in each direction
	far.Set(faultproxy.Mode{Delay: way})
	errs := make([]error, n)
	took := all(func(i int) { _, errs[i] = others.Mutex(name(i)).TryLock(t.Context()) })
	for i, err := range errs {
		want(t, name(i), err, fencelock.ErrLocked)
	}
	if most := n / 8 * 2 * way; took > most {
		t.Errorf("%d tries took %v, want no more than %v", n, took, most)
	}
	before := p.Counts().Requests
	all(func(i int) { errs[i] = leases[i].Unlock(t.Context()) })
	if asked := p.Counts().Requests - before; asked > n/4 {
		t.Errorf("%d releases took %d requests, want no more than %d", n, asked, n/4)
	}
	waiting.Wait()
	for i := range n {
		must(t, errs[i])
		must(t, waits[i])
	}
	awaitClean(t, c, 5*time.Second)
}

// Those whose locks are free are not held up by many whose are not.
func TestFreeAmongMany(t *testing.T) {
	t.Parallel()
	const held, scanners, lockers = 1500, 100, 15
	z := single(t)
	c := foreign(t, z.Addrs()...)
	holder := open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	name := func(i int) string { return fmt.Sprint("taken-", i) }
	leases := make([]*fencelock.Lease, held)
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() { leases[i] = lock(t, holder.Mutex(name(i))) })
	}
	wg.Wait()
	p.Set(faultproxy.Mode{Delay: 25 * time.Millisecond})
	var scanning sync.WaitGroup
	var over atomic.Bool
	for s := range scanners {
		scanning.Go(func() {
			for i := s; i < held; i += scanners {
				_, err := l.Mutex(name(i)).TryLock(t.Context())
				want(t, name(i), err, fencelock.ErrLocked)
			}
		})
	}
	slowest := make([]time.Duration, lockers)
	for i := range lockers {
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				began := time.Now()
				le, err := l.Mutex(fmt.Sprint("free-", i, "-", n)).TryLock(t.Context())
				if err == nil {
					slowest[i] = max(slowest[i], time.Since(began))
					began, err = time.Now(), le.Unlock(t.Context())
					slowest[i] = max(slowest[i], time.Since(began))
				}
				if err != nil {
					t.Errorf("free-%d-%d: %v", i, n, err)
				}
			}
		})
	}
	scanning.Wait()
	over.Store(true)
	wg.Wait()
	t.Logf("the slowest of those with free locks took %v", slices.Max(slowest))
	if most := 3 * time.Second; slices.Max(slowest) > most {
		t.Errorf("the slowest of those with free locks took %v, want no more than %v", slices.Max(slowest), most)
	}
	p.Set(faultproxy.Mode{})
	for i := range held {
		wg.Go(func() { unlock(t, leases[i]) })
	}
	wg.Wait()
	awaitClean(t, c, 5*time.Second)
}

// Many callers share requests, and the failure of one is no other's.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const n = 120
	z := single(t)
	c := foreign(t, z.Addrs()...)
	other := open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	name := func(i int) string { return fmt.Sprint("crowd-", i) }
	for i := 0; i < n; i += 3 {
		lock(t, other.Mutex(name(i)))
	}
	for range 3 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		var wg sync.WaitGroup
		before := p.Counts().Requests
		for i := range n {
			wg.Go(func() { leases[i], errs[i] = l.Mutex(name(i)).TryLock(t.Context()) })
		}
		wg.Wait()
		t.Logf("%d tries in %d requests", n, p.Counts().Requests-before)
		for i := range n {
			if i%3 == 0 {
				want(t, name(i), errs[i], fencelock.ErrLocked)
				continue
			}
			must(t, errs[i])
			wg.Go(func() { errs[i] = leases[i].Unlock(t.Context()) })
		}
		wg.Wait()
		for i := range n {
			if i%3 != 0 {
				must(t, errs[i])
			}
		}
		if left := len(leftovers(t, c)); left != n/3 {
			t.Errorf("names with a node: got %d, want the %d that are held", left, n/3)
		}
	}
}

// slow is a connection to a server that answers one request after the other, and takes long for each.
type slow struct {
	net.Conn
	answered *atomic.Int64
	rest     []byte // what is left of a reply
}

func (c *slow) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		c.rest = make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, c.rest); err != nil {
			return 0, err
		}
		c.rest = append(c.rest, make([]byte, binary.BigEndian.Uint32(c.rest))...)
		if _, err := io.ReadFull(c.Conn, c.rest[4:]); err != nil {
			return 0, err
		}
		c.answered.Add(1)
		<-time.After(50 * time.Millisecond)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// slowCrowd locks and unlocks n names at once at a server that is slow, and returns how often it was
// dialed and how many requests it answered. meanwhile is called when the crowd is there.
func slowCrowd(t *testing.T, addrs []string, name string, n int, meanwhile func()) (dialed, answered int64) {
	t.Helper()
	var dials, answers atomic.Int64
	d, err := zookeeper.New(addrs, &zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &slow{Conn: c, answered: &answers}, err
		},
	})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ctx := within(t, time.Minute)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			le, err := l.Mutex(fmt.Sprint(name, i)).Lock(ctx)
			if err == nil {
				err = le.Unlock(t.Context())
			}
			errs[i] = err
		})
	}
	meanwhile()
	wg.Wait()
	must(t, errors.Join(errs...))
	return dials.Load(), answers.Load()
}

// A server that is slow is no outage, though a crowd comes to it at once that knows nothing of it
// yet: what many want to know is asked once, and goes on being asked when a caller's look ends.
func TestCrowdAtASlowServer(t *testing.T) {
	t.Parallel()
	const n = 80
	dialed, answered := slowCrowd(t, single(t).Addrs(), "crowd-", n, func() {})
	if dialed != 2 { // one to learn the tick, and the session's
		t.Errorf("the server was dialed %d times, want 2", dialed)
	}
	if answered > 2*n {
		t.Errorf("%d requests were answered for %d locks, want at most two for each", answered, n)
	}
}

// Nor is it one to those who wait for locks that are held: they do not ask again for what it is
// about to say.
func TestHeldLocksAtASlowServer(t *testing.T) {
	t.Parallel()
	const n = 40
	z := single(t)
	holder := open(t, z.URL())
	var leases []*fencelock.Lease
	for i := range n {
		leases = append(leases, lock(t, holder.Mutex(fmt.Sprint("held-", i))))
	}
	_, answered := slowCrowd(t, z.Addrs(), "held-", n, func() {
		<-time.After(core.Patience) // an outage for so long would end the waits
		for _, le := range leases {
			unlock(t, le)
		}
	})
	if answered > 6*n { // four for each, and a look every 2 s
		t.Errorf("%d requests were answered for %d locks, want at most six for each", answered, n)
	}
}

// What an Ask has to find out first may take longer than any call of it lasts, also where a waiter looks in between:
// here what became of one that was not answered takes three round trips, of 200 ms each.
func TestAskOutlastsItsCalls(t *testing.T) {
	t.Parallel()
	p, url := proxied(t, single(t).Servers()[0])
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	defer d.Close()
	ask := func(c *backend.Claim, most time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), most)
		defer cancel()
		c.Err = nil
		d.Ask(ctx, []*backend.Claim{c})
		return c.Err
	}
	claim := func(name, digit string) *backend.Claim {
		return &backend.Claim{Request: &backend.Request{
			Name: name, Nonce: strings.Repeat(digit, 32), Owner: "o", TTL: 30 * time.Second, Auto: true,
			Lost: func(error) {},
		}}
	}
	must(t, ask(claim("warm", "1"), 10*time.Second))
	for i, waits := range []bool{false, true} {
		p.LoseReplyTo(1, about("/held-"))
		p.Set(faultproxy.Mode{Delay: 100 * time.Millisecond})
		x, calls := claim(fmt.Sprint("x-", i), fmt.Sprint(2+i)), 1
		x.Wait, x.Waker = waits, deaf{}
		for ; ask(x, 300*time.Millisecond) != nil; calls++ {
			if calls == 30 {
				t.Fatalf("waits: %v: after %d calls: %v, want nil", waits, calls, x.Err)
			}
			if waits {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_ = d.Enter(ctx, x) // may end before it has an answer, too
				cancel()
			}
		}
		t.Logf("waits: %v: granted by call %d", waits, calls)
		if p.Counts().LostReplies != int64(i+1) {
			t.Error("no reply was lost")
		}
		p.Set(faultproxy.Mode{})
		x.Leaving, x.Held = true, true
		must(t, ask(x, 10*time.Second))
	}
}

// The reply to requests that many share is lost: each finds out what became of it, and nothing is done twice.
func TestLostReplyOfMany(t *testing.T) {
	t.Parallel()
	const n = 60
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	last := make([]fencelock.Token, n)
	for range 4 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		each := func(do func(i int) error) {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { errs[i] = do(i) })
			}
			wg.Wait()
			for _, err := range errs {
				must(t, err)
			}
		}
		before := p.Counts().LostReplies
		p.LoseReplyTo(1, about("/held-", "/tokens/"))
		each(func(i int) (err error) {
			leases[i], err = l.Mutex(fmt.Sprint("crowd-", i)).Lock(t.Context())
			return err
		})
		for i, le := range leases {
			if le.Token() <= last[i] {
				t.Errorf("token of %d: got %d after %d", i, le.Token(), last[i])
			}
			last[i] = le.Token()
			must(t, le.Err())
		}
		p.LoseReplyTo(1, about("/held-", "/done/"))
		each(func(i int) error { return leases[i].Unlock(t.Context()) })
		if lost := p.Counts().LostReplies - before; lost != 2 {
			t.Errorf("%d replies were lost, want 2", lost)
		}
		if left := leftovers(t, c); len(left) > 0 {
			t.Errorf("names with a node: %q", left)
		}
	}
}

// A caller who gives up takes nobody else along, and leaves nothing.
func TestManyLeave(t *testing.T) {
	t.Parallel()
	const n = 60
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	for range 3 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		p.Set(faultproxy.Mode{HoldRequests: true})
		var leaving, staying sync.WaitGroup
		for i := range n {
			ctx, wg := t.Context(), &staying
			if i%2 == 0 {
				ctx, wg = within(t, time.Duration(50+i)*time.Millisecond), &leaving
			}
			wg.Go(func() { leases[i], errs[i] = l.Mutex(fmt.Sprint("crowd-", i)).Lock(ctx) })
		}
		leaving.Wait()
		p.Set(faultproxy.Mode{})
		staying.Wait()
		for i := range n {
			if i%2 == 0 {
				want(t, "a lock whose caller has left", errs[i], context.DeadlineExceeded)
				continue
			}
			must(t, errs[i])
			staying.Go(func() { errs[i] = leases[i].Unlock(t.Context()) })
		}
		staying.Wait()
		for i := 1; i < n; i += 2 {
			must(t, errs[i])
		}
		awaitClean(t, c, 5*time.Second)
	}
}

// A request that was held up on its way, and whose caller has gone, leaves nothing when it arrives.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("x")))
	for _, lock := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := l.Mutex("x").TryLock(ctx); return err },
		func(ctx context.Context) error { _, err := l.Mutex("x").Lock(ctx); return err },
	} {
		p.Set(faultproxy.Mode{HoldRequests: true})
		want(t, "a lock whose request is held up", lock(within(t, 300*time.Millisecond)), context.DeadlineExceeded)
		p.Set(faultproxy.Mode{})
		var le *fencelock.Lease
		await(t, 5*time.Second, "the lock is free", func() bool {
			var err error
			le, err = l.Mutex("x").TryLock(t.Context())
			if err != nil && !errors.Is(err, fencelock.ErrLocked) {
				t.Fatal(err)
			}
			return err == nil
		})
		unlock(t, le)
		awaitClean(t, c, 5*time.Second)
	}
}

// A waiter that is dead does not hold up the one behind it, nor a try, however long its session lasts.
func TestDeadWaiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	holder, behind := open(t, z.URL()), open(t, z.URL())
	for _, way := range []string{"waiter", "try"} {
		if testing.Short() && way == "try" {
			return
		}
		le := lock(t, holder.Mutex("x"))
		p, url := proxied(t, z.Servers()[0])
		dead := queue(t, c, open(t, url), "x", 1)
		var next *pending
		if way == "waiter" {
			next = queue(t, c, behind, "x", 2)
		}
		p.Set(faultproxy.BlackHole)
		unlock(t, le)
		if next != nil {
			unlock(t, next.Granted(t, 5*time.Second))
		} else {
			await(t, 5*time.Second, "a try", func() bool {
				le, err := behind.Mutex("x").TryLock(t.Context())
				if err == nil {
					unlock(t, le)
				}
				return err == nil
			})
		}
		dead.Cancel()
		<-dead.Done
		p.Set(faultproxy.Mode{})
		awaitClean(t, c, 10*time.Second)
	}
}

// A waiter hears late that the holder before it has gone, when it has lost its place, and has joined the next queue
// for the lock, where its node has the name of its old one: the lock is not its to take there.
func TestLateNewsOfAnotherQueue(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	le := lock(t, open(t, z.URL()).Mutex("x"))
	p, url := proxied(t, z.Servers()[0])
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	w := &backend.Claim{Request: request("x"), Waker: deaf{}}
	w.Wait = true
	look := func() error { return d.Enter(within(t, 10*time.Second), w) }
	held := func() {
		t.Helper()
		w.Err = nil
		d.Ask(within(t, 10*time.Second), []*backend.Claim{w})
		want(t, "a lock that another holds", w.Err, backend.ErrLocked)
	}
	held()
	must(t, look())
	place := nodes(t, c, "x", "wait-")
	p.Set(faultproxy.Mode{HoldReplies: true})
	unlock(t, le) // the news is on its way from here on
	must(t, c.Delete(place[0], -1))
	must(t, c.Delete(at("x"), -1))
	le = lock(t, open(t, z.URL()).Mutex("x"))
	asked, looked := p.Counts().Requests, make(chan error, 1)
	go func() { looked <- look() }()
	must(t, p.Await(within(t, 10*time.Second), func(c faultproxy.Counts) bool { return c.Requests > asked }))
	p.Set(faultproxy.Mode{}) // the news comes before the answer to that look
	must(t, <-looked)
	if got := nodes(t, c, "x", "wait-"); !slices.Equal(got, place) {
		t.Fatalf("in the next queue: got %q, want the same name as in the last one, %q", got, place)
	}
	must(t, look())
	held()
	must(t, le.Err())
	unlock(t, le)
	w.Leaving, w.Err = true, nil
	d.Leave(within(t, 10*time.Second), []*backend.Claim{w})
	must(t, w.Err)
	awaitClean(t, c, 5*time.Second)
}

// measured is a connection whose largest request is kept.
type measured struct {
	net.Conn
	most *atomic.Int64
}

func (c measured) Write(p []byte) (int, error) { // one request
	for n := c.most.Load(); int64(len(p)) > n && !c.most.CompareAndSwap(n, int64(len(p))); n = c.most.Load() {
	}
	return c.Conn.Write(p)
}

// What many share stays below the smallest jute.maxbuffer, however long the paths are, and the owners: a renewal, and
// the grants of readers beside others, which take the most.
func TestManyLongPaths(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, _ := proxied(t, z.Servers()[0])
	var most atomic.Int64
	opened := func(addr string) caller {
		d, err := zookeeper.New([]string{addr}, &zookeeper.Options{
			Chroot: "/" + strings.Repeat("c", 500), Prefix: strings.Repeat("é", 90),
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return measured{conn, &most}, err
			},
		})
		must(t, err)
		t.Cleanup(func() { must(t, d.Close()) })
		return call(d)
	}
	take := func(d caller, n int, name, owner string) []*core.Hold {
		holds, errs := make([]*core.Hold, n), make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				r := request(fmt.Sprintf("%03d-%s", i, name))
				r.Mode, r.Owner = backend.Reader, owner
				var g backend.Grant
				g, errs[i] = d.Acquire(within(t, 30*time.Second), r)
				holds[i] = &core.Hold{Request: r, Grant: g}
			})
		}
		wg.Wait()
		must(t, errors.Join(errs...))
		return holds
	}
	d, other, long := opened(z.Addrs()[0]), opened(p.Addr()), strings.Repeat("é", 250)
	must(t, errors.Join(d.Renew(within(t, 10*time.Second), take(d, 190, long, "o"))...))
	hold(t, other, request("warm"))
	p.Set(faultproxy.Mode{Delay: 50 * time.Millisecond}) // meanwhile the others come up
	must(t, errors.Join(other.Renew(within(t, 10*time.Second), take(other, 190, long, "o"))...))
	take(other, 190, "short", strings.Repeat("<", 512)) // each of these is six bytes as JSON
	p.Set(faultproxy.Mode{})
	t.Logf("the largest request had %d bytes", most.Load())
	if least := int64(512 << 10); most.Load() > least {
		t.Errorf("the largest request had %d bytes, want no more than %d", most.Load(), least)
	}
}

func TestRaise(t *testing.T) {
	t.Parallel()
	z := single(t)
	d := driver(t, z.URL())
	floor := backend.Token(time.Now().UnixMicro()) + backend.FloorAhead/2
	must(t, d.Raise(t.Context(), floor))
	must(t, d.Raise(t.Context(), 5)) // it never falls
	for _, name := range []string{"a", "b", "c"} {
		if le := lock(t, open(t, z.URL()).Mutex(name)); le.Token() <= floor {
			t.Errorf("token of %q: got %d, want more than %d", name, le.Token(), floor)
		}
	}
	for _, far := range []backend.Token{1 << 53, 1<<53 - 2} {
		want(t, "too high", d.Raise(t.Context(), far), backend.ErrInvalid)
	}
	r := request("x") // what a migration has raised the tokens to is not too far ahead for its locks
	r.Floor = floor + 5*backend.FloorAhead
	must(t, d.Raise(t.Context(), r.Floor))
	if h := hold(t, d, r); h.Token <= r.Floor {
		t.Errorf("with a floor of %d: got token %d", r.Floor, h.Token)
	}
}

// A process that is new to an ensemble without data draws tokens above those of before the loss.
func TestTokensOfANewProcessAfterTheLossOfAllData(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three restarts")
	}
	z := single(t)
	last := fencelock.Token(0)
	for range 3 {
		l := open(t, z.URL())
		for range 3 {
			le := lock(t, l.Mutex("x"))
			if le.Token() <= last {
				t.Errorf("token: got %d after %d", le.Token(), last)
			}
			last = le.Token()
			unlock(t, le)
		}
		must(t, l.Close())
		must(t, z.Servers()[0].Restart(false))
	}
}
