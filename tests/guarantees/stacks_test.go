//go:build linux

package guarantees_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/servers/stores"
)

// stack is one backend with its servers.
type stack struct {
	backend string
	traits  backend.Traits
	ttl     time.Duration
	tx      bool // holders write in the lease's transaction
	brittle bool // leases can end before their deadline
	addrs   []string
	url     func(addrs []string, prefix string) string
	servers []*servers.Server // those that a fault may take
	leader  func(context.Context) (*servers.Server, error)
	named   []string                              // addresses that clients learn from others; nil: they know addrs
	epoch   func(context.Context) (string, error) // another one: another leader was chosen; nil: that is no matter
	lab     *lab
	prefix  string
	useUp   func(context.Context) // leaves the room in a server's files; nil: there is none
}

// replicated reports whether one server grants, and tells others later.
func (s *stack) replicated() bool { return s.named != nil }

// version is what the servers call themselves.
func (s *stack) version() string { return s.servers[0].Store() + " " + s.servers[0].Version() }

// on makes the URL of a backend from its servers' addresses.
func on(scheme, tail, query string) func([]string, string) string {
	return func(addrs []string, prefix string) string {
		u := scheme + "://" + strings.Join(addrs, ",") + tail
		q, err := url.ParseQuery(query)
		if err != nil {
			panic(err)
		}
		if prefix != "" {
			q.Set("prefix", prefix)
		}
		if len(q) == 0 {
			return u
		}
		return u + "?" + q.Encode()
	}
}

// mib is what the sizes of disks are counted in. They are sparse.
const mib = 1 << 20

// starts makes the stack of each backend. Its servers end with the test.
var starts = map[string]func(t *testing.T, l *lab) *stack{
	"redis-always": func(t *testing.T, l *lab) *stack {
		return redisStack(t, l, "appendonly yes", "appendfsync always")
	},
	"redis-everysec": func(t *testing.T, l *lab) *stack {
		return redisStack(t, l, "appendonly yes", "appendfsync everysec")
	},
	"redis-none":     func(t *testing.T, l *lab) *stack { return redisStack(t, l) },
	"redis-sentinel": sentinelStack,
	"redlock":        redlockStack,
	"etcd":           etcdStack,
	"zookeeper":      zookeeperStack,
	"postgres-lease": func(t *testing.T, l *lab) *stack { return postgresStack(t, l, "lease") },
	"postgres-row": func(t *testing.T, l *lab) *stack {
		s := postgresStack(t, l, "row")
		s.tx, s.brittle = true, true // with the connection
		return s
	},
}

// start starts the servers of a backend. What it makes first is on their disks.
func start(t *testing.T, name string) *stack {
	t.Helper()
	l := newLab(t)
	s := starts[name](t, l)
	s.backend, s.lab = name, l
	if err := l.sync(); err != nil {
		t.Fatal(err)
	}
	return s
}

func redisStack(t *testing.T, l *lab, config ...string) *stack {
	t.Helper()
	if len(config) > 0 {
		l.size = 64 * mib
	}
	s := startWith(t, "redis", func(ctx context.Context) (*servers.Server, error) {
		return stores.StartRedis(ctx, l, servers.RedisOptions{Config: append(config, "auto-aof-rewrite-min-size 1mb")})
	})
	return &stack{
		traits: backend.TraitsOf("redis"), ttl: 1500 * time.Millisecond, addrs: []string{s.Addr()},
		url:     on("redis", "", ""),
		servers: []*servers.Server{s},
	}
}

func redlockStack(t *testing.T, l *lab) *stack {
	t.Helper()
	g := startWith(t, "redis", func(ctx context.Context) (*servers.Group, error) {
		return stores.StartRedises(ctx, l, 5, servers.RedisOptions{})
	})
	return &stack{
		traits: backend.TraitsOf("redlock"), ttl: 1500 * time.Millisecond, addrs: g.Addrs(),
		url:     on("redlock", "", "quarantine=2s"),
		servers: g.Servers(), brittle: true, // with the votes of servers that forget
	}
}

func sentinelStack(t *testing.T, l *lab) *stack {
	t.Helper()
	l.apart = true
	s := startWith(t, "redis", func(ctx context.Context) (*servers.Sentinel, error) {
		return stores.StartSentinel(ctx, l, servers.SentinelOptions{Replicas: 2})
	})
	named := s.Addrs()
	for _, node := range s.Nodes() {
		named = append(named, node.Addr())
	}
	return &stack{
		traits: backend.TraitsOf("redis"), ttl: 5 * time.Second, addrs: s.Addrs(),
		url:   on("redis+sentinel", "/main", ""),
		named: named, servers: s.Nodes(), leader: s.Master, epoch: s.Epoch,
	}
}

func etcdStack(t *testing.T, l *lab) *stack {
	t.Helper()
	l.size, l.apart = 256*mib, true
	e := startWith(t, "etcd", func(ctx context.Context) (*servers.EtcdCluster, error) {
		return stores.StartEtcd(ctx, l, servers.EtcdOptions{Members: 3, Args: []string{
			// for hours
			"--auto-compaction-mode=revision", "--auto-compaction-retention=1000", "--max-wals=1",
			"--max-snapshots=1",
		}})
	})
	return &stack{
		traits: backend.TraitsOf("etcd"), ttl: 2 * time.Second, addrs: e.Addrs(), url: on("etcd", "", ""),
		servers: e.Servers(), leader: e.Leader,
	}
}

func zookeeperStack(t *testing.T, l *lab) *stack {
	t.Helper()
	l.size, l.apart = 256*mib, true
	z := startWith(t, "zookeeper", func(ctx context.Context) (*servers.ZooKeeperEnsemble, error) {
		return stores.StartZooKeeper(ctx, l, servers.ZooKeeperOptions{Servers: 3, Config: []string{
			"autopurge.purgeInterval=1", "autopurge.snapRetainCount=3", // with each start too
		}})
	})
	return &stack{
		traits: backend.TraitsOf("zookeeper"), ttl: 2 * time.Second, addrs: z.Addrs(), url: on("zookeeper", "", ""),
		servers: z.Servers(), leader: z.Leader,
	}
}

func postgresStack(t *testing.T, l *lab, mode string) *stack {
	t.Helper()
	l.size = 256 * mib
	s := startWith(t, "postgres", func(ctx context.Context) (*servers.PostgresServer, error) {
		// A log that is used again, or made shorter, would hide that the disk is full.
		return stores.StartPostgres(ctx,
			l, servers.PostgresOptions{
				Config: []string{"wal_recycle=off", "wal_keep_size=128MB", "max_wal_size=32MB"},
			})
	})
	if _, err := s.Query(t.Context(), createAdded); err != nil {
		t.Fatal(err)
	}
	at := on("postgres", "/postgres", "sslmode=disable&mode="+mode)
	return &stack{
		traits: backend.TraitsOf("postgres-" + mode), ttl: 1500 * time.Millisecond, addrs: []string{s.Addr()},
		url: func(addrs []string, prefix string) string {
			if prefix == "" { // for pgx, which knows nothing of modes
				return "postgres://postgres@" + addrs[0] + "/postgres?sslmode=disable"
			}
			return strings.Replace(at(addrs, prefix), "://", "://postgres@", 1)
		},
		servers: []*servers.Server{s.Server},
		useUp: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, _ = s.Query(ctx, "SELECT pg_switch_wal()") // it may have ended
		},
	}
}
