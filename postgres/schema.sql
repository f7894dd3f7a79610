-- Fencelock's objects in PostgreSQL 15 or later, version 4, for both modes.
--
-- The driver runs this file by itself on first use. Where its role may not create tables, run it
-- once by hand, as the owner of a schema for it (here "locks"; schema=locks in the URL then), and
-- give the role (here "app") its rights:
--
--     psql "$URL" -1 -v ON_ERROR_STOP=1 -c 'SET search_path = locks' -f schema.sql
--     GRANT USAGE ON SCHEMA locks TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA locks TO app;
--     GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA locks TO app;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA locks TO app;
--
-- The objects are made in the first schema of the search_path, and the functions refer to each
-- other and to the tables of that schema only, whatever the search_path of their callers is. The
-- file may be run again: what is there is kept.

-- Tokens -----------------------------------------------------------------------------------------

-- The last number that was drawn: the server's clock in µs, or one more than the last.
CREATE SEQUENCE IF NOT EXISTS fencelock_token AS bigint MINVALUE 0 START 0;

-- By how much the tokens of a slot's names run ahead of that number, because floors were asked that
-- are ahead of it. There is one slot for each 1,024th of all names, and -1, which holds for every
-- name.
CREATE TABLE IF NOT EXISTS fencelock_lead (
	slot int PRIMARY KEY,
	lead bigint NOT NULL
) WITH (fillfactor = 50);

-- A number of a name, the same on every server: PostgreSQL's own hash functions may differ between
-- major versions, and a lead must be found again after pg_upgrade.
CREATE OR REPLACE FUNCTION fencelock_hash(k bytea) RETURNS int LANGUAGE sql IMMUTABLE AS
	'SELECT (''x'' || encode(substr(sha256(k), 1, 4), ''hex''))::bit(32)::int';

CREATE OR REPLACE FUNCTION fencelock_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
	'SELECT (date_part(''epoch'', clock_timestamp()) * 1000000)::bigint';

-- How far the tokens of a name are ahead. Here and below a function with a query is in plpgsql, for
-- the server plans one in SQL at every call.
CREATE OR REPLACE FUNCTION fencelock_ahead(k bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN (SELECT coalesce(max(lead), 0) FROM fencelock_lead
		WHERE slot IN (-1, fencelock_hash(k) & 1023));
END $$;

-- Draws the next n numbers, from max(last + 1, clock), and up to more after them, which do not move
-- the sequence ahead of the clock by more than 3 ms. Returns the first.
--
-- setval is not undone by a rollback, but until the transaction is flushed a crash may undo it. The
-- clock does not go back then, so the tokens rise all the same; and the lead, which the clock knows
-- nothing of, was committed. The lock is taken and freed in a subtransaction, so that nothing is
-- held after the call, on whatever connection. Here and in what every lock calls, a function is
-- called by an assignment: PERFORM runs a query, which costs five times as much.
CREATE OR REPLACE FUNCTION fencelock_next(clock bigint, n int, more bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	v bigint;
BEGIN
	BEGIN
		v := CASE WHEN pg_advisory_xact_lock(7306, 0) IS NULL THEN 0 END;
		v := greatest(pg_sequence_last_value('fencelock_token'::regclass) + 1, clock);
		more := n - 1 + greatest(least(more, clock + 3000 - v), 0);
		v := setval('fencelock_token'::regclass, v + more) - more;
		RAISE SQLSTATE 'FL000';
	EXCEPTION WHEN SQLSTATE 'FL000' THEN
		NULL;
	END;
	RETURN v;
END $$;

-- Draws a token for a name. NULL if it does not exceed floor: then fencelock_raise first.
CREATE OR REPLACE FUNCTION fencelock_draw(k bytea, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	v bigint := fencelock_next(fencelock_clock(), 1, 0) + fencelock_ahead(k);
BEGIN
	IF v >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	RETURN CASE WHEN v > floor THEN v END;
END $$;

-- Whether the floor of a request is more than an hour ahead of the numbers, and of what a migration
-- has raised all names to. Such a one is refused: it would spend the numbers of its slot's others.
CREATE OR REPLACE FUNCTION fencelock_far(floor bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN floor > greatest(fencelock_clock(), pg_sequence_last_value('fencelock_token'::regclass)) + 3600000000
		+ coalesce((SELECT lead FROM fencelock_lead WHERE slot = -1), 0);
END $$;

-- Makes every later token of a name exceed floor, or of all names if k is NULL. The transaction
-- must commit before such a token is used. The sequence takes what the clock has reached, so that a
-- clock that steps back takes none of it away.
CREATE OR REPLACE FUNCTION fencelock_raise(k bytea, floor bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	clock bigint := fencelock_clock();
BEGIN
	IF floor >= 9007199254740991 THEN
		RAISE EXCEPTION 'fencelock: tokens are below 2^53' USING ERRCODE = 'FL053';
	END IF;
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	INSERT INTO fencelock_lead
		VALUES (coalesce(fencelock_hash(k) & 1023, -1), greatest(floor + 1 - clock, 0))
		ON CONFLICT (slot) DO UPDATE SET lead = greatest(fencelock_lead.lead, excluded.lead);
	PERFORM fencelock_next(greatest(least(floor, clock), 0), 1, 0);
END $$;

-- Draws a token for a name that exceeds floor, after a raise if it must. NULL: the floor is too far
-- ahead. It commits before the token is handed out.
CREATE OR REPLACE FUNCTION fencelock_above(k bytea, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	v bigint := fencelock_draw(k, floor);
BEGIN
	WHILE v IS NULL AND NOT fencelock_far(floor) LOOP
		PERFORM fencelock_raise(k, floor);
		v := fencelock_draw(k, floor);
	END LOOP;
	IF fencelock_ahead(k) < 0 THEN
		RAISE EXCEPTION 'fencelock: a lead below 0' USING ERRCODE = 'FL022';
	END IF;
	RETURN v;
END $$;

-- A number that no token exceeds yet. The clock counts too: a crash may have taken back what the
-- sequence gave to holders of mode row.
CREATE OR REPLACE FUNCTION fencelock_source() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT greatest(pg_sequence_last_value('fencelock_token'::regclass), fencelock_clock())
		+ coalesce((SELECT max(lead) FROM fencelock_lead), 0)
$$;

-- Refuses a transaction in which a statement does not see what others have committed meanwhile. The
-- driver sends it again in one of level READ COMMITTED.
CREATE OR REPLACE FUNCTION fencelock_level() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %',
			current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
END $$;

-- Gates ------------------------------------------------------------------------------------------

-- The gates of migrations, as JSON: whom each lets in. keyspace: the prefix of the names. A client
-- judges its requests by the gates that it knows, and sends a hash of them; the step that grants
-- looks whether they are those of the table.
CREATE TABLE IF NOT EXISTS fencelock_gate (
	keyspace bytea NOT NULL,
	move bytea NOT NULL,
	gate bytea NOT NULL,
	PRIMARY KEY (keyspace, move)
);

-- What the clients of migrations have reported of themselves, as JSON, until expires_at. Nothing
-- depends on it.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_client (
	keyspace bytea NOT NULL,
	move bytea NOT NULL,
	id bytea NOT NULL,
	report bytea NOT NULL,
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (keyspace, move, id)
);

-- What tells one state of all gates from another: a hash of what the table has, 0 if it is empty.
-- It comes from the table, so that no change and no loss of it, by whatever hand, leaves it the
-- same.
CREATE OR REPLACE FUNCTION fencelock_gates_now() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN (SELECT coalesce(bit_xor(hash_record_extended(g, 0::bigint)), 0) FROM fencelock_gate g);
END $$;

-- The answer to a client that knew others: "gates", that hash, and the gates of its keyspace, which
-- is the first pre bytes of k, as of one moment: the migration and the gate of each, in hex.
CREATE OR REPLACE FUNCTION fencelock_gates(k bytea, pre int) RETURNS text
LANGUAGE sql VOLATILE AS $$
	SELECT 'gates ' || coalesce(bit_xor(hash_record_extended(g, 0::bigint)), 0) || ' ' || coalesce(
		string_agg(encode(g.move, 'hex') || ':' || encode(g.gate, 'hex'), ',' ORDER BY g.move)
			FILTER (WHERE g.keyspace = substr(k, 1, pre)), '')
	FROM fencelock_gate g
$$;

-- Writes a gate if was is the SHA-256 of the one that is there: '' is none, NULL any. Sent again it
-- finds its own. False: another stands there.
CREATE OR REPLACE FUNCTION fencelock_set_gate(ks bytea, mv bytea, new bytea, was bytea)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	PERFORM fencelock_level();
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	IF new IS NULL THEN
		DELETE FROM fencelock_gate WHERE keyspace = ks AND move = mv
			AND sha256(gate) = coalesce(was, sha256(gate));
		RETURN NOT EXISTS (SELECT FROM fencelock_gate WHERE keyspace = ks AND move = mv);
	END IF;
	INSERT INTO fencelock_gate SELECT ks, mv, new WHERE coalesce(was, '') = ''
		ON CONFLICT DO NOTHING;
	UPDATE fencelock_gate SET gate = new WHERE keyspace = ks AND move = mv
		AND (gate = new OR sha256(gate) = coalesce(was, sha256(gate))); -- its own: to wait for a standby once more
	RETURN EXISTS (SELECT FROM fencelock_gate WHERE keyspace = ks AND move = mv AND gate = new);
END $$;

-- Keeps a report for keep ms, and deletes those whose time is over.
CREATE OR REPLACE FUNCTION fencelock_report(ks bytea, mv bytea, who bytea, what bytea, keep bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	DELETE FROM fencelock_client WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_client
		WHERE expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED));
	INSERT INTO fencelock_client
		VALUES (ks, mv, who, what, clock_timestamp() + keep * interval '1 ms')
		ON CONFLICT (keyspace, move, id)
		DO UPDATE SET report = excluded.report, expires_at = excluded.expires_at;
END $$;

-- Modes row and advisory -------------------------------------------------------------------------

-- The rows that mode row locks. There is one for each name that is held or waited for, in both, and
-- for a moment after that.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_row (
	name bytea PRIMARY KEY
);

-- The door of a name: the advisory lock that all who want the name go through. The advisory locks
-- of a database are common to all its schemas, so the table's own oid goes into the hash. Two names
-- with the same 64 bits would exclude each other.
CREATE OR REPLACE FUNCTION fencelock_door(k bytea) RETURNS bigint LANGUAGE sql STABLE AS
	'SELECT (''x'' || encode(substr(sha256(
		int4send(''fencelock_row''::regclass::oid::int) || k), 1, 8), ''hex''))::bit(64)::bigint';

-- The advisory lock that marks the sessions of a migration's clients in phase both.
CREATE OR REPLACE FUNCTION fencelock_mark(mv bytea) RETURNS bigint LANGUAGE sql IMMUTABLE AS
	'SELECT (''x666d'' || encode(substr(sha256(mv), 1, 6), ''hex''))::bit(64)::bigint';

-- The caller's transaction, by what stays the same until it ends: the door that it holds, its
-- process, and when it began. It needs no transaction id.
CREATE OR REPLACE FUNCTION fencelock_here(d bigint) RETURNS text LANGUAGE sql STABLE AS
	'SELECT d || '':'' || pg_backend_pid() || '':'' || extract(epoch FROM transaction_timestamp())';

-- Locks the row for the transaction that calls it, and draws a token. All clients reach the row
-- through its door, whose queue is strictly first come, first served: a plain row lock lets a
-- newcomer in between a release and the first waiter. mv: the migration of a client in phase both;
-- fencelock_undrained_row knows the client by the mark of mv, which is locked before the door and
-- as long. seen: the gates that let the client pass (fencelock_gates_now), or NULL. idle: the
-- idle_in_transaction_session_timeout of the transaction, in ms, and tail: what follows the token
-- in its application_name; NULL leaves both as they are.
--
-- floor NULL is mode advisory: only the door is locked, so that the transaction has no id until its
-- holder writes. It has the door in share mode too, which tells it from fencelock_lock's.
--
-- Returns "state token id". id: the transaction's number, in mode advisory fencelock_here. state:
-- held, locked (never with wait), missing (the row was deleted: insert it again), floor (held, but
-- the token is still to be drawn, by fencelock_above in another transaction), far (the floor is too
-- far ahead); or the answer of fencelock_gates, if the client knows other gates. A waiter has the
-- door then: if the gates let it pass, it asks again. Behind locked comes 2 if the transaction can
-- wait as it is: it has no timeouts of statements, the label of a waiter, and the server looks
-- after its connection.
CREATE OR REPLACE FUNCTION fencelock_take(k bytea, floor bigint, wait boolean, pre int,
	mv bytea, seen bigint, idle text, tail text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	d bigint := fencelock_door(k);
	there boolean;
	gated boolean;
	led boolean;
	t bigint;
	done boolean;
	told text := '';
BEGIN
	SELECT EXISTS (SELECT FROM fencelock_row WHERE name = k), EXISTS (SELECT FROM fencelock_gate)
		INTO there, gated;
	-- A try that the gates refuse leaves the door alone, so that it is in nobody's way. What
	-- decides is the look below.
	IF gated AND NOT wait AND fencelock_gates_now() IS DISTINCT FROM seen THEN
		RETURN fencelock_gates(k, pre);
	END IF;
	IF NOT there THEN
		RETURN 'missing 0';
	END IF;
	IF mv IS NOT NULL THEN
		done := pg_advisory_xact_lock_shared(fencelock_mark(mv)) IS NULL;
	END IF;
	-- The door is asked for apart: in one WHERE the server might do it for every row. What is there
	-- of gates and leads is looked at after it, in a statement of its own: it sees every gate that
	-- was there when the door was won.
	IF wait THEN
		done := pg_advisory_xact_lock(d) IS NULL;
		IF tail IS NOT NULL THEN -- before any answer: who has the door and is silent is to lose it
			idle := set_config('idle_in_transaction_session_timeout', idle, true);
		END IF;
		IF floor IS NOT NULL THEN
			SELECT EXISTS (SELECT FROM fencelock_gate), EXISTS (SELECT FROM fencelock_lead)
				INTO gated, led FROM fencelock_row WHERE name = k FOR UPDATE;
		END IF;
	ELSIF pg_try_advisory_xact_lock(d) THEN
		IF tail IS NOT NULL THEN
			idle := set_config('idle_in_transaction_session_timeout', idle, true);
		END IF;
		IF floor IS NOT NULL THEN
			SELECT EXISTS (SELECT FROM fencelock_gate), EXISTS (SELECT FROM fencelock_lead)
				INTO gated, led FROM fencelock_row WHERE name = k FOR UPDATE SKIP LOCKED;
			IF NOT FOUND THEN -- apart: what has a query in it is run as one
				IF EXISTS (SELECT FROM fencelock_row WHERE name = k) THEN
					told := 'locked'; -- by a program that does not use the door
				END IF;
			END IF;
		END IF;
	ELSE -- fencelock_tidy shares the door of a row that is free
		BEGIN
			told := 'missing 0';
			IF NOT pg_try_advisory_xact_lock_shared(d)
				AND EXISTS (SELECT FROM fencelock_row WHERE name = k) THEN
				told := 'locked';
			END IF;
			-- Undoes the share, which would keep all other tries out until the transaction ends.
			RAISE SQLSTATE 'FL423';
		EXCEPTION WHEN SQLSTATE 'FL423' THEN
			NULL;
		END;
	END IF;
	IF floor IS NULL AND told = '' THEN
		done := pg_advisory_xact_lock_shared(d) IS NULL;
		SELECT EXISTS (SELECT FROM fencelock_gate) INTO gated FROM fencelock_row WHERE name = k;
	END IF;
	IF told = 'locked' THEN
		IF tail IS NOT NULL THEN
			tail := set_config('application_name', 'fl 0' || tail, true)
				|| set_config('client_connection_check_interval', '500', true);
		END IF;
		RETURN CASE WHEN current_setting('statement_timeout') = '0'
			AND current_setting('lock_timeout') = '0' THEN 'locked 2' ELSE 'locked 0' END;
	END IF;
	IF told <> '' OR gated IS NULL THEN
		RETURN 'missing 0';
	END IF;
	IF (gated OR seen IS DISTINCT FROM 0) AND fencelock_gates_now() IS DISTINCT FROM seen THEN
		RETURN fencelock_gates(k, pre);
	END IF;
	IF floor IS NOT NULL THEN
		t := fencelock_next(fencelock_clock(), 1, 0);
	END IF;
	IF led THEN
		IF fencelock_ahead(k) < 0 THEN
			RAISE EXCEPTION 'fencelock: a lead below 0' USING ERRCODE = 'FL022';
		END IF;
		t := t + fencelock_ahead(k);
	END IF;
	IF t >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	ELSIF t <= floor AND fencelock_far(floor) THEN
		RETURN 'far 0';
	END IF;
	IF led AND fencelock_ahead(k) > 0 THEN
		t := NULL; -- the lead may be committed here alone: fencelock_above waits for a standby
	END IF;
	told := CASE WHEN t > floor THEN 'held ' || t ELSE 'floor 0' END || ' '
		|| CASE WHEN floor IS NULL THEN fencelock_here(d) ELSE pg_current_xact_id()::text END;
	IF tail IS NOT NULL THEN
		tail := CASE WHEN t > floor THEN t ELSE 0 END || tail;
		tail := set_config('application_name', 'fl ' || tail, true);
	END IF;
	RETURN told;
END $$;

-- The locks of a keyspace that are held, or may be, by whom a gate let in that was closed before the
-- call. moving: the migration of a holder of phase both, if it has a gate.
--
-- Why none is missed: fencelock_take looks at the gates when it has the door, and has the door until
-- its transaction ends. pg_locks shows all advisory locks as of one moment. A session that gets a
-- door later sees the closed gate, which was committed before this function was called. A session
-- that has a door at that moment may have seen the gate open: all of them are returned, in whatever
-- part of taking or holding they are. They lock the mark before the door.
--
-- The names of the doors come from a later statement: a row is committed before its door is asked
-- for, and it is not deleted while its door is locked. So a door without a row has come free, or is
-- fencelock_lock's. That function also locks the mark of the gates that let it pass: if those are not
-- the gates of now, its session is returned, by its process and as nameless. A session that has ended
-- meanwhile is returned all the same: the next call knows. application_name decides nothing. The rest
-- is for programs that lock a row by hand, without its door and without looking at gates: they are
-- returned if they are seen.
CREATE OR REPLACE FUNCTION fencelock_undrained_row(ks bytea, OUT name bytea, OUT held boolean,
	OUT label text, OUT idle float8, OUT waiters int, OUT moving bytea, OUT nameless boolean)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	pids int[];
	doors bigint[];
	lines int[];
	moves bytea[];
	others int[];
	seen bigint := hashint8(fencelock_gates_now())::bigint & 4294967295;
	here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
	PERFORM fencelock_level();
	WITH l AS MATERIALIZED (
		SELECT p.pid, p.granted, p.mode, p.objsubid, p.classid, p.objid,
			p.classid::bigint << 32 | p.objid::bigint AS key
		FROM pg_locks p WHERE p.locktype = 'advisory' AND p.database = here
	), w AS (
		SELECT l.key, count(*)::int AS n FROM l WHERE NOT l.granted AND l.objsubid = 1 GROUP BY l.key
	)
	SELECT array_agg(l.pid), array_agg(l.key), array_agg(coalesce(w.n, 0)),
			array_agg((SELECT g.move FROM l m JOIN fencelock_gate g ON g.keyspace = ks
				AND fencelock_mark(g.move) = m.key WHERE m.pid = l.pid AND m.granted LIMIT 1)),
			(SELECT array_agg(DISTINCT o.pid) FROM l o WHERE o.objsubid = 2
				AND o.classid = 'fencelock_gate'::regclass AND o.objid::bigint <> seen)
		INTO pids, doors, lines, moves, others FROM l LEFT JOIN w USING (key)
	WHERE l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1;
	RETURN QUERY
		WITH l AS MATERIALIZED (
			SELECT *, p.classid::bigint << 32 | p.objid::bigint AS key FROM pg_locks p
			WHERE p.granted AND (p.locktype = 'transactionid'
				OR p.locktype = 'advisory' AND p.objsubid = 1 AND p.database = here)
		), h AS (
			SELECT u.pid, x.name, u.line, u.move
				FROM unnest(pids, doors, lines, moves) u(pid, door, line, move)
				JOIN fencelock_row x ON fencelock_door(x.name) = u.door
			UNION ALL
			SELECT l.pid, x.name, -1, NULL FROM fencelock_row x
				JOIN l ON l.locktype = 'transactionid' AND l.transactionid = x.xmax
				WHERE NOT EXISTS (SELECT FROM l d WHERE d.pid = l.pid AND d.locktype = 'advisory'
					AND d.key = fencelock_door(x.name))
		)
		SELECT h.name, true, coalesce(a.application_name, ''), CASE WHEN a.state IS NULL THEN -1
			WHEN a.state LIKE 'idle in%'
			THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8 ELSE 0 END, h.line,
			h.move, false
		FROM h LEFT JOIN pg_stat_activity a ON a.pid = h.pid
		WHERE substr(h.name, 1, length(ks)) = ks;
	RETURN QUERY SELECT ks || convert_to('postgres.LockTx of process ' || o, 'UTF8'), true, '',
		-1::float8, -1, NULL::bytea, true FROM unnest(others) o;
END $$;

-- Locks a name for the transaction that calls it, by its door alone. It makes no row, because a row
-- that is not committed would hold up every client that makes the same; it locks a row that is there.
-- Returns "held token"; without wait also locked, or missing, if the row is being tidied just now:
-- nothing is held then; or the answer of fencelock_gates, with the door held, if seen are not the
-- gates. Called again with seen NULL it refuses by an error, so that the transaction cannot go on.
--
-- The gates are looked at once the door is won, and marked by a shared advisory lock (oid of
-- fencelock_gate, hash of the gates) before that look. If they are the same after it, no gate that
-- was closed before is missed; if a gate is closed later, the client that closes it finds the mark.
CREATE OR REPLACE FUNCTION fencelock_lock(k bytea, pre int, wait boolean, seen bigint) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	d bigint := fencelock_door(k);
	now bigint;
	told text;
BEGIN
	PERFORM fencelock_level();
	IF seen IS NULL THEN
		RAISE EXCEPTION 'fencelock: a gate refuses this client' USING ERRCODE = 'FL403';
	END IF;
	BEGIN
		IF wait THEN
			PERFORM pg_advisory_xact_lock(d);
			PERFORM 1 FROM fencelock_row WHERE name = k FOR UPDATE;
		ELSIF pg_try_advisory_xact_lock(d) THEN
			PERFORM 1 FROM fencelock_row WHERE name = k FOR UPDATE SKIP LOCKED;
			IF NOT FOUND AND EXISTS (SELECT FROM fencelock_row WHERE name = k) THEN
				RAISE SQLSTATE 'FL423'; -- by a program that does not use the door
			END IF;
		ELSE
			told := CASE WHEN pg_try_advisory_xact_lock_shared(d) THEN 'missing' END;
			RAISE SQLSTATE 'FL423';
		END IF;
		LOOP
			now := fencelock_gates_now();
			PERFORM pg_advisory_xact_lock_shared('fencelock_gate'::regclass::oid::int, hashint8(now));
			EXIT WHEN fencelock_gates_now() = now;
		END LOOP;
		told := CASE WHEN now = seen THEN 'held ' || fencelock_draw(k, 0)
			ELSE fencelock_gates(k, pre) END;
	EXCEPTION WHEN SQLSTATE 'FL423' THEN -- FL000 would stand for all of that class
		told := coalesce(told, 'locked');
	END;
	RETURN told;
END $$;

-- Deletes a row that nobody holds or waits for; all such rows (200 at the most) if k is NULL: what
-- dead processes have left, and those that stay for a moment.
CREATE OR REPLACE FUNCTION fencelock_tidy(k bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF k IS NULL THEN
		DELETE FROM fencelock_row WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_row
			WHERE pg_try_advisory_xact_lock_shared(fencelock_door(name))
			LIMIT 200 FOR UPDATE SKIP LOCKED));
	ELSIF EXISTS (SELECT FROM fencelock_row WHERE name = k)
		AND pg_try_advisory_xact_lock_shared(fencelock_door(k)) THEN
		PERFORM 1 FROM fencelock_row WHERE name = k FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			DELETE FROM fencelock_row WHERE name = k;
		END IF;
	END IF;
END $$;

-- Mode lease -------------------------------------------------------------------------------------

-- The leases: a row for each name that is held, by the server's clock until expires_at. The row of a
-- name with several holders is a mark that does not expire, with the token of the readers that hold
-- at once, or 0; the holds are in fencelock_hold. So no client is granted the name alone beside them,
-- and every look for a lease finds that the name is held.
CREATE TABLE IF NOT EXISTS fencelock_lease (
	name bytea PRIMARY KEY,
	nonce bytea NOT NULL,
	owner bytea NOT NULL,
	token bigint NOT NULL,
	expires_at timestamptz NOT NULL,
	move bytea, -- the migration of a holder in phase both, or NULL
	claimed boolean NOT NULL DEFAULT false, -- given by another's release, and still to be confirmed
	shared boolean NOT NULL -- it is the mark of a name that several may hold
) WITH (fillfactor = 50);

-- The holds of readers ('r') and permits ('p'). lim: how many may hold the name at once, as far as
-- this one is concerned. token is 0 and slot NULL while it is claimed. They count only beside the
-- mark of their name.
CREATE TABLE IF NOT EXISTS fencelock_hold (
	name bytea NOT NULL,
	nonce bytea NOT NULL,
	mode text NOT NULL,
	lim int NOT NULL,
	slot int,
	token bigint NOT NULL,
	owner bytea NOT NULL,
	expires_at timestamptz NOT NULL,
	claimed boolean NOT NULL,
	move bytea,
	PRIMARY KEY (name, nonce)
) WITH (fillfactor = 50);

-- The waiters. They put back what a crash takes from these tables.
CREATE SEQUENCE IF NOT EXISTS fencelock_ticket AS bigint;
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_queue (
	name bytea NOT NULL,
	ticket bigint NOT NULL,
	nonce bytea NOT NULL UNIQUE,
	owner bytea NOT NULL,
	process text NOT NULL,
	mode text NOT NULL DEFAULT 'x', -- alone; or as in fencelock_hold
	lim int NOT NULL DEFAULT 1,
	ask bigint NOT NULL DEFAULT 0, -- its last request, by which a push may grant; 0: by none
	seen bigint, -- the gates that let that pass (fencelock_gates_now)
	asked timestamptz NOT NULL DEFAULT clock_timestamp(), -- when that came
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

-- Rings of the nonces that were released last, for a release that is sent again. They outlive a
-- crash, because a crash can take the reply.
CREATE TABLE IF NOT EXISTS fencelock_ring (
	slot int PRIMARY KEY,
	nonces bytea[] NOT NULL
) WITH (fillfactor = 50);


-- Locks names for the transaction, and returns the order in which every call takes them and their
-- rows. Every function that changes a name's state holds the advisory lock (7307, hash of the name)
-- until it commits, so that they come one after the other. Two names with the same hash only wait
-- for each other's commits. Renewals do without: they are one UPDATE.
CREATE OR REPLACE FUNCTION fencelock_line(ks bytea[]) RETURNS int[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	done boolean := fencelock_level() IS NULL;
BEGIN
	done := (SELECT count(pg_advisory_xact_lock(7307, h)) FROM
		(SELECT DISTINCT fencelock_hash(k) AS h FROM unnest(ks) k ORDER BY h) hs) IS NULL;
	RETURN ARRAY(SELECT at FROM unnest(ks) WITH ORDINALITY u(k, at) ORDER BY k, at);
END $$;

-- fencelock_line for one name. The server puts the text of such a function into the expression that
-- calls it, so that the call costs nothing.
CREATE OR REPLACE FUNCTION fencelock_alone(k bytea) RETURNS boolean LANGUAGE sql VOLATILE AS
	'SELECT CASE WHEN current_setting(''transaction_isolation'') = ''read committed''
		THEN pg_advisory_xact_lock(7307, fencelock_hash(k)) ELSE fencelock_level() END IS NULL';

-- Pushes to a process. Where the server's queue of pushes is full, the commit fails with 54000, and
-- the driver sends the statement again with fencelock.mute set: the waiters find out by their sign
-- of life.
CREATE OR REPLACE FUNCTION fencelock_push(process text, what text) RETURNS boolean
LANGUAGE sql VOLATILE AS
	'SELECT CASE WHEN current_setting(''fencelock.mute'', true) IS DISTINCT FROM ''on''
		THEN pg_notify(''fl_'' || process, what) END IS NULL';

-- Hands a free lock to the first live waiter, unless that is self, and returns whose turn it is;
-- NULL: nobody waits. The waiter after it is told to look when the grant is over. If the first one wants
-- the lock beside others, fencelock_serve hands it to all who may have it.
--
-- The grant is a claim: it lasts for the TTL only once the waiter has sent its own acquire again, which
-- draws another token where this one is not above its floor: what a waiter asks for is no business of
-- the release. But the waiter has the lock at once, by the push alone, if it has said by which request,
-- if that was not long ago, and if the gates are those that it was judged by. Then the release must be on
-- disk before the push: it commits with sync, the synchronous_commit that it began with. Otherwise a
-- crash could bring the lease before it back, and a copy of the release would free that lease while the
-- waiter trusts its grant. Where there is a standby each waiter asks, for an operator may end the wait
-- for it. With sync NULL each waiter asks too.
CREATE OR REPLACE FUNCTION fencelock_grant(k bytea, self bytea, claim bigint, sync text)
RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	first bytea;
	who bytea;
	proc text;
	m text;
	live boolean;
	done boolean;
	t bigint;
	ask bigint;
	ahead bigint;
	pushed boolean;
BEGIN
	LOOP
		SELECT q.nonce, q.owner, q.process, q.mode, p.alive_until > clock_timestamp(),
			CASE WHEN q.asked > clock_timestamp() - claim * interval '1 ms' / 3
				AND q.seen = CASE WHEN EXISTS (SELECT FROM fencelock_gate)
				THEN fencelock_gates_now() ELSE 0 END THEN q.ask ELSE 0 END
			INTO first, who, proc, m, live, ask
			FROM fencelock_queue q LEFT JOIN fencelock_process p USING (process)
			WHERE q.name = k ORDER BY q.ticket, q.nonce LIMIT 1;
		IF first IS NULL OR first = self THEN
			RETURN first;
		ELSIF live AND m <> 'x' THEN
			done := fencelock_serve(k, self, claim) IS NULL;
			RETURN first;
		END IF;
		DELETE FROM fencelock_queue q WHERE q.nonce = first RETURNING CASE WHEN live THEN (
			SELECT fencelock_push(a.process, 'w' || claim || ' ' || encode(a.nonce, 'hex'))
				FROM fencelock_queue a WHERE a.name = k AND (a.ticket, a.nonce) > (q.ticket, q.nonce)
				ORDER BY a.ticket, a.nonce LIMIT 1) END INTO done;
		EXIT WHEN live;
	END LOOP;
	ahead := CASE WHEN EXISTS (SELECT FROM fencelock_lead) THEN fencelock_ahead(k) ELSE 0 END;
	pushed := ask > 0 AND ahead >= 0 AND sync IS NOT NULL AND current_setting('synchronous_standby_names') = '';
	t := fencelock_next(fencelock_clock(), 1, 0) + ahead;
	IF t >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	IF pushed THEN
		done := set_config('synchronous_commit', sync, true) IS NULL;
	END IF;
	INSERT INTO fencelock_lease VALUES (k, first, who, t,
		clock_timestamp() + claim * interval '1 ms', NULL, NOT pushed, false)
		ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner,
		token = excluded.token, expires_at = excluded.expires_at, move = NULL, claimed = excluded.claimed;
	done := fencelock_push(proc, CASE WHEN pushed THEN 'h' || ask || ':' || t || ':' || claim ELSE 'g' END
		|| ' ' || encode(first, 'hex'));
	RETURN first;
END $$;

-- Whether a name may be held in mode m, by most at once, beside those who hold it; what is dead has
-- been buried. This is Request.Admits of the driver's contract.
CREATE OR REPLACE FUNCTION fencelock_admits(k bytea, m text, most int) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	beside boolean := (SELECT x.shared FROM fencelock_lease x WHERE x.name = k);
BEGIN
	IF beside THEN
		beside := (SELECT bool_and(h.mode = m) AND count(*) < least(most, min(h.lim))
			FROM fencelock_hold h WHERE h.name = k);
	END IF;
	RETURN coalesce(beside, true);
END $$;

-- Deletes the holds of a name whose time is over, and hands the name to all waiters at the head of the
-- queue that may have it, up to self, as claims (see fencelock_grant). A dead waiter at the head is
-- dropped, whether the name is free or not, because those behind it may be let in beside the holders.
-- Returns the first waiter then, or NULL.
--
-- A hold that is being renewed is locked, and is left alone: a wait for it would not be in the order
-- in which every batch locks. If some program has deleted the mark of a name, its holds are over.
CREATE OR REPLACE FUNCTION fencelock_serve(k bytea, self bytea, claim bigint) RETURNS bytea
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	beside boolean := (SELECT x.shared FROM fencelock_lease x WHERE x.name = k);
	woken boolean := false;
	h record;
BEGIN
	IF beside THEN
		DELETE FROM fencelock_hold WHERE name = k AND nonce = ANY (ARRAY(
			SELECT x.nonce FROM fencelock_hold x
			WHERE x.name = k AND x.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED));
		DELETE FROM fencelock_lease WHERE name = k
			AND NOT EXISTS (SELECT FROM fencelock_hold x WHERE x.name = k);
	ELSE
		DELETE FROM fencelock_hold WHERE name = k;
		DELETE FROM fencelock_lease WHERE name = ANY (ARRAY(
			SELECT x.name FROM fencelock_lease x
			WHERE x.name = k AND x.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED));
	END IF;
	LOOP
		SELECT q.nonce, q.owner, q.process, q.mode, q.lim,
			p.alive_until > clock_timestamp() AS live INTO h
			FROM fencelock_queue q LEFT JOIN fencelock_process p USING (process)
			WHERE q.name = k ORDER BY q.ticket, q.nonce LIMIT 1;
		EXIT WHEN NOT FOUND OR h.nonce = self;
		IF h.live THEN
			EXIT WHEN NOT fencelock_admits(k, h.mode, h.lim);
			IF h.mode = 'x' THEN
				INSERT INTO fencelock_lease VALUES (k, h.nonce, h.owner, fencelock_draw(k, 0),
					clock_timestamp() + claim * interval '1 ms', NULL, true, false);
			ELSE
				PERFORM fencelock_join(k, h.nonce, h.mode, h.lim, NULL, 0, h.owner, claim, true, NULL);
			END IF;
			PERFORM fencelock_push(h.process, 'g ' || encode(h.nonce, 'hex'));
			woken := true;
		END IF;
		DELETE FROM fencelock_queue WHERE nonce = h.nonce;
	END LOOP;
	IF woken AND h.nonce <> self IS NOT FALSE AND h.nonce IS NOT NULL THEN
		PERFORM fencelock_push(h.process, 'w' || claim || ' ' || encode(h.nonce, 'hex'));
	END IF;
	RETURN h.nonce;
END $$;

-- Writes a hold, and the mark of its name.
CREATE OR REPLACE FUNCTION fencelock_join(k bytea, n bytea, m text, most int, s int, t bigint,
	who bytea, ms bigint, claim boolean, mv bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO fencelock_lease VALUES (k, 'shared', '', CASE m WHEN 'r' THEN t ELSE 0 END,
		clock_timestamp() + interval '100 years', NULL, false, true)
		ON CONFLICT (name) DO UPDATE SET token = excluded.token
		WHERE fencelock_lease.shared AND fencelock_lease.token < excluded.token;
	INSERT INTO fencelock_hold
		VALUES (k, n, m, most, s, t, who, clock_timestamp() + ms * interval '1 ms', claim, mv)
		ON CONFLICT (name, nonce) DO UPDATE SET slot = excluded.slot, token = excluded.token,
		expires_at = excluded.expires_at, claimed = excluded.claimed, move = excluded.move;
END $$;

-- The part of fencelock_acquire for a request that is not exclusive, or whose name others hold
-- together. A reader beside readers has their token, if its floor is below that.
CREATE OR REPLACE FUNCTION fencelock_share(k bytea, n bytea, who bytea, ms bigint, floor bigint,
	mv bytea, seen bigint, ticket bigint, m text, most int, proc text, slack bigint, claim bigint,
	pre int, gates bigint) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	first bytea;
	mine fencelock_hold;
	ends timestamptz;
BEGIN
	IF EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n) THEN
		RETURN 'gone';
	ELSIF EXISTS (SELECT FROM fencelock_lease x WHERE x.name = k AND NOT isfinite(x.expires_at))
		OR EXISTS (SELECT FROM fencelock_hold x WHERE x.name = k AND NOT isfinite(x.expires_at)) THEN
		RETURN 'broken';
	END IF;
	first := fencelock_serve(k, n, claim);
	SELECT * INTO mine FROM fencelock_hold x WHERE x.name = k AND x.nonce = n FOR UPDATE;
	IF FOUND OR (first = n) IS NOT FALSE AND fencelock_admits(k, m, most) THEN
		IF mine.claimed IS NOT FALSE AND gates IS DISTINCT FROM seen THEN
			RETURN fencelock_gates(k, pre);
		END IF;
		IF mine.claimed IS NOT FALSE OR mine.token <= floor THEN
			mine.token := (SELECT x.token FROM fencelock_lease x WHERE x.name = k AND m = 'r');
			IF mine.token > floor IS NOT TRUE THEN
				mine.token := fencelock_above(k, floor);
			END IF;
			IF mine.token IS NULL THEN
				RETURN 'far';
			END IF;
		END IF;
		IF m = 'p' AND mine.slot IS NULL THEN
			mine.slot := (SELECT min(s) FROM generate_series(0, most - 1) s
				WHERE s NOT IN (SELECT x.slot FROM fencelock_hold x WHERE x.name = k AND NOT x.claimed));
		END IF;
		IF m = 'x' THEN
			INSERT INTO fencelock_lease VALUES (k, n, who, mine.token,
				clock_timestamp() + ms * interval '1 ms', mv, false, false);
		ELSE
			PERFORM fencelock_join(k, n, m, most, mine.slot, mine.token, who, ms, false, mv);
		END IF;
		IF first = n THEN
			DELETE FROM fencelock_queue WHERE nonce = n;
			PERFORM fencelock_serve(k, NULL, claim);
		END IF;
		RETURN 'granted ' || mine.token || ' 0 ' || coalesce(mine.slot, 0);
	END IF;
	IF ticket < 0 THEN
		RETURN 'locked';
	ELSIF floor > 0 AND fencelock_far(floor) THEN
		RETURN 'far';
	END IF;
	ticket := fencelock_wait(k, n, who, ticket, m, most, proc, slack, 0, NULL);
	-- A name is free for one alone when the last hold of it ends. Those behind a waiter look when
	-- that may be dead.
	SELECT CASE m WHEN 'x' THEN max(x.ends) ELSE min(x.ends) END INTO ends FROM (
		SELECT l.expires_at AS ends FROM fencelock_lease l WHERE l.name = k AND NOT l.shared
		UNION ALL SELECT h.expires_at FROM fencelock_hold h WHERE h.name = k) x;
	IF first <> n THEN
		ends := least(ends, (SELECT p.alive_until FROM fencelock_queue q
			JOIN fencelock_process p USING (process) WHERE q.nonce = first));
	END IF;
	RETURN 'queued ' || ticket || ' ' || greatest(
		ceil(extract(epoch FROM ends - clock_timestamp()) * 1000), 0);
END $$;

-- Puts a waiter into the queue, if it is not there, and returns its ticket. Its process is alive
-- for slack ms from now.
CREATE OR REPLACE FUNCTION fencelock_wait(k bytea, n bytea, who bytea, place bigint, m text,
	most int, proc text, slack bigint, ask bigint, seen bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	t bigint;
	alive boolean;
BEGIN
	INSERT INTO fencelock_queue AS q VALUES (k, CASE WHEN place > 0 THEN place
			ELSE nextval('fencelock_ticket'::regclass) END, n, who, proc, m, most, ask, seen)
		ON CONFLICT (nonce) DO UPDATE SET ask = excluded.ask, seen = excluded.seen, asked = excluded.asked
		RETURNING q.ticket, EXISTS (SELECT FROM fencelock_process p WHERE p.process = proc
			AND p.alive_until > clock_timestamp() + slack * interval '0.5 ms') INTO t, alive;
	-- Only if it is due: a sign of life may have locked the row, and all who want the name would wait for that.
	IF NOT alive THEN
		INSERT INTO fencelock_process VALUES (proc, clock_timestamp() + slack * interval '1 ms')
			ON CONFLICT (process) DO UPDATE
			SET alive_until = greatest(fencelock_process.alive_until, excluded.alive_until);
	END IF;
	RETURN t;
END $$;

-- The part of fencelock_acquire for locks that are free and not waited for: all at once. A name that is
-- asked for twice is none of them. The settings keep the plan, whatever the tables had when it was made.
CREATE OR REPLACE FUNCTION fencelock_acquire_free(ks bytea[], ns bytea[], whos bytea[],
	mss bigint[], floors bigint[], mores bigint[], moves bytea[], seens bigint[], gates bigint)
RETURNS text[] LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
	clock bigint := fencelock_clock();
	twice bytea[] := ARRAY(SELECT k FROM unnest(ks) k GROUP BY k HAVING count(*) > 1);
	answers text[];
	most bigint;
BEGIN
	WITH g AS (
		INSERT INTO fencelock_lease
		SELECT u.k, u.n, u.who, (SELECT fencelock_next(clock, cardinality(ks), 0)) + u.at - 1
			+ CASE WHEN (SELECT EXISTS (SELECT FROM fencelock_lead))
				THEN greatest(fencelock_ahead(u.k), 0) ELSE 0 END,
			clock_timestamp() + u.ms * interval '1 ms', u.move, false, false
		FROM unnest(ks, ns, whos, mss, floors, mores, moves, seens)
			WITH ORDINALITY u(k, n, who, ms, above, more, move, seen, at)
		WHERE u.seen = gates AND u.more = 0 AND u.above < clock AND u.k <> ALL (twice)
			AND (SELECT true FROM fencelock_lease x WHERE x.name = u.k) IS NULL
			AND (SELECT true FROM fencelock_queue q WHERE q.name = u.k LIMIT 1) IS NULL
			AND (SELECT true FROM fencelock_gone g WHERE g.nonce = u.n) IS NULL
		RETURNING nonce, token
	)
	SELECT array_agg('granted ' || g.token || ' 0' ORDER BY u.at), max(g.token) INTO answers, most
		FROM unnest(ns) WITH ORDINALITY u(n, at) LEFT JOIN g ON g.nonce = u.n;
	IF most >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	RETURN answers;
END $$;

-- Acquires: each array has an entry for each request. ns: the nonces; mss: TTL and grace;
-- mores: how many tokens to reserve; moves: the migration of one in phase both, or NULL; seens: the
-- gates that let it pass (fencelock_gates_now), or NULL; tickets: -1 for a try, which only reads if
-- it fails, or the place that a waiter has had, 0 for none; asks: a number of the request, by which a
-- push may grant (fencelock_grant), or 0; proc: the waiters' process, alive for slack ms from now.
--
-- Returns a line for each: "granted token reserved", locked, "queued ticket look" (look: in how
-- many ms the lease ends), gone (abandoned before), far (the floor is too far ahead), broken (the
-- tables have what no driver writes there), or fencelock_gates if they are not those that it knows:
-- if they let it pass it asks again, and otherwise it is given up, which hands the lock on.
CREATE OR REPLACE FUNCTION fencelock_acquire(ks bytea[], ns bytea[], whos bytea[], mss bigint[],
	floors bigint[], mores bigint[], moves bytea[], seens bigint[], tickets bigint[], asks bigint[],
	proc text, slack bigint, claim bigint, pre int) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	line int[] := fencelock_line(ks);
	answers text[];
	i int;
BEGIN
	-- Batches that raise leads come one after the other: each may raise several, in any order.
	IF (SELECT max(f) FROM unnest(floors) f) >= fencelock_clock() THEN
		PERFORM pg_advisory_xact_lock(7306, 1);
	END IF;
	answers := fencelock_acquire_free(ks, ns, whos, mss, floors, mores, moves, seens,
		fencelock_gates_now());
	FOREACH i IN ARRAY line LOOP
		CONTINUE WHEN answers[i] IS NOT NULL;
		answers[i] := fencelock_acquire(ks[i], ns[i], whos[i], mss[i], floors[i], mores[i],
			moves[i], seens[i], CASE WHEN tickets[i] < 0 THEN -2 ELSE tickets[i] END, asks[i], proc,
			slack, claim, pre);
	END LOOP;
	RETURN array_to_string(answers, E'\n');
END $$;

-- fencelock_acquire for one request. ticket is -2 for a try that was not granted with its batch. All
-- looks are in statements of their own after the lock of the name: they see every gate that was
-- there when the lock was won, and what others have done with the name. The common cases come first,
-- each in one statement that also writes.
CREATE OR REPLACE FUNCTION fencelock_acquire(k bytea, n bytea, who bytea, ms bigint,
	floor bigint, more bigint, mv bytea, seen bigint, ticket bigint, ask bigint, proc text,
	slack bigint, claim bigint, pre int) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	done boolean := fencelock_alone(k);
	whose bytea; -- the lease's nonce, and what else it has
	t bigint;
	ends timestamptz;
	given boolean; -- it is a claim
	beside boolean; -- it is a mark
	waited boolean;
	gone boolean;
	gates bigint;
	ahead bigint;
	ours boolean := false; -- our own grant, or the claim that another's release has made for us
	turn bytea;
	clock bigint;
	reserved bigint := 0;
BEGIN
	IF ticket = -1 AND more = 0 AND (floor = 0 OR floor < fencelock_clock()) THEN
		-- A lock that is free and not waited for, as in fencelock_acquire_free.
		INSERT INTO fencelock_lease SELECT k, n, who, fencelock_next(fencelock_clock(), 1, 0)
				+ CASE WHEN EXISTS (SELECT FROM fencelock_lead)
					THEN greatest(fencelock_ahead(k), 0) ELSE 0 END,
				clock_timestamp() + ms * interval '1 ms', mv, false, false
			WHERE NOT EXISTS (SELECT FROM fencelock_lease x WHERE x.name = k)
				AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k)
				AND NOT EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n)
				AND CASE WHEN EXISTS (SELECT FROM fencelock_gate)
					THEN fencelock_gates_now() ELSE 0 END = seen
			RETURNING token INTO t;
	ELSIF ticket > 0 AND more = 0 AND seen = 0 THEN
		-- The claim that a release has made for this waiter, if its token will do and no gate is there.
		UPDATE fencelock_lease x SET owner = who, expires_at = clock_timestamp() + ms * interval '1 ms',
				move = mv, claimed = false
			WHERE x.name = k AND x.nonce = n AND x.claimed AND x.token > floor
				AND x.expires_at > clock_timestamp() AND isfinite(x.expires_at) AND NOT x.shared
				AND NOT EXISTS (SELECT FROM fencelock_gate)
				AND NOT EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n)
				AND CASE WHEN EXISTS (SELECT FROM fencelock_lead) THEN fencelock_ahead(k) >= 0 ELSE true END
			RETURNING x.token INTO t;
	END IF;
	IF t < 9007199254740992 THEN
		RETURN 'granted ' || t || ' 0';
	END IF; -- none is found below either, which is an error
	SELECT x.nonce, x.token, x.expires_at, x.claimed, x.shared,
		EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k),
		EXISTS (SELECT FROM fencelock_gone g WHERE g.nonce = n),
		CASE WHEN EXISTS (SELECT FROM fencelock_gate) THEN fencelock_gates_now() ELSE 0 END,
		CASE WHEN EXISTS (SELECT FROM fencelock_lead) THEN fencelock_ahead(k) ELSE 0 END
		INTO whose, t, ends, given, beside, waited, gone, gates, ahead
		FROM (VALUES (1)) one LEFT JOIN fencelock_lease x ON x.name = k;
	IF gone THEN
		RETURN 'gone';
	ELSIF NOT isfinite(ends) OR ahead < 0 THEN
		RETURN 'broken';
	ELSIF beside THEN
		RETURN fencelock_share(k, n, who, ms, floor, mv, seen, ticket, 'x', 1, proc, slack, claim, pre,
			gates);
	END IF;
	IF whose = n OR ends <= clock_timestamp() THEN -- it may be renewed just now
		SELECT x.nonce, x.token, x.expires_at, x.claimed INTO whose, t, ends, given
			FROM fencelock_lease x WHERE x.name = k FOR UPDATE;
		ours := coalesce(whose = n AND ends > clock_timestamp(), false);
		ahead := NULL; -- of before it was locked
	END IF;
	IF ours OR ends > clock_timestamp() IS NOT TRUE THEN
		IF NOT ours AND waited THEN
			turn := fencelock_grant(k, n, claim, NULL);
		END IF;
		IF turn IS NULL OR turn = n THEN
			IF gates IS DISTINCT FROM seen AND (NOT ours OR given) THEN
				RETURN fencelock_gates(k, pre);
			END IF;
			-- The token of a claim was told to nobody: it is drawn anew for one that reserves more, and where a
			-- migration may have raised the tokens since.
			IF NOT ours OR t <= floor OR t >= 9007199254740992
				OR given AND (more > 0 OR gates <> 0) THEN
				clock := fencelock_clock();
				t := fencelock_next(clock, 1, more);
				reserved := greatest(least(more, clock + 3000 - t), 0);
				t := t + coalesce(ahead, fencelock_ahead(k));
				IF t + reserved >= 9007199254740992 THEN
					RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
				ELSIF t <= floor AND fencelock_far(floor) THEN
					RETURN 'far';
				ELSIF t <= floor THEN
					PERFORM fencelock_raise(k, floor);
					t := fencelock_draw(k, floor);
					reserved := 0;
				END IF;
			END IF;
			IF turn = n THEN
				DELETE FROM fencelock_queue WHERE nonce = n;
			END IF;
			-- What dead holders leave may be swept away just now.
			INSERT INTO fencelock_lease VALUES (k, n, who, t,
				clock_timestamp() + ms * interval '1 ms', mv, false, false)
				ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner,
				token = excluded.token, expires_at = excluded.expires_at,
				move = excluded.move, claimed = false;
			RETURN 'granted ' || t || ' ' || reserved;
		END IF;
		SELECT x.expires_at, x.shared INTO ends, beside FROM fencelock_lease x WHERE x.name = k;
		IF beside THEN -- those who were before it have it together
			RETURN fencelock_share(k, n, who, ms, floor, mv, seen, ticket, 'x', 1, proc, slack, claim,
				pre, gates);
		END IF;
	END IF;
	IF ticket < 0 THEN
		RETURN 'locked';
	ELSIF floor > 0 AND fencelock_far(floor) THEN
		RETURN 'far';
	END IF;
	RETURN 'queued ' || fencelock_wait(k, n, who, ticket, 'x', 1, proc, slack, ask, seen)
		|| ' ' || greatest(ceil(extract(epoch FROM ends - clock_timestamp()) * 1000), 0);
END $$;

-- fencelock_acquire for requests of any mode: modes are x (exclusive), r (reader) and p (permit),
-- and mosts how many may hold the name at once. Of r and p the answer is "granted token 0 slot".
CREATE OR REPLACE FUNCTION fencelock_acquire_any(ks bytea[], ns bytea[], whos bytea[],
	mss bigint[], floors bigint[], mores bigint[], moves bytea[], seens bigint[], tickets bigint[],
	asks bigint[], proc text, slack bigint, claim bigint, pre int, modes text[], mosts int[])
RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	line int[] := fencelock_line(ks);
	gates bigint := fencelock_gates_now();
	answers text[];
	i int;
BEGIN
	IF (SELECT max(f) FROM unnest(floors) f) >= fencelock_clock() THEN -- as in fencelock_acquire
		PERFORM pg_advisory_xact_lock(7306, 1);
	END IF;
	FOREACH i IN ARRAY line LOOP
		IF modes[i] = 'x' THEN
			answers[i] := fencelock_acquire(ks[i], ns[i], whos[i], mss[i], floors[i], mores[i],
				moves[i], seens[i], tickets[i], asks[i], proc, slack, claim, pre);
		ELSE
			answers[i] := fencelock_share(ks[i], ns[i], whos[i], mss[i], floors[i], moves[i],
				seens[i], tickets[i], modes[i], mosts[i], proc, slack, claim, pre, gates);
		END IF;
	END LOOP;
	RETURN array_to_string(answers, E'\n');
END $$;

-- Notes nonces that were released, in a ring that the last digits of the first of them choose. A
-- batch has rings of its own (1,024 and up), which keep two batches: those of single releases keep
-- a few nonces, so that they stay short.
CREATE OR REPLACE FUNCTION fencelock_note(ns bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	most int := CASE WHEN cardinality(ns) > 8 THEN 256 ELSE 16 END;
	mine int := (get_byte(ns[1], 14) * 256 + get_byte(ns[1], 15)) & 1023
		| (most & 256) * 4; -- 1,024 for a batch
BEGIN
	UPDATE fencelock_ring SET nonces = (ns || nonces)[1:most] WHERE slot = mine;
	IF FOUND THEN
		RETURN;
	END IF;
	INSERT INTO fencelock_ring VALUES (mine, ns)
		ON CONFLICT (slot)
		DO UPDATE SET nonces = (excluded.nonces || fencelock_ring.nonces)[1:most];
END $$;

-- The part of fencelock_release for many at once: ends the leases, in the order of every batch, and
-- then hands on those that somebody waits for. Returns for each lease whether its time was not over,
-- NULL where there is none. With these settings and the caller's the server looks the names up in the
-- index, one after the other as they are sorted: fencelock_renew locks them in that order too.
CREATE OR REPLACE FUNCTION fencelock_release_all(ks bytea[], ns bytea[], claim bigint, sync text)
RETURNS boolean[] LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off AS $$
DECLARE
	freed boolean[];
	done boolean;
	r record;
BEGIN
	FOR r IN DELETE FROM fencelock_lease l WHERE l.name = ANY (ks) AND l.nonce = ANY (ns)
		RETURNING l.name, l.nonce, l.expires_at > clock_timestamp() AS live,
			(SELECT true FROM fencelock_queue q WHERE q.name = l.name LIMIT 1) IS NOT NULL AS waited
	LOOP -- all are deleted by now
		freed[array_position(ns, r.nonce)] := r.live;
		IF r.waited THEN
			done := fencelock_grant(r.name, NULL, claim, sync) IS NULL;
		END IF;
	END LOOP;
	RETURN freed;
END $$;

-- What fencelock_release begins with: it leaves the tombstone of what is abandoned, and deletes the
-- place in the queue of what is not held. Returns whether there was a place.
CREATE OR REPLACE FUNCTION fencelock_abandon(n bytea, keep bigint, held boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF keep > 0 THEN
		DELETE FROM fencelock_gone WHERE nonce = ANY (ARRAY(SELECT nonce FROM fencelock_gone
			WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED));
		INSERT INTO fencelock_gone VALUES (n, clock_timestamp() + keep * interval '1 ms')
			ON CONFLICT (nonce) DO UPDATE SET until = excluded.until;
	END IF;
	DELETE FROM fencelock_queue WHERE nonce = n AND NOT held;
	RETURN FOUND;
END $$;

-- The part of fencelock_release where there is no lease of one alone. Returns whether the time of
-- the hold was not over, NULL where there is none either.
CREATE OR REPLACE FUNCTION fencelock_release_hold(k bytea, n bytea, dropped boolean, claim bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	live boolean;
	done boolean;
BEGIN
	DELETE FROM fencelock_hold h WHERE h.name = k AND h.nonce = n
		RETURNING h.expires_at > clock_timestamp() AND EXISTS (SELECT FROM fencelock_lease l
			WHERE l.name = h.name AND l.shared) INTO live;
	-- The lock may have been this waiter's to take, or it kept those behind it out.
	IF FOUND OR dropped AND NOT EXISTS (SELECT FROM fencelock_lease l
		WHERE l.name = k AND l.expires_at > clock_timestamp() AND NOT l.shared) THEN
		done := fencelock_serve(k, NULL, claim) IS NULL;
	END IF;
	RETURN live;
END $$;

-- Whether a nonce was released before.
CREATE OR REPLACE FUNCTION fencelock_noted(n bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN EXISTS (SELECT FROM fencelock_ring WHERE n = ANY (nonces));
END $$;

-- Releases (held: so that it may be sent again, noted in a ring) or abandons (keeps: ms for which a
-- late acquire is refused, or 0), and hands the locks on. Returns t for each that was released, now
-- or before, else f. Unless a push grants a lock, it commits without waiting for the disk: a crash may
-- undo the last releases, and those leases last until their time is over.
CREATE OR REPLACE FUNCTION fencelock_release(ks bytea[], ns bytea[], keeps bigint[],
	helds boolean[], claim bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	line int[] := fencelock_line(ks);
	i int;
	dropped boolean[];
	freed boolean[]; -- of each that there was, whether its time was not over
	ended bytea[] := '{}';
	sync text := current_setting('synchronous_commit');
	done boolean := set_config('synchronous_commit', 'off', true) IS NULL;
BEGIN
	FOREACH i IN ARRAY line LOOP
		IF keeps[i] > 0 OR NOT helds[i] THEN
			dropped[i] := fencelock_abandon(ns[i], keeps[i], helds[i]);
		END IF;
	END LOOP;
	freed := fencelock_release_all(ks, ns, claim, sync);
	FOREACH i IN ARRAY line LOOP
		IF freed[i] IS NULL THEN
			freed[i] := fencelock_release_hold(ks[i], ns[i], dropped[i], claim);
		END IF;
		IF freed[i] AND helds[i] THEN
			ended := ended || ns[i];
		END IF;
		freed[i] := coalesce(freed[i], helds[i] AND fencelock_noted(ns[i]));
	END LOOP;
	IF cardinality(ended) > 0 THEN
		done := fencelock_note(ended) IS NULL;
	END IF;
	RETURN array_to_string(freed, '');
END $$;

-- fencelock_release for one.
CREATE OR REPLACE FUNCTION fencelock_release(k bytea, n bytea, keep bigint, held boolean,
	claim bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	done boolean := fencelock_alone(k);
	dropped boolean;
	freed boolean;
	waited boolean;
	sync text := current_setting('synchronous_commit');
BEGIN
	done := set_config('synchronous_commit', 'off', true) IS NULL;
	IF keep > 0 OR NOT held THEN
		dropped := fencelock_abandon(n, keep, held);
	END IF;
	DELETE FROM fencelock_lease l WHERE l.name = k AND l.nonce = n
		RETURNING l.expires_at > clock_timestamp(), EXISTS (SELECT FROM fencelock_queue q WHERE q.name = k)
			INTO freed, waited;
	IF waited THEN
		done := fencelock_grant(k, NULL, claim, sync) IS NULL;
	ELSIF freed IS NULL THEN
		freed := fencelock_release_hold(k, n, dropped, claim);
	END IF;
	IF freed AND held THEN
		done := fencelock_note(ARRAY[n]) IS NULL;
	END IF;
	RETURN CASE WHEN coalesce(freed, held AND fencelock_noted(n)) THEN 't' ELSE 'f' END;
END $$;

-- Frees a lock, whoever holds it, and hands it on.
CREATE OR REPLACE FUNCTION fencelock_break(k bytea, claim bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	PERFORM fencelock_line(ARRAY[k]);
	PERFORM 1 FROM fencelock_hold WHERE name = k ORDER BY nonce FOR UPDATE; -- as a renewal locks them
	DELETE FROM fencelock_lease WHERE name = k;
	PERFORM fencelock_serve(k, NULL, claim);
END $$;

-- Renews, and returns the index of every hold that is renewed. The rows are locked in the order of
-- every batch.
CREATE OR REPLACE FUNCTION fencelock_renew(names bytea[], ns bytea[], ms bigint[]) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	renewed text;
BEGIN
	PERFORM 1 FROM fencelock_lease l
		JOIN unnest(names, ns) x(name, nonce) ON l.name = x.name AND l.nonce = x.nonce
		ORDER BY l.name FOR UPDATE OF l;
	WITH done AS (
		UPDATE fencelock_lease l SET expires_at = clock_timestamp() + x.ms * interval '1 ms'
			FROM unnest(names, ns, ms) WITH ORDINALITY x(name, nonce, ms, i)
			WHERE l.name = x.name AND l.nonce = x.nonce AND l.expires_at > clock_timestamp()
			RETURNING x.i
	) SELECT coalesce(string_agg(i::text, ' '), '') INTO renewed FROM done;
	RETURN renewed;
END $$;

-- The same for holds of readers and permits.
CREATE OR REPLACE FUNCTION fencelock_renew_shared(names bytea[], ns bytea[], ms bigint[])
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	renewed text;
BEGIN
	PERFORM 1 FROM fencelock_hold h
		JOIN unnest(names, ns) x(name, nonce) ON h.name = x.name AND h.nonce = x.nonce
		ORDER BY h.name, h.nonce FOR UPDATE OF h;
	WITH done AS (
		UPDATE fencelock_hold h SET expires_at = clock_timestamp() + x.ms * interval '1 ms'
			FROM unnest(names, ns, ms) WITH ORDINALITY x(name, nonce, ms, i)
			WHERE h.name = x.name AND h.nonce = x.nonce AND h.expires_at > clock_timestamp()
				AND NOT h.claimed
				AND EXISTS (SELECT FROM fencelock_lease l WHERE l.name = h.name AND l.shared)
			RETURNING x.i
	) SELECT coalesce(string_agg(i::text, ' '), '') INTO renewed FROM done;
	RETURN renewed;
END $$;

-- Raises the tokens of a name if the lease is n's, in one step: nobody else is granted the lock
-- before the raise has committed, for every grant locks the lease's row. False: it is not n's any
-- more, and nothing was raised.
CREATE OR REPLACE FUNCTION fencelock_raise_held(k bytea, n bytea, floor bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r fencelock_lease;
BEGIN
	SELECT * INTO r FROM fencelock_lease
		WHERE name = k AND nonce = n AND NOT claimed FOR UPDATE;
	IF NOT FOUND OR r.expires_at <= clock_timestamp() THEN
		RETURN false;
	END IF;
	PERFORM fencelock_raise(k, floor);
	RETURN true;
END $$;

-- Waits until every lease that can have been granted or renewed under other gates than those of now
-- is visible, and returns a moment, in µs: what expires later was held then.
--
-- Why none is missed: fencelock_acquire looks at the gates when it has the advisory lock (7307,
-- hash) of the name, and has that lock until its transaction has ended. An acquire that gets the lock
-- later sees the gates of now, which were committed before this function was called. An acquire that
-- has it when pg_locks is read may have seen others: this function waits for each of them, in a
-- subtransaction that keeps nothing. The same goes for a release whose push grants. A claim does not
-- count, because its confirmation is such an acquire. Only a renewal can revive a lease that looks
-- expired, if it found it alive and has not committed yet: so such rows are locked, which waits for
-- it.
CREATE OR REPLACE FUNCTION fencelock_settled(ks bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	moment bigint := fencelock_clock();
	busy bigint;
BEGIN
	PERFORM fencelock_level();
	FOREACH busy IN ARRAY ARRAY(SELECT DISTINCT p.objid::bigint FROM pg_locks p
		WHERE p.locktype = 'advisory' AND p.classid = 7307 AND p.objsubid = 2 AND p.granted
		AND p.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
	LOOP
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(7307,
				(busy - CASE WHEN busy > 2147483647 THEN 4294967296 ELSE 0 END)::int);
			RAISE EXCEPTION USING ERRCODE = 'FL000';
		EXCEPTION WHEN SQLSTATE 'FL000' THEN
			NULL;
		END;
	END LOOP;
	PERFORM 1 FROM fencelock_lease l
		WHERE l.expires_at <= to_timestamp((moment / 1000000.0)::float8) AND substr(l.name, 1, length(ks)) = ks
		ORDER BY l.name FOR SHARE;
	PERFORM 1 FROM fencelock_hold h
		WHERE h.expires_at <= to_timestamp((moment / 1000000.0)::float8) AND substr(h.name, 1, length(ks)) = ks
		ORDER BY h.name, h.nonce FOR SHARE;
	RETURN moment;
END $$;

-- A sign of life of a process that waits. Returns which of its waiters must look: those that are
-- not queued any more, and those whose lock has come free.
CREATE OR REPLACE FUNCTION fencelock_beat(proc text, slack bigint, ns bytea[]) RETURNS SETOF bytea
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO fencelock_process VALUES (proc, clock_timestamp() + slack * interval '1 ms')
		ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until;
	RETURN QUERY SELECT n FROM unnest(ns) n LEFT JOIN fencelock_queue q ON q.nonce = n
		WHERE q.nonce IS NULL OR NOT EXISTS (SELECT FROM fencelock_lease l
			WHERE l.name = q.name AND l.expires_at > clock_timestamp() AND NOT (l.shared AND EXISTS (
				SELECT FROM fencelock_hold h WHERE h.name = l.name AND h.expires_at <= clock_timestamp())));
END $$;

-- Deletes what dead processes have left. Of very much it deletes a part: a call is bounded in time, and each
-- name that is locked takes a place in a table that the whole server shares.
CREATE OR REPLACE FUNCTION fencelock_sweep() RETURNS void
LANGUAGE sql VOLATILE AS $$
	SELECT fencelock_level();
	DELETE FROM fencelock_process WHERE alive_until < clock_timestamp() - interval '10 s';
	DELETE FROM fencelock_queue WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_queue q
		WHERE NOT EXISTS (SELECT FROM fencelock_process p WHERE p.process = q.process)
		LIMIT 5000 FOR UPDATE SKIP LOCKED));
	DELETE FROM fencelock_gone WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_gone
		WHERE until < clock_timestamp() LIMIT 5000 FOR UPDATE SKIP LOCKED));
	DELETE FROM fencelock_lease WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_lease l
		WHERE expires_at < clock_timestamp() - interval '10 s'
			AND NOT EXISTS (SELECT FROM fencelock_queue q WHERE q.name = l.name)
		LIMIT 5000 FOR UPDATE SKIP LOCKED));
	WITH dead AS MATERIALIZED (SELECT l.name FROM fencelock_lease l
		WHERE l.shared AND NOT EXISTS (SELECT FROM fencelock_hold h
			WHERE h.name = l.name AND h.expires_at > clock_timestamp() - interval '10 s') LIMIT 200
	), ours AS MATERIALIZED (
		SELECT name FROM dead WHERE pg_try_advisory_xact_lock(7307, fencelock_hash(name))
	) SELECT fencelock_serve(name, NULL, 2000) FROM ours;
$$;

-- Guards ------------------------------------------------------------------------------------------

-- The greatest token that each guarded resource has seen.
CREATE TABLE IF NOT EXISTS fencelock_guard (
	resource bytea PRIMARY KEY,
	token bigint NOT NULL
) WITH (fillfactor = 50);

-- Names -------------------------------------------------------------------------------------------

-- Puts the schema before every name of ours in the bodies of the functions, so that they find the
-- tables whatever the search_path of their callers is. Their heads name the schema already, and its
-- own name may begin as ours do.
DO $$
DECLARE
	before text := replace(quote_ident(current_schema()), chr(92), chr(92) || chr(92))
		|| '.fencelock_';
	head text;
	body text;
BEGIN
	FOR head, body IN SELECT pg_get_functiondef(p.oid), p.prosrc
		FROM pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
		WHERE s.nspname = current_schema() AND starts_with(p.proname, 'fencelock_')
	LOOP
		EXECUTE replace(head, body, regexp_replace(body, '(?<![[:alnum:]_.])fencelock_', before, 'g'));
	END LOOP;
END $$;

-- The version of all this: last, so that it is there only when the rest is.
CREATE OR REPLACE FUNCTION fencelock_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 4';
