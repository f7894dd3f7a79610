package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

func newBallot() *ballot {
	b := &ballot{nodes: make([]asked, 3)}
	b.sent()
	return b
}

var voted = []any{[]any{int64(0), int64(7)}}

// A vote that comes after its ballot was decided against it is undone all the same.
func TestVoteOfAStragglerCounts(t *testing.T) {
	t.Parallel()
	held := []any{[]any{int64(1), int64(100), "x"}}
	b := newBallot()
	b.answered(answer{node: 0, replies: held, sure: true})
	b.answered(answer{node: 1, replies: held, sure: true})
	if b.nothing() {
		t.Error("a node has not answered: got nothing to undo")
	}
	b.answered(answer{node: 2, replies: voted, sure: true})
	if b.nothing() {
		t.Error("the last node has voted: got nothing to undo")
	}
}

// sureOf is what a release would go by.
func sureOf(t *testing.T, what string, b *ballot, want ...bool) {
	t.Helper()
	if got := []bool{b.sure(0), b.sure(1), b.sure(2)}; !reflect.DeepEqual(got, want) {
		t.Errorf("%s: nothing is under way to the nodes: got %v, want %v", what, got, want)
	}
}

// The answer to the second copy of a request says nothing of the first: the node may get that one later.
func TestAnswerToOneCopyOnly(t *testing.T) {
	t.Parallel()
	b := newBallot()
	b.answered(answer{node: 0, replies: voted, sure: true})
	b.sent()
	b.answered(answer{node: 0, replies: voted, sure: true})
	b.answered(answer{node: 1, replies: voted, sure: true})
	sureOf(t, "a majority has answered", b, true, false, false)
	b.answered(answer{node: 2, replies: voted, sure: true})
	sureOf(t, "a straggler answered", b, true, false, false)
	b.answered(answer{node: 1, replies: voted, sure: true})
	sureOf(t, "the first copy was answered late", b, true, true, false)
	b.sent()
	b.answered(answer{node: 0, replies: voted})
	sureOf(t, "it was sent twice on the way", b, false, false, false)
}

// A vote that is asked for again while a lock is held is under way until it is answered, once at a
// time, and never after the release.
func TestVoteAskedForAgainIsUnderWay(t *testing.T) {
	t.Parallel()
	b := &ballot{nodes: make([]asked, 3)}
	begin := func(what string, node int, want ...int) {
		t.Helper()
		if b.lacks(node); !slices.Equal(b.begin(), want) {
			t.Errorf("%s: want the nodes %v asked", what, want)
		}
	}
	begin("no vote", 2, 2)
	begin("asked", 2)
	sureOf(t, "asked", b, true, true, false)
	b.answeredAgain(answer{node: 2, replies: []any{int64(1)}, sure: true})
	sureOf(t, "answered", b, true, true, true)
	begin("no vote", 1, 1)
	begin("answered", 2, 2)
	b.answeredAgain(answer{node: 1, err: errors.New("cut")})
	b.answeredAgain(answer{node: 2, replies: []any{int64(1)}})
	sureOf(t, "unanswered, and answered to the second copy", b, true, false, false)
	b.end()
	begin("released", 0)
}

// thrice is a store whose three nodes are one server, and a client of that.
func thrice(t *testing.T) (*goredis.Client, *store) {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	d, err := New([]goredis.UniversalClient{client, client, client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return client, d.store
}

// settledThrice is thrice with a node that votes.
func settledThrice(t *testing.T) (*goredis.Client, *store) {
	t.Helper()
	client, s := thrice(t)
	if _, err := s.nodes[0].ask(t.Context(), []op{{stateKey, []any{"s"}}}); err != nil { // makes the node's state
		t.Fatal(err)
	}
	if err := client.HDel(t.Context(), stateKey, "until").Err(); err != nil { // ends its quarantine
		t.Fatal(err)
	}
	return client, s
}

// A vote that is given again takes nobody's place, and comes after no release and no Break.
func TestVoteAgainOnANode(t *testing.T) {
	t.Parallel()
	client, s := thrice(t)
	ask := func(lock string, args ...any) any {
		t.Helper()
		replies, err := s.nodes[0].ask(t.Context(), []op{{lock, args}})
		if err != nil {
			t.Fatal(err)
		}
		return replies[0]
	}
	id := func(c string) string { return strings.Repeat(c, 32) }
	token := time.Now().UnixMicro() + 1e6
	again := func(lock, by string) any {
		return ask(lock, "a", id(by), token, bucket(lock), 30_000, "owner")
	}
	vote := func(lock, by string) any {
		return ask(lock, "v", id(by), token-1e6, bucket(lock), "30000 0 0 p\x00\x00owner")
	}
	if got := again("a", "1"); got != int64(0) {
		t.Errorf("in quarantine: got %v, want no vote", got)
	}
	if err := client.HDel(t.Context(), stateKey, "until").Err(); err != nil {
		t.Fatal(err)
	}
	if got := again("a", "1"); got != int64(1) {
		t.Errorf("a free lock: got %v, want the vote", got)
	}
	if got, want := client.Get(t.Context(), "a").Val(), fmt.Sprintf("%s:%d:owner", id("1"), token); got != want {
		t.Errorf("the vote: got %q, want %q", got, want)
	}
	if left := client.PTTL(t.Context(), "a").Val(); left <= 0 || left > 30*time.Second {
		t.Errorf("the vote stands for %v, want its TTL", left)
	}
	if c, err := client.HGet(t.Context(), stateKey, "c"+bucket("a")).Int64(); err != nil || c < token {
		t.Errorf("the counter: got %d, %v, want at least the token %d", c, err, token)
	}
	ask("b", "r", id("2"), bucket("b"), "10000 0 0")
	vote("c", "3")
	vote("d", "4")
	ask("d", "b", " "+id("4")+" ")
	vote("f", "6")
	ask("f", "b", " "+id("5")+" ") // came late: it was sent while another held the lock
	if err := client.Set(t.Context(), "fl\x00rl:ve", "waiter", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ what, lock, by, left string }{
		{"abandoned or released before", "b", "2", ""},
		{"another's", "c", "5", id("3")},
		{"broken", "d", "4", ""},
		{"a Break of who had it before", "f", "5", id("6")},
		{"kept for a waiter", "e", "5", ""},
	} {
		if got := again(tt.lock, tt.by); got != int64(0) {
			t.Errorf("%s: got %v, want no vote", tt.what, got)
		}
		if got, _, _ := strings.Cut(client.Get(t.Context(), tt.lock).Val(), ":"); got != tt.left {
			t.Errorf("%s: the lock has %q, want %q", tt.what, got, tt.left)
		}
	}
}

// A waiter that undoes a ballot which lost to a split is among the waiters again before the node keeps the lock for the
// one that came first. It is not pushed, for it looks by itself.
func TestUndoOfASplitBallot(t *testing.T) {
	t.Parallel()
	client, s := settledThrice(t)
	one, other := strings.Repeat("1", 32), strings.Repeat("2", 32)
	for _, tt := range []struct {
		lock, stamp string // of the one that undoes; the other has 5
		kept, push  string
	}{
		{"older", "4", one, "w200 " + other},
		{"younger", "6", other, "g " + other},
		{"none", "", other, "g " + other},
	} {
		sub := client.Subscribe(t.Context(), channel+"p"+tt.lock)
		t.Cleanup(func() { _ = sub.Close() })
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		how := undone + " 0"
		if tt.stamp != "" {
			how += " " + tt.stamp + " p" + tt.lock
		}
		vote := func(id, stamp string) []any {
			terms := "30000 0 " + cmp.Or(stamp, "0") + " p" + tt.lock + "\x00\x00owner"
			return []any{"v", id, time.Now().UnixMicro(), bucket(tt.lock), terms}
		}
		for _, args := range [][]any{
			vote(one, tt.stamp), vote(other, "5"), {"r", one, bucket(tt.lock), "0 " + how},
		} {
			if _, err := s.nodes[0].ask(t.Context(), []op{{tt.lock, args}}); err != nil {
				t.Fatal(err)
			}
		}
		if got := client.Get(t.Context(), "fl\x00rl:v"+tt.lock).Val(); got != tt.kept {
			t.Errorf("%s: the lock is kept for %q, want %q", tt.lock, got, tt.kept)
		}
		if tt.stamp != "" { // where the undo comes after a Leave, as long as a Lock that was cancelled may be waiting
			now, err := client.Time(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			var until int64
			entry := client.HGet(t.Context(), waitKey+tt.lock, one).Val()
			if n, err := fmt.Sscan(entry, &until); n != 1 {
				t.Fatalf("%s: the waiter is %q: %v", tt.lock, entry, err)
			}
			if left := time.UnixMilli(until).Sub(now); left > time.Second {
				t.Errorf("%s: the waiter counts as alive for %v, want at most a second", tt.lock, left)
			}
		}
		m, err := sub.ReceiveMessage(t.Context())
		if err != nil || m.Payload != tt.push {
			t.Errorf("%s: got the push %v, %v, want %q", tt.lock, m, err, tt.push)
		}
	}
}

// Waiters that died behind others are taken out while the lock is held: a waiter that crashes again and again must not
// fill the queue of a lock that is held for weeks.
func TestDeadWaitersAreTakenOut(t *testing.T) {
	t.Parallel()
	client, s := settledThrice(t)
	const dead = 200
	p := client.Pipeline()
	p.Set(t.Context(), "a", "a stranger's", time.Minute)
	for i := range dead {
		nonce := fmt.Sprintf("%032x", i)
		p.ZAdd(t.Context(), "fl\x00rl:qa", goredis.Z{Score: float64(2 + i), Member: nonce})
		p.HSet(t.Context(), waitKey+"a", nonce, fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli(), " p"))
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	args := []any{"v", strings.Repeat("f", 32), time.Now().UnixMicro(), bucket("a"), "30000 0 1 p\x00\x00owner"}
	looks := 0
	for ; client.ZCard(t.Context(), "fl\x00rl:qa").Val() > 1 && looks < 10*dead; looks++ {
		if _, err := s.nodes[0].ask(t.Context(), []op{{"a", args}}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d dead waiters were taken out by %d looks of a live one", dead, looks)
	if left := client.HLen(t.Context(), waitKey+"a").Val(); left != 1 {
		t.Errorf("%d waiters are left after %d looks, want the live one", left, looks)
	}
}

// However many wait for a lock, its release reads two of them, and takes out 1,000 dead ones at the most.
func TestReleaseBeforeManyWaiters(t *testing.T) {
	t.Parallel()
	client, s := settledThrice(t)
	sub := client.Subscribe(t.Context(), channel+"p")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	const waiters = 5000
	id := strings.Repeat("1", 32)
	for _, tt := range []struct {
		lock string
		till time.Duration
		left int64  // in the line
		kept string // for whom
	}{
		{"alive", time.Minute, waiters, fmt.Sprintf("%032x", 0)},
		{"dead", -time.Minute, waiters - 1000, ""},
	} {
		p := client.Pipeline()
		p.Set(t.Context(), tt.lock, id+":5:owner", time.Minute)
		for i := range waiters {
			nonce, till := fmt.Sprintf("%032x", i), time.Now().Add(tt.till).UnixMilli()
			p.ZAdd(t.Context(), "fl\x00rl:q"+tt.lock, goredis.Z{Score: float64(i), Member: nonce})
			p.HSet(t.Context(), waitKey+tt.lock, nonce, fmt.Sprint(till, " p"))
		}
		p.ConfigResetStat(t.Context())
		if _, err := p.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := op{tt.lock, []any{"r", id, bucket(tt.lock), ""}}
		if replies, err := s.nodes[0].ask(t.Context(), []op{release}); err != nil || replies[0] != int64(1) {
			t.Fatalf("%s: got %v, %v", tt.lock, replies, err)
		}
		stats := client.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]
		if all := stats["cmdstat_hgetall"] + stats["cmdstat_hvals"]; all != "" {
			t.Errorf("%s: all of them were read: %s", tt.lock, all)
		}
		if got := client.ZCard(t.Context(), "fl\x00rl:q"+tt.lock).Val(); got != tt.left {
			t.Errorf("%s: %d are left in the line, want %d", tt.lock, got, tt.left)
		}
		if got := client.Get(t.Context(), "fl\x00rl:v"+tt.lock).Val(); got != tt.kept {
			t.Errorf("%s: the lock is kept for %q, want %q", tt.lock, got, tt.kept)
		}
	}
	for _, want := range []string{fmt.Sprintf("g %032x", 0), fmt.Sprintf("w200 %032x", 1)} {
		if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Payload != want {
			t.Errorf("got the push %v, %v, want %q", m, err, want)
		}
	}
}

// A client whose clock is far ahead takes the numbers along no further than a quarantine makes good: after a loss of
// all data they begin at the nodes' clocks.
func TestProposalFarAhead(t *testing.T) {
	t.Parallel()
	client, s := thrice(t)
	vote := func(by string, ahead time.Duration) int64 {
		t.Helper()
		args := []any{
			"v", strings.Repeat(by, 32), time.Now().Add(ahead).UnixMicro(), bucket("a" + by),
			"30000 0 0 p\x00\x00owner",
		}
		replies, err := s.nodes[0].ask(t.Context(), []op{{"a" + by, args}})
		if err != nil {
			t.Fatal(err)
		}
		res, _ := replies[0].([]any)
		if len(res) != 2 {
			t.Fatalf("got %v", replies[0])
		}
		n, _ := res[1].(int64)
		return n
	}
	vote("0", 0) // the quarantine begins
	if err := client.HDel(t.Context(), stateKey, "until").Err(); err != nil {
		t.Fatal(err)
	}
	for by, ahead := range map[string]time.Duration{"1": s.quarantine, "2": 24 * time.Hour} {
		got := time.Duration(vote(by, ahead)-time.Now().UnixMicro()) * time.Microsecond
		if got > s.quarantine/4 || got < s.quarantine/4-5*time.Second {
			t.Errorf("a proposal %v ahead: got a number %v ahead, want %v", ahead, got, s.quarantine/4)
		}
	}
}

// Votes for a ballot that was too late, and whose undoing is under way, are no other holder's.
func TestOwnVotesAreNobodyElses(t *testing.T) {
	t.Parallel()
	client, s := settledThrice(t)
	r := &backend.Request{Name: "x", Nonce: strings.Repeat("a", 32), Owner: "o", TTL: 10 * time.Second}
	ballots := 1
	ask := func(holder string, wait bool) (time.Duration, error) {
		t.Helper()
		ballots++
		if err := client.Set(t.Context(), s.prefix+"x", holder+":5:o", 10*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		again := *r
		again.Wait = wait
		c := &backend.Claim{Request: &again, Place: &place{
			ballot: s.ballot(r.Nonce + "." + strconv.Itoa(ballots)), ballots: ballots, splits: tries - 1,
		}}
		err := s.vote(t.Context(), c)
		return c.Next, err
	}
	for _, ballot := range []string{"", ".1"} {
		if _, err := ask(r.Nonce+ballot, false); !backend.Refused(err) || errors.Is(err, backend.ErrLocked) {
			t.Errorf("held by the claim's ballot %q: got %v, want that it can be tried again", ballot, err)
		}
	}
	if next, err := ask(r.Nonce, true); !errors.Is(err, backend.ErrLocked) || next > time.Second {
		t.Errorf("a waiter: got %v and a look in %v, want ErrLocked and one soon", err, next)
	}
	if _, err := ask(strings.Repeat("b", 32), false); !errors.Is(err, backend.ErrLocked) {
		t.Errorf("held by another: got %v, want ErrLocked", err)
	}
}

// A floor that a bucket's counter covers is not too far ahead of the clock, alone or in a call of several.
func TestFloorThatACounterCovers(t *testing.T) {
	t.Parallel()
	client, s := settledThrice(t)
	floor := time.Now().UnixMicro() + 5*backend.FloorAhead
	if err := client.HSet(t.Context(), stateKey, "c"+bucket("a"), floor).Err(); err != nil {
		t.Fatal(err)
	}
	vote := func(lock, by string, floor int64) op {
		terms := fmt.Sprint("30000 ", floor, " 0 p\x00\x00owner")
		return op{lock, []any{"v", strings.Repeat(by, 32), time.Now().UnixMicro(), bucket(lock), terms}}
	}
	for _, ops := range [][]op{
		{vote("a", "1", floor)},
		{vote("b", "2", 0), vote("a", "3", floor), vote("c", "4", 0)},
		{vote("b", "5", floor), vote("a", "6", floor), vote("c", "7", floor)},
	} {
		if err := client.Del(t.Context(), "a", "b", "c").Err(); err != nil {
			t.Fatal(err)
		}
		replies, err := s.nodes[0].ask(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		for i, reply := range replies {
			res, _ := reply.([]any)
			want := int64(0)
			if ops[i].lock != "a" && strings.Contains(ops[i].args[4].(string), fmt.Sprint(floor)) {
				want = 8
			}
			if len(res) != 2 || res[0] != want || ops[i].lock == "a" && res[1].(int64) <= floor {
				t.Errorf("the vote for %s of %d: got %v, want {%d, …}", ops[i].lock, len(ops), reply, want)
			}
		}
	}
}

// What a node refuses for the keys of one lock is no other lock's business, though both go to it in one call.
func TestRefusedForTheKeysOfAnother(t *testing.T) {
	t.Parallel()
	client, s := thrice(t)
	if err := client.Set(t.Context(), waitKey+"bad", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var batch []*request
	for _, lock := range []string{"good", "bad", "good"} {
		q := s.question(s.nodes[:1], 1)
		batch = append(batch, &request{ops: []op{{lock, []any{"i"}}}, to: q})
	}
	_ = s.nodes[0].call(batch) // of which each has its answer
	for i, want := range []error{nil, backend.ErrInvalid, nil} {
		if got := batch[i].to.heard[0].err; !errors.Is(got, want) {
			t.Errorf("%s: got %v, want %v", batch[i].ops[0].lock, got, want)
		}
	}
}
