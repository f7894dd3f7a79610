package etcd

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// A watch that was forsaken before it began leaves no stream in the client, which may be the program's. The test is not
// parallel: it counts those of the whole process.
func TestForsakenWatchLeavesNoStream(t *testing.T) {
	if testing.Short() {
		t.Skip("a watch is forsaken after 700 ms")
	}
	e := servers.Etcd(t, servers.EtcdOptions{})
	p, err := faultproxy.New(e.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, err := clientv3.New(config([]string{p.Addr()}, nil, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
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

// streamsLeft counts the streams of watches in this process.
func streamsLeft() (n int, stacks string) {
	buf := make([]byte, 8<<20)
	stacks = string(buf[:runtime.Stack(buf, true)])
	return strings.Count(stacks, "(*watchGRPCStream).run("), stacks
}

// Where the client has a Watcher of the program's, which keeps such streams, there are few of them however many watches
// were forsaken. The test is not parallel either.
func TestForsakenWatchesShareStreams(t *testing.T) {
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
		d.push.forsake(d.push.add(place, false), 0)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if n, stacks := streamsLeft(); n == 0 || n > streamsMost {
		t.Errorf("streams of %d watches: got %d, want at most %d:\n%s", 3*streamsMost, n, streamsMost, stacks)
	}
}
