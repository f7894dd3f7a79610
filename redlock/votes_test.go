package redlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Three of five nodes have answered, or more: what the others say matters where they can make a majority yet. It is
// waited for shortly where a majority has not given its votes.
func TestDecided(t *testing.T) {
	t.Parallel()
	s := &store{quorum: 3}
	for _, tt := range []struct {
		taken, good, count int
		known              backend.Token
		numbers            []backend.Token
		want, short        bool
	}{
		{taken: 3, good: 3, count: 0, want: true, short: true},
		{taken: 3, good: 3, count: 1, want: false, short: true},
		{taken: 4, good: 4, count: 1, want: true, short: true},
		{taken: 4, good: 4, count: 2, want: false, short: true},
		{taken: 4, good: 2, count: 1, want: false}, // an outage, perhaps
		{taken: 2, good: 2, count: 2, want: false},
		{taken: 3, good: 3, count: 3, want: true},
		{taken: 3, good: 3, count: 3, known: 7, numbers: []backend.Token{7, 7, 8}, want: false},
		{taken: 4, good: 4, count: 4, known: 7, numbers: []backend.Token{7, 7, 8, 7}, want: true},
	} {
		v := &votes{
			question: &question{s: s, nodes: make([]*node, 5), taken: tt.taken, good: tt.good},
			count:    tt.count, known: tt.known, numbers: tt.numbers,
		}
		if got, short := v.decided(), v.short(); got != tt.want || short != tt.short {
			t.Errorf("%+v: got %v, short %v", tt, got, short)
		}
	}
}

// A majority that has answered is not called none.
func TestErrorOfSplitVotes(t *testing.T) {
	t.Parallel()
	s := &store{quorum: 2, nodes: []*node{{index: 0}, {index: 1}, {index: 2, addr: "silent"}}}
	for good, want := range map[int]string{1: "no majority: 1 of 3", 2: "split: 2 of 3"} {
		q := &question{s: s, nodes: s.nodes, heard: []answer{{node: 0}, {node: 1}}, taken: 2, good: good}
		if got := q.err().Error(); !strings.Contains(got, want) || !strings.Contains(got, "silent: no answer") {
			t.Errorf("%d have answered: got %q, want %q", good, got, want)
		}
	}
}

// A vote that comes later, with a greater number, does not change the token that a majority has.
func TestTokenOfTheMajorityStays(t *testing.T) {
	t.Parallel()
	s := &store{quorum: 3}
	v := &votes{question: &question{s: s}, known: 7, numbers: []backend.Token{7, 7, 9, 7, 8}}
	if token, err := s.agree(t.Context(), "a", "id", v, time.Second); token != 7 || err != nil {
		t.Errorf("got %d, %v, want 7", token, err)
	}
}

// A proposal is above every token that was seen, whatever the clock says, but those from which nodes take none.
func TestProposalIsAboveWhatWasSeen(t *testing.T) {
	t.Parallel()
	s := &store{quarantine: DefaultQuarantine}
	s.saw(time.Now().Add(time.Hour).UnixMicro())
	ahead := time.Now().Add(s.ahead() / 2).UnixMicro()
	if n := s.number(); n > ahead {
		t.Errorf("got %d after a token that is an hour ahead, want the clock", n)
	}
	for _, seen := range []int64{ahead, ahead + 10, ahead - 10} {
		if s.saw(seen); s.number() <= seen {
			t.Errorf("the next number is not above %d", seen)
		}
	}
	if n := s.number(); n <= ahead+10 {
		t.Errorf("got %d after %d was seen", n, ahead+10)
	}
}

// A claim is judged by the gates that most nodes have; where no majority has the same, by the latest of each migration.
func TestGatesOfTheMajority(t *testing.T) {
	t.Parallel()
	list := func(epochs ...int64) gateList {
		l := gateList{}
		for i, epoch := range epochs {
			move := fmt.Sprint("m", i)
			l[move] = gate{fmt.Sprintf(`{"move":%q,"epoch":%d}`, move, epoch), epoch}
		}
		return l
	}
	for _, tt := range []struct {
		of   []gateList
		want gateList
	}{
		{[]gateList{list(1), list(1), list(2)}, list(1)},
		{[]gateList{list(2), list(1), list(1)}, list(1)},
		{[]gateList{list(), list(), list(2)}, list()},
		{[]gateList{list(1, 3), list(2, 1)}, list(2, 3)},
	} {
		v := &votes{question: &question{s: &store{quorum: 2}}, c: &backend.Claim{}, gates: tt.of}
		_ = v.otherGates() // says whether the claim knew them
		if got := version(v.c.Gates); got != tt.want.version() {
			t.Errorf("%v: got %s, want %s", tt.of, got, tt.want.version())
		}
	}
}

// What a busy node is not sent in time it is not sent any more: by the end of the call, or of its caller's ctx.
func TestRequestsAreNotSentLate(t *testing.T) {
	t.Parallel()
	const most = time.Second
	for _, tt := range []struct {
		ends time.Duration // 0: never
		want time.Duration
	}{{0, most}, {most / 2, most / 2}, {2 * most, most}} {
		s := &store{quorum: 1}
		n := &node{s: s, calls: 1, begun: []time.Time{time.Now()}} // its only call has just begun
		s.nodes = []*node{n}
		ctx, cancel := context.Background(), func() {}
		if tt.ends > 0 {
			ctx, cancel = context.WithTimeout(ctx, tt.ends)
		}
		s.ask(ctx, most, []op{{"a", []any{"g"}}}, nil)
		cancel()
		if left := time.Until(n.queue[0].by); left > tt.want || left < tt.want-most/3 {
			t.Errorf("ctx ends in %v: the request may be sent for %v yet, want %v", tt.ends, left, tt.want)
		}
	}
}

// A stranger's key without an expiry is one that nobody will free; one of ours may be what a majority never had.
func TestLeaked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id        string
		pttl      int64
		any, want bool
	}{
		{"", -1, false, true},
		{"", 1000, false, false},
		{"0123", -1, false, false},
		{"0123", -1, true, true},
		{"0123", 1000, true, false},
	} {
		seen := []sight{{pttl: tt.pttl}, {pttl: tt.pttl}}
		v := &view{answers: 3, ids: map[string][]sight{tt.id: seen}}
		if i := v.info("a", 3, 2, tt.any); !i.Held || i.Leaked != tt.want {
			t.Errorf("%+v: got %+v", tt, i)
		}
	}
}
