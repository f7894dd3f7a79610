package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A migration's tables are the same in both modes, so store has the methods of backend.Mover that use
// them.

// gates are the gates of a keyspace as of one moment.
type gates struct {
	version string // fencelock_gates_now
	all     []backend.Gate
	raw     []byte // a list of them
}

// noGates are the gates of a store that never had any.
var noGates = &gates{version: "0"}

// readGates reads fencelock_gates of a keyspace.
func readGates(answer, keyspace string) (*gates, error) {
	parts := strings.SplitN(answer, " ", 3)
	if len(parts) != 3 || parts[0] != "gates" {
		return nil, unexpected(answer)
	}
	g := &gates{version: parts[1]}
	var list [][]byte
	for one := range strings.SplitSeq(parts[2], ",") {
		if one == "" {
			continue
		}
		name, gate, _ := strings.Cut(one, ":")
		move, err1 := hex.DecodeString(name)
		raw, err2 := hex.DecodeString(gate)
		if err1 != nil || err2 != nil {
			return nil, unexpected(answer)
		}
		read, err := readGate(keyspace, string(move), raw)
		if err != nil {
			return nil, err
		}
		g.all, list = append(g.all, read), append(list, raw)
	}
	g.raw = listOf(list...)
	return g, nil
}

// otherGates gives a claim the gates of an answer, which are others than it was judged by.
func (st *store) otherGates(c *backend.Claim, answer string) error {
	g, err := readGates(answer, st.prefix)
	if err != nil {
		return err
	}
	if c.Gates = nil; g.version != noGates.version {
		c.Gates = &backend.Record{Key: backend.GateKey, Data: g.raw, Version: g.version}
	}
	return backend.ErrGates
}

// seen is the version of the gates that a claim was judged by, in SQL; NULL is none that the server
// ever has.
func seen(c *backend.Claim) string {
	if c.Gates == nil {
		return noGates.version
	}
	if _, err := strconv.ParseInt(c.Gates.Version, 10, 64); err != nil {
		return "NULL"
	}
	return c.Gates.Version
}

// readGate reads one gate. An unreadable one lets no request in.
func readGate(keyspace, move string, raw []byte) (backend.Gate, error) {
	all, err := backend.DecodeGates(listOf(raw))
	if err == nil && (len(all) != 1 || all[0].Move != move) {
		err = backend.Invalid("it is another's")
	}
	if err != nil {
		return backend.Gate{}, backend.Invalid("the gate of migration %q of keyspace %q "+
			"in fencelock_gate cannot be read: %w", move, keyspace, err)
	}
	return all[0], nil
}

func listOf(gates ...[]byte) []byte {
	return append(append([]byte("["), bytes.Join(gates, []byte(","))...), ']')
}

// Load implements backend.Mover. The database is one place.
func (st *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		read := st.loadClients
		if strings.HasPrefix(prefix, backend.GateKey) {
			read = st.loadGates
		}
		all, err := read(ctx)
		n := 0
		for _, r := range all {
			if strings.HasPrefix(r.Key, prefix) {
				if n++; !yield(r, nil) {
					return
				}
			}
		}
		switch {
		case err != nil:
			yield(backend.Record{}, err)
		case n == 0 && prefix == backend.GateKey:
			yield(backend.Record{Key: prefix}, nil)
		}
	}
}

// loadGates reads the gates, and waits for what a COMMIT waits for: one that was cancelled while it waited for a
// synchronous standby is there on this server alone.
func (st *store) loadGates(ctx context.Context) (all []backend.Record, err error) {
	err = st.query(ctx, `SELECT encode(move, 'hex'), encode(gate, 'hex') FROM fencelock_gate
		WHERE keyspace = $1 ORDER BY move`,
		[]any{[]byte(st.prefix)}, func(row scanner) error {
			var move, gate string
			if err := row.Scan(&move, &gate); err != nil {
				return err
			}
			move = unhex(move)
			raw := []byte(unhex(gate))
			if _, err := readGate(st.prefix, move, raw); err != nil {
				return err
			}
			sum := sha256.Sum256(raw)
			all = append(all, backend.Record{
				Key: backend.GateKey + move, Data: raw, Version: hex.EncodeToString(sum[:]),
			})
			return nil
		})
	if err == nil && len(all) > 0 {
		err = st.upkeep(ctx, "SELECT "+awaitStandby, nil, func(scanner) error { return nil })
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// loadClients reads the reports of clients, whose versions nobody compares.
func (st *store) loadClients(ctx context.Context) (all []backend.Record, err error) {
	err = st.query(ctx, `SELECT encode(move, 'hex'), encode(id, 'hex'), encode(report, 'hex') FROM fencelock_client
		WHERE keyspace = $1 AND expires_at > clock_timestamp()`,
		[]any{[]byte(st.prefix)}, func(row scanner) error {
			var move, id, report string
			err := row.Scan(&move, &id, &report)
			key := backend.ClientKey + unhex(move) + "\x00" + unhex(id)
			all = append(all, backend.Record{Key: key, Data: []byte(unhex(report)), Version: backend.AnyVersion})
			return err
		})
	return all, err
}

// Swap implements backend.Mover.
func (st *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	for _, r := range rs {
		move, gate := strings.CutPrefix(r.Key, backend.GateKey)
		var err error
		if gate {
			err = st.swapGate(ctx, move, r)
		} else {
			err = st.swapClient(ctx, r, keep)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (st *store) swapGate(ctx context.Context, move string, r backend.Record) error {
	var was []byte
	if r.Version != backend.AnyVersion {
		var err error
		if was, err = hex.DecodeString(r.Version); err != nil {
			return backend.ErrGates
		}
	}
	set := false
	err := st.upkeep(ctx, "SELECT fencelock_set_gate($1, $2, $3, $4)",
		[]any{[]byte(st.prefix), []byte(move), r.Data, was},
		func(row scanner) error { return row.Scan(&set) })
	if err == nil && !set {
		err = backend.ErrGates
	}
	return err
}

// swapClient writes or deletes a report, whatever is there.
func (st *store) swapClient(ctx context.Context, r backend.Record, keep time.Duration) error {
	move, id, _ := strings.Cut(strings.TrimPrefix(r.Key, backend.ClientKey), "\x00")
	key := []any{[]byte(st.prefix), []byte(move), []byte(id)}
	if r.Data == nil {
		return st.query(ctx,
			"DELETE FROM fencelock_client WHERE keyspace = $1 AND move = $2 AND id = $3", key, nil)
	}
	return st.query(ctx, "SELECT fencelock_report($1, $2, $3, $4, $5)",
		append(key, r.Data, millis(keep)), nil)
}

// Source implements backend.Mover.
func (st *store) Source(ctx context.Context) (source backend.Token, err error) {
	err = st.query(ctx, "SELECT fencelock_source()", nil,
		func(row scanner) error { return row.Scan(&source) })
	return source, err
}

// Raise implements backend.Mover for holders of mode lease.
func (st *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if held == nil {
		return st.raise(ctx, nil, floor)
	}
	raised := false
	err := st.upkeep(ctx, "SELECT fencelock_raise_held($1, $2, $3)",
		[]any{st.key(held.Name), nonceOf(held.Request), floor},
		func(row scanner) error { return row.Scan(&raised) })
	if err == nil && !raised {
		err = backend.ErrLost
	}
	return err
}

// raise makes every later token of a name exceed floor; of all names without a key.
func (st *store) raise(ctx context.Context, key []byte, floor backend.Token) error {
	return st.upkeep(ctx, "SELECT fencelock_raise($1, $2)", []any{key, floor}, nil)
}

// nonceOf is a nonce as the tables have it. One that is no hex, which the engine never makes, matches no row.
func nonceOf(r *backend.Request) []byte {
	nonce, err := hex.DecodeString(r.Nonce)
	if err != nil {
		return []byte{}
	}
	return nonce
}
