package postgres_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// A draw of mode advisory waits for this lock, as every draw does for a moment.
const (
	stopDraws = "SELECT pg_advisory_lock(7306, 0)"
	goOn      = "SELECT pg_advisory_unlock(7306, 0)"
	drawer    = "SELECT coalesce((SELECT pid FROM pg_stat_activity WHERE query LIKE '%fencelock_above%' " +
		"AND wait_event = 'advisory' LIMIT 1), 0)"
)

// stopped keeps tokens from being drawn until it is called.
func stopped(t *testing.T, p *pgxpool.Pool) (resume func()) {
	t.Helper()
	c, err := p.Acquire(t.Context())
	must(t, err)
	_, err = c.Exec(t.Context(), stopDraws)
	must(t, err)
	return sync.OnceFunc(func() {
		_, err := c.Exec(context.WithoutCancel(t.Context()), goOn)
		must(t, err)
		c.Release()
	})
}

func awaitDrawer(t *testing.T, p *pgxpool.Pool) int32 {
	t.Helper()
	var pid int32
	await(t, 5*time.Second, "a token is being drawn", func() bool { pid = one[int32](t, p, drawer); return pid != 0 })
	return pid
}

// A waiter whose draw fails keeps its place, and one that gives up while its token is drawn leaves at
// once.
func drawOfAWaiter(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	var ls []*fencelock.Locker
	for range 3 {
		ls = append(ls, open(t, at(s.Addr(), postgres.Advisory)))
	}
	for _, gives := range []bool{false, true} {
		le := lock(t, ls[0].Mutex("line"))
		first := queue(t, ls[1], "line", 1)
		second := queue(t, ls[2], "line", 2)
		resume := stopped(t, p)
		defer resume()
		unlock(t, le)
		pid := awaitDrawer(t, p)
		if gives {
			began := time.Now()
			first.Cancel()
			<-first.Done
			await(t, 5*time.Second, "the door is the next one's", func() bool {
				return one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "+
					"AND objsubid = 1 AND NOT granted") == 0
			})
			if took := time.Since(began); took > time.Second {
				t.Errorf("a wait that was cancelled kept the door for %v", took)
			}
			resume()
		} else {
			run(t, p, "SELECT pg_cancel_backend($1)", pid)
			resume()
			unlock(t, first.Granted(t, 5*time.Second))
		}
		unlock(t, second.Granted(t, 5*time.Second))
	}
}

// resetting is a way to a server of which one end can be reset, while the other stays.
type resetting struct {
	net.Listener
	mu    sync.Mutex
	pairs map[string]*net.TCPConn // the client's end, by the port of the server's
	late  func([]byte) bool       // which requests end their client's connection, and arrive when later is closed
	later chan struct{}
}

func newResetting(t *testing.T, target string) *resetting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &resetting{Listener: l, pairs: map[string]*net.TCPConn{}}
	var ends []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range ends {
			_ = c.Close()
		}
	})
	copied := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return // the other end stays as it is
			}
			r.mu.Lock()
			late := r.late != nil && r.late(buf[:n])
			r.mu.Unlock()
			if late {
				_ = from.Close()
				<-r.later
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				continue
			}
			_, port, _ := net.SplitHostPort(s.LocalAddr().String())
			r.mu.Lock()
			r.pairs[port] = c.(*net.TCPConn)
			ends = append(ends, s, c)
			r.mu.Unlock()
			go copied(s, c)
			go copied(c, s)
		}
	}()
	return r
}

// The session's connection is reset while its token is drawn, and its server does not hear of it: what
// it holds there is ended, and is in nobody's way.
func resetWhileDrawn(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	way := newResetting(t, s.Addr())
	l := open(t, at(way.Addr().String(), postgres.Advisory), fencelock.WithTTL(time.Minute))
	unlock(t, lock(t, l.Mutex("warm")))
	resume := stopped(t, p)
	defer resume()
	done := make(chan *fencelock.Lease, 1)
	go func() {
		le, err := l.Mutex("reset").TryLock(within(t, 10*time.Second))
		if err != nil {
			t.Errorf("TryLock of a free lock: %v", err)
		}
		done <- le
	}()
	awaitDrawer(t, p)
	port := one[string](t, p, "SELECT client_port::text FROM pg_stat_activity WHERE pid = $1", holder(t, p, "reset"))
	way.mu.Lock()
	end := way.pairs[port]
	way.mu.Unlock()
	must(t, end.SetLinger(0))
	must(t, end.Close())
	resume()
	if le := <-done; le != nil {
		unlock(t, le)
	}
}

// Who locks the row of a lock by hand has nothing to do with a lease of mode advisory: Inspect shows the
// lease, and Break ends that alone.
func rowByHand(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), mode))
	run(t, p, "INSERT INTO fencelock_row VALUES ('fencelock:hand') ON CONFLICT DO NOTHING")
	le := lock(t, l.Mutex("hand"))
	tx, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "SELECT FROM fencelock_row WHERE name = 'fencelock:hand' FOR UPDATE SKIP LOCKED")
	must(t, err)
	if info, err := l.Inspect(t.Context(), "hand"); err != nil || info.Token != le.Token() || info.Owner != le.Owner() {
		t.Errorf("Inspect: got %+v, %v, want owner %q and token %d", info, err, le.Owner(), le.Token())
	}
	must(t, l.Break(t.Context(), "hand"))
	lost(t, le, 2*time.Second, fencelock.Revoked)
	if _, err := tx.Exec(t.Context(), "SELECT"); err != nil {
		t.Errorf("Break ended another session: %v", err)
	}
}

// A token that the driver's own connection draws at a server that was the primary once is no token:
// those of the new one would fall below it.
func TestTokenOfAnotherServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a replica is made and promoted")
	}
	for _, mode := range []postgres.Mode{postgres.Row, postgres.Advisory} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			primary := servers.Postgres(t, servers.PostgresOptions{})
			replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
			p, way := leading(t, primary, "&pool_max_conns=5")
			l := over(t, p, &postgres.Options{Mode: mode}, fencelock.WithTTL(time.Minute))
			ahead := func(d time.Duration) fencelock.Option {
				return fencelock.WithFloor(fencelock.Token(time.Now().Add(d).UnixMicro()))
			}
			unlock(t, lock(t, l.Mutex("warm", ahead(time.Second)))) // by the driver's own connection too
			must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
			must(t, replica.Promote(within(t, 30*time.Second)))
			way.to.Store(replica.Addr())
			p.Reset() // the program's pool has new connections, the driver's an old one
			le, err := l.Mutex("x", ahead(50*time.Minute)).Lock(within(t, 10*time.Second))
			must(t, err)
			first := le.Token()
			unlock(t, le)
			must(t, primary.Kill())
			le = lock(t, l.Mutex("x"))
			if le.Token() <= first {
				t.Errorf("tokens: got %d and then %d", first, le.Token())
			}
			unlock(t, le)
		})
	}
}
