package zookeeper_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/faultproxy"
)

// Abandon is done only when no request of the acquisition can be sent any more: one that is on its
// way would make a node that nobody deletes.
func TestAbandonWaitsForRequestsInFlight(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	warm := hold(t, d, request("x"))
	must(t, d.Release(t.Context(), warm))
	p.Set(faultproxy.Mode{HoldRequests: true})
	r := request("x")
	_, err := d.Acquire(within(t, 200*time.Millisecond), r)
	want(t, "Acquire", err, context.DeadlineExceeded)
	want(t, "with a request in flight", d.Abandon(within(t, 200*time.Millisecond), r), context.DeadlineExceeded)
	p.Set(faultproxy.Mode{})
	must(t, d.Abandon(within(t, 5*time.Second), r))
	awaitClean(t, c, time.Millisecond)
}
