//go:build linux

package guarantees_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
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
	direct  bool // clients find the servers by themselves: no proxy stands between
	addrs   []string
	url     func(addrs []string, prefix string) string
	servers []*servers.Server // those that a fault may take
	loss    func(*servers.Server) func() error
	leader  func(context.Context) (*servers.Server, error)
	clocks  *clocks
	small   bool // the server's disk can be filled
	prefix  string
}

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

// starts makes the stack of each backend. Its servers end with the test.
var starts = map[string]func(t *testing.T) *stack{
	"redis-always":   func(t *testing.T) *stack { return redisStack(t, "appendonly yes", "appendfsync always") },
	"redis-everysec": func(t *testing.T) *stack { return redisStack(t, "appendonly yes", "appendfsync everysec") },
	"redis-none":     func(t *testing.T) *stack { return redisStack(t) },
	"redis-sentinel": sentinelStack,
	"redlock":        redlockStack,
	"etcd": func(t *testing.T) *stack {
		e := servers.Etcd(t, servers.EtcdOptions{Members: 3})
		return &stack{
			traits: backend.TraitsOf("etcd"), ttl: 2 * time.Second, addrs: e.Addrs(), url: on("etcd", "", ""),
			servers: e.Servers(), leader: e.Leader,
		}
	},
	"zookeeper": func(t *testing.T) *stack {
		z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 3})
		return &stack{
			traits: backend.TraitsOf("zookeeper"), ttl: 2 * time.Second, addrs: z.Addrs(), url: on("zookeeper", "", ""),
			servers: z.Servers(), leader: z.Leader,
		}
	},
	"postgres-lease": func(t *testing.T) *stack { return postgresStack(t, "lease") },
	"postgres-row": func(t *testing.T) *stack {
		s := postgresStack(t, "row")
		s.tx, s.brittle = true, true // with the connection
		return s
	},
}

// start starts the servers of a backend.
func start(t *testing.T, name string) *stack {
	t.Helper()
	s := starts[name](t)
	s.backend = name
	return s
}

func redisStack(t *testing.T, config ...string) *stack {
	t.Helper()
	c := newClocks(t)
	c.small = len(config) > 0 && os.Getuid() == 0
	s, err := startWith(t, "redis", func(ctx context.Context) (*servers.Server, error) {
		return stores.StartRedis(ctx, c, servers.RedisOptions{Config: append(config, "auto-aof-rewrite-min-size 1mb")})
	})
	if err != nil {
		t.Fatal(err)
	}
	c.unmount(t)
	return &stack{
		small:  len(c.mounts) > 0,
		traits: backend.TraitsOf("redis"), ttl: 1500 * time.Millisecond, addrs: []string{s.Addr()}, url: on("redis", "", ""),
		servers: []*servers.Server{s}, loss: powerLoss(strings.Join(config, ",")), clocks: c,
	}
}

func redlockStack(t *testing.T) *stack {
	t.Helper()
	c := newClocks(t)
	g, err := startWith(t, "redis", func(ctx context.Context) (*servers.Group, error) {
		return stores.StartRedises(ctx, c, 5, servers.RedisOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
	return &stack{
		traits: backend.TraitsOf("redlock"), ttl: 1500 * time.Millisecond, addrs: g.Addrs(), url: on("redlock", "", "quarantine=2s"),
		servers: g.Servers(), loss: powerLoss(""), clocks: c, brittle: true, // with the votes of servers that forget
	}
}

func sentinelStack(t *testing.T) *stack {
	t.Helper()
	s := servers.RedisSentinel(t, servers.SentinelOptions{Replicas: 2})
	return &stack{
		traits: backend.TraitsOf("redis"), ttl: 5 * time.Second, addrs: s.Addrs(), url: on("redis+sentinel", "/main", ""),
		direct: true, servers: s.Nodes(), loss: powerLoss(""), leader: s.Master,
	}
}

func postgresStack(t *testing.T, mode string) *stack {
	t.Helper()
	c := newClocks(t)
	s, err := startWith(t, "postgres", func(ctx context.Context) (*servers.PostgresServer, error) {
		return stores.StartPostgres(ctx, c, servers.PostgresOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
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
		servers: []*servers.Server{s.Server}, clocks: c,
	}
}

// powerLoss returns what a machine that loses its power does to the data of a Redis: what was not yet promised to be on the disk is
// gone. It is called before, and what it returns when the server has been killed.
func powerLoss(config string) func(*servers.Server) func() error {
	return func(s *servers.Server) func() error {
		size := func() (path string, n int64) {
			parts, _ := filepath.Glob(filepath.Join(s.Dir(), "data", "appendonlydir", "*.incr.aof")) // the pattern is good
			if len(parts) == 0 {
				return "", 0
			}
			st, err := os.Stat(parts[len(parts)-1])
			if err != nil {
				return "", 0
			}
			return parts[len(parts)-1], st.Size()
		}
		promised := func() int64 { _, n := size(); return n }
		if strings.Contains(config, "everysec") {
			_, before := size()
			promised = func() int64 { return before } // a second and more ago
		}
		return func() error {
			path, _ := size()
			if path == "" {
				return nil
			}
			if err := os.Truncate(path, promised()); err != nil {
				return fmt.Errorf("cut the log back: %w", err)
			}
			return nil
		}
	}
}
