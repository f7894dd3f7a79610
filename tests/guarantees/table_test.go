package guarantees_test

import (
	"slices"
	"testing"

	"github.com/fencelock/fencelock/backend"
	. "github.com/fencelock/fencelock/tests/guarantees"
)

// What a backend's Traits say, its cells say too, and the other way round.
func TestTraits(t *testing.T) {
	for _, b := range Backends() {
		traits := backend.TraitsOf(b.Traits)
		of := func(f Fault) Cell { return Of(f, b.Backend) }
		all := func(ok func(Cell) bool) bool {
			return !slices.ContainsFunc(Table(), func(c Cell) bool {
				return c.Backend == b.Backend && c.Holds != NA && !ok(c)
			})
		}
		for _, c := range []struct {
			trait string
			says  bool
			cells bool
		}{
			{"Fencing", traits.Fencing >= backend.Anchored, all(func(c Cell) bool { return c.Holds >= Tokens })},
			{
				"SurvivesNode", traits.SurvivesNode,
				of(MinoritySilent).Holds >= One && of(ServerKilled).Holds >= One &&
					of(PowerLoss).Holds >= One,
			},
			{"ClockFree", traits.ClockFree, of(ClockMoved).Holds != Tokens},
			{"Transactional", traits.Transactional, all(func(c Cell) bool { return c.Holds == Outright })},
		} {
			if c.says != c.cells {
				t.Errorf("%s: the trait %s is %v, the cells say %v", b.Backend, c.trait, c.says, c.cells)
			}
		}
		if traits.Fencing == backend.Durable && (of(ServerKilled).Holds < One || of(ServerRestarted).Holds < One) {
			t.Errorf("%s: durable tokens, and a lock that a restart loses", b.Backend)
		}
	}
}

// Every backend of this library that has servers has a column, every cell a promise or a reason.
func TestTableIsWhole(t *testing.T) {
	for _, e := range backend.Catalog() {
		name := e.Traits.Name
		if name == "memory" || name == "file" { // no server and no network
			continue
		}
		if name == "postgres-advisory" { // the same session and transaction
			name = "postgres-row"
		}
		if !slices.ContainsFunc(Backends(), func(b struct{ Backend, Is, Traits string }) bool {
			return b.Traits == name
		}) {
			t.Errorf("%s has no column", name)
		}
	}
	if got, want := len(Table()), len(Faults())*len(Backends()); got != want {
		t.Errorf("got %d cells, want %d", got, want)
	}
	for _, c := range Table() {
		if (c.Holds == NA) != (c.Why != "") && c.Holds != Tokens {
			t.Errorf("%s of %s: %v and %q: a cell has a promise, or a reason why it has none",
				c.Fault, c.Backend, c.Holds, c.Why)
		}
		if c.Within != 0 && c.Holds == NA {
			t.Errorf("%s of %s: a bound without a promise", c.Fault, c.Backend)
		}
	}
}
