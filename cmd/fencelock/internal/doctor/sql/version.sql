-- What fencelock_version() of the schema $1 returns, as its text has it: the role may not be allowed
-- to call it.
SELECT (SELECT prosrc FROM pg_proc WHERE oid = to_regprocedure($1 || 'fencelock_version()'))
