package redlock

import (
	"strings"
	"testing"
)

// most is where a search gives up.
const most = 20_000_000

// The promises: two clients never hold at once, every grant has a greater token than every grant before it, above its
// floor, and a release that a node has seen leaves nothing there. Every state within the bounds is visited.
func TestEveryState(t *testing.T) {
	t.Parallel()
	uneven := [nodes]uint8{0, 1, 3}
	for _, tt := range []struct {
		what string
		big  bool // not with the race detector, nor with -short
		Config
	}{
		{"no faults, counters apart", false, Config{Counters: uneven}},
		{"counters apart, a floor", false, Config{Counters: uneven, Floor: 6}},
		{"a lost message, counters apart, a floor", true, Config{Lost: 1, Counters: uneven, Floor: 6}},
		{"two lost messages", false, Config{Lost: 2}},
		{"a restart without data, counters apart", false, Config{Restarts: 1, Counters: uneven}},
		{
			"a restart without data of all nodes, counters apart", false,
			Config{Restarts: 1, Total: true, Counters: uneven},
		},
		{
			"a clock jumps, counters apart: unique tokens, in order of the beginnings", true,
			Config{Jumps: 1, Counters: uneven},
		},
		{
			"a renewal, which asks for votes again, a restart without data, counters apart", false,
			Config{Renewals: 1, Restarts: 1, Counters: uneven},
		},
		{"two renewals, two restarts one after the other", true, Config{Renewals: 2, Restarts: 2}},
		{"a renewal, a lost message, a restart without data", true, Config{Renewals: 1, Lost: 1, Restarts: 1}},
		{"a renewal, a node's data goes back", false, Config{Renewals: 1, Backs: 1}},
		{"a node's data goes back, counters apart", false, Config{Backs: 1, Counters: uneven}},
		{"a node's data goes back, a lost message", true, Config{Backs: 1, Lost: 1}},
		{"a node's data goes back, and a restart without data", true, Config{Backs: 1, Restarts: 1}},
		{"a lost message and a restart without data", true, Config{Lost: 1, Restarts: 1}},
		{"two lost messages and a restart without data", true, Config{Lost: 2, Restarts: 1}},
	} {
		if tt.big && (raceDetector || testing.Short()) {
			continue
		}
		r := Search(tt.Config, most)
		t.Logf("%-75s %9d states, %2d steps deep, %6d with a holder, %v",
			tt.what, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole {
			t.Errorf("%s: whole: %v; %v", tt.what, r.Whole, r)
		}
		if r.Grants == 0 {
			t.Errorf("%s: nobody is ever granted the lock, so nothing was shown", tt.what)
		}
	}
}

// Each safeguard, left out, breaks a promise: the search finds how.
func TestEverySafeguardIsNeeded(t *testing.T) {
	t.Parallel()
	uneven := [nodes]uint8{0, 1, 3}
	for _, tt := range []struct {
		safeguard string
		broken    string
		Config
		big bool
	}{
		{"the write-back", "ORDER", Config{NoWriteBack: true, Counters: uneven}, false},
		{
			"the write-back counts only where the lock is ours", "ORDER",
			Config{WriteBackAny: true, Counters: uneven},
			false,
		},
		{
			"… and has the number that this client was given (clock jump, duplicate)", "UNIQUE",
			Config{WriteBackOwner: true, Counters: [nodes]uint8{1, 3, 3}, Jumps: 1, Lost: 1},
			true,
		},
		{"the quarantine", "EXCLUSION", Config{NoQuarantine: true, Restarts: 1}, false},
		{"the node's clock at the end of its quarantine", "UNIQUE", Config{NoAnchor: true, Restarts: 1}, false},
		{
			"a fresh cluster waits too, for it cannot be told from one that lost all", "EXCLUSION",
			Config{BlankIsFresh: true, Restarts: 1, Total: true},
			false,
		},
		{"the look at the deadline after the last reply", "EXCLUSION", Config{NoDeadline: true}, false},
		{"the tombstone", "GHOST", Config{NoTombstone: true, Lost: 1}, false},
		{"an id of its own for each round", "EXCLUSION", Config{OneID: true, Lost: 2}, true},
		{"the release compares the id", "EXCLUSION", Config{NoCompare: true}, false},
		{
			"a quarantine from the restart on, whatever was renewed before", "EXCLUSION",
			Config{QuarantineOnce: true, Renewals: 1, Restarts: 1},
			false,
		},
		{
			"a vote that is asked for again takes nobody's place", "EXCLUSION",
			Config{AgainTakes: true, Renewals: 1},
			false,
		},
		{"the count of changes", "EXCLUSION", Config{NoCount: true, Backs: 1}, false},
		{"… of write-backs too", "ORDER", Config{NoCountOfBacks: true, Backs: 1, Counters: uneven}, true},
		{"the floor", "FLOOR", Config{NoFloor: true, Floor: 6}, false},
	} {
		if tt.big && (raceDetector || testing.Short()) {
			continue
		}
		tt.Named = true
		r := Search(tt.Config, most)
		t.Logf("without %s: %d states, %v\n%v", tt.safeguard, r.States, r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, tt.broken) {
			t.Errorf("without %s: got %q, want %s", tt.safeguard, r.Broken, tt.broken)
		}
	}
}

// What the protocol does not promise: a floor that is ahead of the nodes' clocks is forgotten with
// a node's data, for the clock is what a node has left.
func TestFloorAheadOfTheClockIsLostWithTheData(t *testing.T) {
	t.Parallel()
	r := Search(Config{Floor: 3 * tick, Restarts: 1, Named: true}, most)
	t.Logf("%d states, %v\n%v", r.States, r.Took.Round(1e6), r)
	if !strings.HasPrefix(r.Broken, "ORDER") {
		t.Errorf("got %q, want tokens out of order, as the documents declare", r.Broken)
	}
}
