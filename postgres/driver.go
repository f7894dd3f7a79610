package postgres

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Mode chooses what a lease is made of.
type Mode string

// The modes.
const (
	// Row: a lock on a row, held by an open transaction. It costs a connection for each held lease.
	Row Mode = "row"
	// Advisory: Row without the row. The transaction holds an advisory lock alone, and has no
	// transaction id until the holder writes, so that a long hold does not stop vacuum.
	Advisory Mode = "advisory"
	// Lease: a row with an expiry. Any number of leases share the pool.
	Lease Mode = "lease"
)

// Options of [New] and [NewSQL].
type Options struct {
	// Mode is Row if it is empty; of NewSQL, which has no other, Lease.
	Mode Mode
	// Prefix goes before every lock's name in the tables; the default is "fencelock:". See NoPrefix
	// for none.
	Prefix string
	// NoPrefix makes the name itself the key.
	NoPrefix bool
	// Schema is where the tables are; the default is the first schema of the search_path that has
	// them, else the first. All clients of a lock must agree: name it where their roles or settings
	// differ. It is looked for once, on a new connection.
	Schema string
	// Listen is how mode Lease connects for its pushes: one connection, besides the pool, while
	// somebody waits. The default is the pool's own configuration. Behind a pooler in transaction
	// mode no push arrives over that; give the server's own address here. Over a sql.DB there is no
	// default, and more is made with it: see NewSQL.
	Listen *pgx.ConnConfig
}

// Driver is the PostgreSQL backend. It implements backend.Mover.
type Driver struct {
	backend.Mover
	st *store
}

// New returns a driver over a pool that the program has. The pool is neither changed nor closed,
// its connections come back with their settings as they were, and nothing is sent yet: the first
// call finds the tables, or creates them. opts may be nil: mode row.
//
// Renewals, pushes and what waits for a lock go by connections of the driver's own, up to five,
// made as the pool makes its own (with its BeforeConnect and AfterConnect); so does any other call
// while the pool gives none. A program that uses up its pool loses no lock.
//
// Mode row holds a connection of the pool for each held lease and each name that is waited for, and
// leaves one for other calls; what the program takes for itself comes on top.
func New(pool *pgxpool.Pool, opts *Options) (*Driver, error) {
	return newDriver(pool, opts, nil)
}

// newDriver is New. A pool that the URL made comes with its dialer: it is the driver's own.
func newDriver(pool *pgxpool.Pool, opts *Options, mine *dialer) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	if pool == nil {
		return nil, backend.Invalid("the pgxpool.Pool is nil")
	}
	st, err := newStore(opts)
	if err != nil {
		return nil, err
	}
	st.pool, st.own, st.dialer = pool, pool, mine
	st.heed(pool.Config())
	d := &Driver{st: st}
	switch opts.Mode {
	case "", Row, Advisory:
		most := int(pool.Config().MaxConns)
		if most < 2 {
			return nil, backend.Invalid("modes row and advisory need a pool of at least 2 connections, "+
				"this has pool_max_conns=%d: one is kept back for Inspect, Break and tokens", most)
		}
		if opts.Listen != nil {
			return nil, backend.Invalid("postgres.Options.Listen belongs to mode lease: " +
				"the other modes need no pushes")
		}
		d.Mover = newRow(st, most, opts.Mode == Advisory)
	case Lease:
		if d = leaseOver(st, opts); mine != nil {
			st.slow, mine.slow.most = &mine.slow, int(pool.Config().MaxConns)/2
		}
	default:
		return nil, badMode(opts.Mode)
	}
	if mine == nil {
		if err := st.makeOwn(pool.Config()); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// newStore returns a store without a way to the server.
func newStore(o *Options) (*store, error) {
	prefix, err := o.place()
	st := &store{schema: o.Schema, prefix: prefix, ensuring: make(chan struct{}, 1), slow: new(slow)}
	now := time.Now()
	st.swept.Store(&now)
	return st, err
}

// leaseOver returns the driver of mode lease.
func leaseOver(st *store, o *Options) *Driver {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	listen := o.Listen
	if listen != nil {
		listen = listen.Copy()
		listen.ConnectTimeout = cmp.Or(listen.ConnectTimeout, theirsMost) // of several hosts the first may hang
	}
	return &Driver{newLease(st, hex.EncodeToString(id[:]), listen), st}
}

// place returns the prefix, once that and the schema are checked.
func (o *Options) place() (prefix string, err error) {
	if prefix, err = core.Keyspace(o.Prefix, o.NoPrefix); err != nil {
		return "", err
	}
	return prefix, checkSchema(o.Schema)
}

func badMode(m Mode) error {
	return backend.Invalid("mode %.40q: want %q, %q or %q", m, Row, Advisory, Lease)
}
