package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// batchMost is how many claims go into one statement, and batchesMost how many such statements
// are under way at once: what costs is the statement and its commit.
const batchMost, batchesMost = 128, 2

// lease is mode lease: a backend.Mover, with the methods of store.
type lease struct {
	*store
	hub *hub
}

func newLease(st *store, process string, listen *pgx.ConnConfig) *lease {
	return &lease{store: st, hub: newHub(st, process, listen)}
}

// Traits implements backend.Driver.
func (l *lease) Traits() backend.Traits { return backend.TraitsOf("postgres-lease") }

// Calls implements backend.Driver.
func (l *lease) Calls() backend.Calls {
	return backend.Calls{Most: batchMost, Abreast: batchesMost}
}

// Enter implements backend.Driver. It does not wait until pushes arrive: the sign of life finds what
// is missed before.
func (l *lease) Enter(_ context.Context, c *backend.Claim) error {
	l.enter(c)
	return nil
}

// enter puts a claim among the waiters.
func (l *lease) enter(c *backend.Claim) *waiter {
	w, ok := c.Place.(*waiter)
	if !ok {
		w = &waiter{claim: c}
		c.Place = w
	}
	l.hub.join(w)
	return w
}

// Ask implements backend.Driver: one statement, with one commit. A waiter joins the queue with its
// first request if it would hear a push.
func (l *lease) Ask(ctx context.Context, cs []*backend.Claim) {
	if slices.ContainsFunc(cs, pushed) {
		if cs = slices.DeleteFunc(slices.Clone(cs), l.hub.taken); len(cs) == 0 {
			return
		}
	}
	var names, nonces, owners, ms, floors, reserves, moves, versions, tickets, asks, modes, most array
	conn, hears, unsure, same, now := (*store).borrow, l.hub.ready(), false, true, backend.Now()
	cs, several := ordered(cs)
	for _, c := range cs {
		names.bytes(l.prefix, c.Name)
		nonces.hex(c.Nonce)
		owners.bytes(c.Owner)
		ms.int(millis(c.TTL + c.Grace))
		floors.int(c.Floor)
		reserves.int(int64(c.Reserve))
		unsure = unsure || c.Unsure
		if c.Phase == backend.PhaseBoth {
			moves.bytes(c.Move)
		} else {
			moves.raw("NULL")
		}
		versions.raw(seen(c))
		w, _ := c.Place.(*waiter)
		if w == nil && c.Wait && hears {
			w = l.enter(c)
		}
		if w == nil {
			tickets.int(-1)
			asks.int(0)
		} else {
			tickets.int(w.ticket)
			asks.int(l.hub.ask(w, now))
			conn, same = (*store).spare, same && w.ticket == 0 // an old "queued" may miss a grant
		}
		if several {
			modes.raw(letters[c.Mode])
			most.int(int64(min(c.Most(), math.MaxInt32)))
		}
	}
	s := statement{
		conn: conn, late: true, ping: unsure, // the engine is to know of a copy that may come yet
		same: same, at: now,
		// Of text, for lib/pq encodes what it takes for bytes once more.
		text: "SELECT fencelock_acquire($1::text::bytea,$2::text::bytea,$3::text::bytea,$4,$5,$6,$7::text::bytea," +
			"$8,$9,$10,$11,$12,$13,$14)",
	}
	end := array.one
	switch {
	case several:
		s.text, end = "SELECT fencelock_acquire_any($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16)", array.end
	case len(cs) > 1:
		s.text, end = "SELECT fencelock_acquire($1::bytea[],$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)", array.end
	}
	s.raw = append(make([][]byte, 0, 16),
		end(names), end(nonces), end(owners), end(ms), end(floors), end(reserves),
		end(moves), end(versions), end(tickets), end(asks), []byte(l.hub.process),
		number(millis(slack)), number(millis(claim)), number(int64(len(l.prefix))),
	)
	if several {
		s.raw = append(s.raw, modes.end(), most.end())
	}
	err := limited(l.send(ctx, &s))
	answer, rest := "", s.told
	for _, c := range cs {
		if c.Err = err; err == nil {
			answer, rest, _ = strings.Cut(rest, "\n")
			c.Err = l.answer(c, answer, s.at)
		}
	}
}

// letters are the modes as the tables have them.
var letters = [...]string{backend.Exclusive: "x", backend.Reader: "r", backend.Permit: "p"}

// ordered reports whether claims are not all exclusive. Then it orders them by their nonces: names
// have several of them, whose rows every statement locks in that order.
func ordered(cs []*backend.Claim) ([]*backend.Claim, bool) {
	if !slices.ContainsFunc(cs, sharing) {
		return cs, false
	}
	return slices.SortedFunc(slices.Values(cs), func(a, b *backend.Claim) int {
		return strings.Compare(a.Nonce, b.Nonce)
	}), true
}

func sharing(c *backend.Claim) bool { return c.Mode != backend.Exclusive }

// array is one in the server's text form.
type array []byte

func (a *array) next() {
	if *a == nil {
		*a = append(make(array, 0, 64), '{')
	} else {
		*a = append(*a, ',')
	}
}

func (a *array) int(n int64) {
	a.next()
	*a = strconv.AppendInt(*a, n, 10)
}

// raw adds what stands for itself: a number, a truth value, or NULL.
func (a *array) raw(s string) {
	a.next()
	*a = append(*a, s...)
}

// hex adds bytes that are given in hex. The server refuses what is no hex.
func (a *array) hex(digits string) {
	a.next()
	*a = append(append(*a, `\\x`...), digits...)
}

func (a *array) bytes(parts ...string) {
	a.hex("")
	for _, p := range parts {
		*a = hex.AppendEncode(*a, []byte(p))
	}
}

// end returns it whole.
func (a array) end() []byte { return append(a, '}') }

// one returns the only value that it has as one that is in no array.
func (a array) one() []byte {
	switch {
	case string(a) == "{NULL":
		return nil
	case bytes.HasPrefix(a, []byte(`{\\`)):
		return a[len(`{\`):]
	}
	return a[len("{"):]
}

func number(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

// answer reads what fencelock_acquire says of a claim.
func (l *lease) answer(c *backend.Claim, answer string, asked backend.Instant) error {
	a := reply(strings.Fields(answer))
	state, x, y := a.word(0), a.number(1), a.number(2)
	switch {
	case state == "granted" && x > 0 && y >= 0:
		c.Grant = backend.Grant{Token: x, Reserved: int(y), Asked: asked}
		if c.Mode == backend.Permit {
			slot := a.number(3)
			if slot < 0 || slot >= int64(c.Limit) {
				return unexpected(answer)
			}
			c.Slot = int(slot)
		}
		l.leave(c)
		return nil
	case state == "locked":
		return backend.ErrLocked
	case state == "queued" && x > 0 && y >= 0:
		c.Place.(*waiter).ticket = x
		c.Queued, c.Next = true, time.Duration(min(y, math.MaxInt32))*time.Millisecond+5*time.Millisecond
		return backend.ErrLocked
	case state == "gone":
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	case state == "far":
		return errFar
	case state == "broken":
		return backend.Invalid("the rows of %q in the driver's tables have what no driver writes there",
			c.Name)
	case state == "gates":
		return l.otherGates(c, answer)
	}
	return unexpected(answer)
}

// errFar is a floor's that fencelock_far refuses.
var errFar = backend.Invalid("the floor is too far ahead: " +
	"want at most the server's clock in µs and an hour")

// leave takes a claim from among the waiters.
func (l *lease) leave(c *backend.Claim) {
	if w, ok := c.Place.(*waiter); ok {
		l.hub.leave(w)
	}
}

// Leave implements backend.Driver. A tombstone is left only where a request went unanswered, which
// may still be under way.
func (l *lease) Leave(ctx context.Context, cs []*backend.Claim) {
	var names, nonces, keeps, held array
	cs, _ = ordered(cs)
	for _, c := range cs {
		l.leave(c)
		names.bytes(l.prefix, c.Name)
		nonces.hex(c.Nonce)
		held.raw(strconv.FormatBool(c.Held))
		if c.Unsure {
			keeps.int(millis(c.TTL + c.Grace + tombstone))
		} else {
			keeps.int(0)
		}
	}
	s := statement{
		conn: (*store).borrow, text: "SELECT fencelock_release($1::text::bytea,$2::text::bytea,$3,$4,$5)", same: true,
	}
	end := array.one
	if len(cs) > 1 {
		s.text, end = "SELECT fencelock_release($1::bytea[],$2,$3,$4,$5)", array.end
	}
	s.raw = [][]byte{end(names), end(nonces), end(keeps), end(held), number(millis(claim))}
	err := limited(l.send(ctx, &s))
	if err == nil && len(s.told) != len(cs) {
		err = unexpected(s.told)
	}
	for i, c := range cs {
		if c.Err = err; err == nil && c.Held && s.told[i] != 't' {
			c.Err = backend.ErrLost
		}
	}
	l.sweep()
}

// Keep implements backend.Driver: one statement for all that are exclusive, and one for the others,
// which are in another table.
func (l *lease) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	l.keep(ctx, cs, errs, extend, false, "SELECT fencelock_renew($1,$2,$3)", looking)
	if slices.ContainsFunc(cs, sharing) {
		l.keep(ctx, cs, errs, extend, true, "SELECT fencelock_renew_shared($1,$2,$3)", lookingShared)
	}
	return errs
}

// keep is Keep for those that are shared, or for the others.
func (l *lease) keep(
	ctx context.Context, cs []*backend.Claim, errs []error, extend, shared bool, renew, look string,
) {
	var names, nonces, ms array
	at := make([]int, 0, len(cs)) // which of cs the statement is about
	for i, c := range cs {
		if sharing(c) != shared {
			continue
		}
		at = append(at, i)
		names.bytes(l.prefix, c.Name)
		nonces.hex(c.Nonce)
		ms.int(millis(c.TTL + c.Grace))
	}
	if len(at) == 0 {
		return
	}
	s := statement{
		conn: (*store).spare, text: renew,
		raw: [][]byte{names.end(), nonces.end(), ms.end()},
	}
	if !extend {
		s.text, s.raw = look, s.raw[:2]
	}
	err := l.send(ctx, &s)
	for _, i := range at {
		if errs[i] = err; err == nil {
			errs[i] = backend.ErrLost
		}
	}
	if err != nil {
		return // what the statement said was undone, perhaps
	}
	for i := range strings.FieldsSeq(s.told) {
		if n, _ := strconv.Atoi(i); n > 0 && n <= len(at) {
			errs[at[n-1]] = nil
		}
	}
}

// looking is fencelock_renew without a renewal, and lookingShared fencelock_renew_shared. A replica,
// which has not heard of every lease, has no pg_current_wal_lsn: there they are errors.
const looking = `SELECT coalesce(string_agg(x.i::text, ' '), '') || left(pg_current_wal_lsn()::text, 0)
	FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY x(name, nonce, i)
	JOIN fencelock_lease l USING (name, nonce) WHERE l.expires_at > clock_timestamp()`

const lookingShared = `SELECT coalesce(string_agg(x.i::text, ' '), '') || left(pg_current_wal_lsn()::text, 0)
	FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY x(name, nonce, i)
	JOIN fencelock_hold h USING (name, nonce) JOIN fencelock_lease l USING (name)
	WHERE h.expires_at > clock_timestamp() AND NOT h.claimed AND l.shared`

// sweep deletes now and then what dead processes have left.
func (l *lease) sweep() {
	if !l.due() {
		return
	}
	l.flying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookMost)
		defer cancel()
		_ = l.query(ctx, "SELECT fencelock_sweep()", nil, nil) // another time then
	})
}

// leases describes what is held or waited for, by names that begin with $1, or by the name $1 alone
// unless $2. Held is what expires after $3, or after now. A name that several hold has what is said
// of all of them, and of those that end first "nonce:token:slot:ms:owner" of each, the last in hex. What
// ends at infinity, which no driver writes, ends in 0 ms and is leaked. Bytes are in hex, whatever
// bytea_output is.
const leases = `SELECT encode(n.name, 'hex'), h.mode IS NOT NULL, encode(coalesce(h.owner, ''), 'hex'),
	coalesce(h.token, 0), CASE WHEN isfinite(h.expires_at)
		THEN extract(epoch FROM h.expires_at - clock_timestamp())::float8 ELSE 0 END,
	coalesce(NOT isfinite(h.expires_at), false),
	(SELECT count(*) FROM fencelock_queue q JOIN fencelock_process p USING (process)
		WHERE q.name = n.name AND p.alive_until > clock_timestamp())::int,
	encode(coalesce(h.move, ''), 'hex'), coalesce(h.claimed, false), coalesce(h.mode, 'x'), coalesce(h.holders, 0)::int,
	coalesce(array_to_string(h.holds[1:100], ' '), '')
FROM (SELECT name FROM fencelock_lease UNION SELECT name FROM fencelock_queue) n
CROSS JOIN coalesce(to_timestamp($3::bigint / 1000000.0), clock_timestamp()) since
LEFT JOIN LATERAL (
	SELECT l.owner, l.token, l.expires_at, l.move, l.claimed, 'x' AS mode, 0 AS holders, NULL::text[] AS holds
		FROM fencelock_lease l WHERE l.name = n.name AND l.expires_at > since AND NOT l.shared
	UNION ALL
	SELECT CASE count(*) WHEN 1 THEN (array_agg(s.owner))[1] END, max(s.token), max(s.expires_at),
			(array_agg(s.move) FILTER (WHERE s.move IS NOT NULL))[1], bool_and(s.claimed), s.mode, count(*),
			array_agg(encode(s.nonce, 'hex') || ':' || CASE WHEN s.claimed THEN 0 ELSE s.token END || ':'
				|| coalesce(s.slot, 0) || ':'
				|| CASE WHEN isfinite(s.expires_at)
					THEN ceil(extract(epoch FROM s.expires_at - clock_timestamp()) * 1000)::bigint ELSE 0 END || ':'
				|| encode(s.owner, 'hex') ORDER BY s.expires_at)
		FROM fencelock_lease l JOIN fencelock_hold s USING (name)
		WHERE l.name = n.name AND l.shared AND s.expires_at > since GROUP BY s.mode
) h ON true
WHERE n.name >= $1 AND substr(n.name, 1, length($1::bytea)) = $1 AND ($2 OR n.name = $1)`

// Look implements backend.Driver. Why Strict misses none stands at fencelock_settled.
func (l *lease) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return looked(r, func(name string, prefix bool, found func(backend.Info)) error {
		var since *int64
		if r.Strict {
			err := l.query(ctx, "SELECT fencelock_settled($1)", []any{[]byte(l.prefix)},
				func(row scanner) error { return row.Scan(&since) })
			if err != nil {
				return err
			}
		}
		args := []any{l.key(name), prefix, since}
		return l.query(ctx, leases, args, func(row scanner) error {
			var key, owner, move, mode, holds string
			var i backend.Info
			var left float64
			err := row.Scan(&key, &i.Held, &owner, &i.Token, &left, &i.Leaked, &i.Waiters, &move, &i.Pending,
				&mode, &i.Holders, &holds)
			if err != nil {
				return err
			}
			for one := range strings.FieldsSeq(holds) {
				i.Holds = append(i.Holds, held(one))
			}
			i.Mode = backend.Mode(max(slices.Index(letters[:], mode), 0))
			i.Name, i.Owner, i.Both = strings.TrimPrefix(unhex(key), l.prefix), unhex(owner), unhex(move)
			if i.Held && !i.Leaked {
				i.ExpiresIn = max(time.Duration(left*float64(time.Second)), time.Millisecond)
			}
			found(i)
			return nil
		})
	})
}

// held reads "nonce:token:slot:ms:owner" of one of several holds.
func held(text string) (h backend.Held) {
	words := append(strings.Split(text, ":"), make([]string, 5)...)
	h.ID = words[0]
	h.Token, _ = strconv.ParseInt(words[1], 10, 64)
	h.Slot, _ = strconv.Atoi(words[2])
	ms, _ := strconv.ParseInt(words[3], 10, 64)
	h.ExpiresIn, h.Owner = time.Duration(ms)*time.Millisecond, unhex(words[4])
	return h
}

// looked yields what describe finds: of the names with a prefix those that are held or waited for.
func looked(
	r backend.Range, describe func(name string, prefix bool, found func(backend.Info)) error,
) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		var all []backend.Info
		var err error
		if r.Name != "" {
			all = []backend.Info{{Name: r.Name}}
			err = describe(r.Name, false, func(i backend.Info) { all[0] = i })
		} else {
			err = describe(r.Prefix, true, func(i backend.Info) {
				if (i.Held || i.Waiters > 0) && (i.Nameless || backend.CheckName(i.Name) == nil) {
					all = append(all, i)
				}
			})
		}
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Break implements backend.Driver. A second copy would free the next holder's lock.
func (l *lease) Break(ctx context.Context, name string) error {
	return l.send(ctx, &statement{
		conn: (*store).borrow, once: true,
		text: "SELECT fencelock_break($1, $2)", args: []any{l.key(name), millis(claim)},
	})
}

// Close implements backend.Driver.
func (l *lease) Close() error {
	l.hub.close()
	l.close()
	return nil
}
