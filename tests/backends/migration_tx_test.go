//go:build unix

package backends

import (
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// In phase both a lease has no transaction, whichever of the stores has transactions: what is
// written through it would commit with that store's release, also where the other store has lost
// the lock and Unlock is ErrLost. In a phase of one store it has the store's.
func TestNoTransactionInPhaseBoth(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, tt := range []struct {
		row   string // which store is Postgres in mode row
		phase backend.Phase
		want  bool
	}{{"old", from, true}, {"old", both, false}, {"new", both, false}, {"new", to, true}} {
		row, err := backend.Open(t.Context(), s.URL()+"&mode=row&prefix=tx"+tt.row, nil)
		if err != nil {
			t.Fatal(err)
		}
		m, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		stores := []backend.Driver{row, m}
		if tt.row == "new" {
			stores = []backend.Driver{m, row}
		}
		d, err := moveAll(t.Context(), tt.phase, stores[0], stores[1])
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(d)
		if err != nil {
			t.Fatal(err)
		}
		le, err := l.Mutex("n").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, got := postgres.Tx(le); got != tt.want || l.Traits().Transactional != tt.want {
			t.Errorf("%s store, phase %s: a transaction: %v, promised: %v, want both %v", tt.row, tt.phase, got,
				l.Traits().Transactional, tt.want)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
