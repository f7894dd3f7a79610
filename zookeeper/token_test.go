package zookeeper

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Processes draw from one counter in turn, faster than the clock goes, and know of it what they
// read, what their own grants made of it, and what others' records say.
func TestDraws(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	node := draws{last: 5}
	processes := []*bucket{{}, {}, {}}
	clock, last := int64(1_000_000), backend.Token(0)
	hints, stock, reserved := 0, 0, 0
	for range 20_000 {
		clock += rnd.Int64N(40)
		b := processes[rnd.IntN(len(processes))]
		if !b.state().known {
			b.set(draws{version: node.version, last: node.last, next: node.last + 1})
		}
		p := &pot{bucket: b, draws: b.state()}
		r := &backend.Request{Reserve: rnd.IntN(3) * 40}
		if rnd.IntN(500) == 0 {
			r.Floor = last + 300
		}
		token, more, err := p.draw(r, clock-rnd.Int64N(2000)) // a clock that is known a little late
		if err != nil {
			t.Fatal(err)
		}
		if p.version != node.version { // the servers refuse it
			b.forget()
			continue
		}
		if token <= last || token <= r.Floor || more < 0 || more > r.Reserve {
			t.Fatalf("got %d and %d in reserve, after %d, with the floor %d", token, more, last, r.Floor)
		}
		now := p.after()
		if p.sets && more > 0 && now.last > clock+maxAhead {
			t.Fatalf("the counter is at %d for tokens in reserve, the clock at %d", now.last, clock)
		}
		if last = token + backend.Token(more); last > now.last {
			t.Fatalf("got %d and %d in reserve of a counter at %d", token, more, now.last)
		}
		if !p.sets {
			stock++
		}
		reserved += more
		node = draws{version: now.version, last: now.last}
		b.drawn(now)
		rec, ok := readRecord(encoded(holding(r, token, now)))
		if o := processes[rnd.IntN(len(processes))]; ok && o != b && rnd.IntN(2) == 0 {
			o.hint(rec.Version, rec.Last)
			hints++
		}
	}
	if hints == 0 || stock == 0 || reserved == 0 {
		t.Errorf("%d hints, %d grants from stock, %d tokens in reserve: want some of each", hints, stock, reserved)
	}
}

// The version of a counter never becomes -1, with which a compare would compare nothing.
func TestVersionsWrap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, after int32
		ops            []int32 // the versions they compare with
	}{
		{7, 8, []int32{7}},
		{1<<31 - 1, -1 << 31, []int32{1<<31 - 1}},
		{-3, -2, []int32{-3}},
		{-2, 0, []int32{-2, -1}},
		{0, 1, []int32{0}},
	} {
		p := &pot{bucket: newBucket("/x"), draws: draws{known: true, version: tt.version, last: 9, next: 10}}
		token, _, err := p.draw(&backend.Request{}, 100)
		if err != nil || token <= 9 {
			t.Fatalf("version %d: got the token %d and %v", tt.version, token, err)
		}
		var got []int32
		for _, op := range p.ops() {
			set := op.(*zk.SetDataRequest)
			got = append(got, set.Version)
			if string(set.Data) != string(number(p.last)) {
				t.Errorf("version %d: sets %q, want %d", tt.version, set.Data, p.last)
			}
		}
		if !slices.Equal(got, tt.ops) || p.after().version != tt.after {
			t.Errorf("version %d: got compares with %v and %d after that, want %v and %d",
				tt.version, got, p.after().version, tt.ops, tt.after)
		}
	}
}
