package raw

import (
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// A space in the URL is one for pgx too.
func TestPostgresOptions(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	u, err := backend.ParseURL(s.URL() + "&options=-c+statement_timeout%3D4000")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), Place{URL: u, ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
