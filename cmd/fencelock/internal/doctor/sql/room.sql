-- How many connections there is room for, this one included.
SELECT (1 + least(
	current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		- (SELECT sum(numbackends) FROM pg_stat_database),
	CASE WHEN r.rolconnlimit >= 0 THEN r.rolconnlimit
		- (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) END,
	CASE WHEN d.datconnlimit >= 0 THEN d.datconnlimit
		- (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()) END
))::bigint::text
FROM pg_roles r, pg_database d
WHERE r.rolname = current_user AND d.datname = current_database()
