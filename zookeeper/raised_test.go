package zookeeper_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// A session that was made under a lower maxSessionTimeout is as long as it was, whatever a server says to it since:
// the next leader ends it by that.
func TestRaisedMaxSessionTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a session has ended")
	}
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{})
	s := z.Servers()[0]
	p, url := proxied(t, s)
	const ttl = 6 * time.Second // the servers' longest session is one of 4 s
	l := open(t, url, fencelock.WithTTL(ttl))
	_, err := l.Mutex("x").TryLock(t.Context())
	want(t, "a TTL above maxSessionTimeout", err, fencelock.ErrInvalid)
	file := filepath.Join(s.Dir(), "zoo.cfg")
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, append(text, "maxSessionTimeout=60000\n"...), 0o600))
	must(t, s.Restart(true))
	var le *fencelock.Lease
	await(t, 20*time.Second, "the error's advice helps", func() bool {
		le, err = l.Mutex("x").TryLock(within(t, 5*time.Second))
		return err == nil
	})
	p.Set(faultproxy.BlackHole) // from here on the servers hear nothing of it
	must(t, s.Kill())
	must(t, s.Start())
	next := lock(t, open(t, s.URL(), fencelock.WithTTL(ttl)).Mutex("x"))
	if le.Err() == nil {
		t.Errorf("another has the lock, and its holder trusts it for %v more", time.Until(le.Deadline()))
	}
	unlock(t, next)
}
