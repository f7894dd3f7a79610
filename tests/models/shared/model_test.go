package shared

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// raceDetector: it makes a search take ten times as long.
var raceDetector = func() bool {
	info, _ := debug.ReadBuildInfo() // a test has one
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// most is where a search gives up.
const most = 6_000_000

func writer(ttl int8) Request { return Request{Mode: backend.Exclusive, TTL: ttl} }
func reader(ttl int8) Request { return Request{Mode: backend.Reader, TTL: ttl} }
func permit(limit int, ttl int8) Request {
	return Request{Mode: backend.Permit, Limit: limit, TTL: ttl}
}

func three(a, b, c Request) [clients]Request { return [clients]Request{a, b, c} }

// The promises: clients that trust their holds at once are those whom the rule lets; tokens tell a writer
// from all before it, and everybody from the writers before; readers who hold at once share one, and
// permits do not share a slot; nobody overtakes a live waiter, and none that may hold is left waiting.
// Every state within the bounds is visited.
func TestEveryState(t *testing.T) {
	t.Parallel()
	wrr := three(writer(2), reader(2), reader(2))
	rrr := three(reader(2), reader(2), reader(2))
	ppp := three(permit(2, 2), permit(2, 2), permit(2, 2))
	for _, tt := range []struct {
		what     string
		big      bool // not with the race detector, nor with -short
		requests [clients]Request
		Config
	}{
		{"writer, 2 readers; a fault, a death", true, wrr, Config{Ticks: 2, Faults: 1, Deaths: 1}},
		{"writer, 2 readers; 2 faults", true, wrr, Config{Ticks: 1, Faults: 2}},
		{"writer, 2 readers; a fault; tokens drawn early", true, wrr, Config{Ticks: 2, Faults: 1, Early: true}},
		{"reader, writer, reader of a shorter TTL", false, three(reader(2), writer(2), reader(1)), Config{Ticks: 3}},
		{"3 readers; key deleted, a fault, a death", true, rrr, Config{Ticks: 1, Faults: 1, Deaths: 1, Breaks: 1}},
		{"3 permits of 2; a fault, a death", true, ppp, Config{Ticks: 2, Faults: 1, Deaths: 1}},
		{"3 permits of 2; a fault; tokens drawn early", true, ppp, Config{Ticks: 2, Faults: 1, Early: true}},
		{
			"permits of 2, 3 and 3; a fault, a death", true,
			three(permit(2, 1), permit(3, 1), permit(3, 1)),
			Config{Ticks: 1, Faults: 1, Deaths: 1},
		},
		{
			"permits of 2 and 3, writer; a fault, a death", true,
			three(permit(2, 2), permit(3, 2), writer(1)),
			Config{Ticks: 1, Faults: 1, Deaths: 1},
		},
		{
			"2 permits of 2, writer; key deleted", true,
			three(permit(2, 2), permit(2, 2), writer(2)),
			Config{Ticks: 2, Breaks: 1},
		},
		{
			"permit, reader, writer; a fault, a death", true,
			three(permit(2, 2), reader(2), writer(1)),
			Config{Ticks: 1, Faults: 1, Deaths: 1},
		},
	} {
		if tt.big && (raceDetector || testing.Short()) {
			continue
		}
		tt.Requests = tt.requests
		r := Search(tt.Config, most)
		t.Logf("%-50s %9d states, %2d steps deep, %6d with a holder, %v",
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
	rwr := three(reader(2), writer(2), reader(2))
	wrr := three(writer(2), reader(2), reader(2))
	ppp := three(permit(2, 2), permit(2, 2), permit(2, 2))
	pqq := three(permit(2, 2), permit(3, 2), permit(3, 2))
	short := three(permit(2, 1), permit(2, 2), permit(2, 2))
	for _, tt := range []struct {
		safeguard string
		broken    string
		requests  [clients]Request
		Config    // the least that shows it
		Omitted
	}{
		{"a request minds its own limit", "EXCLUSION", pqq, Config{}, Omitted{NoOwnLimit: true}},
		{"… and those of the holders", "EXCLUSION", pqq, Config{}, Omitted{NoTheirLimits: true}},
		{
			"those who hold at once have one mode", "EXCLUSION",
			three(reader(2), permit(2, 2), permit(2, 2)),
			Config{},
			Omitted{NoModes: true},
		},
		{
			"a reader minds the writer that holds", "EXCLUSION", wrr,
			Config{},
			Omitted{NoModes: true, NoTheirLimits: true},
		},
		{
			"the claim of a waiter that was woken counts", "EXCLUSION",
			three(writer(2), writer(2), writer(2)),
			Config{Ticks: 1},
			Omitted{NoClaims: true},
		},
		{"the queue goes before a newcomer", "FIFO", rwr, Config{}, Omitted{NoQueue: true}},
		{"a request finds its own hold", "SELF", wrr, Config{Faults: 1}, Omitted{NoNonce: true}},
		{"a renewal creates nothing", "GHOST", wrr, Config{}, Omitted{RenewCreates: true}},
		{"who ends dead holds serves the queue", "STUCK", short, Config{Ticks: 1}, Omitted{NoServeBury: true}},
		{"a waiter that leaves serves the queue", "STUCK", rwr, Config{Faults: 1}, Omitted{NoServeLeave: true}},
		{"a confirmation serves the queue on", "STUCK", wrr, Config{}, Omitted{NoServeOn: true}},
		{"each hold has its own expiry", "DEAD", short, Config{Ticks: 1}, Omitted{OneExpiry: true}},
		{
			"the key lasts as long as its longest hold", "EXCLUSION",
			three(reader(3), reader(1), writer(2)),
			Config{Ticks: 1},
			Omitted{KeyShrinks: true},
		},
		{"an abandon leaves a tombstone", "GHOST", wrr, Config{Faults: 1}, Omitted{NoTombstone: true}},
		{"released holds are remembered", "REPEAT", wrr, Config{Faults: 1}, Omitted{NoReleased: true}},
		{
			"a dead waiter is dropped before its turn", "DEADWAITER",
			three(reader(3), writer(2), reader(2)),
			Config{Ticks: 2},
			Omitted{DeadStay: true},
		},
		{"readers of an era share a token", "ERA", wrr, Config{}, Omitted{NoEra: true}},
		{"an era ends with its group", "TOKEN", rwr, Config{}, Omitted{EraStays: true}},
		{"the least free slot, not the count", "SLOT", ppp, Config{}, Omitted{SlotCounts: true}},
		{"the founder of a group clears the last one", "BREAK", wrr, Config{Breaks: 1}, Omitted{NoClear: true}},
		{
			"a deadline counts from the sending", "EXCLUSION",
			three(writer(1), reader(2), reader(2)),
			Config{Ticks: 1},
			Omitted{FromReply: true},
		},
		{
			"a push is no grant", "EXCLUSION",
			three(reader(2), writer(2), writer(2)),
			Config{Ticks: 1},
			Omitted{PushGrants: true},
		},
	} {
		c := tt.Config
		c.Requests, c.Omitted, c.Named = tt.requests, tt.Omitted, true
		r := Search(c, most)
		t.Logf("without %q: %d states, %d steps, %v\n%v", tt.safeguard, r.States, len(r.Trace), r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, tt.broken) {
			t.Errorf("without %q: got %q, want %s", tt.safeguard, r.Broken, tt.broken)
		}
	}
}
