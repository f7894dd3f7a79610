-- How many leases of mode row are older than $1, and how many seconds the oldest is.
SELECT count(*)::text || ' '
	|| coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))::bigint, 0)::text
FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '^fl [1-9][0-9]* '
	AND xact_start < clock_timestamp() - $1::text::interval
