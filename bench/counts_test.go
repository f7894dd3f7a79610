package bench_test

import (
	"flag"
	"fmt"
	"math"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

var printCounts = flag.Bool("counts", false, "print the table of limits as it would be from what is counted now")

// What the guard counts; none depends on how fast the machine is.
type counts struct {
	// of clients on the wire, which are the round trips; not of etcd, whose transport writes on its
	// own account
	writes float64
	// that the server counted: on Redis with what scripts call, on etcd messages, on ZooKeeper
	// packets
	commands   float64
	allocs     float64 // objects of this process
	goroutines float64
}

// no: not counted.
const no = -1

const (
	cyclesCounted    = 100
	handoversCounted = 10
	renewed          = 100 // leases, in one call
	renewals         = 10
	tries            = 3 // the least counts: a look or a renewal that falls into one try is not the operation's
)

func TestCounts(t *testing.T) {
	if raceDetector || testing.Short() {
		t.Skip("leases are renewed meanwhile, the more of them the longer it takes: " +
			"to be run with nothing beside it, as test.sh --full does")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties what is kept for the next use
	for _, b := range allStores {
		t.Run(b.name, func(t *testing.T) { // not in parallel: allocations and goroutines are the process's
			c := newCounter(t, b.open(t).url)
			runtime.GC()
			for _, op := range []struct {
				name string
				run  func(*testing.T) counts
			}{{"cycle", c.cycle}, {"handover", c.handover}, {"renew", c.renew}, {"held", c.held}} {
				got := op.run(t)
				// A look or a ping of the background is a part of one request for each operation.
				got.writes, got.commands = math.Round(got.writes), math.Round(got.commands)
				// who is late for one shares its write with the next
				if nodes := float64(len(c.proxies)); nodes > 1 && got.writes != no {
					got.writes = math.Ceil(got.writes/nodes) * nodes
				}
				if *printCounts {
					t.Logf("%q: {%q: {%s}},", b.name, op.name, got.limit(len(c.proxies)))
					continue
				}
				most, ok := limits[b.name][op.name]
				if !ok {
					t.Errorf("%s of %s has no limits", op.name, b.name)
				}
				for _, x := range []struct {
					what      string
					got, most float64
				}{
					{"writes on the wire", got.writes, most.writes},
					{"commands of the server", got.commands, most.commands},
					{"allocations", got.allocs, most.allocs},
					{"goroutines", got.goroutines, most.goroutines},
				} {
					if x.got > x.most && x.got != no && x.most != no {
						t.Errorf("%s: %s of %s costs %.2f %s, the limit is %.2f: find out why, "+
							"or, if it is worth that, raise it in limits_test.go",
							b.name, op.name, what[op.name], x.got, x.what, x.most)
					}
				}
			}
		})
	}
}

var what = map[string]string{
	"cycle": "a free name", "handover": "a name from one client to another", "renew": "100 leases",
	"held": "99 more leases",
}

func (c counts) limit(nodes int) string {
	show := func(v float64) string {
		if v == no {
			return "no"
		}
		return fmt.Sprint(math.Ceil(v))
	}
	room := c.allocs
	if room != no {
		room *= 1.1
		if nodes > 1 { // who is late for one node allocates at another time
			room *= 1.25
		}
	}
	return strings.Join([]string{show(c.writes), show(c.commands), show(room), show(c.goroutines)}, ", ")
}

// counter counts on one backend.
type counter struct {
	proxies  []*faultproxy.Proxy
	url      string // through the proxies
	one, two *fencelock.Locker
	direct   *fencelock.Locker // beside the proxies, to look with
	commands func() (int64, bool)
}

func newCounter(t *testing.T, direct string) *counter {
	t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	var hosts []string
	for _, h := range strings.Split(u.Host, ",") {
		if h == "" {
			break
		}
		p, err := faultproxy.New(h)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		c.proxies = append(c.proxies, p)
		hosts = append(hosts, p.Addr())
	}
	if len(hosts) > 0 {
		u.Host = strings.Join(hosts, ",")
		count, end, err := bench.OpenCounter(t.Context(), direct)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = end() })
		c.commands = count
	}
	if c.url = direct; len(hosts) > 0 {
		c.url = u.String()
	}
	dial := func(raw string) *fencelock.Locker {
		l, err := fencelock.Open(t.Context(), raw, fencelock.WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	c.one, c.two, c.direct = dial(c.url), dial(c.url), dial(direct)
	if strings.HasPrefix(direct, "memory:") { // each Open is a store of its own
		c.two, c.direct = nil, nil
	}
	return c
}

// now returns what has been spent so far.
func (c *counter) now() counts {
	var m runtime.MemStats
	runtime.ReadMemStats(&m) // exact, unlike package runtime/metrics
	n := counts{writes: no, commands: no, allocs: float64(m.Mallocs)}
	for i, p := range c.proxies {
		if i == 0 {
			n.writes = 0
		}
		n.writes += float64(p.Counts().Requests)
	}
	if strings.HasPrefix(c.url, "etcd") {
		n.writes = no // gRPC writes on its own account
	}
	if c.commands != nil && len(c.proxies) == 1 { // of several nodes one may be late
		if told, ok := c.commands(); ok {
			n.commands = float64(told)
		}
	}
	return n
}

// per returns what one of n operations costs, the least of several tries.
func (c *counter) per(n int, run func()) counts {
	var least counts
	for i := range tries {
		goroutines, before := runtime.NumGoroutine(), c.now()
		idle := c.now() // what the counting itself costs
		run()
		after := c.now()
		each := func(before, idle, after float64) float64 {
			if after == no {
				return no
			}
			return max(0, after-idle-(idle-before)) / float64(n)
		}
		got := counts{
			each(before.writes, idle.writes, after.writes), each(before.commands, idle.commands, after.commands),
			each(before.allocs, idle.allocs, after.allocs), grown(goroutines),
		}
		least = least.least(i, got)
	}
	return least
}

// least keeps the least of each figure over the tries.
func (c counts) least(try int, got counts) counts {
	if try == 0 {
		return got
	}
	return counts{
		min(c.writes, got.writes), min(c.commands, got.commands), min(c.allocs, got.allocs),
		min(c.goroutines, got.goroutines),
	}
}

// grown returns how many goroutines there are more than before, once those that are about to end have ended.
func grown(before int) float64 {
	now := runtime.NumGoroutine()
	for end := time.Now().Add(2 * time.Second); now > before && time.Now().Before(end); runtime.Gosched() {
		now = min(now, runtime.NumGoroutine())
	}
	return float64(max(0, now-before))
}

func (c *counter) cycle(t *testing.T) counts {
	m := c.one.Mutex("{counted}")
	run := func() {
		for range cyclesCounted {
			le, err := m.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := le.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	run() // connections, scripts, sessions
	return c.per(cyclesCounted, run)
}

// handover needs to see that the waiter stands in the queue, and takes off what the looks cost.
func (c *counter) handover(t *testing.T) counts {
	if len(c.proxies) == 0 || !c.one.Traits().FIFO {
		return counts{no, no, no, no} // there is no server, or no queue to look at
	}
	const name = "{handed}"
	looks := 0
	look := func() fencelock.Info {
		info, err := c.direct.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	run := func() {
		for range handoversCounted {
			looks += handOn(t, c.one.Mutex(name), c.two.Mutex(name), look)
		}
	}
	run()
	const sample = 50
	each := c.per(sample, func() {
		for range sample {
			look()
		}
	})
	var least counts
	for i := range tries {
		looks = 0
		goroutines, before := runtime.NumGoroutine(), c.now()
		run()
		after := c.now()
		cost := func(before, after, look float64) float64 {
			if after == no {
				return no
			}
			return max(0, after-before-look*float64(looks)) / handoversCounted
		}
		got := counts{
			cost(before.writes, after.writes, 0),
			cost(before.commands, after.commands, each.commands), no, grown(goroutines),
		}
		least = least.least(i, got)
	}
	return least
}

// handOn hands a lock from one to the other and returns how many looks it took to see that the
// waiter stands in the queue.
func handOn(t *testing.T, from, to fencelock.Mutex, look func() fencelock.Info) (looks int) {
	t.Helper()
	held, err := from.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan *fencelock.Lease)
	go func() {
		defer close(granted)
		if le, err := to.Lock(t.Context()); err != nil {
			t.Error(err)
		} else {
			granted <- le
		}
	}()
	for looks++; look().Waiters == 0; looks++ {
		runtime.Gosched()
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if le := <-granted; le == nil {
		t.FailNow()
	} else if err := le.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	return looks
}

// renew is the call of the engine's one scheduler.
func (c *counter) renew(t *testing.T) counts {
	opened, err := backend.Open(t.Context(), c.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := core.Of(opened)
	defer d.Close()
	n := renewed
	if d.Traits().LeasePerConn {
		n = 8
	}
	var held []*core.Hold
	for i := range n {
		r := &backend.Request{
			Name: fmt.Sprintf("{renewed}%d", i), Nonce: fmt.Sprintf("%032x", i+1), TTL: time.Minute,
			Wait: true, Auto: true, Lost: func(error) {},
		}
		g, err := d.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, &core.Hold{Request: r, Grant: g})
	}
	renew := func() {
		for i, err := range d.Renew(t.Context(), held) {
			if err != nil {
				t.Fatalf("%s: %v", held[i].Name, err)
			}
		}
	}
	renew()
	got := c.per(renewals, func() {
		for range renewals {
			renew()
		}
	})
	got.goroutines = no
	for _, h := range held {
		if err := d.Release(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// held counts the goroutines that more leases need.
func (c *counter) held(t *testing.T) counts {
	if c.one.Traits().LeasePerConn {
		return counts{no, no, no, no} // it needs a connection, and those of pgx have goroutines
	}
	const n = 100
	var all []*fencelock.Lease
	lock := func(i int) {
		le, err := c.one.Mutex(fmt.Sprintf("{held}%d", i)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, le)
	}
	more := math.Inf(1)
	for range tries {
		lock(0)
		before := runtime.NumGoroutine()
		for i := 1; i < n; i++ {
			lock(i)
		}
		more = min(more, grown(before))
		for _, le := range all {
			if err := le.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		all = nil
	}
	return counts{no, no, no, more}
}
