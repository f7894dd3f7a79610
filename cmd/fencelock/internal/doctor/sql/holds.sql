-- How many leases and waits that hold back vacuum are older than $1, and how many seconds the oldest
-- is. A lease of mode advisory has neither an id nor a snapshot until its holder writes.
SELECT count(*)::text || ' '
	|| coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))::bigint, 0)::text
FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '^fl [0-9]+ '
	AND pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
	AND xact_start < clock_timestamp() - $1::text::interval
