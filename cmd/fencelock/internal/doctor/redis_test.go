package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// safe is the configuration of a sound server.
var safe = []string{"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"}

func client(t *testing.T, addr string) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// set changes settings of a running server for one test.
func set(t *testing.T, c *goredis.Client, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		was, err := c.ConfigGet(t.Context(), pairs[i]).Result()
		must(t, err)
		must(t, c.ConfigSet(t.Context(), pairs[i], pairs[i+1]).Err())
		t.Cleanup(func() { _ = c.ConfigSet(context.Background(), pairs[i], was[pairs[i]]).Err() })
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: safe})
	c := client(t, s.Addr())
	use(t, s.URL())
	before := c.DBSize(t.Context()).Val()
	t.Run("sound", func(t *testing.T) {
		r := examine(t, s.URL())
		sound(t, r)
		finds(t, r)
	})
	for _, tt := range []struct {
		id, value string
		settings  []string
	}{
		{
			"redis-eviction", "allkeys-lru, with maxmemory 104857600",
			[]string{"maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"},
		},
		{"redis-eviction", "volatile-ttl", []string{"maxmemory", "100mb", "maxmemory-policy", "volatile-ttl"}},
		{"redis-eviction-later", "allkeys-lru", []string{"maxmemory-policy", "allkeys-lru"}},
		{"redis-memory", "bytes", []string{"maxmemory", "900000"}},
		{"redis-persistence", "no", []string{"appendonly", "no"}},
		{"redis-fsync", "everysec", []string{"appendfsync", "everysec"}},
		{"redis-fsync", "no", []string{"appendfsync", "no"}},
		{"redis-fsync-rewrite", "yes", []string{"no-appendfsync-on-rewrite", "yes"}},
		{"redis-timeout", "60", []string{"timeout", "60"}},
		{"redis-keepalive", "0", []string{"tcp-keepalive", "0"}},
	} {
		t.Run(tt.id+" "+tt.value, func(t *testing.T) {
			set(t, c, tt.settings...)
			r := examine(t, s.URL())
			finds(t, r, tt.id)
			has(t, r, tt.id, tt.value)
		})
	}
	t.Run("clock-differs", func(t *testing.T) {
		has(t, examine(t, s.URL(), behind(time.Minute)), "clock-differs", "ahead")
		has(t, examine(t, s.URL(), behind(-3*time.Second)), "clock-differs", "behind")
		finds(t, examine(t, s.URL(), behind(500*time.Millisecond)))
	})
	t.Run("round-trip-slow", func(t *testing.T) {
		slow := "redis://" + delayed(t, s.Addr(), 20*time.Millisecond)
		finds(t, examine(t, slow+"?ttl=300ms"), "round-trip-slow")
		if r := examine(t, slow+"?ttl=10m"); slices.Contains(r.ids(), "round-trip-slow") {
			t.Errorf("a long TTL: found %+v", r.Findings)
		}
	})
	t.Run("redis-version", func(t *testing.T) {
		has(t, examine(t, s.URL(), tooOld("redis")), "redis-version", "7")
	})
	t.Run("redis-rights-unseen", func(t *testing.T) { // as on a server that does not have the function
		old := func(x *exam) { x.script = strings.ReplaceAll(mayScript, "acl_check_cmd", "no_such_function") }
		finds(t, examine(t, s.URL(), old), "redis-rights-unseen")
	})
	t.Run("redis-clients", func(t *testing.T) {
		set(t, c, "maxclients", "20")
		for range 16 {
			conn, err := net.Dial("tcp", s.Addr())
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
		}
		await(t, "the clients are known", func() bool {
			return strings.Count(c.ClientList(t.Context()).Val(), "\n") >= 17
		})
		finds(t, examine(t, s.URL()), "redis-clients")
	})
	if got := c.DBSize(t.Context()).Val(); got != before {
		t.Errorf("%d keys, before the examinations there were %d", got, before)
	}
}

func TestRedisReplica(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 2, servers.RedisOptions{Config: safe})
	master, replica := g.Servers()[0], g.Servers()[1]
	host, port, _ := net.SplitHostPort(master.Addr())
	must(t, client(t, replica.Addr()).ReplicaOf(t.Context(), host, port).Err())
	await(t, "the replica follows", func() bool {
		return strings.Contains(client(t, replica.Addr()).Info(t.Context(), "replication").Val(),
			"master_link_status:up")
	})
	has(t, examine(t, replica.URL()), "redis-read-only", master.Addr())
	r := examine(t, master.URL())
	finds(t, r, "redis-failover")
	has(t, r, "redis-failover", "1 connected")
}

func TestRedisUsers(t *testing.T) {
	t.Parallel()
	const all = " ~fencelock:* ~fl* resetchannels &fl* -@all +eval +evalsha +get +set +del " +
		"+exists +pexpire +pttl +time +mget +zadd +zrem +zrange +zscore +hset +hget +hdel +hvals " +
		"+hgetall +publish +subscribe"
	s := servers.Redis(t, servers.RedisOptions{Config: safe, Users: []string{
		"doctor on >s3cret" + all + " +scan +info +config|get",
		"program on >s3cret" + all + " +scan +info",
		"blind on >s3cret" + all + " +scan +config|get",
		"deaf on >s3cret ~* resetchannels +@all",
		"elsewhere on >s3cret ~other:* ~fl* &* +@all",
		"fewer on >s3cret ~* &* +@all -zadd -hset",
		"noscripts on >s3cret ~* &* +@all -@scripting",
		"nolist on >s3cret" + all + " +info +config|get",
	}})
	as := func(user string) string { return "redis://" + user + ":s3cret@" + s.Addr() }
	sound(t, examine(t, as("doctor")))
	finds(t, examine(t, as("doctor")))
	finds(t, examine(t, "redis://"+s.Addr()+"?prefix="), "redis-prefix")
	for user, want := range map[string][]string{
		"program":   {"redis-config-unseen"},
		"blind":     {"redis-info-unseen", "redis-rights-operator"},
		"deaf":      {"redis-rights-channel"},
		"elsewhere": {"redis-rights"},
		"fewer":     {"redis-rights"},
		"noscripts": {"redis-rights", "redis-rights-channel", "redis-rights-operator"},
		"nolist":    {"redis-rights-operator"},
	} {
		r := examine(t, as(user))
		finds(t, r, want...)
		if user == "program" && r.Sound(Unseen) {
			t.Error("what was not looked at is called sound")
		}
	}
	has(t, examine(t, as("fewer")), "redis-rights", `ZADD fl\0{0}qfencelock:`)
	refused(t, "redis://doctor:wr0ng@"+s.Addr(), "wr0ng", backend.ErrInvalid)
	refused(t, "redis://nobody:s3cret@"+s.Addr(), "s3cret", backend.ErrInvalid)
}

func TestRedisTLSAndPassword(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: safe, TLS: true, Password: "s3cret"})
	r := examine(t, with(t, s.URL(), "tls_ca", s.CAFile()))
	sound(t, r)
	for _, f := range r.Findings {
		if strings.Contains(f.Value+f.Mend, "s3cret") {
			t.Errorf("%+v shows the password", f)
		}
	}
	refused(t, s.URL(), "s3cret", backend.ErrUnavailable)
}

func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	s := servers.RedisSentinel(t, servers.SentinelOptions{Config: safe})
	r := examine(t, s.URL())
	finds(t, r, "redis-failover")
	if master, err := s.Master(t.Context()); err != nil || !slices.Equal(r.Servers, []string{master.Addr()}) {
		t.Errorf("looked at %v, want the master (%v, %v)", r.Servers, master, err)
	}
	for _, w := range s.Sentinels()[1:] {
		must(t, w.Kill())
	}
	await(t, "the last sentinel misses the others", func() bool {
		c := goredis.NewSentinelClient(&goredis.Options{Addr: s.Addrs()[0]})
		defer c.Close()
		return c.CkQuorum(t.Context(), s.MasterName()).Err() != nil
	})
	finds(t, examine(t, s.URL()), "redis-failover", "redis-sentinel-quorum")
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("six servers")
	}
	c := servers.RedisCluster(t, servers.ClusterOptions{Config: safe})
	r := examine(t, c.URL())
	finds(t, r)
	sound(t, r)
	if len(r.Servers) != 3 {
		t.Errorf("looked at %v, want three masters", r.Servers)
	}
	has(t, examine(t, c.URL(), tooOld("cluster")), "redis-version", "in a cluster")
	has(t, examine(t, "redis://"+c.Addrs()[0]), "redis-is-cluster", "yes")
	one := client(t, c.Addrs()[0])
	must(t, one.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	must(t, one.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lfu").Err())
	r = examine(t, c.URL())
	finds(t, r, "redis-eviction")
	if f := has(t, r, "redis-eviction", "allkeys-lfu"); f.Where != c.Addrs()[0] {
		t.Errorf("found at %s, want %s", f.Where, c.Addrs()[0])
	}
	must(t, one.ConfigSet(t.Context(), "maxmemory", "0").Err())
	must(t, one.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	must(t, one.ClusterDelSlots(t.Context(), 100).Err())
	await(t, "the cluster misses a slot", func() bool {
		return strings.Contains(one.ClusterInfo(t.Context()).Val(), "cluster_slots_assigned:16383")
	})
	has(t, examine(t, "redis+cluster://"+c.Addrs()[0]), "redis-cluster-slots", "16383")
	must(t, one.ClusterAddSlots(t.Context(), 100).Err())
	must(t, c.Servers()[2].Pause())
	t.Cleanup(func() { _ = c.Servers()[2].Resume() })
	has(t, examine(t, "redis+cluster://"+c.Addrs()[0]), "redis-cluster-node", "no answer")
	must(t, c.Servers()[2].Resume())
}

func TestRedisClusterFailover(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("six servers")
	}
	c := servers.RedisCluster(t, servers.ClusterOptions{Config: safe, Replicas: 1})
	finds(t, examine(t, c.URL()), "redis-failover")
}

func TestRedisClusterUser(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := servers.RedisCluster(t, servers.ClusterOptions{
		Config: append(slices.Clone(safe),
			"user blind on >s3cret ~* &* +@all -cluster|info -config",
			"user lost on >s3cret ~* &* +@all -cluster"),
	})
	r := examine(t, strings.Replace(c.URL(), "://", "://lost:s3cret@", 1))
	finds(t, r, "redis-cluster-unseen", "redis-rights")
	has(t, r, "redis-rights", "CLUSTER")
	finds(t, examine(t, strings.Replace(c.URL(), "://", "://blind:s3cret@", 1)),
		"redis-cluster-unseen", "redis-config-unseen")
}

// The rights that are asked for are those that the scripts need.
func TestRightsAreThoseOfTheScripts(t *testing.T) {
	for _, tt := range []struct {
		driver   string
		commands [][]string
	}{{"redis", redisCommands("l")}, {"redlock", redlockCommands("l", false)}} {
		asked := map[string]bool{"PUBLISH": true}
		if tt.driver == "redis" { // scripts do without these, and see less, or ask under an empty prefix alone
			for _, c := range []string{"PUBSUB", "TYPE", "HLEN", "HKEYS", "GETRANGE"} {
				asked[c] = true
			}
		}
		for _, c := range tt.commands {
			asked[c[0]] = true
		}
		files, err := filepath.Glob("../../../../" + tt.driver + "/*.lua")
		if err != nil || len(files) < 4 {
			t.Fatalf("found %d scripts, %v", len(files), err)
		}
		used := map[string]bool{"EVAL": true, "EVALSHA": true}
		for _, f := range files {
			text, err := os.ReadFile(f)
			must(t, err)
			for _, m := range regexp.MustCompile(`(?:redis\.|\b)p?call\('([A-Z]+)'`).
				FindAllStringSubmatch(string(text), -1) {
				used[m[1]] = true
				if !asked[m[1]] {
					t.Errorf("%s uses %s, which is not asked for", f, m[1])
				}
			}
		}
		for _, c := range tt.commands {
			if !used[c[0]] {
				t.Errorf("%s: %s is asked for, and no script of the driver uses it", tt.driver, c[0])
			}
		}
	}
}
