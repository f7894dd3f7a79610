-- Fencelock's objects in PostgreSQL 15 or later, version 1, for both modes.
--
-- The driver runs this file by itself on first use. Where its role may not create tables, run it once by hand, in
-- the schema that comes first in the role's search_path (or that schema= names), as the owner of that schema:
--
--     psql "$URL" -1 -v ON_ERROR_STOP=1 -f schema.sql
--     GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_row, fencelock_lease, fencelock_queue, fencelock_process,
--           fencelock_gone, fencelock_ring, fencelock_lead, fencelock_guard TO app;
--     GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO app;
--
-- It may be run again: what is there is kept.

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

-- Draws a token for a name: max(last + 1, clock in µs) + lead. NULL if that does not exceed floor: then fencelock_raise first.
--
-- setval is not undone by a rollback, but until the transaction is flushed a crash may undo it. The clock does not go
-- back then, so the tokens rise all the same; and the lead, which the clock knows nothing of, was committed. The lock is
-- taken and freed in a subtransaction, so that nothing is held after the call, on whatever connection.
CREATE OR REPLACE FUNCTION fencelock_draw(k bytea, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	mine int := fencelock_slot(k);
	source regclass := 'fencelock_token_' || (mine & 15);
	ahead bigint;
	v bigint;
BEGIN
	SELECT coalesce(max(lead), 0) INTO ahead FROM fencelock_lead WHERE slot IN (-1, mine);
	BEGIN
		PERFORM pg_advisory_xact_lock(7306, mine & 15);
		v := setval(source, greatest(pg_sequence_last_value(source) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
		RAISE EXCEPTION USING ERRCODE = 'FL000';
	EXCEPTION WHEN SQLSTATE 'FL000' THEN
		NULL;
	END;
	v := v + ahead;
	IF v >= 9007199254740992 THEN
		RAISE EXCEPTION 'fencelock: tokens have reached 2^53' USING ERRCODE = 'FL053';
	END IF;
	RETURN CASE WHEN v > floor THEN v END;
END $$;

-- Makes every later token of a name exceed floor, or of all names if k is NULL. The transaction must commit before such
-- a token is used.
CREATE OR REPLACE FUNCTION fencelock_raise(k bytea, floor bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF floor >= 9007199254740991 THEN
		RAISE EXCEPTION 'fencelock: tokens are below 2^53' USING ERRCODE = 'FL053';
	END IF;
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	INSERT INTO fencelock_lead VALUES (coalesce(fencelock_slot(k), -1), greatest(floor + 1 - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0))
		ON CONFLICT (slot) DO UPDATE SET lead = greatest(fencelock_lead.lead, excluded.lead);
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
-- first waiter. state: held, locked (never with wait), missing (the row was deleted: insert it again), floor (held, but
-- the token must be drawn again after fencelock_raise).
CREATE OR REPLACE FUNCTION fencelock_take(k bytea, floor bigint, wait boolean, OUT state text, OUT token bigint, OUT xid bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	d bigint;
BEGIN
	IF wait THEN
		SELECT door INTO d FROM fencelock_row WHERE name = k;
		IF FOUND THEN
			PERFORM pg_advisory_xact_lock(d);
			PERFORM 1 FROM fencelock_row WHERE name = k AND door = d FOR UPDATE;
		END IF;
	ELSE
		SELECT door INTO d FROM fencelock_row WHERE name = k AND pg_try_advisory_xact_lock(door);
		IF FOUND THEN
			PERFORM 1 FROM fencelock_row WHERE name = k AND door = d FOR UPDATE SKIP LOCKED;
			IF NOT FOUND AND EXISTS (SELECT FROM fencelock_row WHERE name = k AND door = d) THEN
				state := 'locked'; -- by a program that does not use the door
				RETURN;
			END IF;
		-- fencelock_tidy shares the door of a row that is free.
		ELSIF EXISTS (SELECT FROM fencelock_row WHERE name = k AND NOT pg_try_advisory_xact_lock_shared(door)) THEN
			state := 'locked';
			RETURN;
		END IF;
	END IF;
	IF NOT FOUND THEN
		state := 'missing';
		RETURN;
	END IF;
	token := fencelock_draw(k, floor);
	state := CASE WHEN token IS NULL THEN 'floor' ELSE 'held' END;
	xid := pg_current_xact_id()::text::bigint;
END $$;

-- Deletes a row that nobody holds or waits for; all such rows (200 at the most) if k is NULL: what dead processes have left.
CREATE OR REPLACE FUNCTION fencelock_tidy(k bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF k IS NULL THEN
		DELETE FROM fencelock_row WHERE ctid = ANY (ARRAY(SELECT ctid FROM fencelock_row
			WHERE pg_try_advisory_xact_lock_shared(door) LIMIT 200 FOR UPDATE SKIP LOCKED));
	ELSE
		PERFORM 1 FROM fencelock_row WHERE name = k AND pg_try_advisory_xact_lock_shared(door) FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			DELETE FROM fencelock_row WHERE name = k;
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
	expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

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

-- Rings of the nonces that were released last, for a release that is sent again.
CREATE UNLOGGED TABLE IF NOT EXISTS fencelock_ring (
	slot int PRIMARY KEY,
	nonces bytea[] NOT NULL
) WITH (fillfactor = 50);

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
	INSERT INTO fencelock_lease VALUES (k, h.nonce, h.owner, fencelock_draw_above(k, h.floor), clock_timestamp() + claim * interval '1 ms')
		ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at;
	PERFORM pg_notify('fl_' || h.process, 'g ' || encode(h.nonce, 'hex'));
	SELECT q.nonce, q.process INTO after FROM fencelock_queue q WHERE q.name = k ORDER BY q.ticket, q.nonce LIMIT 1;
	IF FOUND THEN
		PERFORM pg_notify('fl_' || after.process, 'w' || claim || ' ' || encode(after.nonce, 'hex'));
	END IF;
	RETURN h.nonce;
END $$;

-- Acquires. n: the nonce; ms: TTL and grace; place: the ticket that a waiter has had, or NULL; proc: the waiter's
-- process, alive for slack ms from now. state: granted (token), locked, queued (ticket; look: in how many ms the lease ends), gone
-- (abandoned before). A try that fails only reads.
CREATE OR REPLACE FUNCTION fencelock_acquire(k bytea, n bytea, who bytea, ms bigint, above bigint, wait boolean, place bigint,
	proc text, slack bigint, claim bigint, OUT state text, OUT token bigint, OUT ticket bigint, OUT look bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r fencelock_lease;
	turn bytea;
	t bigint;
BEGIN
	-- What others have committed while this one waited must be seen. The driver sends it again in a transaction of that level.
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'fencelock: not in a transaction of level %', current_setting('transaction_isolation') USING ERRCODE = 'FL001';
	END IF;
	SELECT * INTO r FROM fencelock_lease WHERE name = k;
	IF FOUND AND r.nonce <> n AND r.expires_at > clock_timestamp() THEN
		IF NOT wait THEN
			state := 'locked';
			RETURN;
		END IF;
		SELECT q.ticket INTO ticket FROM fencelock_queue q WHERE q.nonce = n;
		IF FOUND THEN
			state := 'queued';
			look := greatest(ceil(extract(epoch FROM r.expires_at - clock_timestamp()) * 1000), 0);
			RETURN;
		END IF;
	END IF;
	PERFORM pg_advisory_xact_lock(7307, hashtext(encode(k, 'hex')));
	IF EXISTS (SELECT FROM fencelock_gone WHERE nonce = n) THEN
		state := 'gone';
		RETURN;
	END IF;
	SELECT * INTO r FROM fencelock_lease WHERE name = k FOR UPDATE; -- a renewal may be under way
	IF FOUND AND r.expires_at > clock_timestamp() THEN
		IF r.nonce = n THEN -- our own grant, or the claim that another's release has made for us
			t := r.token;
			IF t <= above THEN
				t := fencelock_draw_above(k, above);
			END IF;
			token := t;
			UPDATE fencelock_lease l SET token = t, owner = who, expires_at = clock_timestamp() + ms * interval '1 ms' WHERE l.name = k;
			state := 'granted';
			RETURN;
		END IF;
	ELSE
		IF EXISTS (SELECT FROM fencelock_queue WHERE name = k) THEN
			turn := fencelock_grant(k, n, claim);
		END IF;
		IF turn IS NULL OR turn = n THEN
			IF turn = n THEN
				DELETE FROM fencelock_queue WHERE nonce = n;
			END IF;
			t := fencelock_draw_above(k, above);
			token := t;
			INSERT INTO fencelock_lease VALUES (k, n, who, t, clock_timestamp() + ms * interval '1 ms')
				ON CONFLICT (name) DO UPDATE SET nonce = excluded.nonce, owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at;
			state := 'granted';
			RETURN;
		END IF;
		SELECT * INTO r FROM fencelock_lease WHERE name = k;
	END IF;
	IF NOT wait THEN
		state := 'locked';
		RETURN;
	END IF;
	INSERT INTO fencelock_process VALUES (proc, clock_timestamp() + slack * interval '1 ms')
		ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until
		WHERE fencelock_process.alive_until < clock_timestamp() + slack * interval '0.5 ms';
	INSERT INTO fencelock_queue VALUES (k, coalesce(place, nextval('fencelock_ticket')), n, who, above, proc)
		ON CONFLICT (nonce) DO NOTHING;
	SELECT q.ticket INTO ticket FROM fencelock_queue q WHERE q.nonce = n;
	state := 'queued';
	look := greatest(ceil(extract(epoch FROM r.expires_at - clock_timestamp()) * 1000), 0);
END $$;

-- Releases (remember: so that it may be sent again, noted in the ring) or abandons (keep: ms for which a late acquire is refused, or 0),
-- and hands the lock on. True: released, now or before.
CREATE OR REPLACE FUNCTION fencelock_release(k bytea, n bytea, claim bigint, keep bigint, remember boolean, ring boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	live boolean;
	slot_of int := (get_byte(n, 0) * 256 + get_byte(n, 1)) & 1023;
BEGIN
	PERFORM pg_advisory_xact_lock(7307, hashtext(encode(k, 'hex')));
	IF keep > 0 THEN
		DELETE FROM fencelock_gone WHERE nonce = ANY (ARRAY(SELECT nonce FROM fencelock_gone WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED));
		INSERT INTO fencelock_gone VALUES (n, clock_timestamp() + keep * interval '1 ms')
			ON CONFLICT (nonce) DO UPDATE SET until = excluded.until;
	END IF;
	IF NOT remember THEN -- a holder waits no more
		DELETE FROM fencelock_queue WHERE nonce = n;
	END IF;
	DELETE FROM fencelock_lease WHERE name = k AND nonce = n RETURNING expires_at > clock_timestamp() INTO live;
	IF NOT FOUND THEN
		RETURN remember AND EXISTS (SELECT FROM fencelock_ring WHERE slot = slot_of AND n = ANY (nonces));
	END IF;
	IF EXISTS (SELECT FROM fencelock_queue WHERE name = k) THEN
		PERFORM fencelock_grant(k, NULL, claim);
	END IF;
	IF live AND ring THEN
		INSERT INTO fencelock_ring VALUES (slot_of, ARRAY[n])
			ON CONFLICT (slot) DO UPDATE SET nonces = (n || fencelock_ring.nonces)[1:8];
	END IF;
	RETURN live;
END $$;

-- Releases or abandons many, in the order in which every batch takes its locks; so are the rings.
CREATE OR REPLACE FUNCTION fencelock_release_all(ks bytea[], ns bytea[], keeps bigint[], remember boolean[], claim bigint, OUT i bigint, OUT done boolean)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	x record;
	ended bytea[] := '{}';
BEGIN
	FOR x IN SELECT * FROM unnest(ks, ns, keeps, remember) WITH ORDINALITY u(k, n, keep, note, at)
		ORDER BY hashtext(encode(u.k, 'hex')), u.k
	LOOP
		i := x.at;
		done := fencelock_release(x.k, x.n, claim, x.keep, x.note, false);
		IF done AND x.note THEN
			ended := ended || x.n;
		END IF;
		RETURN NEXT;
	END LOOP;
	INSERT INTO fencelock_ring SELECT (get_byte(n, 0) * 256 + get_byte(n, 1)) & 1023 AS at, array_agg(n) FROM unnest(ended) n GROUP BY at ORDER BY at
		ON CONFLICT (slot) DO UPDATE SET nonces = (excluded.nonces || fencelock_ring.nonces)[1:8];
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
CREATE OR REPLACE FUNCTION fencelock_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
