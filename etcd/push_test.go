package etcd

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	buf := make([]byte, 8<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	if n := strings.Count(stacks, "(*watchGRPCStream).run("); n > 0 {
		t.Errorf("%d streams of watches are left:\n%s", n, stacks)
	}
}
