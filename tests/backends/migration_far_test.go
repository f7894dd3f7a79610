//go:build unix

package backends

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// countsRaises counts the raises of all names.
type countsRaises struct {
	backend.Mover
	raises *int
}

func (c countsRaises) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if held == nil {
		*c.raises++
	}
	return c.Mover.Raise(ctx, floor, held)
}

// TestFarTokensMove: the old store's tokens are years ahead of the clock. They go on rising in the new one, which is
// raised once, and not for each lock; also for one that waits for it.
func TestFarTokensMove(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: half a minute of servers that start; backend/migrate has it in virtual time")
	}
	old := servers.Redis(t, servers.RedisOptions{})
	for what, url := range map[string]func(t *testing.T) string{
		"file": func(t *testing.T) string { return "file://" + t.TempDir() + "?" },
		"redis": func(t *testing.T) string {
			return "redis://" + servers.Redis(t, servers.RedisOptions{}).Addr() + "?"
		},
		"redlock": func(t *testing.T) string {
			return "redlock://" + strings.Join(servers.Redises(t, 3, servers.RedisOptions{}).Addrs(), ",") + "?fresh=1&"
		},
		"etcd": func(t *testing.T) string {
			return "etcd://" + servers.Etcd(t, servers.EtcdOptions{}).Servers()[0].Addr() + "?"
		},
		"zookeeper": func(t *testing.T) string {
			return "zookeeper://" + servers.ZooKeeper(t, servers.ZooKeeperOptions{}).Servers()[0].Addr() + "?"
		},
		"postgres": func(t *testing.T) string {
			at := servers.Postgres(t, servers.PostgresOptions{}).Addr()
			return "postgres://postgres@" + at + "/postgres?sslmode=disable&"
		},
	} {
		t.Run(what, func(t *testing.T) {
			prefix, raises := "prefix="+what+":", 0
			from, to := "redis://"+old.Addr()+"?"+prefix, url(t)+prefix
			open := func(url string) backend.Mover {
				d, err := backend.Open(t.Context(), url, nil)
				testkit.Must(t, err)
				return d.(backend.Mover)
			}
			locker := func(phase backend.Phase) *fencelock.Locker {
				d, err := moveAll(t.Context(), phase, open(from), countsRaises{open(to), &raises})
				testkit.Must(t, err)
				l, err := fencelock.New(d, fencelock.WithTTL(3*time.Second))
				testkit.Must(t, err)
				t.Cleanup(func() { testkit.Must(t, l.Close()) })
				return l
			}
			raiser := core.Of(open(from)).(core.Gater)
			defer func() { _ = raiser.Close() }()
			var last fencelock.Token
			raise := func(to fencelock.Token) {
				testkit.Must(t, raiser.Raise(t.Context(), to))
				last = to
			}
			rises := func(le *fencelock.Lease) {
				t.Helper()
				if le.Token() <= last {
					t.Errorf("%s: token %d after %d", le.Name(), le.Token(), last)
				}
				last = le.Token()
				testkit.Unlock(t, le)
			}
			raise(time.Now().AddDate(5, 0, 0).UnixMicro())
			both := locker(backend.PhaseBoth)
			for range 20 {
				rises(testkit.Lock(t, both.Mutex("x")))
			}
			if raises != 1 {
				t.Errorf("20 locks raised all names %d times, want once", raises)
			}

			alone := locker(backend.PhaseTo)
			held := testkit.Lock(t, alone.Mutex("y"))
			raise(time.Now().AddDate(10, 0, 0).UnixMicro())
			waits := testkit.Start(t, both.Mutex("y"))
			testkit.Await(t, 20*time.Second, "it waits for the new store", func() bool {
				i, err := alone.Inspect(t.Context(), "y")
				testkit.Must(t, err)
				return i.Waiters != 0
			})
			testkit.Unlock(t, held)
			rises(waits.Granted(t, 20*time.Second))
		})
	}
}
