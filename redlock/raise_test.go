package redlock_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// What a migration has raised the tokens to is not too far ahead for its locks, whatever the clock says.
func TestRaiseFarAhead(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	d := closing(t, c.url("fresh=1"))
	floor := backend.Token(time.Now().UnixMicro()) + 5*backend.FloorAhead
	r := request("x", "a", "")
	r.Floor = floor
	_, err := d.Acquire(t.Context(), r)
	want(t, "a floor far ahead", err, backend.ErrInvalid)
	must(t, d.Raise(t.Context(), floor))
	r = request("x", "b", "")
	r.Floor = floor
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	if g.Token <= floor {
		t.Errorf("with a floor of %d: got token %d", floor, g.Token)
	}
}
