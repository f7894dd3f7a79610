package redlock

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/redisnode"
	"github.com/fencelock/fencelock/internal/servers"
)

// A library that has served clients of very many kinds does not grow.
func TestLibraryForgetsSettings(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.FunctionLoad(t.Context(), libText).Err(); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("p", 2000)
	p := client.Pipeline()
	for i := range 10_000 {
		p.FCall(t.Context(), library, []string{"fl\x00rl"}, fmt.Sprintf("0 1000 3600000000 1000 %s%d", long, i))
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := client.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(info["Memory"]["used_memory_vm_functions"])
	if err != nil || used == 0 || used > 10<<20 {
		t.Errorf("the functions use %d bytes (%v), want less than 10 MiB", used, err)
	}
}

// Two versions share a node, each with a library and a count of its own. After a loss of all data both count anew, and
// neither takes that of the other for a further loss.
func TestTwoVersionsAfterALossOfData(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	hash := shortHash(body + "-- another version\n")
	both := []string{library, "fencelock_redlock_" + hash}
	for _, text := range []string{libText, strings.ReplaceAll(libText, shortHash(body), hash)} {
		if err := client.FunctionLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(version, lock string, args ...any) []any {
		t.Helper()
		args = append([]any{"0 200 3600000000 1000 p"}, args...)
		res, err := client.FCall(t.Context(), version, []string{stateKey, lock}, args...).Slice()
		if err != nil || len(res) != 1 {
			t.Fatalf("got %v, %v", res, err)
		}
		reply, _ := res[0].([]any)
		return reply
	}
	settle := func() {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
			if ask(both[0], stateKey, "s")[0] == int64(1) && ask(both[1], stateKey, "s")[0] == int64(1) {
				return
			}
			if time.Now().After(end) {
				t.Fatal("the node stays in quarantine")
			}
		}
	}
	settle()
	for range 2 {
		for i, version := range both {
			id := strings.Repeat(strconv.Itoa(i), 32)
			got := ask(version, fmt.Sprint("lock", i), "v", id, 1, "1", "30000 0 0 p\x00\x00owner")
			if got[0] != int64(0) {
				t.Fatalf("vote through library %d: got %v", i, got)
			}
		}
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for i, version := range both {
			if got := ask(version, stateKey, "s"); got[0] != int64(0) {
				t.Fatalf("library %d after the loss: got %v, want the quarantine", i, got)
			}
		}
		settle()
	}
}

// A call that reads ahead for all its votes and releases answers as if each had come alone: what
// one of them changes, those after it find.
func TestOperationsOfOneCall(t *testing.T) {
	t.Parallel()
	client, s := thrice(t)
	id := func(c string) string { return strings.Repeat(c, 32) }
	first := time.Now().UnixMicro()
	number := first
	vote := func(lock, by, stamp string) op {
		number++
		return op{lock, []any{"v", id(by), number, bucket(lock), "30000 0 " + stamp + " p\x00\x00owner " + by}}
	}
	release := func(lock, by, how string) op { return op{lock, []any{"r", id(by), bucket(lock), how}} }
	const look, abandon = "0", "10000 0 0"
	ask := func(ops ...op) []any {
		t.Helper()
		replies, err := s.nodes[0].ask(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		return replies
	}
	// what names a reply: the number of a vote is compared with the last one.
	last := int64(0)
	what := func(reply any) string {
		res, ok := reply.([]any)
		switch {
		case !ok:
			return fmt.Sprint(reply)
		case res[0] == int64(0):
			if n, _ := res[1].(int64); n <= last || n < first {
				t.Errorf("a vote with the number %d after %d", n, last)
			} else {
				last = n
			}
			return "vote"
		case res[0] == int64(1):
			return "held by " + fmt.Sprint(res[2])[:1]
		}
		return fmt.Sprint("no ", res[0])
	}
	if got := what(ask(vote("settles", "f", look))[0]); got != "no 2" {
		t.Fatalf("a new node: got %s, want the quarantine", got)
	}
	if err := client.HDel(t.Context(), stateKey, "until").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.LPush(t.Context(), "list", "x").Err(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ops  []op
		want []string
	}{
		{
			"free",
			[]op{vote("a", "1", look), vote("b", "2", look), vote("c", "3", look)},
			[]string{"vote", "vote", "vote"},
		},
		{
			"held",
			[]op{vote("a", "4", look), vote("d", "5", look), vote("d", "6", look)},
			[]string{"held by 1", "vote", "held by 5"},
		},
		{"released and taken", []op{
			release("a", "1", ""), vote("a", "4", look), vote("a", "7", look),
			release("a", "1", ""), vote("a", "8", look),
		}, []string{"1", "vote", "held by 4", "1", "held by 4"}},
		{
			"another's release",
			[]op{release("b", "9", ""), vote("b", "9", look), release("c", "3", "")},
			[]string{"0", "held by 2", "1"},
		},
		{"taken, released, taken", []op{
			vote("c", "1", look), release("c", "1", ""), vote("c", "2", look), vote("c", "3", look),
		}, []string{"vote", "1", "vote", "held by 2"}},
		{
			"abandoned before",
			[]op{release("e", "e", abandon), vote("e", "e", look), vote("e", "2", look)},
			[]string{"0", "no 3", "vote"},
		},
		{
			"abandoned earlier",
			[]op{vote("g", "e", look), vote("h", "e", look), vote("i", "2", look)},
			[]string{"no 3", "no 3", "vote"},
		},
		{
			"another type",
			[]op{vote("list", "1", look), vote("j", "2", look), vote("k", "2", look)},
			[]string{"no 5", "vote", "vote"},
		},
		{
			"one bucket",
			[]op{
				vote("l", "1", look), release("l", "1", ""), vote("l", "2", look),
				release("l", "2", ""), vote("l", "3", look),
			},
			[]string{"vote", "1", "vote", "1", "vote"},
		},
	} {
		var got []string
		for _, reply := range ask(tt.ops...) {
			got = append(got, what(reply))
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	// Sent again, a vote has the number that it had.
	replies := ask(vote("m", "1", look), vote("m", "1", look), vote("n", "1", look))
	if !reflect.DeepEqual(replies[0], replies[1]) {
		t.Errorf("a vote sent again in the same call: got %v, want %v", replies[1], replies[0])
	}
	// The counter of each bucket is not below a number of it.
	for _, lock := range []string{"a", "c", "l", "m"} {
		n := redisnode.Parse(client.Get(t.Context(), lock).Val()).Number
		if c, err := client.HGet(t.Context(), stateKey, "c"+bucket(lock)).Int64(); err != nil ||
			n == 0 || c < int64(n) {
			t.Errorf("the counter of %q is %d, %v, and the lock has %d", lock, c, err, n)
		}
	}
}
