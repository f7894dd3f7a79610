package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
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
		return nil, redisMeaning(err)
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
		return nil, redisMeaning(err)
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
		return redisMeaning(err)
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
			return redisMeaning(err)
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
		return redisMeaning(err)
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
		return redisMeaning(err)
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
func redisMeaning(err error) error {
	for _, code := range []string{"WRONGPASS", "NOAUTH", "NOPERM"} {
		if goredis.HasErrorPrefix(err, code) {
			return backend.Invalid("the Redis server refuses the user or password (%s)", code)
		}
	}
	return err
}

// redisOptions reads the connections' options from a URL of Redis or Redlock. The driver has checked it.
func (x *exam) redisOptions() (*goredis.UniversalOptions, error) {
	secure := x.u.Scheme == "rediss" || x.u.Scheme == "redlocks" || x.q.Bool("tls", false)
	s, err := redisnode.ReadURL(x.u, x.q, askMost, secure, "use rediss:// or redlocks://")
	if err != nil {
		return nil, err
	}
	o := &goredis.UniversalOptions{
		Addrs: backend.Hosts(x.u, "6379"), Username: s.User, Password: s.Password, TLSConfig: s.TLS,
		SentinelUsername: x.q.String("sentinel_username", ""),
		SentinelPassword: x.q.String("sentinel_password", ""),
		PoolSize:         2, DialerRetries: 1, MaxRetries: -1, MaxRedirects: -1,
		DialTimeout: askMost, ReadTimeout: askMost, WriteTimeout: askMost,
		ContextTimeoutEnabled: true,
	}
	if x.u.Scheme == "redis+sentinel" {
		o.Addrs, o.MasterName, s.Path = backend.Hosts(x.u, "26379"), s.Path[0], s.Path[1:]
	}
	o.DB, err = redisnode.Database(s.Path)
	return o, err
}

// redisAt are the options of a connection to one server.
func redisAt(o goredis.UniversalOptions, addr string) *goredis.Options {
	o.Addrs = []string{addr}
	return o.Simple()
}

// mayScript asks the server whether the user may run a command, without running it.
const mayScript = `return redis.acl_check_cmd(unpack(ARGV)) and 1 or 0`

// redisProbe is the name of the lock whose keys the rights are asked for. Nothing is written there.
const redisProbe = "fencelock doctor"

// scriptCommands are the commands that run a script.
func scriptCommands(lock string) [][]string {
	return [][]string{{"EVAL", "return 1", "1", lock}, {"EVALSHA", strings.Repeat("0", 40), "1", lock}}
}

// lockCommands are the commands of both drivers' scripts on the lock's own key.
func lockCommands(lock string) [][]string {
	return [][]string{
		{"TIME"},
		{"GET", lock},
		{"SET", lock, "v", "PX", "1"},
		{"DEL", lock},
		{"EXISTS", lock},
		{"PEXPIRE", lock, "1"},
		{"PTTL", lock},
	}
}

// redisCommands are the commands of the driver's scripts and requests on the keys of a lock. The driver keeps
// the keys "fl\0…" beside the lock's own.
func redisCommands(lock string) [][]string {
	const ours = "fl\x00{0}"
	return slices.Concat(scriptCommands(lock), lockCommands(lock), [][]string{
		{"GET", ours + "c"},
		{"SET", ours + "c", "1"},
		{"ZADD", ours + "q" + lock, "1", "n"},
		{"ZREM", ours + "q" + lock, "n"},
		{"ZRANGE", ours + "q" + lock, "0", "0"},
		{"ZSCORE", ours + "q" + lock, "n"},
		{"HSET", ours + "m" + lock, "n", "v"},
		{"HGET", ours + "m" + lock, "n"},
		{"HDEL", ours + "m" + lock, "n"},
		{"HVALS", ours + "m" + lock},
		{"MGET", ours + "c", ours + "g"},
		{"HGETALL", ours + "g\x00"},
	})
}

// redlockCommands are the commands of the Redlock driver, which needs no scripts where it has functions.
func redlockCommands(lock string, functions bool) [][]string {
	const state = "fl\x00rl"
	all := slices.Concat(lockCommands(lock), [][]string{
		{"INFO", "server"},
		{"MGET", lock},
		{"HSET", state, "n", "v"},
		{"HGET", state, "n"},
		{"HMGET", state, "n"},
		{"HDEL", state, "n"},
		{"HGETALL", state + ":w" + lock},
		{"HVALS", state + ":w" + lock},
		{"ZADD", state + ":q" + lock, "1", "n"},
		{"ZREM", state + ":q" + lock, "n"},
		{"ZRANGE", state + ":q" + lock, "0", "0"},
		{"RPUSH", state + ":r1", "n"},
		{"LTRIM", state + ":r1", "0", "1"},
		{"LPOS", state + ":r1", "n"},
	})
	if functions {
		return all
	}
	return append(scriptCommands(lock), all...)
}

// mayFunctions reports whether the user may load functions and call them. It calls a function that does not exist,
// and loads an empty text, which is no library.
func mayFunctions(ctx context.Context, c *goredis.Client) bool {
	call, load := c.FCall(ctx, "fencelock_doctor", nil).Err(), c.FunctionLoad(ctx, "").Err()
	return goredis.HasErrorPrefix(call, "Function not found") && !noPermission(load)
}

// redisRights asks for every right that the driver needs. cluster: pushes are sharded.
func (x *exam) redisRights(ctx context.Context, n *redisServer, cluster bool) {
	channels := [][]string{{"PUBLISH", "fl\x00p0", "m"}, {"SUBSCRIBE", "fl\x00p0"}}
	operator := [][]string{{"SCAN", "0"}, {"INFO"}}
	if cluster {
		channels = [][]string{{"SPUBLISH", "fl\x00{0}p0", "m"}, {"SSUBSCRIBE", "fl\x00{0}p0"}}
		operator = append(operator, []string{"CLUSTER", "SLOTS"})
	}
	if x.prefix == "" {
		x.add("redis-prefix", n.where, "empty")
		operator = append(operator, []string{"GETRANGE", redisProbe, "0", "0"}) // an application may have strings there
	}
	x.askRights(ctx, n, redisCommands(x.prefix+redisProbe), channels, operator)
}

func (x *exam) askRights(ctx context.Context, n *redisServer, keys, channels, operator [][]string) {
	for _, part := range []struct {
		id       string
		commands [][]string
	}{
		{"redis-rights", keys},
		{"redis-rights-channel", channels},
		{"redis-rights-operator", operator},
	} {
		refused, told := mayNot(ctx, n.Client, x.script, part.commands, keys[0][0] == "EVAL")
		switch {
		case !told:
			x.add("redis-rights-unseen", n.where, "Redis "+n.info["redis_version"])
			return
		case len(refused) > 0:
			x.add(part.id, n.where, strings.Join(refused, ", "))
		}
	}
}

// mayNot returns the commands that the user may not run; false if the server cannot tell. scripts says that the
// driver needs scripts as well.
func mayNot(
	ctx context.Context, c *goredis.Client, script string, commands [][]string, scripts bool,
) (refused []string, told bool) {
	replies := make([]*goredis.Cmd, len(commands))
	// The loop below looks at the error of each command.
	_, _ = c.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for i, command := range commands {
			args := make([]any, len(command))
			for j, a := range command {
				args[j] = a
			}
			replies[i] = p.Eval(ctx, script, nil, args...)
		}
		return nil
	})
	for i, r := range replies {
		switch may, err := r.Int(); {
		case err == nil && may == 1:
		case err == nil, strings.Contains(err.Error(), "Invalid command"): // renamed away
			refused = append(refused, spell(commands[i]))
		case noPermission(err):
			return []string{"EVAL"}, scripts
		default:
			return nil, false
		}
	}
	return refused, true
}

// spell shows a command with its key or channel.
func spell(command []string) string {
	shown := strings.ReplaceAll(strings.Join(command[:min(len(command), 2)], " "), "\x00", `\0`)
	if command[0] == "EVAL" || command[0] == "EVALSHA" {
		return command[0]
	}
	return shown
}
