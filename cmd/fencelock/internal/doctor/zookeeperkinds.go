package doctor

func zookeeperKinds() []Kind {
	const whitelist = "4lw.commands.whitelist=srvr, conf, cons in zoo.cfg of {where}, and a restart of it"
	return []Kind{
		{
			"zookeeper-single", Risk, "Mode",
			"The server stands alone: while it is down nothing can be locked or renewed, and if its disk is lost all locks are.",
			"an ensemble of three or five servers, each on a machine of its own",
		},
		{
			"zookeeper-few", Risk, "servers that vote, of /zookeeper/config",
			"With two servers the failure of one stops everything.",
			"a third server",
		},
		{
			"zookeeper-even", Note, "servers that vote, of /zookeeper/config",
			"An even number survives no more failures than one less, and needs one more to agree.",
			"one server more, or one as an observer",
		},
		{
			"zookeeper-no-quorum", Broken, "Mode",
			"The server has no quorum: too few servers are up or can reach each other. Where all say so nothing can be locked or renewed.",
			"start the missing servers",
		},
		{
			"zookeeper-down", Risk, "a server of the URL",
			"It does not answer. Others do, so locking works; the ensemble survives that many failures less.",
			"start {where}, or take it out of the URL if it is no more",
		},
		{
			"zookeeper-session-short", Broken, "maxSessionTimeout",
			"A lease is a session, and the servers grant none of the length of the TTL. The driver refuses such locks.",
			"maxSessionTimeout in zoo.cfg of every server at least the longest TTL + grace (default 20 tickTimes), or a shorter ttl= in the URL",
		},
		{
			"zookeeper-session-long", Note, "minSessionTimeout",
			"The servers grant no session as short as the TTL. A dead process's locks come free that much later; nobody is endangered.",
			"minSessionTimeout in zoo.cfg (default 2 tickTimes) at most the TTL, or a longer ttl= in the URL",
		},
		{
			"zookeeper-connections", Risk, "maxClientCnxns",
			"So many connections of one address are allowed. Each program needs one for each length of leases, and one more; beyond the limit a session cannot come back after a cut, and its leases are lost.",
			"maxClientCnxns=60, the default, or more, in zoo.cfg of every server",
		},
		{
			"zookeeper-observer", Note, "Mode",
			"The server is an observer: it serves, and does not vote. A silence of its link to the others is one for its clients.",
			"nothing, if it is meant for clients that are far away",
		},
		{
			"zookeeper-observers", Note, "observers, of /zookeeper/config",
			"Observers do not vote: they add nothing to what the ensemble survives.",
			"nothing, if they are meant for clients that are far away",
		},
		{
			"zookeeper-version", Broken, "Zookeeper version",
			"The driver needs container nodes, which are there since 3.5.3. It is tested with 3.8.",
			"upgrade {where}",
		},
		{
			"zookeeper-rights", Broken, "ACL",
			"The user may not create, read, write and delete under this node, so nothing can be locked. What the driver makes is accessible to the user of the URL that made it, only: all clients use the same one.",
			"setAcl {value} auth:USER:PASSWORD:cdrwa in zkCli.sh as who may, or the URL's user",
		},
		{
			"zookeeper-words-unseen", Unseen, "4lw.commands.whitelist",
			"The server does not answer these words. Without srvr its mode and version were not looked at, without conf its limit of connections.",
			whitelist,
		},
		{
			"zookeeper-ensemble-unseen", Unseen, "/zookeeper/config",
			"The user may not read it, so how many servers vote was not looked at.",
			"setAcl /zookeeper/config world:anyone:r in zkCli.sh as who may",
		},
		{
			"zookeeper-clock-unseen", Note, "clock of the server",
			"ZooKeeper tells its time in the word cons only, which the server does not answer. Leases do not depend on clocks; tokens depend on the servers' clock after a loss or a rollback of all data.",
			whitelist + "; or keep the clocks of the servers by NTP",
		},
	}
}
