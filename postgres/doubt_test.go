package postgres_test

import (
	"bytes"
	"context"
	valuer "database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// isCommit finds the request that ends a lease.
func isCommit(request []byte) bool { return bytes.Contains(request, []byte("COMMIT")) }

// isUndone reports whether err is an *UndoneError.
func isUndone(err error) bool { return errors.As(err, new(*fencelock.UndoneError)) }

// makeNotes makes the table that notes counts.
func makeNotes(t *testing.T, p *pgxpool.Pool) {
	t.Helper()
	run(t, p, "CREATE TABLE IF NOT EXISTS notes (what text)")
}

// noted locks a name and writes a note of that name through the lease's transaction.
func noted(t *testing.T, l *fencelock.Locker, name string, opts ...fencelock.Option) (*fencelock.Lease, pgx.Tx) {
	t.Helper()
	le := lock(t, l.Mutex(name, opts...))
	tx := txOf(t, le)
	_, err := tx.Exec(t.Context(), note, name)
	must(t, err)
	return le, tx
}

// wantNotes checks how many notes there are for a name.
func wantNotes(t *testing.T, p *pgxpool.Pool, what string, want int) {
	t.Helper()
	if n := notes(t, p, what); n != want {
		t.Errorf("%s: got %d notes, want %d", what, n, want)
	}
}

// cleaned is an Observer that counts what was cleaned up.
type cleaned struct{ ends chan struct{} }

func (c cleaned) Observe(_ context.Context, e fencelock.Event) {
	if e.Kind == fencelock.CleanedUp {
		c.ends <- struct{}{}
	}
}

// A COMMIT that goes on beyond the Deadline was done or not, and Unlock says which; also one that it has left alone,
// which is ended then.
func TestCommitBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	makeNotes(t, p)
	run(t, p, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM pg_sleep(4); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION slow()`)
	for _, mode := range modes[:2] {
		for what, most := range map[string]time.Duration{"waited for": time.Minute, "left alone": time.Second} {
			t.Run(fmt.Sprint(mode, " ", what), func(t *testing.T) {
				t.Parallel()
				l := open(t, at(s.Addr(), mode), fencelock.WithTTL(2*time.Second))
				name := fmt.Sprint(mode, what)
				le, _ := noted(t, l, name)
				err := le.Unlock(within(t, most))
				lost(t, le, 20*time.Second, fencelock.Expired)
				ended := le.Err()
				for errors.Is(err, fencelock.ErrUnavailable) {
					err = le.Unlock(within(t, 20*time.Second))
				}
				t.Logf("Unlock: %v", err)
				if err != nil {
					want(t, "Unlock of what was not committed", err, fencelock.ErrLost)
					wantNotes(t, p, name, 0)
				} else {
					wantNotes(t, p, name, 1)
					want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
				}
				if le.Err() != ended {
					t.Errorf("Err: got %v, want %v as before Unlock", le.Err(), ended)
				}
				unlock(t, lock(t, open(t, at(s.Addr(), mode)).Mutex(name)))
			})
		}
	}
}

// What became of a COMMIT that had no answer until the Deadline Unlock finds out all the same, before what the lease
// has left was cleaned up and after it.
func TestUnlockAfterTheDeadline(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	makeNotes(t, p)
	for _, mode := range modes[:2] {
		for _, arrives := range []bool{true, false} {
			for _, clean := range []bool{true, false} {
				name := fmt.Sprintf("%s, arrives %v, cleaned up %v", mode, arrives, clean)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					proxy := proxied(t, s)
					seen := cleaned{make(chan struct{}, 100)}
					opts := []fencelock.Option{fencelock.WithTTL(3 * time.Second), fencelock.WithObserver(seen)}
					if !clean && mode == postgres.Row { // which would not wait
						opts = append(opts, fencelock.WithGrace(time.Minute))
					}
					l := open(t, at(proxy.Addr(), mode), opts...)
					le, _ := noted(t, l, name)
					before := proxy.Counts().LostReplies
					switch {
					case arrives:
						proxy.LoseReplyTo(1, isCommit)
					case mode == postgres.Advisory: // it asks for a number before
						proxy.Set(faultproxy.Mode{HoldReplies: true})
					default:
						proxy.Set(faultproxy.Mode{HoldRequests: true})
					}
					done := make(chan error, 1)
					go func() { done <- le.Unlock(context.WithoutCancel(t.Context())) }()
					awaits := func(ok func(faultproxy.Counts) bool) {
						t.Helper()
						must(t, proxy.Await(within(t, 10*time.Second), ok))
					}
					if arrives {
						awaits(func(c faultproxy.Counts) bool { return c.LostReplies > before })
					} else {
						if mode == postgres.Advisory {
							awaits(func(c faultproxy.Counts) bool { return c.HeldReplies > 0 })
							proxy.Set(faultproxy.Mode{HoldRequests: true})
						}
						awaits(func(c faultproxy.Counts) bool { return c.HeldRequests > 0 })
					}
					proxy.Set(faultproxy.Mode{HoldRequests: !arrives, Refuse: true})
					proxy.Cut() // no other connection can find it out
					proxy.Set(faultproxy.Mode{Refuse: true})
					want(t, "Unlock without an answer", <-done, fencelock.ErrUnavailable)
					lost(t, le, 20*time.Second)
					for len(seen.ends) > 0 {
						<-seen.ends // of what was lost on the way to the lock
					}
					proxy.Set(faultproxy.Mode{})
					if clean {
						select {
						case <-seen.ends:
						case <-time.After(30 * time.Second):
							t.Fatal("nothing was cleaned up within 30 s")
						}
					}
					err := le.Unlock(t.Context())
					if arrives {
						must(t, err)
						wantNotes(t, p, name, 1)
						want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
					} else {
						want(t, "Unlock of what never arrived", err, fencelock.ErrLost)
						wantNotes(t, p, name, 0)
					}
					want(t, "Err", le.Err(), fencelock.ErrLost)
				})
			}
		}
	}
}

// TestTxOnOneServer runs, one after the other, what does no harm to its server.
func TestTxOnOneServer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	makeNotes(t, pool(t, s, ""))
	for name, test := range map[string]func(*testing.T, *servers.PostgresServer){
		"AfterTheLoss":         txAfterTheLoss,
		"LostReplyOfRollback":  inTx(lostReplyOfRollback),
		"RollbackBesideUnlock": rollbackBesideUnlock,
		"Panics":               txPanics,
		"Recovers":             txRecovers,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

// A lease whose Deadline has passed writes nothing more, though the server keeps its transaction for the grace.
func txAfterTheLoss(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithGrace(30*time.Second))
	for _, before := range []bool{true, false} {
		name := fmt.Sprint("after the loss, asked for before: ", before)
		le := lock(t, l.Mutex(name, fencelock.WithMaxHold(time.Second)))
		var tx pgx.Tx
		if before {
			tx = txOf(t, le)
			_, err := tx.Exec(t.Context(), note, name)
			must(t, err)
		}
		<-le.Done()
		if !before {
			tx = txOf(t, le)
		}
		_, err := tx.Exec(t.Context(), note, name)
		want(t, "Exec", err, fencelock.ErrLost)
		_, err = tx.Begin(t.Context())
		want(t, "Begin", err, fencelock.ErrLost)
		want(t, "Rollback", postgres.Rollback(le), fencelock.ErrLost)
		want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		wantNotes(t, p, name, 0)
	}
}

// What is rolled back with the lease is so also where no answer comes, and the lease is no lost one for that.
func lostReplyOfRollback(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY); "+
		"CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(time.Minute))
	const name = "rolled back"
	for _, loses := range []bool{false, true} {
		for what, write := range map[string]func(tx pgx.Tx) error{
			"a note": func(pgx.Tx) error { return nil },
			"what a deferred constraint refuses": func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "INSERT INTO child VALUES (7)")
				return err
			},
			"a part that is left open": func(tx pgx.Tx) error {
				part, err := tx.Begin(t.Context())
				if err == nil {
					_, err = part.Exec(t.Context(), note, name)
				}
				return err
			},
		} {
			le, tx := noted(t, l, name)
			must(t, write(tx))
			must(t, postgres.Rollback(le))
			before := proxy.Counts().LostReplies
			if loses {
				proxy.LoseReplyTo(1, isCommit)
			}
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock after Rollback of %s, reply lost %v: %v", what, loses, err)
			}
			if lost := proxy.Counts().LostReplies > before; lost != loses {
				t.Errorf("%s: a reply was lost: %v, want %v", what, lost, loses)
			}
			want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
		}

		le, tx := noted(t, l, name)
		if _, err := tx.Exec(t.Context(), "SELECT 1/0"); err == nil {
			t.Error("the division: got nil, want an error")
		}
		_, err := tx.Exec(t.Context(), note, name)
		must(t, err)
		if loses {
			proxy.LoseReplyTo(1, isCommit)
		}
		if err := le.Unlock(t.Context()); !isUndone(err) {
			t.Errorf("Unlock after a failed statement, reply lost %v: got %v, want an UndoneError", loses, err)
		}

		fault := errors.New("fn's error")
		err = l.Do(t.Context(), name, func(ctx context.Context, le *fencelock.Lease) error {
			_, err := txOf(t, le).Exec(ctx, note, name)
			must(t, err)
			if loses {
				proxy.LoseReplyTo(1, isCommit)
			}
			return fault
		})
		if err != fault {
			t.Errorf("Do, reply lost %v: got %v, want fn's error as it is", loses, err)
		}
	}
	wantNotes(t, p, name, 0)

	// What the holder has committed by itself is no rollback.
	le, tx := noted(t, l, "by hand")
	_, err := tx.Exec(t.Context(), "COMMIT AND CHAIN")
	want(t, "COMMIT AND CHAIN", err, fencelock.ErrLost)
	want(t, "Rollback after that", postgres.Rollback(le), fencelock.ErrLost)
	want(t, "Unlock after that", le.Unlock(t.Context()), fencelock.ErrLost)
}

// Rollback and Unlock at once: who is told that it is rolled back is told the truth.
func rollbackBesideUnlock(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	for i := range 100 {
		name := fmt.Sprint("beside ", i)
		le, _ := noted(t, l, name)
		var meant error
		var both sync.WaitGroup
		both.Go(func() {
			for range i * 50 {
				runtime.Gosched()
			}
			meant = postgres.Rollback(le)
		})
		unlocked := le.Unlock(t.Context())
		both.Wait()
		must(t, unlocked)
		if n := notes(t, p, name); n == 1 != (meant != nil) {
			t.Fatalf("try %d: Rollback: got %v, and %d notes", i, meant, n)
		}
	}
}

// ending is an argument whose code ends the goroutine that asks for its value.
type ending struct{ how func() }

// Value implements the Valuer of database/sql.
func (e ending) Value() (valuer.Value, error) {
	e.how()
	return nil, nil
}

// Code of the program that panics, or ends its goroutine, in the middle of a call keeps nothing.
func txPanics(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	other := open(t, at(s.Addr(), postgres.Row))
	for _, exec := range []string{"cache_statement", "exec"} {
		l := open(t, at(s.Addr(), postgres.Row, "default_query_exec_mode", exec), fencelock.WithTTL(time.Minute))
		for how, end := range map[string]func(){"panics": func() { panic("at the disco") }, "exits": runtime.Goexit} {
			for what, call := range map[string]func(ctx context.Context, tx pgx.Tx){
				"an argument of Exec": func(ctx context.Context, tx pgx.Tx) {
					_, _ = tx.Exec(ctx, "INSERT INTO notes VALUES ($1::text)", ending{end})
				},
				"an argument of Query": func(ctx context.Context, tx pgx.Tx) {
					_, _ = tx.Query(ctx, "SELECT $1::text", ending{end})
				},
				"an argument of a batch": func(ctx context.Context, tx pgx.Tx) {
					b := &pgx.Batch{}
					b.Queue("SELECT $1::text", ending{end})
					_ = tx.SendBatch(ctx, b).Close()
				},
				"a callback of a batch": func(ctx context.Context, tx pgx.Tx) {
					b := &pgx.Batch{}
					b.Queue("SELECT 1").Query(func(pgx.Rows) error { end(); return nil })
					b.Queue("SELECT generate_series(1, 100000)")
					res := tx.SendBatch(ctx, b)
					defer func() { _ = res.Close() }()
					_ = res.Close()
				},
				"a callback of a batch that failed": func(ctx context.Context, tx pgx.Tx) {
					b := &pgx.Batch{}
					b.Queue("SELECT 1/0").Query(func(pgx.Rows) error { end(); return nil })
					_ = tx.SendBatch(ctx, b).Close()
				},
			} {
				name := fmt.Sprint(what, " ", how, " ", exec)
				done := make(chan any, 1)
				go func() {
					defer func() { done <- recover() }()
					_ = l.Do(t.Context(), name, func(ctx context.Context, le *fencelock.Lease) error {
						tx := txOf(t, le)
						_, err := tx.Exec(ctx, note, name)
						if err == nil {
							call(ctx, tx)
							t.Errorf("%s: the call has returned", name)
						}
						return err
					})
				}()
				select {
				case got := <-done:
					if want := map[string]any{"panics": "at the disco"}[how]; got != want {
						t.Errorf("%s: recovered %v, want %v", name, got, want)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s: Do has not returned within 20 s", name)
				}
				unlock(t, lock(t, other.Mutex(name))) // long before the TTL is over
				wantNotes(t, p, name, 0)
			}
		}
	}
}

// A holder that recovers goes on: what was written before is rolled back, unless the panic was in a part.
func txRecovers(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row, "default_query_exec_mode", "exec"), fencelock.WithTTL(time.Minute))
	panics := func() { panic("at the disco") }
	safely := func(do func()) {
		defer func() { _ = recover() }()
		do()
		t.Error("there was no panic")
	}
	for what, call := range map[string]func(tx pgx.Tx){
		"an argument": func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), "SELECT $1::text", ending{panics}) },
		"a callback": func(tx pgx.Tx) { // the server has refused the statement
			b := &pgx.Batch{}
			b.Queue("SELECT 1/0").Query(func(pgx.Rows) error { panics(); return nil })
			_ = tx.SendBatch(t.Context(), b).Close()
		},
	} {
		le, tx := noted(t, l, what)
		safely(func() { call(tx) })
		_, err := tx.Exec(t.Context(), note, what)
		must(t, err)
		must(t, le.Renew(t.Context()))
		if err := le.Unlock(t.Context()); !isUndone(err) {
			t.Errorf("Unlock after a panic in %s: got %v, want an UndoneError", what, err)
		}
		wantNotes(t, p, what, 0)

		le, tx = noted(t, l, what)
		safely(func() {
			_ = pgx.BeginFunc(t.Context(), tx, func(part pgx.Tx) error { call(part); return nil })
		})
		unlock(t, le)
		wantNotes(t, p, what, 1)
	}
}

// A server that only reads is one that may write soon: a Lock waits for it, and no try is told that it is wrong.
func TestLockOfAReplicaWaits(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a replica is made and promoted for each mode")
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			primary := servers.Postgres(t, servers.PostgresOptions{})
			replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
			p, way := leading(t, primary, "")
			l := over(t, p, &postgres.Options{Mode: mode})
			unlock(t, lock(t, l.Mutex("warm")))
			must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
			way.to.Store(replica.Addr())
			p.Reset()
			must(t, primary.Kill())
			_, err := l.Mutex("x").TryLock(t.Context())
			want(t, "TryLock", err, fencelock.ErrUnavailable)
			done := make(chan error, 1)
			go func() {
				le, err := l.Mutex("x").Lock(within(t, 30*time.Second))
				if err == nil {
					err = le.Unlock(t.Context())
				}
				done <- err
			}()
			select {
			case err := <-done:
				t.Errorf("Lock before the promotion: %v", err)
				done <- err
			case <-time.After(time.Second):
			}
			must(t, replica.Promote(within(t, 30*time.Second)))
			if err := <-done; err != nil { // the promotion may have taken longer than an outage is ridden out
				want(t, "Lock", err, fencelock.ErrUnavailable)
			}
			unlock(t, lock(t, l.Mutex("x")))
		})
	}
}
