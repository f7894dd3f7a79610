package doctor

func postgresKinds() []Kind {
	const reload = `; then SELECT pg_reload_conf()`
	return []Kind{
		{
			"postgres-read-only", Broken, "pg_is_in_recovery(), default_transaction_read_only",
			"The server takes no writes from this user: it is a standby, or its transactions are read-only. Nothing can be locked.",
			"the URL of the primary, or target_session_attrs=read-write with all hosts; or ALTER ROLE … SET default_transaction_read_only = off",
		},
		{
			"postgres-hosts", Risk, "target_session_attrs",
			"The URL has several hosts, and a client takes the first that answers, also a standby, which takes no writes.",
			"target_session_attrs=read-write in the URL",
		},
		{
			"postgres-fsync", Risk, "fsync",
			"A power loss or a crash of the machine may leave the whole database unusable, the locks with it.",
			"ALTER SYSTEM SET fsync = on" + reload,
		},
		{
			"postgres-full-page-writes", Risk, "full_page_writes",
			"A power loss may leave pages half-written, which may go unnoticed: rows of locks that are wrong or gone.",
			"ALTER SYSTEM SET full_page_writes = on" + reload,
		},
		{
			"postgres-async-commit", Risk, "synchronous_commit",
			"A crash of the server forgets what was committed just before. In mode lease a second holder may be granted the lock; in mode row what was written in the holder's transaction may be gone after Unlock has returned nil. Tokens still rise.",
			"synchronous_commit=on in the URL, or ALTER ROLE … SET synchronous_commit = on",
		},
		{
			"postgres-async-standby", Risk, "synchronous_standby_names, pg_stat_replication.sync_state",
			"A standby follows asynchronously. If it takes over it may not know the last grants. In mode lease a second holder may be granted a lock; in mode row the writes of the last transactions may be gone. Tokens still rise.",
			"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'" + reload + "; promote no other standby",
		},
		{
			"postgres-replication-unseen", Unseen, "pg_stat_replication",
			"There are standbys, and the role may not see whether they are synchronous.",
			"GRANT pg_read_all_stats TO …, or give the doctor another user",
		},
		{
			"postgres-connections", Risk, "max_connections, pool_max_conns",
			"The server, the role or the database has no room for one more pool of this URL. Mode row needs a connection for each lease and each name that is waited for: what does not get one is ErrUnavailable.",
			"ALTER SYSTEM SET max_connections to more and restart, or a smaller pool_max_conns in the URL",
		},
		{
			"postgres-pooler", Broken, "a pooler in transaction or statement mode",
			"Mode row holds a lock by a session. Such a pooler hides dead clients from the server, so a dead waiter may stop the others, and in statement mode there are no transactions at all.",
			"give the server's own address, or pool_mode = session for this database, or mode=lease",
		},
		{
			"postgres-pooler-listen", Note, "a pooler in transaction or statement mode, listen_url",
			"Pushes do not come through it: waiters look a few times a second instead, and a release is noticed that much later.",
			"listen_url= in the URL with the server's own address, percent-encoded",
		},
		{
			"postgres-pooler-session", Note, "a pooler",
			"There is a pooler in between. In session mode it changes nothing, but its default_pool_size and max_client_conn bound the locks of mode row, besides max_connections.",
			"give the server's own address if there is no need for the pooler",
		},
		{
			"postgres-schema", Broken, "tables of the driver",
			"They are not there, and the role may not create them, so nothing can be locked.",
			"run schema.sql (docs/postgres.md) once as the owner of the schema, with the GRANTs at its head",
		},
		{
			"postgres-schema-old", Broken, "fencelock_version()",
			"The tables are those of an earlier version, and the role may not change them.",
			"run schema.sql (docs/postgres.md) of this version once as their owner",
		},
		{
			"postgres-schema-missing", Note, "tables of the driver",
			"They are not there yet. The first program that locks creates them; the role may.",
			"nothing",
		},
		{
			"postgres-rights", Broken, "GRANT",
			"The role may not do what locking needs, so some calls fail: acquiring, waiting, renewing or releasing.",
			"the GRANTs at the head of schema.sql (docs/postgres.md), and GRANT USAGE on the schema",
		},
		{
			"postgres-statement-timeout", Risk, "statement_timeout",
			"The server ends a statement of the driver that takes so long, such as the renewal of many leases on a busy server; and in mode row a holder's own statement, which then makes Unlock roll back. Waiting is not bounded by it.",
			"statement_timeout=10000 in the URL, or ALTER ROLE … SET statement_timeout to 5s or more",
		},
		{
			"postgres-lock-timeout", Risk, "lock_timeout",
			"Under load a statement of the driver waits for another's row for some milliseconds; the server ends it. Waiting for a lock is not bounded by it.",
			"lock_timeout=0 in the URL, or ALTER ROLE … SET lock_timeout to 1s or more",
		},
		{
			"postgres-idle-session", Note, "idle_session_timeout",
			"In mode lease the connection that hears pushes is idle, and the server closes it again and again: a push that falls into the gap is made up for within a second.",
			"ALTER ROLE … SET idle_session_timeout = 0",
		},
		{
			"postgres-keepalives", Note, "tcp_keepalives_idle",
			"The session of a host that vanished stays until the system finds out. Its locks come free in time all the same, but its connections count against max_connections until then.",
			"ALTER SYSTEM SET tcp_keepalives_idle = 10, tcp_keepalives_interval = 5, tcp_keepalives_count = 3" + reload,
		},
		{
			"postgres-version", Broken, "server_version",
			"The driver needs PostgreSQL 15.",
			"upgrade {where}",
		},
	}
}
