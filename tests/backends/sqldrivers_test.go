package backends

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// What the drivers of database/sql do each in its own way: how they send arguments, which errors
// they give, and what they say of a connection that ended.
func TestSQLDrivers(t *testing.T) {
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pgPool(t, s.URL())
	for _, stmt := range []string{
		"CREATE ROLE strict LOGIN SUPERUSER",
		"ALTER ROLE strict SET default_transaction_isolation = 'serializable'",
		"CREATE SCHEMA locks",
		// A renewal of this name is undone when it commits.
		"CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'undone'; END $$",
	} {
		if _, err := p.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ what, under, keys string }{
		{"pq", "postgres", ""},
		{"pq, binary_parameters", "postgres", "&binary_parameters=yes"},
		{"pgx", "pgx", ""},
		{"pgx, simple protocol", "pgx", "&default_query_exec_mode=simple_protocol"},
	} {
		for role, schema := range map[string]string{"postgres": "", "strict": "locks"} {
			t.Run(tt.what+" as "+role, func(t *testing.T) {
				proxy, err := faultproxy.New(s.Addr())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = proxy.Close() })
				db, err := sql.Open(tt.under,
					"postgres://"+role+"@"+proxy.Addr()+"/postgres?sslmode=disable"+tt.keys)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				prefix := tt.what + "'\\:"
				d, err := postgres.NewSQL(db, &postgres.Options{Prefix: prefix, Schema: schema})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Close() })
				calls := core.Of(d).(core.Gater)
				sqlCalls(t, calls)
				sqlGuards(t, db, schema)
				sqlBreaks(t, calls, proxy)
				if schema == "" {
					sqlUndone(t, calls, p)
				}
			})
		}
	}
}

// claimed returns a lock that is held.
func claimed(t *testing.T, d core.Caller, name string) *core.Hold {
	t.Helper()
	nonce := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) // an unsure release refuses its nonce to all
	r := &backend.Request{Name: name, Nonce: nonce, Owner: "o'\\", TTL: time.Minute}
	g, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return &core.Hold{Request: r, Grant: g}
}

func sqlCalls(t *testing.T, d core.Gater) {
	t.Helper()
	const name = "a'\\ü\x01"
	h := claimed(t, d, name)
	if err := d.Renew(t.Context(), []*core.Hold{h})[0]; err != nil {
		t.Errorf("Renew: %v", err)
	}
	info, err := d.Inspect(t.Context(), name)
	if err != nil || !info.Held || info.Owner != h.Request.Owner || info.Token != h.Grant.Token ||
		info.ExpiresIn < time.Second {
		t.Errorf("Inspect: got %+v, %v", info, err)
	}
	var names []string
	for i, err := range d.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, i.Name)
	}
	if !slices.Equal(names, []string{name}) {
		t.Errorf("List: got %q", names)
	}
	if err := d.RaiseHeld(t.Context(), h, h.Grant.Token+1000); err != nil {
		t.Errorf("RaiseHeld: %v", err)
	}
	gate := backend.Gate{
		Move: "m", Scope: backend.Scope{{Match: "moved/*"}}, State: backend.GateOpen,
		Epoch: time.Now().UnixMicro(),
	}
	if err := d.SetGate(t.Context(), gate, 0); err != nil {
		t.Errorf("SetGate: %v", err)
	}
	if gates, err := d.Gates(t.Context()); err != nil || len(gates) != 1 {
		t.Errorf("Gates: got %v, %v", gates, err)
	}
	if err := d.Release(t.Context(), h); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := d.Release(t.Context(), h); err != nil {
		t.Errorf("Release, sent again: %v", err)
	}
}

func sqlGuards(t *testing.T, db *sql.DB, schema string) {
	t.Helper()
	check := func(token fencelock.Token) error {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		if err := postgres.CheckTokenSQL(t.Context(), tx, schema, "r'\\", token); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	now := time.Now().UnixMicro()
	for _, tt := range []struct {
		token fencelock.Token
		want  error
	}{
		{now, nil},
		{now, nil},
		{now - 1, fencelock.ErrStale},
		{0, fencelock.ErrInvalid},
		{now + 2*3600e6, fencelock.ErrInvalid},
	} {
		if err := check(tt.token); !errors.Is(err, tt.want) {
			t.Errorf("CheckTokenSQL of now%+d: got %v, want %v", tt.token-now, err, tt.want)
		}
	}
	if err := postgres.CreateSchemaSQL(t.Context(), db, schema); err != nil {
		t.Errorf("CreateSchemaSQL: %v", err)
	}
	if err := postgres.CreateSchemaSQL(t.Context(), db, "none"); !errors.Is(err, fencelock.ErrInvalid) {
		t.Errorf("CreateSchemaSQL in a schema that is not there: got %v", err)
	}
}

// A Break whose reply is lost is not sent again: a second copy could free the next holder's lock.
// lib/pq says ErrBadConn of it, upon which a sql.DB sends again.
func sqlBreaks(t *testing.T, d core.Gater, proxy *faultproxy.Proxy) {
	t.Helper()
	claimed(t, d, "broken")
	proxy.Cut() // and no connection that has died is in the way
	if err := d.Break(t.Context(), "broken"); err != nil {
		t.Errorf("Break: %v", err)
	}
	if info, err := d.Inspect(t.Context(), "broken"); err != nil || info.Held {
		t.Errorf("after Break: got %+v, %v", info, err)
	}
	before := proxy.Counts()
	proxy.Cut()
	var sent atomic.Int64
	proxy.LoseReplyTo(9, func(request []byte) bool {
		// Whatever is sent after the ping and, of a driver that prepares, the statement's text.
		return !bytes.Contains(request, []byte("ping")) && bytes.Contains(request, []byte("fencelock_break")) &&
			sent.Add(1) > 0
	})
	err := d.Break(t.Context(), "broken")
	proxy.LoseReplyTo(0, nil)
	if err == nil || backend.Final(err) {
		t.Errorf("Break whose reply is lost: got %v, want that nobody knows", err)
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("the Break was sent %d times, and %d requests in all", n, proxy.Counts().Requests-before.Requests)
	}
}

// A renewal whose transaction is undone after its statement has answered is none.
func sqlUndone(t *testing.T, d core.Gater, p *pgxpool.Pool) {
	t.Helper()
	h := claimed(t, d, "undone")
	for _, stmt := range []string{
		`CREATE CONSTRAINT TRIGGER undo AFTER UPDATE ON fencelock_lease DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION undo()`,
		"",
		"DROP TRIGGER undo ON fencelock_lease",
	} {
		if stmt == "" {
			if err := d.Renew(t.Context(), []*core.Hold{h})[0]; err == nil {
				t.Error("the renewal was undone, and counts")
			}
		} else if _, err := p.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Release(t.Context(), h); err != nil {
		t.Errorf("Release: %v", err)
	}
}
