package doctor

const redisSetter = "redis-cli -h {host} -p {port} CONFIG SET "

func redisKinds() []Kind {
	return []Kind{
		{
			"redis-eviction", Broken, "maxmemory-policy",
			"When the memory is full the server deletes keys to make room: locks that are held, counters of tokens, queues. A second holder is granted the lock at once.",
			redisSetter + "maxmemory-policy noeviction, and the same in redis.conf; give caches a server of their own",
		},
		{
			"redis-eviction-later", Note, "maxmemory-policy",
			"Nothing is evicted as long as maxmemory is 0. Whoever sets maxmemory makes the server delete locks that are held.",
			redisSetter + "maxmemory-policy noeviction, and the same in redis.conf",
		},
		{
			"redis-memory", Risk, "maxmemory",
			"The memory is nearly full. With noeviction the server then refuses writes: nothing can be locked, renewed or waited for, and leases run out.",
			"find what fills it (redis-cli -h {host} -p {port} --bigkeys), or " + redisSetter + "maxmemory to more",
		},
		{
			"redis-persistence", Risk, "appendonly",
			"A restart of the server forgets every lock, so a second holder is granted it while the first is at work. Tokens still rise, for they are anchored in the clock: a resource that checks them stays safe.",
			redisSetter + "appendonly yes, then appendfsync always, and both in redis.conf",
		},
		{
			"redis-fsync", Risk, "appendfsync",
			"A power loss, and with some settings a crash, forgets the last second of grants, releases and renewals: a second holder may be granted a lock. Tokens still rise.",
			redisSetter + "appendfsync always, and the same in redis.conf; it costs a disk write for each grant",
		},
		{
			"redis-fsync-rewrite", Risk, "no-appendfsync-on-rewrite",
			"While the append-only file is rewritten nothing is synced, as if appendfsync were no: a power loss in that time forgets grants.",
			redisSetter + "no-appendfsync-on-rewrite no, and the same in redis.conf",
		},
		{
			"redis-failover", Risk, "connected_slaves",
			"Replication is asynchronous and no grant waits for it: when a replica takes over, it may not know the last locks, and a second holder is granted them. Tokens still rise, so a resource that checks them stays safe. No setting changes that.",
			"check tokens at the resource; or for locks that must survive a failover a redlock://, etcd:// or zookeeper:// backend",
		},
		{
			"redis-sentinel-quorum", Risk, "SENTINEL CKQUORUM",
			"The sentinels that are up are too few to agree on a failover. If the master goes, nothing can be locked until an operator steps in.",
			"start the missing sentinels; see SENTINEL MASTER on {where}",
		},
		{
			"redis-cluster-slots", Broken, "cluster_state, cluster_slots_ok",
			"Some slots have no master: the names that hash to them cannot be locked or renewed, and with cluster-require-full-coverage no name can.",
			"redis-cli --cluster check HOST:PORT, then redis-cli --cluster fix HOST:PORT",
		},
		{
			"redis-cluster-node", Broken, "a master of the cluster",
			"The cluster names it as a master, and it does not answer from here: the names of its slots cannot be locked.",
			"start {where}, or let clients reach the addresses that the nodes announce (cluster-announce-ip)",
		},
		{
			"redis-is-cluster", Broken, "cluster-enabled",
			"The server is a node of a cluster. A redis:// URL reaches the names of its slots only, so the driver refuses it.",
			"use redis+cluster://{where}",
		},
		{
			"redis-read-only", Broken, "role",
			"The server is a replica: it refuses every write, so nothing can be locked there.",
			"give the URL of the master, or redis+sentinel:// or redis+cluster://, which follow it",
		},
		{
			"redis-version", Broken, "redis_version",
			"The driver needs Redis 6.2, and 7.0 for a cluster (sharded pub/sub).",
			"upgrade {where}",
		},
		{
			"redis-rights", Broken, "ACL: keys and commands",
			"The user may not do what locking needs, so some calls fail: acquiring, waiting, renewing or releasing.",
			"ACL SETUSER NAME ~PREFIX* ~fl* +eval +evalsha +get +mget +set +del +exists +pexpire +pttl +time +zadd +zrem +zrange +zscore +hset +hget +hdel +hvals +hgetall +lpush +ltrim +lpos; for redlock also +hmget +info, and +rpush for +lpush, for a cluster also +cluster|slots +cluster|shards",
		},
		{
			"redis-rights-channel", Broken, "ACL: channels",
			"The user may not send or hear pushes. Waiters are woken by them, and take each other for dead without.",
			"ACL SETUSER NAME &fl* +publish +subscribe; on a cluster +spublish +ssubscribe",
		},
		{
			"redis-rights-operator", Note, "ACL: commands for operators",
			"Locking works. Listing the locks (ls, leaks, watch) and migrations do not.",
			"ACL SETUSER NAME +scan +info; on a cluster +cluster",
		},
		{
			"redis-rights-unseen", Unseen, "ACL",
			"Servers before Redis 7.0 cannot say what a user may do without doing it.",
			"fencelock conform --only A,F with this URL tries everything; or redis-cli ACL GETUSER NAME as an administrator",
		},
		{
			"redis-info-unseen", Unseen, "INFO",
			"The user may not ask. Version, role, replicas, memory and the number of clients were not looked at.",
			"ACL SETUSER NAME +info, or give the doctor another user",
		},
		{
			"redis-config-unseen", Unseen, "CONFIG GET",
			"The user may not ask, or the service has no CONFIG. Whether a crash loses grants (appendfsync) was not looked at, and timeouts neither.",
			"ACL SETUSER NAME +config|get, or give the doctor another user, or look at the service's parameters: appendonly yes, appendfsync always, maxmemory-policy noeviction",
		},
		{
			"redis-cluster-unseen", Unseen, "CLUSTER INFO",
			"The user may not ask whether every slot has a master.",
			"ACL SETUSER NAME +cluster|info, or give the doctor another user",
		},
		{
			"redis-clients", Risk, "maxclients",
			"The server is near its limit of connections. Beyond it new clients are refused, and one whose connection broke cannot renew.",
			redisSetter + "maxclients to more, and raise the limit of open files",
		},
		{
			"redis-timeout", Note, "timeout",
			"The server closes connections that are idle for so many seconds. Those that hear pushes are spared; others are made again when they are needed, which costs a round trip or two.",
			redisSetter + "timeout 0, and the same in redis.conf",
		},
		{
			"redis-keepalive", Note, "tcp-keepalive",
			"A host that vanished stays a listener for hours: each grant to a waiter of its costs a claim of 2 s until its place in the queue has run out.",
			redisSetter + "tcp-keepalive 60, and the same in redis.conf",
		},
	}
}
