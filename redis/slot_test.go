package redis

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// slotsOf asks a node of a cluster for the slots of keys.
func slotsOf(t *testing.T, c *goredis.Client, keys []string) []int {
	t.Helper()
	cmds, err := c.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for _, k := range keys {
			p.ClusterKeySlot(t.Context(), k)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]int, len(keys))
	for i, cmd := range cmds {
		got[i] = int(cmd.(*goredis.IntCmd).Val())
	}
	return got
}

// hostile are names that a careless hash tag gets wrong.
var hostile = []string{
	"plain", "{}", "{", "}", "}{", "{}{", "{{a}}", "{a}b", "a{b}c", "a{b}{c}", "a{}b", "a{}{b}",
	"{}a{b}", "a}b{c", "a{b",
	"héllo", "日本語", "{日本}語", "\u00e9", "e\u0301",
	"a b", "%00", "..", "/", "a/b", "\n", "*", "?", "[a-z]", `\`,
	strings.Repeat(
		"x",
		512,
	), strings.Repeat("{", 512), strings.Repeat("{}", 256), "{" + strings.Repeat("y", 510) + "}",
}

// What the driver says of slots is what a node of a cluster says.
func TestSlots(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 1})
	c := goredis.NewClient(&goredis.Options{Addr: cl.Addrs()[0]})
	defer c.Close()
	t.Run("of keys", func(t *testing.T) { slotsOfKeys(t, c) })
	t.Run("of tags", func(t *testing.T) { slotsOfTags(t, c) })
	t.Run("of one lock", func(t *testing.T) { slotsOfOneLock(t, c) })
}

func slotsOfKeys(t *testing.T, c *goredis.Client) {
	var keys []string
	for _, name := range hostile {
		keys = append(keys, name, "fencelock:"+name, "{p}"+name, "{"+name)
	}
	for i := range 2000 {
		raw := make([]byte, 1+i%24)
		_, _ = rand.Read(raw) // never fails
		for j := range raw {
			if raw[j] < 40 { // braces are rare among random bytes
				raw[j] = "{}"[raw[j]&1]
			}
		}
		keys = append(keys, string(raw))
	}
	for i, want := range slotsOf(t, c, keys) {
		if got := slot(keys[i]); got != want {
			t.Errorf("slot of %q: got %d, want %d", keys[i], got, want)
		}
	}
}

func slotsOfTags(t *testing.T, c *goredis.Client) {
	keys := make([]string, slots)
	longest := 0
	for i, tag := range tags() {
		if tag == "" || strings.ContainsAny(tag, "{}") {
			t.Fatalf("tag of slot %d: got %q", i, tag)
		}
		keys[i] = "fl\x00{" + tag + "}c"
		longest = max(longest, len(tag))
	}
	for i, got := range slotsOf(t, c, keys) {
		if got != i {
			t.Errorf("slot of %q: got %d, want %d", keys[i], got, i)
		}
	}
	t.Logf("the longest of %d tags has %d bytes", slots, longest)
}

func slotsOfOneLock(t *testing.T, c *goredis.Client) {
	const nonce = "0123456789abcdef0123456789abcdef"
	var keys []string
	each := 0
	seen := map[string]string{}
	for _, prefix := range []string{"fencelock:", "", "{p}:", "p{"} {
		for _, name := range hostile {
			k := keysOf(prefix + name)
			c := &backend.Claim{Request: &backend.Request{Name: name, Nonce: nonce}}
			op := (&store{prefix: prefix}).place(c)
			if op.nonce != nonce+":" {
				t.Errorf("nonce of %q: got %q", name, op.nonce)
			}
			ks := append(k.all(k.ours()+"g"+prefix), op.queue, op.counter, op.tombstone)
			if ks[2] != op.queue || ks[4] != op.counter {
				t.Errorf("keys of %q: got %q and %q, want %q and %q", name, op.queue, op.counter, ks[2], ks[4])
			}
			if ks[0] != prefix+name {
				t.Errorf("lock key of %q: got %q, want %q", name, ks[0], prefix+name)
			}
			for i, k := range ks[1:] {
				if !strings.Contains(k, "\x00") {
					t.Errorf("key %q of %q has no NUL", k, name)
				}
				if who := fmt.Sprint(i, prefix+name); seen[k] != "" && seen[k] != who && (i == 1 || i == 2) {
					t.Errorf("key %q belongs to %q and to %q", k, who, seen[k])
				} else {
					seen[k] = who
				}
			}
			each = len(ks)
			keys = append(keys, ks[:]...)
		}
	}
	got := slotsOf(t, c, keys)
	for i := range keys {
		if lock := i - i%each; got[i] != got[lock] {
			t.Errorf("slot of %q: got %d, want that of %q, %d", keys[i], got[i], keys[lock], got[lock])
		}
	}
}

// FuzzSlot: the tag of a key's slot lies in that slot, whatever the key.
func FuzzSlot(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, key string) {
		n := slot(key)
		if n < 0 || n >= slots {
			t.Fatalf("slot of %q: got %d", key, n)
		}
		if got := slot(keysOf(key).ours() + "q" + key); got != n {
			t.Errorf("slot of the queue of %q: got %d, want %d", key, got, n)
		}
	})
}
