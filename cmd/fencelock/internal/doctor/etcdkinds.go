package doctor

func etcdKinds() []Kind {
	return []Kind{
		{
			"etcd-members", Risk, "voting members",
			"With fewer than three members the failure of one stops everything: nothing can be locked or renewed until it is back, and if its disk is lost all locks are.",
			"three or five members, each on a machine of its own: etcdctl member add",
		},
		{
			"etcd-even", Note, "voting members",
			"An even number survives no more failures than one less, and needs one more to agree.",
			"etcdctl member add or remove one",
		},
		{
			"etcd-no-leader", Broken, "leader",
			"The members have no leader: no majority of them is up or can reach each other. Nothing can be locked or renewed, and leases run out.",
			"start the missing members: etcdctl endpoint status --cluster",
		},
		{
			"etcd-member-down", Risk, "a member",
			"The cluster has it as a member, and it does not answer from here. It survives that many failures less.",
			"start it, or etcdctl member remove it; if it runs, let clients reach its --advertise-client-urls",
		},
		{
			"etcd-learner", Note, "isLearner",
			"A learner does not vote. It adds nothing to what the cluster survives until it is promoted.",
			"etcdctl member promote {value}, when it has caught up",
		},
		{
			"etcd-learner-url", Risk, "isLearner, of a host of the URL",
			"A learner refuses what locks need, so a client that comes there first must go on to another host.",
			"take {where} out of the URL, or etcdctl member promote it",
		},
		{
			"etcd-alarm", Broken, "alarm",
			"NOSPACE: the database has reached its quota, and the cluster refuses every write: nothing can be locked. CORRUPT: members disagree about the data, and no promise holds.",
			"NOSPACE: etcdctl compact, etcdctl defrag --cluster, etcdctl alarm disarm, and auto-compaction; CORRUPT: replace the member whose data differ",
		},
		{
			"etcd-quota", Risk, "--quota-backend-bytes",
			"The database is near its quota. At the quota the cluster refuses every write until an operator has made room.",
			"etcdctl compact, etcdctl defrag --cluster, --auto-compaction-retention; or a higher --quota-backend-bytes",
		},
		{
			"etcd-compaction", Note, "--auto-compaction-retention",
			"Every lock and release is a revision. Without compaction the database grows until its quota. Only the command line was looked at; compaction may be set elsewhere, or done by another program (Kubernetes does).",
			"--auto-compaction-mode=periodic --auto-compaction-retention=1h",
		},
		{
			"etcd-versions", Note, "version, of the members",
			"An upgrade stands half-way. That works, and is meant to be short.",
			"finish the upgrade, one member after the other",
		},
		{
			"etcd-version", Risk, "version",
			"Before 3.4.31 and 3.5.13 a leader that hung could end leases after it had been replaced (etcd-io/etcd#15247): a lock is lost while its holder renews it.",
			"upgrade {where}",
		},
		{
			"etcd-rights", Broken, "role",
			"The user may not read and write all keys that begin with the prefix, so some calls fail: acquiring, waiting, renewing or releasing.",
			"etcdctl role grant-permission ROLE readwrite PREFIX --prefix",
		},
		{
			"etcd-rights-unseen", Unseen, "role",
			"The user may not ask what its roles allow, or is known by a certificate only. Reading was tried and works; whether writing does is not known.",
			"etcdctl role get ROLE, as root; or fencelock conform --only A",
		},
		{
			"etcd-election", Risk, "--election-timeout",
			"Leases are no shorter than one and a half election timeouts, and are prolonged by one when a leader is elected: with more than 2 s a dead waiter delays the others for longer than the 5 s that are promised.",
			"--election-timeout=1000 on every member, or as much as the network needs, up to 2000",
		},
		{
			"etcd-txn-ops", Broken, "--max-txn-ops",
			"The driver looks at up to 120 holds in one transaction. A lower limit refuses it, and holders are taken for lost.",
			"--max-txn-ops=128, the default, or more, on every member",
		},
		{
			"etcd-settings-unseen", Note, "/debug/vars",
			"The command line of the server was not told, so its election timeout, transaction size and compaction were not looked at. The defaults of the first two do.",
			"look at the server's configuration",
		},
		{
			"etcd-clock-unseen", Note, "Date, of the server's HTTP answers",
			"etcd has no clock in its transactions, and the server answered no HTTP, so its wall clock was not looked at. Leases do not depend on it; tokens depend on the clients' clocks after a restore.",
			"keep the clocks of all clients by NTP",
		},
	}
}
