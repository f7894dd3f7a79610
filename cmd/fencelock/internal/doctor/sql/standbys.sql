-- How many standbys there are, how many are synchronous, and of how many the role may see that.
SELECT count(*)::text
	|| ' ' || count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::text
	|| ' ' || count(sync_state)::text
FROM pg_stat_replication
