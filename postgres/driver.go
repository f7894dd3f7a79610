package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// Mode chooses what a lease is made of.
type Mode string

// The modes.
const (
	// Row: a lock on a row, held by an open transaction. It costs a connection for each held lease.
	Row Mode = "row"
	// Lease: a row with an expiry. Any number of leases share the pool.
	Lease Mode = "lease"
)

// Options of [New].
type Options struct {
	// Mode is Row if it is empty.
	Mode Mode
	// Prefix goes before every lock's name in the tables; the default is "fencelock:". See NoPrefix for none.
	Prefix string
	// NoPrefix makes the name itself the key.
	NoPrefix bool
	// Schema is where the tables are; the default is the first schema of the search_path. All clients
	// of a lock must agree.
	Schema string
	// Listen is how mode Lease connects for its pushes: one connection, besides the pool, while somebody waits. The
	// default is the pool's own configuration. Behind a pooler in transaction mode no push
	// arrives over that; give the server's own address here.
	Listen *pgx.ConnConfig
}

// Driver is the PostgreSQL backend. It implements backend.Driver, backend.Checker and backend.Gater.
type Driver struct {
	mode
	st   *store
	own  *dialer // of a pool that the driver opened
	name string
}

// mode is what the two modes do each in its own way: the methods of backend.Driver and backend.Checker, and two of backend.Gater.
type mode interface {
	Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error)
	Renew(ctx context.Context, hs []*backend.Hold) []error
	Check(ctx context.Context, hs []*backend.Hold) []error
	Release(ctx context.Context, h *backend.Hold) error
	Abandon(ctx context.Context, r *backend.Request) error
	Inspect(ctx context.Context, name string) (backend.Info, error)
	List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error]
	Break(ctx context.Context, name string) error
	Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error)
	RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error
	close()
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Gater   = (*Driver)(nil)
)

// New returns a driver over a pool that the program has. The pool is neither changed nor closed, its connections come
// back with their settings as they were, and nothing is sent yet: the tables are created by the first call that
// misses them. opts may be nil: mode row.
//
// Mode row holds a connection of the pool for each held lease and each name that is waited for, and
// leaves one for other calls; what the program takes for itself comes on top.
func New(pool *pgxpool.Pool, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	if pool == nil {
		return nil, backend.Invalid("the pgxpool.Pool is nil")
	}
	prefix := opts.Prefix
	switch {
	case opts.NoPrefix && prefix != "":
		return nil, backend.Invalid("postgres.Options has both Prefix and NoPrefix: want one")
	case prefix == "" && !opts.NoPrefix:
		prefix = backend.DefaultPrefix
	}
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	if err := checkSchema(opts.Schema); err != nil {
		return nil, err
	}
	st := &store{pool: pool, schema: opts.Schema, prefix: prefix, ensuring: make(chan struct{}, 1)}
	st.gates.Store(&gates{})
	if opts.Schema != "" {
		st.before = qualifier(opts.Schema)
	}
	d := &Driver{st: st}
	switch opts.Mode {
	case "", Row:
		most := int(pool.Config().MaxConns)
		if most < 2 {
			return nil, backend.Invalid("mode row needs a pool of at least 2 connections, this has pool_max_conns=%d: one is kept back for Inspect, Break and tokens", most)
		}
		if opts.Listen != nil {
			return nil, backend.Invalid("postgres.Options.Listen belongs to mode lease: mode row needs no pushes")
		}
		d.mode, d.name = newRow(st, most), "postgres-row"
	case Lease:
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		listen := opts.Listen
		if listen == nil {
			listen = pool.Config().ConnConfig
		}
		d.mode, d.name = newLease(st, hex.EncodeToString(id[:]), listen.Copy(), opts.Listen == nil), "postgres-lease"
	default:
		return nil, badMode(opts.Mode)
	}
	return d, nil
}

func badMode(m Mode) error {
	const most = 40
	return backend.Invalid("mode %q: want %q or %q", strings.ToValidUTF8(string(m[:min(len(m), most)]), ""), Row, Lease)
}

// Traits returns what the mode promises.
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf(d.name) }

// Raise implements backend.Raiser.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	return d.st.raise(ctx, nil, floor)
}

// Close implements backend.Driver.
func (d *Driver) Close() error {
	d.close()
	if d.own != nil {
		d.own.close() // so that no connection waits for a server that is gone
		d.st.pool.Close()
	}
	d.st.flying.Wait()
	return nil
}

// unknownHolds is the answer for holds that are not of this driver.
func unknownHolds(hs []*backend.Hold) []error {
	return slices.Repeat([]error{backend.ErrLost}, len(hs))
}
