-- What the role may not do with the tables $2, the sequences $3 and the functions of the schema $1.
SELECT string_agg(what, ', ') FROM (
	SELECT p || ' on ' || r AS what
	FROM unnest(string_to_array($2, ' ')) r,
		unnest(string_to_array('SELECT INSERT UPDATE DELETE', ' ')) p
	WHERE NOT has_table_privilege($1 || r, p)
	UNION ALL
	SELECT p || ' on ' || r
	FROM unnest(string_to_array($3, ' ')) r, unnest(string_to_array('SELECT UPDATE', ' ')) p
	WHERE NOT has_sequence_privilege($1 || r, p)
	UNION ALL
	SELECT DISTINCT 'EXECUTE on ' || f.proname
	FROM pg_proc f
	WHERE f.proname LIKE 'fencelock\_%'
		AND f.pronamespace =
			(SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1 || 'fencelock_lead'))
		AND NOT has_function_privilege(f.oid, 'EXECUTE')
) x
