package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
)

// crowded and brimming are the parts of a limit above which a finding is made.
const (
	crowded  = 0.8
	brimming = 0.9
)

// redis examines a single server, a Sentinel group or a Cluster.
func (x *exam) redis(ctx context.Context) error {
	o, err := x.redisOptions()
	if err != nil {
		return err
	}
	var c *goredis.Client
	where := o.Addrs[0]
	switch x.u.Scheme {
	case "redis+cluster":
		return x.redisCluster(ctx, o)
	case "redis+sentinel":
		where, c = x.askSentinels(ctx, o), goredis.NewFailoverClient(o.Failover())
	default:
		c = goredis.NewClient(o.Simple())
	}
	defer c.Close()
	n, err := x.redisNode(ctx, c, where)
	if err != nil {
		return err
	}
	if n.info["cluster_enabled"] == "1" {
		x.add("redis-is-cluster", n.where, "yes")
	}
	x.redisDurability(n)
	x.redisRights(ctx, n, false)
	return nil
}

// redisServer is a server that has answered.
type redisServer struct {
	*goredis.Client
	where  string
	info   map[string]string // empty if INFO may not be asked
	config map[string]string // empty if CONFIG GET may not be asked
	sample sample
}

// redisNode asks a server about itself and makes the checks that apply to every server with locks.
func (x *exam) redisNode(
	ctx context.Context, c *goredis.Client, where string,
) (*redisServer, error) {
	n := &redisServer{Client: c, where: where}
	if _, err := c.Time(ctx).Result(); err != nil && !noPermission(err) {
		return nil, redisMeaning(ctx, err)
	}
	x.saw(where)
	var err error
	n.sample, err = x.sample(ctx, func(ctx context.Context) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	switch {
	case err == nil:
		x.judge(where, n.sample, 0)
	case !noPermission(err): // a missing TIME is one of the rights
		return nil, redisMeaning(ctx, err)
	}
	if err := n.ask(ctx, x); err != nil {
		return nil, err
	}
	x.redisServer(n)
	return n, nil
}

// ask reads INFO and the settings.
func (n *redisServer) ask(ctx context.Context, x *exam) error {
	n.config = map[string]string{}
	text, err := n.Info(ctx).Result()
	switch {
	case noPermission(err):
		x.add("redis-info-unseen", n.where, "INFO: "+firstWord(err))
	case err != nil:
		return redisMeaning(ctx, err)
	}
	n.info = lines(text, ":")
	for _, name := range []string{
		"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy",
		"timeout", "tcp-keepalive",
	} {
		got, err := n.ConfigGet(ctx, name).Result()
		if err != nil {
			// ERR: a service that has no CONFIG.
			if noPermission(err) || goredis.HasErrorPrefix(err, "ERR") {
				x.add("redis-config-unseen", n.where, "CONFIG GET: "+firstWord(err))
				break
			}
			return redisMeaning(ctx, err)
		}
		n.config[name] = got[name]
	}
	return nil
}

// setting returns a setting from CONFIG, or else from INFO under its name there, or "".
func (n *redisServer) setting(name, inInfo string) string {
	if v := n.config[name]; v != "" {
		return v
	}
	return n.info[inInfo]
}

// redisServer checks the version, memory and connections of a server.
func (x *exam) redisServer(n *redisServer) {
	if v := n.info["redis_version"]; v != "" && release.Older(v, x.least["redis"]) {
		x.add("redis-version", n.where, v)
	}
	x.redisMemory(n)
	now, most := n.number("connected_clients"), n.number("maxclients")
	if most > 0 && now > crowded*most {
		x.add("redis-clients", n.where, fmt.Sprintf("%.0f of %.0f", now, most))
	}
	if v := n.config["timeout"]; v != "" && v != "0" {
		x.add("redis-timeout", n.where, v)
	}
	if n.config["tcp-keepalive"] == "0" {
		x.add("redis-keepalive", n.where, "0")
	}
}

// redisMemory checks the server's policy for a full memory.
func (x *exam) redisMemory(n *redisServer) {
	policy := n.setting("maxmemory-policy", "maxmemory_policy")
	// 0: no limit, or unseen.
	limit, _ := strconv.ParseFloat(n.setting("maxmemory", "maxmemory"), 64)
	switch {
	case policy == "":
	case policy != "noeviction" && limit > 0:
		x.add("redis-eviction", n.where, fmt.Sprintf("%s, with maxmemory %.0f", policy, limit))
	case policy != "noeviction":
		x.add("redis-eviction-later", n.where, policy)
	case limit > 0 && n.number("used_memory") >= brimming*limit:
		x.add("redis-memory", n.where,
			fmt.Sprintf("%.0f of %.0f bytes", n.number("used_memory"), limit))
	}
}

func (n *redisServer) number(name string) float64 {
	v, _ := strconv.ParseFloat(n.info[name], 64) // 0 if INFO does not have it
	return v
}

// redisDurability checks that the server takes writes, and that a crash or a failover loses no locks. Other
// rules apply to a node of Redlock.
func (x *exam) redisDurability(n *redisServer) {
	if n.info["role"] == "slave" {
		x.add("redis-read-only", n.where, n.replicaOf())
	}
	switch {
	case n.info["aof_enabled"] == "0" || n.config["appendonly"] == "no":
		x.add("redis-persistence", n.where, "no")
	case n.config["appendfsync"] != "" && n.config["appendfsync"] != "always":
		x.add("redis-fsync", n.where, n.config["appendfsync"])
	case n.config["no-appendfsync-on-rewrite"] == "yes":
		x.add("redis-fsync-rewrite", n.where, "yes")
	}
	if slaves := n.number("connected_slaves"); slaves > 0 {
		x.add("redis-failover", n.where, fmt.Sprintf("%.0f connected", slaves))
	}
}

// askSentinels checks that enough sentinels are up, and returns the master's address.
func (x *exam) askSentinels(ctx context.Context, o *goredis.UniversalOptions) string {
	for _, host := range o.Addrs {
		at := redisAt(*o, host)
		at.Username, at.Password, at.DB = o.SentinelUsername, o.SentinelPassword, 0
		c := goredis.NewSentinelClient(at)
		defer c.Close()
		addr, err := c.GetMasterAddrByName(ctx, o.MasterName).Result()
		if err != nil || len(addr) != 2 {
			continue
		}
		_, err = c.CkQuorum(ctx, o.MasterName).Result()
		if err != nil && goredis.HasErrorPrefix(err, "NOQUORUM") {
			x.add("redis-sentinel-quorum", host, strings.TrimPrefix(err.Error(), "NOQUORUM "))
		}
		return net.JoinHostPort(addr[0], addr[1])
	}
	return "master " + o.MasterName
}

// redisCluster examines every master of a cluster.
func (x *exam) redisCluster(ctx context.Context, o *goredis.UniversalOptions) error {
	c := goredis.NewClusterClient(o.Cluster())
	defer c.Close()
	text, err := c.ClusterInfo(ctx).Result()
	switch {
	case noPermission(err):
		x.add("redis-cluster-unseen", "", "CLUSTER: "+firstWord(err))
	case err != nil:
		return redisMeaning(ctx, err)
	default:
		x.redisSlots(text)
	}
	var masters []*goredis.Client
	err = c.ForEachMaster(ctx, func(_ context.Context, m *goredis.Client) error {
		x.mu.Lock()
		defer x.mu.Unlock()
		masters = append(masters, m)
		return nil
	})
	if noPermission(err) {
		x.add("redis-rights", "", "CLUSTER SLOTS")
		return nil
	}
	if err != nil {
		return redisMeaning(ctx, err)
	}
	for _, m := range masters {
		n, err := x.redisNode(ctx, m, m.Options().Addr)
		if err != nil {
			x.add("redis-cluster-node", m.Options().Addr, "no answer")
			continue
		}
		if v := n.info["redis_version"]; v != "" && release.Older(v, x.least["cluster"]) {
			x.add("redis-version", n.where, v+", in a cluster")
		}
		x.redisDurability(n)
		x.redisRights(ctx, n, true)
	}
	if len(x.report.Servers) == 0 {
		return errors.New("no master of the cluster answers")
	}
	return nil
}

// replicaOf names the master of a replica.
func (n *redisServer) replicaOf() string {
	return "replica of " + net.JoinHostPort(n.info["master_host"], n.info["master_port"])
}

// redisSlots checks that every slot has a master.
func (x *exam) redisSlots(clusterInfo string) {
	info := lines(clusterInfo, ":")
	state, served := info["cluster_state"], info["cluster_slots_ok"]
	if state != "ok" || served != "16384" {
		x.add("redis-cluster-slots", "",
			fmt.Sprintf("cluster_state %s, %s of 16384 slots served", state, served))
	}
}

// noPermission reports whether the server refuses a command to this user, or does not know it.
func noPermission(err error) bool {
	return err != nil && (goredis.HasErrorPrefix(err, "NOPERM") ||
		strings.Contains(err.Error(), "unknown command"))
}

// firstWord is the code of a server's error. The rest may quote keys and users.
func firstWord(err error) string {
	if strings.Contains(err.Error(), "unknown command") {
		return "the server does not know it"
	}
	code, _, _ := strings.Cut(err.Error(), " ")
	return code
}

// redisMeaning returns an error with the sentinel that the exit code needs: an error that another try cannot
// mend becomes ErrInvalid.
func redisMeaning(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case goredis.HasErrorPrefix(err, "WRONGPASS"), goredis.HasErrorPrefix(err, "NOAUTH"),
		goredis.HasErrorPrefix(err, "NOPERM"):
		return backend.Invalid("the Redis server refuses the user or password (%s)", firstWord(err))
	}
	return err
}
