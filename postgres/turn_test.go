package postgres

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// Who gives the turn back leaves it to those who want it to plan the next parked read, also if one goes without it.
func TestTurnLeftToOneWhoGoes(t *testing.T) {
	s := &session{ctx: t.Context(), turn: make(chan struct{}, 1), state: holding}
	var fired atomic.Bool
	s.timer = time.AfterFunc(time.Hour, func() { fired.Store(true) })
	for i := range 200 {
		s.turn <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		took := make(chan error, 1)
		go func() { took <- s.take(ctx) }()
		for wants := 0; wants == 0; {
			s.mu.Lock()
			wants = s.wanted
			s.mu.Unlock()
		}
		cancel()
		s.give()
		if err := <-took; err == nil {
			s.give()
		}
		if !s.timer.Stop() && !fired.Swap(false) {
			t.Fatalf("round %d: no read will be parked", i)
		}
	}
}

// A session that ends while its connection is idle, outside a transaction, does not leave that to the program's next
// query.
func TestDroppedWhileIdle(t *testing.T) {
	t.Parallel()
	pool := poolAt(t, servers.Postgres(t, servers.PostgresOptions{}))
	_, d := lockerOver(t, pool, Row)
	r := d.Mover.(*row)
	s, err := r.open(t.Context(), &backend.Claim{Request: &backend.Request{Name: "x", Nonce: "0123456789abcdef"}})
	if err != nil {
		t.Fatal(err)
	}
	s.drop()
	s.putBack()
	for range 10 {
		if _, err := pool.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
}

// A connection of the program's is waited for while there may be one, and no longer.
func TestProgramTakesTheLastConnection(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	config, err := pgxpool.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	st := &store{pool: pool}
	ctx, cancel := st.borrowing(t.Context())
	defer cancel()
	select {
	case <-ctx.Done():
		t.Error("given up while the pool had a connection to make")
	case <-time.After(lookMost + 200*time.Millisecond):
	}
	ctx, cancel = st.borrowing(t.Context())
	defer cancel()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Error("it is waited for although the program has the last one")
	}
}

// Of several hosts that the listener may connect to, one that answers nothing costs some seconds.
func TestListenerWhoseFirstHostHangs(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hangs.Close() })
	pool := poolAt(t, s)
	listen := pool.Config().ConnConfig
	listen.ConnectTimeout = 0
	listen.Fallbacks = append(listen.Fallbacks, &pgconn.FallbackConfig{Host: listen.Host, Port: listen.Port})
	listen.Host, listen.Port = "127.0.0.1", uint16(hangs.Addr().(*net.TCPAddr).Port)
	d, err := New(pool, &Options{Mode: Lease, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	holder, _ := lockerOver(t, pool, Lease)
	if _, err := holder.Mutex("x").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { _, err := l.Mutex("x").Lock(ctx); waited <- err }()
	hub := d.Mover.(*lease).hub
	for end := time.Now().Add(3 * theirsMost); !hub.ready(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("no push is heard after %v", 3*theirsMost)
			break
		}
	}
	cancel()
	<-waited
}
