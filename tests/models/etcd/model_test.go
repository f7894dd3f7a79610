package etcd

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// most is where a search gives up.
const most = 6_000_000

var writer, reader = backend.Request{}, backend.Request{Mode: backend.Reader}

func permit(limit int) backend.Request { return backend.Request{Mode: backend.Permit, Limit: limit} }

func three(a, b, c backend.Request) [clients]backend.Request {
	return [clients]backend.Request{a, b, c}
}

// The promises: those who trust their holds at once are those whom the rule lets, and the store has what they hold;
// nobody goes before others in the queue; tokens rise from each grant to the next, but for readers that hold at once,
// who share one; permits do not share a slot; nothing is left of whoever has left. Every state within the bounds is
// visited.
func TestEveryState(t *testing.T) {
	t.Parallel()
	wrr, rrr := three(writer, reader, reader), three(reader, reader, reader)
	ppp, qqq := three(permit(2), permit(2), permit(2)), three(permit(3), permit(3), permit(3))
	pqq, wpp := three(permit(2), permit(3), permit(3)), three(writer, permit(2), permit(2))
	prw := three(permit(2), reader, writer)
	for _, tt := range []struct {
		what     string
		big      bool // not with the race detector, nor with -short
		requests [clients]backend.Request
		Config
	}{
		{"writer, 2 readers; a lease ends, a raise", false, wrr, Config{Ends: 1, Raises: 1}},
		{"writer, 2 readers; a fault, a lease ends", true, wrr, Config{Faults: 1, Ends: 1}},
		{"writer, 2 readers; a fault, a break", true, wrr, Config{Faults: 1, Breaks: 1}},
		{"3 readers; a fault", false, rrr, Config{Faults: 1}},
		{"3 readers; a lease ends, a raise", true, rrr, Config{Ends: 1, Raises: 1}},
		{"3 readers; a fault, a lease ends", true, rrr, Config{Faults: 1, Ends: 1}},
		{"3 permits of 2; a lease ends, a raise", false, ppp, Config{Ends: 1, Raises: 1}},
		{"3 permits of 2; a fault, a lease ends", true, ppp, Config{Faults: 1, Ends: 1}},
		{"3 permits of 3; a lease ends, a raise", true, qqq, Config{Ends: 1, Raises: 1}},
		{"permits of 2, 3 and 3; a fault, a break", true, pqq, Config{Faults: 1, Breaks: 1}},
		{"writer, 2 permits of 2; a fault, a raise", true, wpp, Config{Faults: 1, Raises: 1}},
		{"permit, reader, writer; a fault, a lease ends", false, prw, Config{Faults: 1, Ends: 1}},
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
	rrr, wrr := three(reader, reader, reader), three(writer, reader, reader)
	ppp, wpp := three(permit(2), permit(2), permit(2)), three(writer, permit(2), permit(2))
	qqq := three(permit(3), permit(3), permit(3))
	for _, tt := range []struct {
		safeguard string
		broken    string
		requests  [clients]backend.Request
		Config    // the least that shows it
		Omitted
	}{
		{"who waits in front counts", "FIFO", ppp, Config{}, Omitted{NoneWaits: true}},
		{
			"a waiter that was woken reads the queue again", "SLOT",
			three(permit(2), permit(2), permit(2)),
			Config{},
			Omitted{OldList: true},
		},
		{"nobody came since the list", "FIFO", ppp, Config{}, Omitted{NoComers: true}},
		{"nobody was granted since the list: permits", "TOKEN", wpp, Config{}, Omitted{NoGrants: true}},
		{"nobody was granted since the list: readers", "ERA", wrr, Config{Raises: 1}, Omitted{NoGrants: true}},
		{"a waiter's entry is there", "FIFO", wrr, Config{Ends: 1}, Omitted{NoOwn: true}},
		{"one that asks has no entry", "GONE", rrr, Config{Faults: 1}, Omitted{NoAbsent: true}},
		{
			"the one whose token is taken is there", "TOKEN", three(reader, reader, writer),
			Config{},
			Omitted{NoKeeper: true},
		},
		{"readers take the token of those who hold", "ERA", rrr, Config{}, Omitted{EachToken: true}},
		{"a grant out of turn counts from the first", "TOKEN", wpp, Config{}, Omitted{OwnNumber: true}},
		{"that first one is there", "TOKEN", qqq, Config{Ends: 1}, Omitted{NoFirst: true}},
		{"a number is left for that first one", "TOKEN", wpp, Config{}, Omitted{NoRoom: true}},
		{"the base does not go back", "TOKEN", qqq, Config{Raises: 1}, Omitted{BaseLowered: true}},
		{"the least free slot, not the count", "SLOT", qqq, Config{}, Omitted{SlotCounts: true}},
		{"an abandon leaves a tombstone", "GHOST", rrr, Config{Faults: 1}, Omitted{NoTombstone: true}},
		{
			"a release takes a late copy's entry too", "GHOST", rrr,
			Config{Faults: 1, Breaks: 1},
			Omitted{CopyStays: true},
		},
	} {
		c := tt.Config
		c.Requests, c.Omitted = tt.requests, tt.Omitted
		r := Search(c, most)
		t.Logf("without %q: %d states, %d steps, %v\n%v", tt.safeguard, r.States, len(r.Trace), r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, tt.broken) {
			t.Errorf("without %q: got %q, want %s", tt.safeguard, r.Broken, tt.broken)
		}
	}
}
