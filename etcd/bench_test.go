package etcd_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/servers"
)

func benchClient(b *testing.B, e *servers.EtcdCluster) *clientv3.Client {
	b.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

func benchLocker(b *testing.B, c *clientv3.Client) *fencelock.Locker {
	b.Helper()
	d, err := etcd.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l
}

func try(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// BenchmarkCycle locks and unlocks a free name, in turn with etcd's own
// concurrency.Mutex on the same client, and reports our rate as a ratio to that.
func BenchmarkCycle(b *testing.B) {
	c := benchClient(b, servers.Etcd(b, servers.EtcdOptions{}))
	m := benchLocker(b, c).Mutex("bench")
	session, err := concurrency.NewSession(c)
	try(b, err)
	b.Cleanup(func() { _ = session.Close() })
	theirs := concurrency.NewMutex(session, "theirs")
	ours := func() {
		le, err := m.Lock(b.Context())
		try(b, err)
		try(b, le.Unlock(b.Context()))
	}
	peer := func() {
		try(b, theirs.Lock(b.Context()))
		try(b, theirs.Unlock(b.Context()))
	}
	ours()
	peer()
	b.Run("backend=etcd/op=cycle", func(b *testing.B) {
		b.ReportAllocs()
		var mine, base time.Duration
		for b.Loop() {
			t0 := time.Now()
			ours()
			t1 := time.Now()
			b.StopTimer()
			peer()
			base += time.Since(t1)
			b.StartTimer()
			mine += t1.Sub(t0)
		}
		b.ReportMetric(float64(base)/float64(mine), "ratio-to-mutex")
	})
}

// BenchmarkHandOver measures from an Unlock to the grant of a waiter of another
// client, in turn with a delete and the watch event that another client gets of it.
func BenchmarkHandOver(b *testing.B) {
	e := servers.Etcd(b, servers.EtcdOptions{})
	one, two := benchClient(b, e), benchClient(b, e)
	m, n := benchLocker(b, one).Mutex("x"), benchLocker(b, two).Mutex("x")
	type got struct {
		le *fencelock.Lease
		at time.Time
	}
	events := two.Watch(clientv3.WithRequireLeader(b.Context()), "raw", clientv3.WithFilterPut(),
		clientv3.WithCreatedNotify())
	<-events
	var ours, raw []time.Duration
	for b.Loop() {
		le, err := m.Lock(b.Context())
		try(b, err)
		ch := make(chan got, 1)
		go func() {
			le, err := n.Lock(b.Context())
			if err != nil {
				b.Error(err)
			}
			ch <- got{le, time.Now()}
		}()
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		try(b, le.Unlock(b.Context()))
		g := <-ch
		ours = append(ours, g.at.Sub(began))
		try(b, g.le.Unlock(b.Context()))

		_, err = one.Put(b.Context(), "raw", "")
		try(b, err)
		began = time.Now()
		_, err = one.Delete(b.Context(), "raw")
		try(b, err)
		<-events
		raw = append(raw, time.Since(began))
	}
	slices.Sort(ours)
	slices.Sort(raw)
	b.ReportMetric(float64(ours[len(ours)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(raw[len(raw)/2].Microseconds()), "raw-p50-us")
}

// BenchmarkGates locks and unlocks in turn in a keyspace without gates and in one with ten, of
// which all but one let the name alone, and the last lets it in. The ratio is that of the medians.
func BenchmarkGates(b *testing.B) {
	c := benchClient(b, servers.Etcd(b, servers.EtcdOptions{}))
	mutex := func(prefix string, gates int) fencelock.Mutex {
		d, err := etcd.New(c, &etcd.Options{Prefix: prefix})
		try(b, err)
		l, err := fencelock.New(d)
		try(b, err)
		b.Cleanup(func() { _ = l.Close() })
		for i := range gates {
			g := closedGate(fmt.Sprintf("out/%d/*", i))
			g.Move = fmt.Sprint("move-", i)
			if i == 0 {
				g.Scope[0].Match, g.State = "bench*", backend.GateOpen
			}
			try(b, call(d).SetGate(b.Context(), g, 0))
		}
		return l.Mutex("bench")
	}
	cycle := func(m fencelock.Mutex) time.Duration {
		began := time.Now()
		le, err := m.Lock(b.Context())
		try(b, err)
		try(b, le.Unlock(b.Context()))
		return time.Since(began)
	}
	without, with := mutex("without:", 0), mutex("with:", 10)
	cycle(without)
	cycle(with)
	var base, gated []time.Duration
	for b.Loop() {
		base = append(base, cycle(without))
		gated = append(gated, cycle(with))
	}
	slices.Sort(base)
	slices.Sort(gated)
	b.ReportMetric(float64(gated[len(gated)/2])/float64(base[len(base)/2]), "p50-ratio-to-no-gates")
}
