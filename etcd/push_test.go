package etcd

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// wakes counts.
type wakes int

func (w *wakes) Wake(time.Duration) { *w++ }

// The release of the acquisition before, which had the same key, is told while the next one joins: it costs no look.
// The end of the own entry does, whether it is told before the list that has the entry or after.
func TestDeletionOfTheOwnKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what          string
		before, after int64 // when the key was deleted, and the event came before the list or after it; 0: never
		looks         bool
	}{
		{"the release of the one before", 9, 0, false},
		{"its own end, told early", 12, 0, true},
		{"its own end", 0, 12, true},
		{"told late", 0, 9, false},
	} {
		woken := wakes(0)
		p := &place{c: &backend.Claim{Request: &backend.Request{}, Waker: &woken}, queue: "q/", key: "q/own", rev: 10}
		u := &push{}
		told := func(at int64) {
			if at > 0 {
				p.deleted(p.key, left{at: at})
			}
		}
		told(tt.before)
		u.list(p, 10, []*mvccpb.KeyValue{
			{Key: []byte("q/front"), CreateRevision: 5}, {Key: []byte(p.key), CreateRevision: 10},
		})
		told(tt.after)
		if (woken > 0) != tt.looks || (p.front[p.key] != nil) != tt.looks {
			t.Errorf("%s: woken %d times, in front: %v; want a look: %v", tt.what, woken, p.front, tt.looks)
		}
	}
}

// An heir inherits only if nothing that it has been told, or may not have been, speaks against it.
func TestInherits(t *testing.T) {
	t.Parallel()
	held := func(mod int64, text string) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("q/front"), CreateRevision: 5, ModRevision: mod, Value: []byte(text)}
	}
	before := held(5, "held::o")
	for _, tt := range []struct {
		what string
		was  *mvccpb.KeyValue // what the entry in front said last; nil: unknown
		set  func(*store, *backend.Claim, *place)
		told bool
		heir bool // by its turn, if the base is the same
	}{
		{"the release of who held before", held(5, "held::o"), nil, true, true},
		{"that of an heir", held(5, "next::o"), nil, true, true},
		{"that of a turn since", held(12, "held::o"), nil, false, true},
		{"that of one that says a lower token", held(12, "held:106:o"), nil, true, true},
		{"that of one that says a greater token", held(12, "held:110:o"), nil, false, true},
		{"that of one with a lower token and a reserve", held(12, "held:106+4:o"), nil, false, true},
		{"an end without what was there", nil, nil, false, true},
		{"what a stranger has written since", held(12, "?"), nil, false, true},
		{"unsure", before, func(_ *store, c *backend.Claim, _ *place) { c.Unsure = true }, false, false},
		{"an entry of a holder", before, func(_ *store, _ *backend.Claim, p *place) {
			p.holds = true
		}, false, false},
		{"an entry that was put again", before, func(_ *store, _ *backend.Claim, p *place) {
			p.rev = 11
		}, false, false},
		{"a floor", before, func(_ *store, c *backend.Claim, _ *place) { c.Floor = 1 }, false, false},
		{"a reserve", before, func(_ *store, c *backend.Claim, _ *place) { c.Reserve = 1 }, false, false},
		{"renewed by hand", before, func(_ *store, c *backend.Claim, _ *place) {
			c.Auto = false
		}, false, false},
		{"gates", before, func(_ *store, c *backend.Claim, _ *place) {
			c.Gates = &backend.Record{Version: "[]"}
		}, false, false},
		{"a lease that is half over", before, func(_ *store, _ *backend.Claim, p *place) {
			p.under.asked = backend.Now().Add(-sessionAge)
		}, false, false},
		{"half a TTL over", before, func(_ *store, c *backend.Claim, p *place) {
			c.TTL = time.Second
			p.under.asked = backend.Now().Add(-time.Second / 2)
		}, false, false},
		{"a watch since the list", before, func(_ *store, _ *backend.Claim, p *place) {
			p.watch.since = 11
		}, false, true},
		{"the store has gone back", before, func(s *store, _ *backend.Claim, _ *place) {
			s.history.see(point{rev: 20}, &pb.ResponseHeader{Revision: 10})
		}, false, false},
		{"a list without one of whom nothing was told", before, func(s *store, _ *backend.Claim, p *place) {
			p.front["q/other"] = alone
			s.push.list(p, 20, nil)
		}, false, true},
		{"a list with one that has come back behind", before, func(s *store, _ *backend.Claim, p *place) {
			p.front["q/other"] = alone
			s.push.list(p, 20, []*mvccpb.KeyValue{{Key: []byte("q/other"), CreateRevision: 18}})
		}, false, true},
		{"two deletions before a list", before, func(s *store, _ *backend.Claim, p *place) {
			p.listed, p.front = 0, nil
			p.deleted("q/front", left{at: 15, wrote: 12})
			p.deleted("q/front", left{at: 17})
			s.push.list(p, 10, []*mvccpb.KeyValue{{Key: []byte("q/front"), CreateRevision: 5}})
		}, false, true},
		{"the own entry's end before the list", before, func(s *store, _ *backend.Claim, p *place) {
			p.listed, p.front = 0, nil
			p.deleted("q/front", left{at: 15, wrote: 5})
			p.deleted("q/own", left{at: 16, wrote: 10})
			s.push.list(p, 10, []*mvccpb.KeyValue{{Key: []byte("q/front"), CreateRevision: 5}})
		}, false, true},
	} {
		woken := wakes(0)
		c := &backend.Claim{Request: &backend.Request{Auto: true, TTL: time.Minute}, Waker: &woken}
		p := &place{c: c, queue: "q/", key: "q/own", rev: 10, joined: 10, heir: 110}
		p.under = &lease{granted: waitTTL, asked: backend.Now()}
		p.watch = &watch{queue: "q/", since: 1}
		s := &store{}
		s.history.onBack = func() {}
		front := []*mvccpb.KeyValue{
			{Key: []byte("q/front"), CreateRevision: 5}, {Key: []byte(p.key), CreateRevision: 10},
		}
		for _, early := range []bool{false, true} {
			p.doubted, p.gone = false, nil
			gone := &clientv3.Event{Kv: &mvccpb.KeyValue{Key: []byte("q/front"), ModRevision: 15}, PrevKv: tt.was}
			if p.listed, p.front = 0, nil; early {
				p.deleted("q/front", leftBy(gone))
			}
			if s.push.list(p, 10, front); !early {
				if _, told := s.inherits(c, p); told {
					t.Errorf("%s: it inherits while somebody is in front", tt.what)
				}
				p.deleted("q/front", leftBy(gone))
			}
			if tt.set != nil {
				tt.set(s, c, p)
			}
			heir, told := s.inherits(c, p)
			if told != tt.told || (heir == 110) != tt.heir {
				t.Errorf("%s, told early: %v: got token %d, told: %v", tt.what, early, heir, told)
			}
		}
	}
}

// A watch that was given up before it began leaves no stream in the client, which may be the program's. The test is not
// parallel: it counts those of the whole process.
func TestSilentWatchLeavesNoStream(t *testing.T) {
	if testing.Short() {
		t.Skip("a watch is given up after 700 ms")
	}
	d, p := behindProxy(t)
	for i := range 3 {
		queue := d.store.keys.queue(fmt.Sprint(i))
		place := &place{c: &backend.Claim{Request: &backend.Request{}}, queue: queue}
		p.Set(faultproxy.Mode{HoldReplies: true})
		if err := d.push.join(t.Context(), place); err == nil {
			t.Fatal("a watch began without an answer")
		}
		p.Set(faultproxy.Mode{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := d.push.join(ctx, place)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		w := place.watch
		d.push.remove(place)
		w.cancel()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if n, stacks := streamsLeft(); n > 0 {
		t.Errorf("%d streams of watches are left:\n%s", n, stacks)
	}
}

// driverAt returns a driver over a client of its own, which is closed with the test.
func driverAt(t *testing.T, addr string) *Driver {
	t.Helper()
	client, err := clientv3.New(config([]string{addr}, nil, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// behindProxy returns one at a server of its own, behind a proxy.
func behindProxy(t *testing.T) (*Driver, *faultproxy.Proxy) {
	t.Helper()
	e := servers.Etcd(t, servers.EtcdOptions{})
	p := testkit.Proxied(t, e.Addrs()[0])
	return driverAt(t, p.Addr()), p
}

// streamsLeft counts the streams of watches in this process.
func streamsLeft() (n int, stacks string) {
	buf := make([]byte, 8<<20)
	stacks = string(buf[:runtime.Stack(buf, true)])
	return strings.Count(stacks, "(*watchGRPCStream).run("), stacks
}

// Of many watches at once each waits for others of its stream, and none is taken for one of a member that hangs.
// It runs by itself: each watch has 700 ms.
func TestManyWatchesAtOnce(t *testing.T) {
	d, p := behindProxy(t)
	p.Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	errs := make([]error, 40*streamsMost)
	var wg sync.WaitGroup
	for i := range errs {
		c := &backend.Claim{Request: &backend.Request{}, Waker: woken(nil)}
		place := &place{c: c, queue: d.store.keys.queue(fmt.Sprint(i))}
		wg.Go(func() { errs[i] = d.push.join(t.Context(), place) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("watch %d of %d: %v", i, len(errs), err)
			break
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// On a way that is slower than a watch may take to begin, only the first one is given up.
func TestWatchesOnASlowWay(t *testing.T) {
	t.Parallel()
	d, p := behindProxy(t)
	join := func(queue string) error {
		c := &backend.Claim{Request: &backend.Request{}, Waker: woken(nil)}
		return d.push.join(t.Context(), &place{c: c, queue: d.store.keys.queue(queue)})
	}
	if err := join("warm"); err != nil {
		t.Fatal(err)
	}
	p.Set(faultproxy.Mode{Delay: 400 * time.Millisecond})
	if err := join("first"); err == nil {
		t.Error("the first watch began in time")
	}
	for _, queue := range []string{"first", "second", "third"} {
		if err := join(queue); err != nil {
			t.Errorf("the watch of the %s queue: %v", queue, err)
		}
	}
	p.Set(faultproxy.Mode{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A waiter whose watch begins late, behind others, stands in the queue meanwhile: it is told of the beginning, for its
// turn may have come, and of an end before that.
func TestLateWatchWakes(t *testing.T) {
	t.Parallel()
	d, p := behindProxy(t)
	p.Set(faultproxy.Mode{HoldReplies: true})
	for _, of := range []struct {
		what string
		then func(w *watch)
	}{
		{"end", func(w *watch) { d.push.endSilent(w, 0) }},
		{"beginning", func(*watch) { p.Set(faultproxy.Mode{}) }},
	} {
		told := make(woken, 1)
		c := &backend.Claim{Request: &backend.Request{Wait: true}, Waker: told}
		place := &place{c: c, queue: d.store.keys.queue(of.what)}
		w := d.push.add(place, false)
		if _ = d.push.queued(c, place); !c.Queued || c.Next != unheardTimer {
			t.Errorf("%s: queued %v, looks in %v, want it to look in %v", of.what, c.Queued, c.Next, unheardTimer)
		}
		select {
		case <-told:
			t.Errorf("%s: it was told before", of.what)
		default:
		}
		of.then(w)
		select {
		case <-told:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: it was not told", of.what)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A watch that has begun since a waiter's list tells nothing of what was deleted before: the waiter looks.
func TestWatchSinceTheList(t *testing.T) {
	t.Parallel()
	for since, looks := range map[int64]bool{9: false, 10: false, 11: true} {
		c := &backend.Claim{Request: &backend.Request{Wait: true}}
		p := &place{c: c, rev: 10, listed: 10, watch: &watch{since: since}}
		if _ = new(push).queued(c, p); !c.Queued || (c.Next < unheardTimer) != looks {
			t.Errorf("a watch since %d: queued: %v, and looks in %v", since, c.Queued, c.Next)
		}
	}
}

// What was read of a place counts from the revision of the read, also in a store that has gone back.
func TestPlaceStays(t *testing.T) {
	t.Parallel()
	u, p := &push{}, &place{c: &backend.Claim{Request: &backend.Request{}}, queue: "q/", key: "q/own", rev: 10}
	u.list(p, 10, []*mvccpb.KeyValue{
		{Key: []byte("q/a"), CreateRevision: 5},
		{Key: []byte("q/b"), CreateRevision: 7},
		{Key: []byte("q/c"), CreateRevision: 3},
	})
	p.deleted("q/a", left{at: 11})
	if u.stays(p, 20); u.seen(p) != 20 || len(p.gone) > 0 {
		t.Errorf("it was there at %d, want 20; and of %d deletions the next list is to be told", u.seen(p), len(p.gone))
	}
	u.stays(p, 8)
	if p.deleted("q/b", left{at: 9}); len(p.front) != 1 { // which is q/c
		t.Errorf("a deletion after the store went back: in front are %v", p.front)
	}
}

// A waiter looks for the last one in front, and lists the queue where it may not be behind that.
func TestBehindTheLast(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what string
		mode backend.Mode
		set  func(*place)
		want bool
	}{
		{"as it was", backend.Exclusive, func(*place) {}, true},
		{"a reader", backend.Reader, func(*place) {}, true},
		{"a permit", backend.Permit, func(*place) {}, false},
		{"another has gone", backend.Exclusive, func(p *place) { p.deleted("q/a", left{at: 11}) }, true},
		{"the last has gone", backend.Exclusive, func(p *place) { p.deleted("q/b", left{at: 11}) }, false},
		{"its own entry has", backend.Exclusive, func(p *place) { p.deleted(p.key, left{at: 11}) }, false},
		{"it was granted the lock", backend.Reader, func(p *place) { p.holds = true }, false},
		{"a watch since the list", backend.Exclusive, func(p *place) { p.watch.since = 11 }, false},
		{"it does not listen", backend.Exclusive, func(p *place) { p.watch = nil }, false},
	} {
		woken, u := wakes(0), &push{}
		c := &backend.Claim{Request: &backend.Request{Mode: tt.mode, Limit: 2}, Waker: &woken}
		p := &place{c: c, queue: "q/", mark: mark(c.Request), key: "q/own", rev: 10, watch: &watch{since: 1}}
		u.list(p, 10, []*mvccpb.KeyValue{
			{Key: []byte("q/b"), CreateRevision: 7},
			{Key: []byte("q/a"), CreateRevision: 5},
			{Key: []byte(p.key), CreateRevision: 10},
			{Key: []byte("q/c"), CreateRevision: 12},
		})
		tt.set(p)
		ifs := u.behind(p)
		if (ifs != nil) != tt.want {
			t.Errorf("%s: got the compares %v", tt.what, ifs)
		}
		if ifs != nil && fmt.Sprint(ifs) != fmt.Sprint([]*pb.Compare{createdAt(p.key, 10), createdAt("q/b", 7)}) {
			t.Errorf("%s: got %v, want those of its own entry and the last in front", tt.what, ifs)
		}
	}
}

// woken is a Waker that takes one call.
type woken chan struct{}

func (w woken) Wake(time.Duration) {
	select {
	case w <- struct{}{}:
	default:
	}
}

// A watch that was given up is not tried again over streams on which no other has begun since.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	d := driverAt(t, "127.0.0.1:1")
	add := func(queue string) *watch {
		c := &backend.Claim{Request: &backend.Request{}, Waker: woken(nil)}
		return d.push.add(&place{c: c, queue: queue}, false)
	}
	for i := range 3 * waitingMost {
		add(fmt.Sprint("early", i))
	}
	late := add("late")
	old := slices.Clone(d.push.streams)
	if len(old) != 4 {
		t.Errorf("%d watches wait over %d streams, want 4", 3*waitingMost+1, len(old))
	}
	for _, s := range old {
		s.waiting = 0 // as though all had begun, before
	}
	d.push.endSilent(late, 0)
	if w := add("late"); slices.Contains(old, w.stream) {
		t.Error("it goes over one of the old streams")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where the client has a Watcher of the program's, which keeps such streams, there are few of them however many watches
// were given up. The test is not parallel either.
func TestSilentWatchesShareStreams(t *testing.T) {
	client, err := clientv3.New(config([]string{"127.0.0.1:1"}, nil, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.Watcher = namespace.NewWatcher(client.Watcher, "app/")
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	place := &place{c: &backend.Claim{Request: &backend.Request{}}, queue: "x"}
	for range 3 * streamsMost {
		d.push.endSilent(d.push.add(place, false), 0)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	n, stacks := streamsLeft()
	for end := time.Now().Add(5 * time.Second); n < streamsMost && time.Now().Before(end); n, stacks = streamsLeft() {
		<-time.After(time.Millisecond) // their goroutines have to run for once
	}
	if n != streamsMost {
		t.Errorf("streams of %d watches: got %d, want %d:\n%s", 3*streamsMost, n, streamsMost, stacks)
	}
}
