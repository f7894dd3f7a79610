package redis_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// A connection that is made on a slow way takes longer than the first sends are given, and its client keeps none that
// is half made.
func TestConnectionOnASlowWay(t *testing.T) {
	t.Parallel()
	p, url := proxied(t, servers.Redis(t, servers.RedisOptions{}))
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("x")))
	p.Set(faultproxy.Mode{Delay: 125 * time.Millisecond})
	p.Cut()
	le, err := l.Mutex("x").Lock(within(t, 10*time.Second))
	must(t, err)
	p.Cut()
	unlock(t, le)
}
