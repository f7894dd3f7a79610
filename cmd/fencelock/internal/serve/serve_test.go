package serve

import (
	"io"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

func TestServeKeepsTheLastChanges(t *testing.T) {
	t.Parallel()
	locks, err := fencelock.Open(t.Context(), "memory://")
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	s := &server{a: &cli.App{Out: io.Discard, Err: io.Discard}, locks: locks}
	for i := range 2 * keepChanges {
		var infos []fencelock.Info
		if i%2 == 1 {
			infos = []fencelock.Info{{Name: "n", Held: true, Token: fencelock.Token(i)}}
		}
		s.take(view.Look{At: time.Now(), Infos: infos})
	}
	got := s.state(time.Now()).Changes
	if len(got) != keepChanges || got[keepChanges-1].ID != 2*keepChanges-1 {
		t.Errorf("got %d changes, the last of them %+v", len(got), got[len(got)-1])
	}
}
