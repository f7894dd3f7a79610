package migrate

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// raceDetector: it makes a search take ten times as long.
var raceDetector = func() bool {
	info, _ := debug.ReadBuildInfo() // a test has one
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// most is where a search gives up.
const most = 6_000_000

var (
	all       = []uint8{from, both, to}
	fromBoth  = []uint8{from, both}
	bothTo    = []uint8{both, to}
	onlyBoth  = []uint8{both}
	oldOpen   = [2]uint8{open, shut}
	newOpen   = [2]uint8{shut, open}
	bothShut  = [2]uint8{shut, shut}
	untouched = [2]uint8{absent, absent}
)

// The promises: at no time two clients trust a lease of the name, and every grant has a greater
// token than every grant before it; where data is lost, than every one before its own first
// request, and never one that was there. Every state is visited. Where nothing bounds the switches,
// that is every run there is.
func TestEveryState(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what string
		big  bool // not with the race detector, nor with -short
		Config
	}{
		{
			"one switch at a time, without end: exclusion", false,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 1, NoTokens: true,
			},
		},
		{
			"two switches at once, without end: exclusion", true,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 2, NoTokens: true,
			},
		},
		{
			"three clients, one switch at a time, without end: exclusion", true,
			Config{
				Clients: 3, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 1, NoTokens: true,
			},
		},
		{
			"one switch at a time, which may be undone, without end: exclusion", false,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 1, Undo: true,
				NoTokens: true,
			},
		},
		{
			"two switches at once, which may be undone: exclusion", true,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: 3, Switchers: 2, Undo: true,
				NoTokens: true,
			},
		},
		{
			"one switch at a time, which may be undone", true,
			Config{Clients: 2, Phases: all, Gates: oldOpen, Switches: 1, Switchers: 1, Undo: true},
		},
		{
			"it is finished, cancelled and begun again, one switch at a " +
				"time, without end: exclusion",
			true,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 1, Ends: true,
				Undo: true, NoTokens: true,
			},
		},
		{
			"it is finished, cancelled and begun again, two switches at once: exclusion", true,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: 2, Switchers: 2, Ends: true,
				NoTokens: true,
			},
		},
		{
			"it is finished, cancelled and begun again, one switch", true,
			Config{Clients: 2, Phases: all, Gates: oldOpen, Switches: 1, Switchers: 1, Ends: true},
		},
		{
			"it is finished, and the old store loses its data", false,
			Config{
				Clients: 2, Phases: all, Gates: newOpen, Switches: 2, Switchers: 1, Ends: true,
				Lose: [2]int{1, 0}, NoTokens: true, NoHolders: true,
			},
		},
		{
			"one client, one switch at a time, without end", true,
			Config{Clients: 1, Phases: all, Gates: oldOpen, Switches: -1, Switchers: 1},
		},
		{"two switches", true, Config{Clients: 2, Phases: all, Gates: oldOpen, Switches: 2, Switchers: 1}},
		{"two switches at once", true, Config{Clients: 2, Phases: all, Gates: oldOpen, Switches: 2, Switchers: 2}},
		{
			"one switch, from a store that nobody has prepared", false,
			Config{Clients: 2, Phases: all, Gates: untouched, Switches: 1, Switchers: 1},
		},
		{"phases from and both", false, Config{Clients: 2, Phases: fromBoth, Gates: oldOpen}},
		{"phases both and to", false, Config{Clients: 2, Phases: bothTo, Gates: newOpen}},
		{"three clients, phases from and both", true, Config{Clients: 3, Phases: fromBoth, Gates: oldOpen}},
		{"three clients, phases both and to", true, Config{Clients: 3, Phases: bothTo, Gates: newOpen}},
		{
			"phases from and both, the new store loses its data", true,
			Config{Clients: 2, Phases: fromBoth, Gates: oldOpen, Lose: [2]int{0, 1}},
		},
		{
			"phases both and to, the old store loses its data", true,
			Config{Clients: 2, Phases: bothTo, Gates: newOpen, Lose: [2]int{1, 0}},
		},
		{
			"phase both, the old store loses its data", false,
			Config{Clients: 2, Phases: onlyBoth, Gates: bothShut, Lose: [2]int{1, 0}},
		},
		{
			"phase both, the new store loses its data", false,
			Config{Clients: 2, Phases: onlyBoth, Gates: bothShut, Lose: [2]int{0, 1}},
		},
		{
			"phases from and both, the old store loses its data, by its clock: tokens", true,
			Config{
				Clients: 2, Phases: fromBoth, Gates: oldOpen, Lose: [2]int{1, 0}, Clock: true,
				NoHolders: true,
			},
		},
		{
			"phases both and to, the new store loses its data, by its clock: tokens", true,
			Config{
				Clients: 2, Phases: bothTo, Gates: newOpen, Lose: [2]int{0, 1}, Clock: true,
				NoHolders: true,
			},
		},
		{
			"two switches at once, the new store, when nobody uses it, loses its data: exclusion",
			false,
			Config{
				Clients: 2, Phases: all, Gates: untouched, Switches: 2, Switchers: 2,
				Lose: [2]int{0, 1}, Spare: true, NoTokens: true,
			},
		},
		{
			"one switch, the old store loses its data, by its clock: tokens", true,
			Config{
				Clients: 2, Phases: bothTo, Gates: oldOpen, Switches: 1, Switchers: 1,
				Lose: [2]int{1, 0}, Clock: true, NoHolders: true,
			},
		},
		{
			"one switch, the new store loses its data, by its clock: tokens", true,
			Config{
				Clients: 2, Phases: all, Gates: oldOpen, Switches: 1, Switchers: 1,
				Lose: [2]int{0, 1}, Clock: true, NoHolders: true,
			},
		},
	} {
		if tt.big && (raceDetector || testing.Short()) {
			continue
		}
		r := Search(tt.Config, most)
		t.Logf("%-85s %8d states, %2d steps deep, %6d with a holder, %v",
			tt.what, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole {
			tt.Named = true
			t.Errorf("%s: whole: %v; %v", tt.what, r.Whole, Search(tt.Config, most))
		}
		if r.Grants == 0 {
			t.Errorf("%s: nobody is ever granted the lock, so nothing was shown", tt.what)
		}
	}
}

// Each safeguard, left out, breaks a promise: the search finds how. The names C… are those of docs/migrating.md.
func TestEverySafeguardIsNeeded(t *testing.T) {
	t.Parallel()
	// not with the race detector, nor with -short
	big := func(c Config) bool { return c.Switchers > 1 || c.RaiseIfOpen }
	whole := func(c Config) Config { // the whole protocol, one switch at a time
		c.Clients, c.Phases, c.Switches, c.Switchers = 2, all, 2, max(c.Switchers, 1)
		if !c.NoPrepare {
			c.Gates = oldOpen
		}
		return c
	}
	part := func(phases []uint8, gates [2]uint8, c Config) Config {
		c.Clients, c.Phases, c.Gates = 2, phases, gates
		return c
	}
	for _, tt := range []struct {
		safeguard string
		broken    string
		Config
	}{
		{"C1: the switch raises the source of the store that it opens", "ORDER", whole(Config{NoSwitchRaise: true})},
		{"C2: the switch waits for single-phase holders", "EXCLUSION", whole(Config{NoDrain: true})},
		{
			"C3: the gate is opened only if its epoch is that from before", "EXCLUSION",
			whole(Config{NoCAS: true, Switchers: 2}),
		},
		{
			"C3: closing gives a new epoch even to a gate that is closed", "EXCLUSION",
			whole(Config{NoBump: true, Switchers: 2}),
		},
		{
			"C3: a store without a gate gets one before it is opened", "EXCLUSION",
			whole(Config{
				NoPrepare: true, Switchers: 2, Lose: [2]int{0, 1}, Spare: true, NoTokens: true,
			}),
		},
		{"C4: gates", "EXCLUSION", part(all, oldOpen, Config{NoGates: true, NoTokens: true})},
		{"C4: the gate is looked at in the step that grants", "EXCLUSION", whole(Config{GateApart: true})},
		{"C5: a grant of both raises the old store's source", "ORDER", part(fromBoth, oldOpen, Config{NoRaise: true})},
		{"C5: … before it is returned", "ORDER", part(fromBoth, oldOpen, Config{RaiseAfter: true})},
		{
			"C6: the old store's deadline ends a lease of both", "EXCLUSION",
			part(fromBoth, oldOpen, Config{Trust: "new"}),
		},
		{"C6: the new store's deadline ends a lease of both", "EXCLUSION", part(bothTo, newOpen, Config{Trust: "old"})},
		{"C6: the earlier deadline ends a lease of both", "EXCLUSION", part(fromBoth, oldOpen, Config{Trust: "any"})},
		{
			"C7: a store that lost its data has a clock that is not behind", "ORDER",
			part(fromBoth, oldOpen, Config{Lose: [2]int{1, 0}, NoHolders: true}),
		},
		{
			"C8: the raise looks whether the old store's leg is still ours", "UNIQUE",
			part(fromBoth, oldOpen,
				Config{Lose: [2]int{1, 0}, Clock: true, RaiseAny: true, NoHolders: true}),
		},
		{"C9: the raise does not depend on the old store's gate", "ORDER", whole(Config{RaiseIfOpen: true})},
		{
			"C10: the deadlines are looked at after the raise", "EXCLUSION",
			part(fromBoth, oldOpen, Config{NoRecheck: true}),
		},
		{
			"C11: the new store gets the old one's token as a floor", "ORDER",
			part(fromBoth, oldOpen, Config{NoFloor: true}),
		},
		{
			"an undo is a switch the other way", "EXCLUSION",
			whole(Config{Undo: true, UndoAlone: true, Switchers: 2, NoTokens: true}),
		},
		{
			"an undo waits for single-phase holders, unless its store was open", "EXCLUSION",
			part(all, newOpen, Config{Switches: 2, Switchers: 1, Undo: true, UndoBlind: true, NoTokens: true}),
		},
		{
			"a cancel keeps the epochs", "EXCLUSION",
			whole(Config{Ends: true, CancelDelete: true, Switchers: 2, NoTokens: true}),
		},
		{
			"a start looks whether the migration is finished", "SEAL",
			whole(Config{Ends: true, NoSeal: true, NoTokens: true}),
		},
		{
			"a gate is closed only as it was looked at", "SEAL",
			whole(Config{Ends: true, SealLower: true, NoTokens: true}),
		},
		{
			"a cancel expects the old store's gate as it was looked at", "EXCLUSION",
			whole(Config{Ends: true, CancelBlind: true, NoTokens: true}),
		},
		{"the source is read after the gate is closed", "ORDER", whole(Config{EarlySource: true})},
	} {
		if big(tt.Config) && (raceDetector || testing.Short()) {
			continue
		}
		tt.Named = true
		r := Search(tt.Config, most)
		t.Logf("without %s: %d states, %v\n%v", tt.safeguard, r.States, r.Took.Round(1e6), r)
		if r.Broken == "" || !strings.HasPrefix(r.Broken, tt.broken) {
			t.Errorf("without %s: got %q, want %s", tt.safeguard, r.Broken, tt.broken)
		}
	}
}
