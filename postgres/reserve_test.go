package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// reserving is a try that asks for more tokens than its own.
func reserving(name string, more int) *backend.Request {
	r := request(name, "")
	r.Reserve = more
	return r
}

// blocks sees to it that every grant is behind the tokens that the one before it reserved.
type blocks struct {
	last map[string]backend.Token
}

func (b *blocks) saw(t *testing.T, how, name string, g backend.Grant) {
	t.Helper()
	if g.Token <= b.last[name] {
		t.Errorf("%s: token %d of %s, want more than %d, which was reserved", how, g.Token, name, b.last[name])
	}
	if b.last == nil {
		b.last = map[string]backend.Token{}
	}
	b.last[name] = g.Token + int64(g.Reserved)
}

// Every later grant is behind a reserved block, however the lock came free; a row that ends with
// its transaction reserves nothing.
func TestReservedTokens(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, mode := range modes {
		var b blocks
		d := driver(t, at(s.Addr(), mode, "prefix", "reserve-"+string(mode)))
		take := func(how string, r *backend.Request) *core.Hold {
			t.Helper()
			g, err := d.Acquire(within(t, 20*time.Second), r)
			must(t, err)
			b.saw(t, how, r.Name, g)
			if g.Reserved < 0 || g.Reserved > r.Reserve || mode != postgres.Lease && g.Reserved != 0 {
				t.Errorf("%s: %s reserved %d of %d", mode, how, g.Reserved, r.Reserve)
			}
			return &core.Hold{Request: r, Grant: g}
		}
		h := take("at first", reserving("x", 63))
		if mode == postgres.Lease && h.Reserved == 0 {
			t.Error("nothing was reserved")
		}
		must(t, d.Release(t.Context(), h))
		take("after a release", reserving("x", 63))
		must(t, d.Break(t.Context(), "x"))
		h = take("after Break", reserving("x", 5))
		must(t, d.Release(t.Context(), h))
		must(t, d.Raise(t.Context(), h.Token+int64(h.Reserved)+1e6))
		h = take("after Raise", reserving("x", 63))
		must(t, d.Release(t.Context(), h))
		r := reserving("x", 63)
		r.Floor = h.Token + 1e9
		h = take("above a floor", r)
		must(t, d.Release(t.Context(), h))
		h = take("after a floor", reserving("x", 63))

		// Handed over: the waiter's grant reserves too.
		next := reserving("x", 63)
		next.Wait = true
		wait := acquiring(t, d, next)
		await(t, 10*time.Second, "in the queue", func() bool {
			info, err := d.Inspect(t.Context(), "x")
			return err == nil && info.Waiters == 1
		})
		must(t, d.Release(t.Context(), h))
		got := <-wait
		must(t, got.err)
		b.saw(t, "handed over", "x", got.hold.Grant)
		if mode == postgres.Lease && got.hold.Reserved == 0 {
			t.Error("nothing was reserved for a waiter")
		}

		// Sent again: the same token, and what is reserved is no more than it was.
		again, err := d.Acquire(t.Context(), next)
		must(t, err)
		if again.Token != got.hold.Token || again.Reserved > got.hold.Reserved {
			t.Errorf("%s: sent again: got %d and %d more, want %d and at most %d more", mode, again.Token,
				again.Reserved, got.hold.Token, got.hold.Reserved)
		}
		must(t, d.Release(t.Context(), got.hold))
		take("after all", reserving("x", 63))
	}
}

// An expired lease and a killed server leave the block behind them.
func TestReservedTokensSurvive(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"wal_writer_delay=10s", "bgwriter_delay=10s"}})
	var b blocks
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		d := driver(t, at(s.Addr(), postgres.Lease))
		for i := range 4 {
			name := fmt.Sprint("x", i)
			for range 3 { // held when the server dies: the last one
				r := reserving(name, 1000)
				r.TTL = 100 * time.Millisecond
				var g backend.Grant
				await(t, 10*time.Second, "the lease before has expired", func() bool {
					var err error
					g, err = d.Acquire(t.Context(), r)
					return err == nil
				})
				if g.Reserved == 0 {
					t.Error("nothing was reserved")
				}
				b.saw(t, fmt.Sprint("round ", round), name, g)
			}
		}
		must(t, s.Kill())
		must(t, s.Start())
	}
}

// A block does not move the sequence ahead of the server's clock by more than 3 ms.
func TestReserveIsNotAhead(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Lease))
	for range 50 {
		r := reserving("x", 1e9)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		now := one[int64](t, p, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
		if ahead := g.Token + int64(g.Reserved) - now; ahead > 3000 || g.Reserved > 3000 {
			t.Errorf("%d tokens are reserved, %d µs ahead of the clock", g.Reserved, ahead)
		}
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
	}
}
