package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// Gates are rows of fencelock_gate, which fencelock_take and fencelock_acquire look at when the lock is won: at a hash of them, if the client knows them
// already (see gates), and at each only if that is another.

// marks is the first of the advisory locks that mark the sessions of clients in PhaseBoth: 0x666d000000000000. The doors of mode row end below it.
const marks = 0x666d << 48

// mark is the advisory lock of a migration's clients in PhaseBoth: 48 bits of a hash of its name.
func mark(move string) int64 {
	sum := sha256.Sum256([]byte(move))
	return marks | int64(binary.BigEndian.Uint64(sum[:8])>>16)
}

// checkPhase refuses phases that there are not.
func checkPhase(r *backend.Request) error {
	switch r.Phase {
	case "", backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo:
		return nil
	}
	return backend.Invalid("phase %q: want %s, %s or %s", r.Phase, backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo)
}

// phase is the part that a request takes in a migration, as arguments in SQL: migration, phase, mark, and the gates that the client has looked at.
func phase(r *backend.Request, look sight) string {
	seen := "NULL"
	if look.version != nil {
		seen = strconv.FormatInt(*look.version, 10)
	}
	switch r.Phase {
	case "":
		return "NULL,'',NULL," + seen
	case backend.PhaseBoth:
		return literal([]byte(r.Move)) + ",'both'," + strconv.FormatInt(mark(r.Move), 10) + "," + seen
	}
	return literal([]byte(r.Move)) + ",'" + string(r.Phase) + "',NULL," + seen
}

// refusal is what an error of fencelock_take means to the request.
func (st *store) refusal(err error, r *backend.Request) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.Code != "FL403" {
		return meaning(err)
	}
	return reply(strings.Fields(answer.Detail)).refusal(1, 0, r)
}

// refusal reads that of a gate: its epoch, and its migration in hex.
func (a reply) refusal(epoch, move int, r *backend.Request) error {
	name, err := hex.DecodeString(a.word(move))
	if err != nil || a.number(epoch) < 0 {
		return errOr(nil, strings.Join(a, " "))
	}
	return &backend.GateError{Move: string(name), Epoch: a.number(epoch), Phase: r.Phase}
}

// patterns is a scope as the table has it: each pattern behind + or, where its names stay, behind !.
func patterns(s backend.Scope) [][]byte {
	all := make([][]byte, len(s))
	for i, p := range s {
		sign := "+"
		if p.Stays {
			sign = "!"
		}
		all[i] = []byte(sign + p.Match)
	}
	return all
}

// scope reads that; false if no driver has written it.
func scope(all [][]byte) (backend.Scope, bool) {
	s := make(backend.Scope, len(all))
	for i, p := range all {
		if len(p) == 0 || p[0] != '+' && p[0] != '!' {
			return nil, false
		}
		s[i] = backend.Pattern{Match: string(p[1:]), Stays: p[0] == '!'}
	}
	return s, true
}

// Gates implements backend.Gater.
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	var gates []backend.Gate
	err := d.st.query(ctx, "SELECT move, scope, state, epoch FROM fencelock_gate WHERE keyspace = $1 ORDER BY move", []any{[]byte(d.st.prefix)}, func(row pgx.CollectableRow) error {
		var move []byte
		var all [][]byte
		var g backend.Gate
		if err := row.Scan(&move, &all, &g.State, &g.Epoch); err != nil {
			return err
		}
		var ok bool
		g.Move = string(move)
		if g.Scope, ok = scope(all); !ok || backend.CheckGate(g) != nil {
			return backend.Invalid("the gate of migration %q of keyspace %q in fencelock_gate cannot be read: it has what no driver writes there", g.Move, d.st.prefix)
		}
		gates = append(gates, g)
		return nil
	})
	return gates, err
}

// SetGate implements backend.Gater.
func (d *Driver) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	set := false
	err := d.st.query(ctx, "SELECT fencelock_set_gate($1, $2, $3, $4, $5, $6)",
		[]any{[]byte(d.st.prefix), []byte(g.Move), patterns(g.Scope), string(g.State), g.Epoch, was},
		func(row pgx.CollectableRow) error { return row.Scan(&set) })
	if err == nil && !set {
		err = backend.ErrGateMoved
	}
	return err
}

// Source implements backend.Gater.
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	var source backend.Token
	err := d.st.query(ctx, "SELECT fencelock_source()", nil, func(row pgx.CollectableRow) error { return row.Scan(&source) })
	return source, err
}

// Undrained implements backend.Gater. Why none is missed stands at fencelock_undrained_row.
func (r *row) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	return r.st.undrained(ctx, "SELECT * FROM fencelock_undrained_row($1, $2, $3)", g, mark(g.Move), r.info)
}

// Undrained implements backend.Gater. Why none is missed stands at fencelock_undrained_lease.
func (l *lease) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	return l.st.undrained(ctx, "SELECT * FROM fencelock_undrained_lease($1, $2, $3)", g, []byte(g.Move), l.info)
}

func (st *store) undrained(ctx context.Context, sql string, g backend.Gate, whose any, info func(pgx.CollectableRow) (backend.Info, error)) ([]backend.Info, error) {
	var left []backend.Info
	err := st.query(ctx, sql, []any{[]byte(st.prefix), patterns(g.Scope), whose}, func(row pgx.CollectableRow) error {
		i, err := info(row)
		left = append(left, i)
		return err
	})
	if err != nil {
		return nil, err
	}
	return left, nil
}

// RaiseHeld implements backend.Gater. What the holder's own transaction writes lasts only once it has committed, so the raise goes by
// another connection, if the holder's transaction is open, and is durable with that. Being connected is holding: if the transaction is
// open afterwards too, nobody else has held the row since the grant, and whoever does later draws his token after the raise.
func (r *row) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	s, ok := h.Handle.(*session)
	if !ok {
		return backend.ErrLost
	}
	if err := s.held(); err != nil {
		return err
	}
	raised := false
	err := r.st.query(ctx, "SELECT fencelock_raise($1, $2) FROM (SELECT pg_xact_status($3::text::xid8) AS status) x WHERE status = 'in progress'",
		[]any{r.st.key(h.Name), floor, s.xid}, func(pgx.CollectableRow) error { raised = true; return nil })
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &answer) && answer.Code == "22023": // in the server's future: its data is another
	case err != nil:
		return err
	}
	if !raised {
		return s.heldOr(backend.ErrLost)
	}
	return s.renew(ctx)
}

// RaiseHeld implements backend.Gater.
func (l *lease) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	nonce, err := hex.DecodeString(h.Nonce)
	if err != nil {
		return backend.ErrLost
	}
	raised := false
	err = l.st.query(ctx, "SELECT fencelock_raise_held($1, $2, $3)", []any{l.st.key(h.Name), nonce, floor},
		func(row pgx.CollectableRow) error { return row.Scan(&raised) })
	if err == nil && !raised {
		err = backend.ErrLost
	}
	return err
}
