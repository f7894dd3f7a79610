package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
)

// leakLine is a line of leaks --json.
type leakLine struct {
	At                     *time.Time
	Event, Leak, Name, Why string
	Scope                  string
	State                  backend.GateState
	Torn, Held             bool
	Epoch                  int64
	Waiters                *int
}

const someNonce = "0123456789abcdef0123456789abcdef"

// orphans has, for each store, how a place in the queue of the lock "dead" comes to be that nobody stands in.
func orphans() map[string]func(t *testing.T) (url string) {
	pg := func(mode string) func(t *testing.T) string {
		return func(t *testing.T) string {
			s := servers.Postgres(t, servers.PostgresOptions{})
			url := withMode(t, s.URL(), mode)
			if lease, err := client(t, url).Mutex("x").TryLock(t.Context()); err != nil ||
				lease.Unlock(t.Context()) != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{
				"INSERT INTO fencelock_process VALUES ('p', clock_timestamp() + interval '1 hour')",
				"INSERT INTO fencelock_queue (name, ticket, nonce, owner, process) VALUES " +
					"('fencelock:dead', 1, decode('" + someNonce + "','hex'), 'owner', 'p')",
			} {
				if _, err := s.Query(t.Context(), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			return url
		}
	}
	return map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string {
			s := servers.Redis(t, servers.RedisOptions{})
			c := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
			defer c.Close()
			tag := "fl\x00{" + redisTag(t, s.Addr(), "fencelock:dead") + "}"
			till := time.Now().Add(time.Hour).UnixMilli()
			for _, err := range []error{
				c.ZAdd(t.Context(), tag+"qfencelock:dead", goredis.Z{Score: 1, Member: someNonce}).Err(),
				c.HSet(t.Context(), tag+"mfencelock:dead", someNonce, fmt.Sprintf("%d gone owner", till)).Err(),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			return s.URL()
		},
		"etcd": func(t *testing.T) string {
			e := servers.Etcd(t, servers.EtcdOptions{})
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.Addrs()[0]}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// under no lease
			if _, err := c.Put(t.Context(), "fencelock:~lock/dead/"+someNonce,
				"wait::owner"); err != nil {
				t.Fatal(err)
			}
			return e.URL()
		},
		"zookeeper": func(t *testing.T) string {
			z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
			client(t, z.URL())
			c, _, err := zk.Connect(z.Addrs(), 4*time.Second, zk.WithLogInfo(false))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// not ephemeral
			for _, p := range []string{
				"/fencelock:/locks/dead",
				"/fencelock:/locks/dead/wait-" + someNonce + "-0000000000",
			} {
				if _, err := c.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
					t.Fatal(err)
				}
			}
			return z.URL()
		},
		"postgres-lease": pg("lease"),
	}
}

// clearing is what docs/command.md says of how an operator gets rid of them.
var clearing = map[string][]string{
	"redis":          {"break", "--yes"},
	"postgres-lease": {"break", "--yes"},
	"zookeeper":      {"run", "--wait", "10s"},
}

// redisTag finds the hash tag of a lock's slot by what the driver itself has written there.
func redisTag(t *testing.T, addr, lock string) string {
	t.Helper()
	url := "redis://" + addr
	lease, err := client(t, url).Mutex(strings.TrimPrefix(lock, "fencelock:")).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lease.Unlock(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer c.Close()
	keys, err := c.Keys(t.Context(), "fl*c").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("%q, %v", keys, err)
	}
	_, rest, _ := strings.Cut(keys[0], "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

func TestLeaksFindOrphanedQueues(t *testing.T) {
	t.Parallel()
	for name, make := range orphans() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := make(t)
			hold(t, url, "held")
			got := invoke(t, on(url), "leaks", "--json")
			l := decode[leakLine](t, got.out)
			if got.code != 1 || l.Leak != "queue" || l.Name != "dead" || l.Held ||
				l.Waiters == nil || *l.Waiters != 1 || !strings.Contains(l.Why, "free for") {
				t.Errorf("got %+v", got)
			}
			if got := invoke(t, on(url), "leaks", "other"); got.code != 0 {
				t.Errorf("another prefix: got %+v", got)
			}
			clear, ok := clearing[name]
			if !ok {
				return
			}
			clear = append(slices.Clone(clear), "dead")
			if clear[0] == "run" {
				clear = append(clear, "--", "true")
			}
			if got := invoke(t, on(url), clear...); got.code != 0 {
				t.Errorf("%v: got %+v", clear, got)
			}
			if got := invoke(t, on(url), "leaks"); got.code != 0 {
				t.Errorf("after %v: got %+v", clear, got)
			}
		})
	}
}

// A waiter that is alive, whose turn comes while leaks looks, is none.
func TestLeaksWaitsForLiveWaiters(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		lease := hold(t, url, "n")
		granted := make(chan error, 1)
		go func() {
			_, err := client(t, url).Mutex("n").Lock(t.Context())
			granted <- err
		}()
		await(t, "a waiter", func() bool {
			i, err := client(t, url).Inspect(t.Context(), "n")
			return err == nil && i.Waiters == 1
		})
		if got := invoke(t, on(url), "leaks"); got.code != 0 {
			t.Errorf("while it waits: got %+v", got)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := invoke(t, on(url), "leaks"); got.code != 0 {
			t.Errorf("when it was released: got %+v", got)
		}
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}

// gated returns a store of files and a driver of it.
func gated(t *testing.T) (string, core.Gater) {
	t.Helper()
	dir := t.TempDir()
	d, err := file.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return "file://" + filepath.ToSlash(dir), core.Of(d).(core.Gater)
}

// ago is the epoch of a change.
func ago(d time.Duration) int64 { return time.Now().Add(-d).UnixMicro() }

func setGate(t *testing.T, g core.Gater, state backend.GateState, epoch int64) {
	t.Helper()
	err := g.SetGate(t.Context(),
		backend.Gate{
			Move: "moving", Scope: backend.Scope{{Match: "inventory/*"}}, State: state,
			Epoch: epoch,
		}, backend.Lower)
	if err != nil {
		t.Fatal(err)
	}
}

func TestLeaksFindStaleGates(t *testing.T) {
	t.Parallel()
	url, g := gated(t)
	setGate(t, g, backend.GateOpen, ago(2*time.Hour))
	if got := invoke(t, on(url), "leaks"); got.code != 0 {
		t.Errorf("an open gate: got %+v", got)
	}
	setGate(t, g, backend.GateBoth, ago(time.Hour))
	got := invoke(t, on(url), "leaks")
	if got.code != 1 || !strings.Contains(got.out, "gate   moving (inventory/*)") ||
		!strings.Contains(got.out, "closed since 1h0m") {
		t.Errorf("a closed gate: got %+v", got)
	}
	l := decode[leakLine](t, invoke(t, on(url), "leaks", "--json").out)
	if l.Leak != "gate" || l.Name != "moving" || l.Waiters != nil || l.State != backend.GateBoth ||
		l.Scope != "inventory/*" || l.Torn || l.Epoch == 0 {
		t.Errorf("--json: got %+v", l)
	}
	if got := invoke(t, on(url), "leaks", "--finished", "moving"); got.code != 0 {
		t.Errorf("of a migration that is done: got %+v", got)
	}
	report := backend.Client{ID: "c", Move: "moving", Phase: backend.PhaseBoth, Reported: time.Now()}
	if err := g.Report(t.Context(), report, time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, on(url), "leaks"); got.code != 0 {
		t.Errorf("somebody reports: got %+v", got)
	}
	if err := g.Withdraw(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	setGate(t, g, backend.GateBoth, ago(time.Minute))
	if got := invoke(t, on(url), "leaks"); got.code != 0 {
		t.Errorf("closed a minute ago: got %+v", got)
	}
}

// Every store's gates are looked at.
func TestLeaksFindStaleGatesEverywhere(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string { return servers.Redis(t, servers.RedisOptions{}).URL() },
		"redlock": func(t *testing.T) string {
			return "redlock://" +
				strings.Join(servers.Redises(t, 3, servers.RedisOptions{}).Addrs(), ",") +
				"/0?fresh=1"
		},
		"etcd": func(t *testing.T) string { return servers.Etcd(t, servers.EtcdOptions{}).URL() },
		"zookeeper": func(t *testing.T) string {
			return servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}}).URL()
		},
		"postgres": func(t *testing.T) string { return servers.Postgres(t, servers.PostgresOptions{}).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			d, err := backend.Open(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			setGate(t, core.Of(d).(core.Gater), backend.GateBoth, ago(time.Hour))
			if got := invoke(t, on(url), "leaks"); got.code != 1 ||
				!strings.Contains(got.out, "gate   moving (inventory/*)") {
				t.Errorf("closed: got %+v", got)
			}
			setGate(t, core.Of(d).(core.Gater), backend.GateOpen, ago(50*time.Minute))
			if got := invoke(t, on(url), "leaks"); got.code != 0 {
				t.Errorf("open: got %+v", got)
			}
		})
	}
}

// Where the new store is known to be open, the old one's closed gate is what the migration has left on purpose.
func TestLeaksKnowTombstones(t *testing.T) {
	t.Parallel()
	oldURL, oldStore := gated(t)
	newURL, newStore := gated(t)
	path := filepath.Join(t.TempDir(), "locks.yaml")
	text := "backends:\n  old: {url: \"" + oldURL + "\"}\n  new: {url: \"" + newURL + "\"}\n" +
		"  moving: {migrate: {from: old, to: new, phase: to}}\nlocks:\n  - {match: " +
		"\"inventory/*\", scenario: deduplication, backend: moving}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	setGate(t, oldStore, backend.GateBoth, ago(time.Hour))
	setGate(t, newStore, backend.GateBoth, ago(time.Hour))
	got := invoke(t, nil, "--config", path, "leaks")
	if got.code != 1 || strings.Count(got.out, "moving (inventory/*)") != 2 ||
		!strings.Contains(got.out, "old: moving") {
		t.Errorf("both closed: got %+v", got)
	}
	setGate(t, newStore, backend.GateOpen, ago(50*time.Minute))
	if got := invoke(t, nil, "--config", path, "leaks"); got.code != 0 {
		t.Errorf("the new one open: got %+v", got)
	}
	gates, err := newStore.Gates(t.Context())
	if err != nil || len(gates) != 1 || gates[0].State != backend.GateOpen {
		t.Errorf("leaks has changed the gates: %+v, %v", gates, err)
	}
}

// A gate of a cluster is kept in every slot.
func TestLeaksFindTornGates(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	s := servers.RedisCluster(t, servers.ClusterOptions{})
	d, err := backend.Open(t.Context(), s.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	setGate(t, core.Of(d).(core.Gater), backend.GateOpen, ago(time.Hour))
	if got := invoke(t, on(s.URL()), "leaks"); got.code != 0 {
		t.Errorf("whole: got %+v", got)
	}
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()})
	defer c.Close()
	if n, err := c.Del(t.Context(), "fl\x00{"+slotTag(t, c)+"}gfencelock:").Result(); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	got := invoke(t, on(s.URL()), "leaks", "--finished", "moving")
	if got.code != 1 || !strings.Contains(got.out, "torn since 1h0m") {
		t.Errorf("torn: got %+v", got)
	}
}

// slotTag returns the tag of a slot that has the gates.
func slotTag(t *testing.T, c *goredis.ClusterClient) string {
	t.Helper()
	tag := make(chan string, 3)
	err := c.ForEachMaster(t.Context(), func(ctx context.Context, m *goredis.Client) error {
		keys, _, err := m.Scan(ctx, 0, "fl*gfencelock:", 100).Result()
		if err == nil && len(keys) > 0 {
			_, rest, _ := strings.Cut(keys[0], "{")
			one, _, _ := strings.Cut(rest, "}")
			tag <- one
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return <-tag
}

func TestLeaksWatch(t *testing.T) {
	t.Parallel()
	url, g := gated(t)
	out := newFeed()
	a := &cli.App{
		In: strings.NewReader(""), Out: out, Err: out, TempDir: t.TempDir,
		Lookup: func(k string) (string, bool) { v, ok := on(url)[k]; return v, ok },
	}
	done := make(chan int, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	go func() { done <- a.Execute(ctx, root(a), []string{"leaks", "--watch", "10ms", "--json"}) }()
	next := func(event string) {
		t.Helper()
		if l := decode[leakLine](t, out.next(t)); l.Event != event || l.Leak != "gate" ||
			l.Name != "moving" || l.At == nil {
			t.Errorf("got %+v, want %s", l, event)
		}
	}
	setGate(t, g, backend.GateBoth, ago(2*time.Hour))
	next("found")
	setGate(t, g, backend.GateOpen, ago(90*time.Minute))
	next("gone")
	setGate(t, g, backend.GateBoth, ago(time.Hour))
	next("found")
	interrupt()
	if code := <-done; code != 1 {
		t.Errorf("interrupted with a leak: code %d, want 1", code)
	}
	for _, args := range [][]string{{"--watch", "1ms"}, {"--watch", "nonsense"}, {"a", "b"}} {
		if got := invoke(t, on(url), append([]string{"leaks"}, args...)...); got.code != 64 {
			t.Errorf("leaks %q: got %+v, want code 64", args, got)
		}
	}
	if got := invoke(t, on("redis://127.0.0.1:1"), "leaks", "--watch", "1s"); got.code != 69 {
		t.Errorf("a store that is down: got %+v, want code 69", got)
	}
}
