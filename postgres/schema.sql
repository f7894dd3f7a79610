-- Fencelock's objects in PostgreSQL 15 or later, version 4, for both modes.
--
-- The driver runs this file by itself on first use. Where its role may not create tables, run it once by hand, in
-- the schema that comes first in the role's search_path (or that schema= names), as the owner of that schema:
--
--     psql "$URL" -1 -v ON_ERROR_STOP=1 -f schema.sql
--     GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_row, fencelock_lease, fencelock_queue, fencelock_process,
--           fencelock_gone, fencelock_ring, fencelock_lead, fencelock_guard, fencelock_gate, fencelock_client TO app;
--     GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO app;
--
-- It may be run again: what is there is kept, and what version 1, 2 or 3 has made becomes version 4. Whoever had rights on the tables of
-- version 1 gets the same on the new ones. Programs of the earlier versions go on: the functions that they call stay.

-- Tokens -------------------------------------------------------------------------------------------------------------

-- The last number that was drawn: the server's clock in µs, or one more than the last. There are several, so that the locks of one
-- name in 16 share the short lock of one.
DO $$
BEGIN
	FOR lane IN 0..15 LOOP
		EXECUTE 'CREATE SEQUENCE IF NOT EXISTS fencelock_token_' || lane || ' AS bigint MINVALUE 0 START 0';
	END LOOP;
END $$;

-- By how much the tokens of a slot's names run ahead of that number, because floors were asked that are ahead of it. There is one slot
-- for each 1,024th of all names, and -1, which holds for every name.
CREATE TABLE IF NOT EXISTS fencelock_lead (
	slot int PRIMARY KEY,
	lead bigint NOT NULL
) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION fencelock_slot(k bytea) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT hashtext(encode(k, ''hex'')) & 1023';

-- Draws the next number of a lane: max(last + 1, clock in µs).
--
-- setval is not undone by a rollback, but until the transaction is flushed a crash may undo it. The clock does not go
-- back then, so the tokens rise all the same; and the lead, which the clock knows nothing of, was committed. The lock is
-- taken and freed in a subtransaction, so that nothing is held after the call, on whatever connection. Here and in what every lock calls, a function is
-- called by an assignment: PERFORM runs a query, which costs five times as much.
CREATE OR REPLACE FUNCTION fencelock_tick(lane int) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	source regclass := 'fencelock_token_' || lane;
	done boolean;
	v bigint;
BEGIN
	BEGIN
		done := pg_advisory_xact_lock(7306, lane) IS NULL;
		v := setval(source, greatest(pg_sequence_last_value(source) + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint));
		RAISE SQLSTATE 'FL000';
	EXCEPTION WHEN SQLSTATE 'FL000' THEN
		NULL;
	END;
	RETURN v;
END $$;

-- The same, and up to more numbers after it: {number, how many more}. Those after it do not move the sequence ahead of the clock by more than 3 ms.
CREATE OR REPLACE FUNCTION fencelock_next(lane int, more bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	source regclass := 'fencelock_token_' || lane;
	clock bigint;
	v bigint;
	done boolean;
BEGIN
	BEGIN
		done := pg_advisory_xact_lock(7306, lane) IS NULL;
		clock := date_part('epoch', clock_timestamp()) * 1000000;
		v := greatest(pg_sequence_last_value(source) + 1, clock);
		more := greatest(least(more, clock + 3000 - v), 0);
		v := setval(source, v + more) - more;
		RAISE EXCEPTION USING ERRCODE = 'FL000';
	EXCEPTION WHEN SQLSTATE 'FL000' THEN
		NULL;
	END;
	RETURN ARRAY[v, more];
END $$;

-- Draws a token for a name: the next number + lead. NULL if that does not exceed floor: then fencelock_raise first.
CREATE OR REPLACE FUNCTION fencelock_draw(k bytea, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	mine int := fencelock_slot(k);
	v bigint := fencelock_tick(mine & 15);
BEGIN
	v := v + (SELECT coalesce(max(lead), 0) FROM fencelock_lead WHERE slot IN (-1, mine));
	IF v >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	RETURN CASE WHEN v > floor THEN v END;
END $$;

-- Makes every later token of a name exceed floor, or of all names if k is NULL. The transaction must commit before such
-- a token is used. The sequences take what the clock has reached, so that a clock that steps back takes none of it away.
CREATE OR REPLACE FUNCTION fencelock_raise(k bytea, floor bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	clock bigint := extract(epoch FROM clock_timestamp()) * 1000000;
	source regclass;
BEGIN
	IF floor >= 9007199254740991 THEN
		RAISE EXCEPTION 'fencelock: tokens are below 2^53' USING ERRCODE = 'FL053';
	END IF;
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	INSERT INTO fencelock_lead VALUES (coalesce(fencelock_slot(k), -1), greatest(floor + 1 - clock, 0))
		ON CONFLICT (slot) DO UPDATE SET lead = greatest(fencelock_lead.lead, excluded.lead);
	FOR lane IN 0..15 LOOP
		CONTINUE WHEN lane <> fencelock_slot(k) & 15;
		source := 'fencelock_token_' || lane;
		BEGIN
			PERFORM pg_advisory_xact_lock(7306, lane);
			PERFORM setval(source, greatest(pg_sequence_last_value(source), least(floor, clock), 0));
			RAISE EXCEPTION USING ERRCODE = 'FL000';
		EXCEPTION WHEN SQLSTATE 'FL000' THEN
			NULL;
		END;
	END LOOP;
END $$;

-- A number that no token exceeds yet. The clock counts too: a crash may have taken back what the sequences gave to holders of mode row.
CREATE OR REPLACE FUNCTION fencelock_source() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT max(greatest(pg_sequence_last_value(('fencelock_token_' || lane)::regclass), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
		+ coalesce((SELECT max(lead) FROM fencelock_lead WHERE slot = -1 OR slot & 15 = lane), 0))
	FROM generate_series(0, 15) lane
$$;

-- Gates --------------------------------------------------------------------------------------------------------------

-- The gates of migrations: whom each lets in. keyspace: the prefix of the names. scope: patterns, the first that matches a name decides: + and
-- the pattern for names that move, ! for names that stay; a * at the end stands for any rest. state: open (everyone), both (clients of this
-- migration in phase both). A gate stays when its migration is over.
CREATE TABLE IF NOT EXISTS fencelock_gate (
	keyspace bytea NOT NULL,
	move bytea NOT NULL,
	scope bytea[] NOT NULL,
	state text NOT NULL CHECK (state IN ('open', 'both')),
	epoch bigint NOT NULL CHECK (epoch > 0),
	PRIMARY KEY (keyspace, move)
);

-- What the clients of migrations have reported of themselves, as JSON, until expires_at. Nothing depends on it.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_client (
	keyspace bytea NOT NULL,
	move bytea NOT NULL,
	id bytea NOT NULL,
	report bytea NOT NULL,
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (keyspace, move, id)
);

-- Where version 1 was there, its roles must be able to look at the gates.
DO $$
DECLARE
	a record;
BEGIN
	FOR a IN SELECT x.privilege_type AS privilege, CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END AS grantee
		FROM pg_class c CROSS JOIN aclexplode(c.relacl) x WHERE c.oid = 'fencelock_lead'::regclass AND x.grantee <> c.relowner
			AND x.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
	LOOP
		EXECUTE 'GRANT ' || a.privilege || ' ON fencelock_gate, fencelock_client TO ' || a.grantee;
	END LOOP;
END $$;

-- Whether a name is in scope; NULL if the scope cannot be read. It compares bytes.
CREATE OR REPLACE FUNCTION fencelock_moves(scope bytea[], n bytea) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	p bytea;
	moves boolean;
BEGIN
	IF coalesce(cardinality(scope), 0) = 0 THEN
		RETURN NULL;
	END IF;
	FOREACH p IN ARRAY scope LOOP
		IF p IS NULL OR length(p) < 2 OR get_byte(p, 0) NOT IN (33, 43) THEN
			RETURN NULL;
		END IF;
		IF moves IS NULL AND (n = substr(p, 2)
			OR get_byte(p, length(p) - 1) = 42 AND substr(n, 1, length(p) - 2) = substr(p, 2, length(p) - 2)) THEN
			moves := get_byte(p, 0) = 43;
		END IF;
	END LOOP;
	RETURN coalesce(moves, false);
END $$;

-- Asks the gates whether a request may have the lock whose turn it is: the caller holds what keeps all others from the lock, until it
-- commits. pre: how many bytes of k are the keyspace; NULL: unknown, all gates that k may belong to count. mv, phase: the request's
-- migration and phase, or NULL and ''. shut: the migration that refuses it, and its gate's epoch, 0 without one. gated: there is one of mv.
CREATE OR REPLACE FUNCTION fencelock_admit(k bytea, pre int, mv bytea, phase text, OUT gated boolean, OUT shut bytea, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	g record;
	moves boolean;
BEGIN
	gated := false;
	FOR g IN SELECT * FROM fencelock_gate x WHERE length(x.keyspace) = coalesce(pre, length(x.keyspace)) AND substr(k, 1, length(x.keyspace)) = x.keyspace
		ORDER BY x.keyspace, x.move
	LOOP
		moves := fencelock_moves(g.scope, substr(k, length(g.keyspace) + 1));
		IF moves IS NULL OR g.state NOT IN ('open', 'both') THEN
			RAISE EXCEPTION 'fencelock: the gate of migration "%" of keyspace "%" in fencelock_gate cannot be read', encode(g.move, 'escape'), encode(g.keyspace, 'escape')
				USING ERRCODE = 'FL022';
		END IF;
		CONTINUE WHEN NOT moves;
		gated := gated OR g.move IS NOT DISTINCT FROM mv;
		IF g.state <> 'open' AND (phase <> 'both' OR g.move IS DISTINCT FROM mv) THEN
			shut := g.move;
			epoch := g.epoch;
			RETURN;
		END IF;
	END LOOP;
	IF phase = 'to' AND NOT gated THEN
		shut := mv;
		epoch := 0;
	END IF;
END $$;

-- What tells one state of all gates from another: a hash of what the table has, 0 if it is empty. A client that sends the one that it knows has
-- looked at the gates itself: where it is still the same, when the lock is won, nobody needs to look again. It comes from the table, so that no change
-- and no loss of it, by whatever hand, leaves it the same. The functions that grant have this expression inline, which is faster.
CREATE OR REPLACE FUNCTION fencelock_gates_now() RETURNS bigint LANGUAGE sql STABLE AS
	'SELECT coalesce(bit_xor(hash_record_extended(g, 0)), 0) FROM fencelock_gate g';

-- What a client that knew another state of the gates is told behind its answer: that hash, and the gates of its keyspace, as of one moment.
CREATE OR REPLACE FUNCTION fencelock_gates(k bytea, pre int) RETURNS text
LANGUAGE sql STABLE AS $$
	SELECT CASE WHEN pre IS NULL THEN '' ELSE E'\n' || fencelock_gates_now() || ' ' || (
		SELECT coalesce(json_agg(json_build_object('move', encode(g.move, 'hex'), 'state', g.state, 'epoch', g.epoch,
			'scope', (SELECT json_agg(encode(p, 'hex') ORDER BY i) FROM unnest(g.scope) WITH ORDINALITY u(p, i))) ORDER BY g.move), '[]')::text
		FROM fencelock_gate g WHERE g.keyspace = substr(k, 1, pre)) END
$$;

-- Refuses by an error, which frees every lock of the transaction at once.
CREATE OR REPLACE FUNCTION fencelock_refuse(shut bytea, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RAISE EXCEPTION 'fencelock: the gate of migration "%" refuses this client', encode(shut, 'escape')
		USING ERRCODE = 'FL403', DETAIL = encode(shut, 'hex') || ' ' || epoch;
END $$;

-- Refuses as fencelock_admit says, or returns gated.
CREATE OR REPLACE FUNCTION fencelock_pass(k bytea, pre int, mv bytea, phase text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	gate record;
BEGIN
	SELECT * INTO gate FROM fencelock_admit(k, pre, mv, phase);
	IF gate.shut IS NOT NULL THEN
		PERFORM fencelock_refuse(gate.shut, gate.epoch);
	END IF;
	RETURN gate.gated;
END $$;

-- Writes a gate where the epoch is was (0: there is none; below 0: any lower than ep). False: another stands there.
CREATE OR REPLACE FUNCTION fencelock_set_gate(ks bytea, mv bytea, patterns bytea[], st text, ep bigint, was bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	IF was = 0 THEN
		INSERT INTO fencelock_gate VALUES (ks, mv, patterns, st, ep) ON CONFLICT DO NOTHING;
	ELSIF was < 0 THEN
		INSERT INTO fencelock_gate AS g VALUES (ks, mv, patterns, st, ep)
			ON CONFLICT (keyspace, move) DO UPDATE SET scope = excluded.scope, state = excluded.state, epoch = excluded.epoch WHERE g.epoch < excluded.epoch;
	ELSE
		UPDATE fencelock_gate SET scope = patterns, state = st, epoch = ep WHERE keyspace = ks AND move = mv AND epoch = was;
	END IF;
	RETURN FOUND OR EXISTS (SELECT FROM fencelock_gate WHERE keyspace = ks AND move = mv AND scope = patterns AND state = st AND epoch = ep);
END $$;

-- Keeps a report for keep ms, and deletes those whose time is over.
CREATE OR REPLACE FUNCTION fencelock_report(ks bytea, mv bytea, who bytea, what bytea, keep bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	DELETE FROM fencelock_client WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_client WHERE expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED));
	INSERT INTO fencelock_client VALUES (ks, mv, who, what, clock_timestamp() + keep * interval '1 ms')
		ON CONFLICT (keyspace, move, id) DO UPDATE SET report = excluded.report, expires_at = excluded.expires_at;
END $$;

-- Mode row -----------------------------------------------------------------------------------------------------------

-- The advisory locks that are the rows' doors, in a range that other programs hardly use: 0x666c000000000000 and up.
CREATE SEQUENCE IF NOT EXISTS fencelock_door AS bigint MINVALUE 7380273889353400320 MAXVALUE 7380414626841755647 CYCLE;

-- The rows that are locked. There is one for each name that is held or waited for; its content means nothing.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_row (
	name bytea PRIMARY KEY,
	door bigint NOT NULL DEFAULT nextval('fencelock_door')
);

-- Locks the row for the transaction that calls it, and draws a token. Whoever wants the row goes through its door,
-- an advisory lock, whose queue is strictly first come, first served: a plain row lock lets a newcomer in between a release and the
-- first waiter. pre, mv, phase: as of fencelock_admit. mark: the number of the migration of a client in phase both, by whose advisory lock
-- fencelock_undrained_row knows it; it is there before the door is, and as long. seen: the gates that the client knows and passes
-- (fencelock_gates_now), or NULL. idle: the idle_in_transaction_session_timeout of the transaction, in ms, and tail: what follows the token in its
-- application_name; NULL: as they are. A gate that refuses is an error, FL403.
--
-- Returns "state token xid ungated", and behind a line's end fencelock_gates if they were not those that the client knows; ungated only then. state: held, locked
-- (never with wait), missing (the row was deleted: insert it again), floor (held, but the token must be drawn again after fencelock_raise). Behind locked comes 2 if
-- the transaction can wait as it is: it has no timeouts of statements, the label of a waiter, and the server looks after its connection.
CREATE OR REPLACE FUNCTION fencelock_take(k bytea, floor bigint, wait boolean, pre int, mv bytea, phase text, mark bigint, seen bigint,
	idle text, tail text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	slot_of int := hashtext(encode(k, 'hex')) & 1023; -- fencelock_slot
	d bigint;
	gated boolean;
	led boolean;
	gates bigint := 0;
	t bigint;
	done boolean;
	told text := '';
BEGIN
	SELECT x.door, EXISTS (SELECT FROM fencelock_gate) INTO d, gated FROM fencelock_row x WHERE x.name = k;
	IF d IS NULL THEN
		gated := EXISTS (SELECT FROM fencelock_gate);
	END IF;
	-- A try that the gates refuse leaves the door alone, so that it is in nobody's way. What decides is the look below.
	IF gated AND NOT wait AND fencelock_gates_now() IS DISTINCT FROM seen THEN
		PERFORM fencelock_pass(k, pre, mv, phase);
	END IF;
	IF d IS NULL THEN
		RETURN 'missing 0';
	END IF;
	IF mark IS NOT NULL THEN
		done := pg_advisory_xact_lock_shared(mark) IS NULL;
	END IF;
	-- The door is asked for apart: in one WHERE the server might do it for every row. What is there of gates and leads is looked at after it, in a
	-- statement of its own: it sees every gate that was there when the door was won.
	IF wait THEN
		done := pg_advisory_xact_lock(d) IS NULL;
		SELECT EXISTS (SELECT FROM fencelock_gate), EXISTS (SELECT FROM fencelock_lead) INTO gated, led
			FROM fencelock_row WHERE name = k AND door = d FOR UPDATE;
	ELSIF pg_try_advisory_xact_lock(d) THEN
		SELECT EXISTS (SELECT FROM fencelock_gate), EXISTS (SELECT FROM fencelock_lead) INTO gated, led
			FROM fencelock_row WHERE name = k AND door = d FOR UPDATE SKIP LOCKED;
		IF NOT FOUND AND EXISTS (SELECT FROM fencelock_row WHERE name = k AND door = d) THEN
			told := 'locked'; -- by a program that does not use the door
		END IF;
	ELSE -- fencelock_tidy shares the door of a row that is free
		told := CASE WHEN NOT pg_try_advisory_xact_lock_shared(d) AND EXISTS (SELECT FROM fencelock_row WHERE name = k AND door = d)
			THEN 'locked' ELSE 'missing 0' END;
	END IF;
	IF told = 'locked' THEN
		IF tail IS NOT NULL THEN
			tail := set_config('application_name', 'fl 0' || tail, true) || set_config('client_connection_check_interval', '500', true);
		END IF;
		RETURN CASE WHEN current_setting('statement_timeout') = '0' AND current_setting('lock_timeout') = '0' THEN 'locked 2' ELSE 'locked 0' END;
	END IF;
	IF told <> '' OR gated IS NULL THEN
		RETURN 'missing 0';
	END IF;
	IF gated THEN
		gates := fencelock_gates_now();
	END IF;
	IF gates IS DISTINCT FROM seen AND (gated OR phase <> '' OR seen IS NOT NULL) THEN
		told := CASE WHEN fencelock_pass(k, pre, mv, phase) OR phase = '' THEN ' f' ELSE ' t' END || fencelock_gates(k, pre);
	END IF;
	t := fencelock_tick(slot_of & 15);
	IF led THEN
		led := (SELECT max(l.lead) FROM fencelock_lead l WHERE l.slot IN (-1, slot_of)) < 0;
		IF led THEN
			RAISE EXCEPTION 'fencelock: a lead below 0' USING ERRCODE = 'FL022';
		END IF;
		t := t + (SELECT coalesce(max(l.lead), 0) FROM fencelock_lead l WHERE l.slot IN (-1, slot_of));
	END IF;
	IF t >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	told := CASE WHEN t > floor THEN 'held ' || t ELSE 'floor 0' END || ' ' || pg_current_xact_id() || told;
	IF tail IS NOT NULL THEN
		idle := set_config('idle_in_transaction_session_timeout', idle, true);
		tail := set_config('application_name', 'fl ' || CASE WHEN t > floor THEN t ELSE 0 END || tail, true);
	END IF;
	RETURN told;
END $$;

-- For programs of version 2, which have not looked at the gates.
CREATE OR REPLACE FUNCTION fencelock_take(k bytea, floor bigint, wait boolean, pre int, mv bytea, phase text, mark bigint,
	OUT state text, OUT token bigint, OUT xid bigint, OUT ungated boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	a text[] := string_to_array(split_part(fencelock_take(k, floor, wait, pre, mv, phase, mark, NULL, NULL, NULL), E'\n', 1), ' ');
BEGIN
	state := a[1];
	token := nullif(a[2], '0');
	xid := a[3];
	ungated := coalesce(a[4], 'f');
END $$;

-- For programs of version 1, which know of no migration.
CREATE OR REPLACE FUNCTION fencelock_take(k bytea, floor bigint, wait boolean, OUT state text, OUT token bigint, OUT xid bigint)
LANGUAGE sql VOLATILE AS 'SELECT t.state, t.token, t.xid FROM fencelock_take(k, floor, wait, NULL, NULL, '''', NULL) t';

-- The locks of a keyspace that are held, or may be, by anyone but clients of phase both of the migration mark, after its gate was closed.
--
-- Why none is missed: fencelock_take looks at the gates when it has the door, and has it until its transaction ends. pg_locks shows all
-- advisory locks as of one moment. Whoever gets a door later sees the closed gate, which was committed before this function was called. Whoever has one
-- at that moment may have seen it open: all are returned but those that hold the mark too, in whatever part of taking or holding they are; they lock the mark
-- before the door. The names of the doors come from a later statement, for a row is committed before its door is asked for, and it
-- is not deleted while somebody has the door. So a door without a row is nobody's any more. A session that has ended meanwhile is returned
-- all the same: the next call knows. application_name decides nothing. What follows is for programs that lock a row by hand, without its
-- door and without looking at gates: they are returned if they are seen.
CREATE OR REPLACE FUNCTION fencelock_undrained_row(ks bytea, scope bytea[], mark bigint,
	OUT name bytea, OUT held boolean, OUT label text, OUT idle float8, OUT waiters int)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	pids int[];
	doors bigint[];
	lines int[];
	here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	WITH l AS MATERIALIZED (
		SELECT p.pid, p.granted, p.mode, (p.classid::bigint << 32) + p.objid::bigint AS key FROM pg_locks p
		WHERE p.locktype = 'advisory' AND p.objsubid = 1 AND p.database = here
	), w AS (
		SELECT l.key, count(*)::int AS n FROM l WHERE NOT l.granted GROUP BY l.key
	)
	SELECT array_agg(l.pid), array_agg(l.key), array_agg(coalesce(w.n, 0)) INTO pids, doors, lines FROM l LEFT JOIN w USING (key)
	WHERE l.granted AND l.mode = 'ExclusiveLock' AND l.key BETWEEN 7380273889353400320 AND 7380414626841755647
		AND NOT EXISTS (SELECT FROM l m WHERE m.pid = l.pid AND m.key = mark AND m.granted);
	RETURN QUERY
		WITH l AS MATERIALIZED (
			SELECT * FROM pg_locks p WHERE p.granted AND (p.locktype = 'transactionid' OR p.locktype = 'advisory' AND p.objsubid = 1 AND p.database = here)
		), h AS (
			SELECT u.pid, x.name, u.line FROM unnest(pids, doors, lines) u(pid, door, line) JOIN fencelock_row x USING (door)
			UNION ALL
			SELECT l.pid, x.name, -1 FROM fencelock_row x JOIN l ON l.locktype = 'transactionid' AND l.transactionid = x.xmax
				WHERE NOT EXISTS (SELECT FROM l d WHERE d.pid = l.pid AND d.locktype = 'advisory' AND (d.classid::bigint << 32) + d.objid::bigint = x.door)
		)
		SELECT h.name, true, coalesce(a.application_name, ''),
			CASE WHEN a.state LIKE 'idle in%' THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8 WHEN a.state IS NULL THEN -1 ELSE 0 END, h.line
		FROM h LEFT JOIN pg_stat_activity a ON a.pid = h.pid
		WHERE substr(h.name, 1, length(ks)) = ks AND fencelock_moves(scope, substr(h.name, length(ks) + 1)) LIMIT 100;
END $$;

-- Deletes a row that nobody holds or waits for; all such rows (200 at the most) if k is NULL: what dead processes have left.
CREATE OR REPLACE FUNCTION fencelock_tidy(k bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	d bigint;
BEGIN
	IF k IS NULL THEN
		DELETE FROM fencelock_row WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_row
			WHERE pg_try_advisory_xact_lock_shared(door) LIMIT 200 FOR UPDATE SKIP LOCKED));
	ELSE
		SELECT door INTO d FROM fencelock_row WHERE name = k;
		IF FOUND AND pg_try_advisory_xact_lock_shared(d) THEN
			PERFORM 1 FROM fencelock_row WHERE name = k AND door = d FOR UPDATE SKIP LOCKED;
			IF FOUND THEN
				DELETE FROM fencelock_row WHERE name = k AND door = d;
			END IF;
		END IF;
	END IF;
END $$;

-- Mode lease ---------------------------------------------------------------------------------------------------------

-- The leases: a row for each name that is held, by the server's clock until expires_at.
CREATE TABLE IF NOT EXISTS fencelock_lease (
	name bytea PRIMARY KEY,
	nonce bytea NOT NULL,
	owner bytea NOT NULL,
	token bigint NOT NULL,
	expires_at timestamptz NOT NULL,
	move bytea, -- the migration of a holder in phase both, or NULL
	claimed boolean NOT NULL DEFAULT false -- given by another's release, and not confirmed yet
) WITH (fillfactor = 50);
ALTER TABLE fencelock_lease ADD COLUMN IF NOT EXISTS move bytea, ADD COLUMN IF NOT EXISTS claimed boolean NOT NULL DEFAULT false; -- that of version 1

-- Who waits. What a crash takes from these tables, the waiters put back.
CREATE SEQUENCE IF NOT EXISTS fencelock_ticket AS bigint;
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_queue (
	name bytea NOT NULL,
	ticket bigint NOT NULL,
	nonce bytea NOT NULL UNIQUE,
	owner bytea NOT NULL,
	floor bigint NOT NULL,
	process text NOT NULL,
	PRIMARY KEY (name, ticket, nonce)
);

-- The processes that wait, and until when each counts as alive.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_process (
	process text PRIMARY KEY,
	alive_until timestamptz NOT NULL
);

-- Tombstones: acquisitions that were given up while a request was under way.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_gone (
	nonce bytea PRIMARY KEY,
	until timestamptz NOT NULL
);

-- Rings of the nonces that were released last, for a release that is sent again: also after a crash, for it can be what took the reply.
CREATE TABLE IF NOT EXISTS fencelock_ring (
	slot int PRIMARY KEY,
	nonces bytea[] NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE fencelock_ring SET LOGGED; -- that of version 3

-- Every function below that changes a name's state holds the advisory lock (7307, hash of the name) until it commits, so that they
-- come one after the other. Two names with the same hash only wait for each other's commits. Renewals do without: they are one UPDATE.

-- Draws a token in a transaction that commits at once.
CREATE OR REPLACE FUNCTION fencelock_draw_above(k bytea, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	v bigint;
BEGIN
	LOOP
		v := fencelock_draw(k, floor);
		IF v IS NOT NULL THEN
			RETURN v;
		END IF;
		PERFORM fencelock_raise(k, floor);
	END LOOP;
END $$;

-- Hands a free lock to the first live waiter, unless that is self, and returns whose turn it is; NULL: nobody waits. The
-- grant is a claim: it lasts for the TTL only once the waiter has sent its own acquire again. The waiter after it is told
-- to look when the claim is over.
CREATE OR REPLACE FUNCTION fencelock_grant(k bytea, self bytea, claim bigint) RETURNS bytea
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	h record;
	after record;
BEGIN
	LOOP
		SELECT q.nonce, q.owner, q.floor, q.process, p.alive_until > clock_timestamp() AS live INTO h
			FROM fencelock_queue q LEFT JOIN fencelock_process p USING (process)
			WHERE q.name = k ORDER BY q.ticket, q.nonce LIMIT 1;
		IF NOT FOUND OR h.nonce = self THEN
			RETURN h.nonce;
		END IF;
		DELETE FROM fencelock_queue WHERE nonce = h.nonce;
		EXIT WHEN h.live;
	END LOOP;
	INSERT INTO fencelock_lease VALUES (k, h.nonce, h.owner, fencelock_draw_above(k, h.floor), clock_timestamp() + claim * interval '1 ms', NULL, true)
		ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at,
			move = NULL, claimed = true;
	PERFORM pg_notify('fl_' || h.process, 'g ' || encode(h.nonce, 'hex'));
	SELECT q.nonce, q.process INTO after FROM fencelock_queue q WHERE q.name = k ORDER BY q.ticket, q.nonce LIMIT 1;
	IF FOUND THEN
		PERFORM pg_notify('fl_' || after.process, 'w' || claim || ' ' || encode(after.nonce, 'hex'));
	END IF;
	RETURN h.nonce;
END $$;

-- Acquires. n: the nonce; ms: TTL and grace; more: how many tokens to reserve; place: the ticket that a waiter has had, or NULL; proc: the waiter's
-- process, alive for slack ms from now; pre, mv, phase: as of fencelock_admit; seen: as of fencelock_take. A try that fails only reads.
--
-- Returns one of these, and behind a line's end fencelock_gates if they were not those that the client knows:
-- "granted token reserved ungated" (ungated only if the gates were not those), "locked", "queued ticket look" (look: in how many ms the lease
-- ends), "gone" (abandoned before), "shut epoch move" (refused by the gate of that migration, in hex).
CREATE OR REPLACE FUNCTION fencelock_acquire(k bytea, n bytea, who bytea, ms bigint, above bigint, more bigint, wait boolean, place bigint,
	proc text, slack bigint, claim bigint, pre int, mv bytea, phase text, seen bigint) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	hash int := hashtext(encode(k, 'hex'));
	r record; -- what was found
	l record; -- the lease
	ours boolean := false; -- our own grant, or the claim that another's release has made for us
	turn bytea;
	gate record;
	v bigint[];
	t bigint;
	told text := '';
	done boolean;
BEGIN
	-- What others have committed while this one waited must be seen. The driver sends it again in a transaction of that level.
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	done := pg_advisory_xact_lock(7307, hash) IS NULL;
	-- In a statement of its own after that lock: it sees every gate that was there when the lock was won. First one for a lock that is free and not waited for,
	-- of a client that knows that there are no gates; it draws the number only if it has it.
	IF seen = 0 AND more = 0 THEN
		INSERT INTO fencelock_lease SELECT k, n, who, fencelock_tick(hash & 15) + greatest(0, (SELECT lead FROM fencelock_lead WHERE slot = -1),
				(SELECT lead FROM fencelock_lead WHERE slot = hash & 1023)), clock_timestamp() + ms * interval '1 ms', CASE WHEN phase = 'both' THEN mv END, false
			WHERE NOT EXISTS (SELECT FROM fencelock_lease x WHERE x.name = k) AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k)
				AND NOT EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n) AND NOT EXISTS (SELECT FROM fencelock_gate)
			RETURNING token INTO t;
		IF t >= 9007199254740992 THEN
			RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
		ELSIF t > above THEN
			RETURN 'granted ' || t || ' 0';
		ELSIF FOUND THEN
			t := fencelock_draw_above(k, above);
			UPDATE fencelock_lease SET token = t WHERE name = k;
			RETURN 'granted ' || t || ' 0';
		END IF;
	END IF;
	SELECT x.nonce, x.token, x.expires_at, x.claimed,
		EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k) AS waited,
		EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n) AS gone,
		(SELECT coalesce(bit_xor(hash_record_extended(g, 0)), 0) FROM fencelock_gate g) AS gates,
		(SELECT coalesce(max(d.lead), 0) FROM fencelock_lead d WHERE d.slot IN (-1, hash & 1023)) AS ahead
		INTO r FROM (VALUES (1)) one LEFT JOIN fencelock_lease x ON x.name = k;
	IF r.gone THEN
		RETURN 'gone';
	END IF;
	IF NOT isfinite(r.expires_at) OR r.ahead < 0 THEN
		RAISE EXCEPTION 'fencelock: a lease that never ends or never began, or a lead below 0' USING ERRCODE = 'FL022';
	END IF;
	l := r;
	IF r.nonce = n OR r.expires_at <= clock_timestamp() THEN -- a renewal may be under way
		SELECT x.nonce, x.token, x.expires_at, x.claimed INTO l FROM fencelock_lease x WHERE x.name = k FOR UPDATE;
		ours := coalesce(l.nonce = n AND l.expires_at > clock_timestamp(), false);
	END IF;
	IF ours OR l.expires_at > clock_timestamp() IS NOT TRUE THEN
		IF NOT ours AND r.waited THEN
			turn := fencelock_grant(k, n, claim);
		END IF;
		IF turn IS NULL OR turn = n THEN
			IF turn = n THEN
				DELETE FROM fencelock_queue WHERE nonce = n;
			END IF;
			-- A grant that is sent again passes. What a gate says to the one whose turn it is, the next one learns by himself.
			IF r.gates IS DISTINCT FROM seen AND (r.gates <> 0 OR phase <> '' OR seen IS NOT NULL) THEN
				SELECT * INTO gate FROM fencelock_admit(k, pre, mv, phase);
				told := fencelock_gates(k, pre);
				IF gate.shut IS NOT NULL AND (NOT ours OR l.claimed) THEN
					IF ours THEN
						DELETE FROM fencelock_lease WHERE name = k;
					END IF;
					PERFORM fencelock_grant(k, NULL, claim);
					RETURN 'shut ' || gate.epoch || ' ' || encode(gate.shut, 'hex') || told;
				END IF;
				told := CASE WHEN gate.gated OR phase = '' THEN ' f' ELSE ' t' END || told;
			END IF;
			-- The token of a claim was told to nobody: one that reserves more is drawn anew.
			t := l.token;
			IF NOT ours OR t <= above OR l.claimed AND more > 0 THEN
				v := fencelock_next(hash & 15, more);
				t := v[1] + r.ahead;
				IF t <= above OR t + v[2] >= 9007199254740992 OR turn IS NOT NULL THEN -- fencelock_grant may have raised the lead
					v := NULL;
					t := fencelock_draw_above(k, above);
				END IF;
			END IF;
			IF r.nonce IS NULL AND turn IS NULL THEN
				INSERT INTO fencelock_lease VALUES (k, n, who, t, clock_timestamp() + ms * interval '1 ms', CASE WHEN phase = 'both' THEN mv END, false);
			ELSE
				INSERT INTO fencelock_lease VALUES (k, n, who, t, clock_timestamp() + ms * interval '1 ms', CASE WHEN phase = 'both' THEN mv END, false)
					ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at,
						move = excluded.move, claimed = false;
			END IF;
			RETURN 'granted ' || t || ' ' || coalesce(v[2], 0) || told;
		END IF;
		SELECT x.expires_at INTO l FROM fencelock_lease x WHERE x.name = k;
	END IF;
	IF NOT wait THEN
		RETURN 'locked';
	END IF;
	SELECT q.ticket INTO t FROM fencelock_queue q WHERE q.nonce = n;
	IF NOT FOUND THEN
		INSERT INTO fencelock_process VALUES (proc, clock_timestamp() + slack * interval '1 ms')
			ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until
			WHERE fencelock_process.alive_until < clock_timestamp() + slack * interval '0.5 ms';
		t := coalesce(place, nextval('fencelock_ticket'));
		INSERT INTO fencelock_queue VALUES (k, t, n, who, above, proc);
	END IF;
	RETURN 'queued ' || t || ' ' || greatest(ceil(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000), 0);
END $$;

-- Acquires many, none of which waits, as fencelock_acquire does one, with one statement for all that are free, and one number of each lane. No
-- name is there twice, unless its later seen is NULL. The locks are taken in the order of every batch.
CREATE OR REPLACE FUNCTION fencelock_acquire_all(ks bytea[], ns bytea[], whos bytea[], mss bigint[], aboves bigint[], mores bigint[], mvs bytea[], phases text[],
	seens bigint[], claim bigint, pre int, OUT i bigint, OUT answer text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	x record;
	held bigint[];
	granted bigint[] := '{}';
	tokens bigint[];
	v bigint[];
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	held := ARRAY(SELECT u.at FROM unnest(ks, ns) WITH ORDINALITY u(k, n, at) JOIN fencelock_lease l ON l.name = u.k
		WHERE l.nonce <> u.n AND l.expires_at > clock_timestamp());
	IF held = '{}' THEN
		PERFORM pg_advisory_xact_lock(7307, o.hash) FROM (SELECT DISTINCT hashtext(encode(u, 'hex')) AS hash FROM unnest(ks) u ORDER BY 1) o;
		BEGIN
			PERFORM pg_advisory_xact_lock(7306, o.lane) FROM (SELECT DISTINCT hashtext(encode(u, 'hex')) & 15 AS lane FROM unnest(ks) u ORDER BY 1) o;
			v := ARRAY(SELECT CASE WHEN o.lane IS NOT NULL THEN
					setval(('fencelock_token_' || a)::regclass, greatest(pg_sequence_last_value(('fencelock_token_' || a)::regclass) + 1,
						(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) END
				FROM generate_series(0, 15) a LEFT JOIN (SELECT DISTINCT hashtext(encode(u, 'hex')) & 15 AS lane FROM unnest(ks) u) o ON o.lane = a ORDER BY a);
			RAISE EXCEPTION USING ERRCODE = 'FL000';
		EXCEPTION WHEN SQLSTATE 'FL000' THEN
			NULL;
		END;
		WITH u AS MATERIALIZED (
			SELECT u.*, v[(u.hash & 15) + 1] + (SELECT coalesce(max(d.lead), 0) FROM fencelock_lead d WHERE d.slot IN (-1, u.hash & 1023)) AS token
			FROM (SELECT *, hashtext(encode(z.k, 'hex')) AS hash
				FROM unnest(ks, ns, whos, mss, aboves, mores, mvs, phases, seens) WITH ORDINALITY z(k, n, who, ms, above, more, mv, phase, seen, at)) u
		), done AS (
			INSERT INTO fencelock_lease
			SELECT u.k, u.n, u.who, u.token, clock_timestamp() + u.ms * interval '1 ms', CASE WHEN u.phase = 'both' THEN u.mv END, false FROM u
			WHERE u.seen = (SELECT coalesce(bit_xor(hash_record_extended(g, 0)), 0) FROM fencelock_gate g)
				AND u.more = 0 AND u.token > u.above AND u.token < 9007199254740992
				AND NOT EXISTS (SELECT FROM fencelock_lease l WHERE l.name = u.k)
				AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = u.k)
				AND NOT EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = u.n)
			RETURNING name
		)
		SELECT coalesce(array_agg(u.at), '{}'), array_agg(u.token) INTO granted, tokens FROM u JOIN done ON done.name = u.k AND u.seen IS NOT NULL;
		RETURN QUERY SELECT g.at, 'granted ' || g.token || ' 0' FROM unnest(granted, tokens) g(at, token);
	END IF;
	IF cardinality(granted) < cardinality(ks) THEN
		FOR x IN SELECT * FROM unnest(ks, ns, whos, mss, aboves, mores, mvs, phases, seens) WITH ORDINALITY u(k, n, who, ms, above, more, mv, phase, seen, at)
			WHERE u.at <> ALL (granted) ORDER BY hashtext(encode(u.k, 'hex')), u.k, u.at
		LOOP
			i := x.at;
			answer := CASE WHEN x.at = ANY (held) THEN 'locked'
				ELSE fencelock_acquire(x.k, x.n, x.who, x.ms, x.above, x.more, false, NULL, '', 0, claim, pre, x.mv, x.phase, x.seen) END;
			RETURN NEXT;
		END LOOP;
	END IF;
END $$;

-- For programs of version 2, which have not looked at the gates.
CREATE OR REPLACE FUNCTION fencelock_acquire(k bytea, n bytea, who bytea, ms bigint, above bigint, wait boolean, place bigint,
	proc text, slack bigint, claim bigint, pre int, mv bytea, phase text,
	OUT state text, OUT token bigint, OUT ticket bigint, OUT look bigint, OUT ungated boolean, OUT shut bytea)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	a text[] := string_to_array(split_part(
		fencelock_acquire(k, n, who, ms, above, 0, wait, place, proc, slack, claim, pre, mv, phase, NULL), E'\n', 1), ' ');
BEGIN
	state := a[1];
	CASE state
		WHEN 'granted' THEN
			token := a[2];
			ungated := coalesce(a[4], 'f');
		WHEN 'queued' THEN
			ticket := a[2];
			look := a[3];
		WHEN 'shut' THEN
			token := a[2];
			shut := decode(a[3], 'hex');
		ELSE
			NULL;
	END CASE;
END $$;

-- For programs of version 1, which know of no migration.
CREATE OR REPLACE FUNCTION fencelock_acquire(k bytea, n bytea, who bytea, ms bigint, above bigint, wait boolean, place bigint,
	proc text, slack bigint, claim bigint, OUT state text, OUT token bigint, OUT ticket bigint, OUT look bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	a record;
BEGIN
	SELECT * INTO a FROM fencelock_acquire(k, n, who, ms, above, wait, place, proc, slack, claim, NULL, NULL, '');
	IF a.state = 'shut' THEN
		PERFORM fencelock_refuse(a.shut, a.token);
	END IF;
	state := a.state;
	token := a.token;
	ticket := a.ticket;
	look := a.look;
END $$;

-- Lets the transaction that calls it commit without waiting for the disk, unless it draws a token above a floor. For releases: a crash may undo the last
-- of them, then the lease is there until its time is over. What it must not undo is a grant, and whoever is granted the lock by a release confirms that by an
-- acquire, whose commit is flushed, and all before it.
CREATE OR REPLACE FUNCTION fencelock_lazy() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	name text;
BEGIN
	IF current_setting('synchronous_commit') <> 'off' THEN
		name := set_config('synchronous_commit', 'off', true);
	END IF;
END $$;

-- Notes nonces that were released, in the ring of the first of them.
CREATE OR REPLACE FUNCTION fencelock_note(ns bytea[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	UPDATE fencelock_ring SET nonces = (ns || nonces)[1:cardinality(ns) + 7] WHERE slot = (get_byte(ns[1], 0) * 256 + get_byte(ns[1], 1)) & 1023;
	IF FOUND THEN
		RETURN;
	END IF;
	INSERT INTO fencelock_ring VALUES ((get_byte(ns[1], 0) * 256 + get_byte(ns[1], 1)) & 1023, ns)
		ON CONFLICT (slot) DO UPDATE SET nonces = (excluded.nonces || fencelock_ring.nonces)[1:cardinality(excluded.nonces) + 7];
END $$;

-- Releases (remember: so that it may be sent again, noted in the ring) or abandons (keep: ms for which a late acquire is refused, or 0),
-- and hands the lock on. True: released, now or before.
CREATE OR REPLACE FUNCTION fencelock_release(k bytea, n bytea, claim bigint, keep bigint, remember boolean, ring boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	live boolean;
	waited boolean;
	done boolean;
BEGIN
	done := fencelock_lazy() IS NULL;
	done := pg_advisory_xact_lock(7307, hashtext(encode(k, 'hex'))) IS NULL;
	IF keep > 0 THEN
		DELETE FROM fencelock_gone WHERE nonce = ANY (ARRAY(SELECT nonce FROM fencelock_gone WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED));
		INSERT INTO fencelock_gone VALUES (n, clock_timestamp() + keep * interval '1 ms')
			ON CONFLICT (nonce) DO UPDATE SET until = excluded.until;
	END IF;
	IF NOT remember THEN -- a holder waits no more
		DELETE FROM fencelock_queue WHERE nonce = n;
	END IF;
	DELETE FROM fencelock_lease WHERE name = k AND nonce = n
		RETURNING expires_at > clock_timestamp(), EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k) INTO live, waited;
	IF NOT FOUND THEN
		RETURN remember AND EXISTS (SELECT FROM fencelock_ring WHERE n = ANY (nonces));
	END IF;
	IF waited THEN
		PERFORM fencelock_grant(k, NULL, claim);
	END IF;
	IF live AND ring THEN
		done := fencelock_note(ARRAY[n]) IS NULL;
	END IF;
	RETURN live;
END $$;

-- Releases or abandons many, in the order in which every batch takes its locks; so are the rings.
CREATE OR REPLACE FUNCTION fencelock_release_all(ks bytea[], ns bytea[], keeps bigint[], remember boolean[], claim bigint, OUT i bigint, OUT done boolean)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	x record;
	freed bigint[] := '{}';
	ended bytea[] := '{}';
BEGIN
	PERFORM fencelock_lazy();
	PERFORM pg_advisory_xact_lock(7307, o.hash) FROM (SELECT DISTINCT hashtext(encode(u, 'hex')) AS hash FROM unnest(ks) u ORDER BY 1) o;
	-- Those that nobody waits for, at once.
	WITH d AS (
		DELETE FROM fencelock_lease l USING unnest(ks, ns, keeps, remember) WITH ORDINALITY u(k, n, keep, note, at)
		WHERE l.name = u.k AND l.nonce = u.n AND u.note AND u.keep = 0 AND l.expires_at > clock_timestamp()
			AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = u.k)
		RETURNING u.at, u.n
	) SELECT coalesce(array_agg(d.at), '{}'), coalesce(array_agg(d.n), '{}') INTO freed, ended FROM d;
	RETURN QUERY SELECT f, true FROM unnest(freed) f;
	IF cardinality(freed) < cardinality(ks) THEN
		FOR x IN SELECT * FROM unnest(ks, ns, keeps, remember) WITH ORDINALITY u(k, n, keep, note, at)
			WHERE u.at <> ALL (freed) ORDER BY hashtext(encode(u.k, 'hex')), u.k
		LOOP
			i := x.at;
			done := fencelock_release(x.k, x.n, claim, x.keep, x.note, false);
			IF done AND x.note THEN
				ended := ended || x.n;
			END IF;
			RETURN NEXT;
		END LOOP;
	END IF;
	IF cardinality(ended) > 0 THEN
		PERFORM fencelock_note(ended);
	END IF;
END $$;

-- Frees a lock, whoever holds it, and hands it on.
CREATE OR REPLACE FUNCTION fencelock_break(k bytea, claim bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(7307, hashtext(encode(k, 'hex')));
	DELETE FROM fencelock_lease WHERE name = k;
	PERFORM fencelock_grant(k, NULL, claim);
END $$;

-- Renews. The index of every hold that is renewed. The rows are locked in the order of every batch.
CREATE OR REPLACE FUNCTION fencelock_renew(names bytea[], ns bytea[], ms bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	PERFORM 1 FROM fencelock_lease l JOIN unnest(names, ns) x(name, nonce) ON l.name = x.name AND l.nonce = x.nonce
		ORDER BY hashtext(encode(l.name, 'hex')), l.name FOR UPDATE OF l;
	RETURN QUERY UPDATE fencelock_lease l SET expires_at = clock_timestamp() + x.ms * interval '1 ms'
		FROM unnest(names, ns, ms) WITH ORDINALITY x(name, nonce, ms, i)
		WHERE l.name = x.name AND l.nonce = x.nonce AND l.expires_at > clock_timestamp()
		RETURNING x.i;
END $$;

-- Raises the tokens of a name if the lease is n's, in one step: nobody else is granted the lock before the raise has committed, for every
-- grant locks the lease's row. False: it is not n's any more, and nothing was raised.
CREATE OR REPLACE FUNCTION fencelock_raise_held(k bytea, n bytea, floor bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r fencelock_lease;
BEGIN
	SELECT * INTO r FROM fencelock_lease WHERE name = k AND nonce = n AND NOT claimed FOR UPDATE;
	IF NOT FOUND OR r.expires_at <= clock_timestamp() THEN
		RETURN false;
	END IF;
	PERFORM fencelock_raise(k, floor);
	RETURN true;
END $$;

-- The leases of a keyspace that are held by anyone but clients of phase both of the migration mv, after its gate was closed.
--
-- Why none is missed: fencelock_acquire looks at the gates when it has the advisory lock (7307, …) of the name, and has it until its transaction has
-- committed, or not. Whoever gets that lock later sees the closed gate, which was committed before this function was called. Those that have
-- one at the moment at which pg_locks is read may have seen the gate open: each is waited for, in a subtransaction that keeps nothing. After
-- that all leases that can be are visible. A claim is none: its confirmation is such an acquire. Only a renewal can make a lease of what looks expired, if it found it
-- alive and has not committed yet: so when no lease is left, the rows are locked, which waits for it and keeps others out, and looked at again.
CREATE OR REPLACE FUNCTION fencelock_undrained_lease(ks bytea, scope bytea[], mv bytea,
	OUT name bytea, OUT held boolean, OUT owner bytea, OUT token bigint, OUT remaining float8, OUT waiters int)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	busy bigint;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	FOREACH busy IN ARRAY ARRAY(SELECT DISTINCT p.objid::bigint FROM pg_locks p WHERE p.locktype = 'advisory' AND p.classid = 7307 AND p.objsubid = 2
		AND p.granted AND p.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
	LOOP
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(7307, (busy - CASE WHEN busy > 2147483647 THEN 4294967296 ELSE 0 END)::int);
			RAISE EXCEPTION USING ERRCODE = 'FL000';
		EXCEPTION WHEN SQLSTATE 'FL000' THEN
			NULL;
		END;
	END LOOP;
	FOR again IN 0..1 LOOP
		RETURN QUERY
			SELECT l.name, true, l.owner, l.token, extract(epoch FROM l.expires_at - clock_timestamp())::float8,
				(SELECT count(*) FROM fencelock_queue q JOIN fencelock_process p USING (process) WHERE q.name = l.name AND p.alive_until > clock_timestamp())::int
			FROM fencelock_lease l WHERE l.expires_at > clock_timestamp() AND NOT l.claimed AND l.move IS DISTINCT FROM mv
				AND substr(l.name, 1, length(ks)) = ks AND fencelock_moves(scope, substr(l.name, length(ks) + 1)) LIMIT 100;
		EXIT WHEN FOUND OR again = 1;
		PERFORM 1 FROM fencelock_lease l WHERE l.move IS DISTINCT FROM mv AND substr(l.name, 1, length(ks)) = ks
			AND fencelock_moves(scope, substr(l.name, length(ks) + 1)) ORDER BY hashtext(encode(l.name, 'hex')), l.name FOR SHARE;
	END LOOP;
END $$;

-- A sign of life of a process that waits. Returns which of its waiters must look: those that are not queued any more, and those
-- whose lock has come free.
CREATE OR REPLACE FUNCTION fencelock_beat(proc text, slack bigint, ns bytea[]) RETURNS SETOF bytea
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO fencelock_process VALUES (proc, clock_timestamp() + slack * interval '1 ms')
		ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until;
	RETURN QUERY SELECT n FROM unnest(ns) n LEFT JOIN fencelock_queue q ON q.nonce = n
		WHERE q.nonce IS NULL OR NOT EXISTS (SELECT FROM fencelock_lease l WHERE l.name = q.name AND l.expires_at > clock_timestamp());
END $$;

-- Deletes what dead processes have left.
CREATE OR REPLACE FUNCTION fencelock_sweep() RETURNS void
LANGUAGE sql VOLATILE AS $$
	DELETE FROM fencelock_process WHERE alive_until < clock_timestamp() - interval '10 s';
	DELETE FROM fencelock_queue q WHERE NOT EXISTS (SELECT FROM fencelock_process p WHERE p.process = q.process);
	DELETE FROM fencelock_gone WHERE until < clock_timestamp();
	DELETE FROM fencelock_lease l WHERE expires_at < clock_timestamp() - interval '10 s'
		AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = l.name);
$$;

-- Guards -------------------------------------------------------------------------------------------------------------

-- The greatest token that each guarded resource has seen.
CREATE TABLE IF NOT EXISTS fencelock_guard (
	resource bytea PRIMARY KEY,
	token bigint NOT NULL
) WITH (fillfactor = 50);

-- The version of all this: last, so that it is there only when the rest is.
CREATE OR REPLACE FUNCTION fencelock_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 4';
