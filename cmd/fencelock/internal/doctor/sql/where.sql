-- The schema, found as the driver finds it: the one that the URL names ($1), else the first of the
-- search_path that has its objects, else the first.
SELECT nspname::text FROM pg_namespace WHERE nspname = coalesce(nullif($1, ''),
	(SELECT s FROM unnest(current_schemas(false)) WITH ORDINALITY p(s, i)
		JOIN pg_namespace n ON n.nspname = s
		JOIN pg_proc f ON f.pronamespace = n.oid AND f.proname = 'fencelock_version'
		ORDER BY i LIMIT 1),
	current_schema())
