package etcd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

func TestEncode(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a": "a", "a/b": "a%2Fb", "a%2Fb": "a%252Fb", " ": "%20", "..": "..", "名前": "名前",
		"\n\x7f": "%0A%7F", "{}~:": "{}~:",
	} {
		if got := encode(name); got != want {
			t.Errorf("encode(%q): got %q, want %q", name, got, want)
		}
	}
	for _, enc := range []string{"a/b", "%", "%2", "%2f", "%zz", "%41", "a b"} {
		if name, ok := decode(enc); ok {
			t.Errorf("decode(%q), which encode does not write: got %q", enc, name)
		}
	}
}

// Every name comes back, no queue lies in another, and what has a prefix in common keeps it.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "a/b", "%2F", "\x01", "é", strings.Repeat("x", 512)} {
		f.Add(s, "a")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if backend.CheckName(a) != nil || backend.CheckName(b) != nil {
			t.Skip()
		}
		k := keysOf("p")
		name, nonce, ok := k.split(k.queue(a) + "nonce")
		if !ok || name != a || nonce != "nonce" {
			t.Errorf("split of the entry of %q: got %q, %q, %v", a, name, nonce, ok)
		}
		if a != b && (strings.HasPrefix(k.queue(a), k.queue(b)) || strings.HasPrefix(k.queue(b), k.queue(a))) {
			t.Errorf("the queues of %q and %q meet", a, b)
		}
		if strings.HasPrefix(a, b) != strings.HasPrefix(encode(a), encode(b)) {
			t.Errorf("%q and %q: a prefix is lost or made by encoding", a, b)
		}
	})
}

// Two prefixes never share a key.
func FuzzPrefixes(f *testing.F) {
	for _, s := range []string{"", "p", "p~", "p~~", "p~lock/x/", "~lock/"} {
		f.Add("p", s, "x")
	}
	f.Fuzz(func(t *testing.T, a, b, name string) {
		if a == b || backend.CheckPrefix(a) != nil || backend.CheckPrefix(b) != nil || backend.CheckName(name) != nil {
			t.Skip()
		}
		ka, kb := keysOf(a), keysOf(b)
		for _, key := range []string{
			kb.base(), kb.last(), kb.gone("n"), kb.queue(name), kb.token(name), kb.gates(),
			kb.clients(name),
		} {
			for _, area := range []string{
				ka.locks(), ka.base(), ka.last(), ka.gone(""), ka.token(""), ka.gates(),
				ka.clients(""),
			} {
				if strings.HasPrefix(key, area) {
					t.Errorf("prefix %q reaches into %q, which is of prefix %q", b, area, a)
				}
			}
		}
	})
}

func TestValues(t *testing.T) {
	t.Parallel()
	for _, v := range []value{
		{},
		{held: true},
		{held: true, token: 7},
		{held: true, token: 1 << 52, owner: "a:b:c"},
		{owner: "somebody"},
		{held: true, both: true, token: 7, move: "a b:c/é%", owner: "a:b:c"},
		{held: true, both: true},
		{held: true, reserve: 63, owner: "a:b"},
		{held: true, both: true, reserve: 1, move: "m"},
		{held: true, counted: true},
		{held: true, counted: true, base: 1 << 52, slot: 1023, owner: "a:b/c"},
		{held: true, token: 7, slot: 1},
	} {
		if got, ok := parse(v.String()); !ok || got != v {
			t.Errorf("parse(%q): got %+v, %v, want %+v", v, got, ok, v)
		}
	}
	for _, s := range []string{
		"", "held", "held:", "held:x:o", "held:0:o", "held:-3:o", "held:+0:o", "held:+:o",
		"hold:3:o", "::", "both:3:o", "both:3:%zz:o", "both:x:m:o", "both:",
		"held/0:3:o", "held/-1:3:o", "held/x:3:o", "held/:3:o", "wait/1::o", "both/1:3:m:o", "held:@:o", "held:@-1:o",
	} {
		if v, ok := parse(s); ok {
			t.Errorf("parse(%q), which is not ours: got %+v", s, v)
		}
	}
}

// What an entry asks for stands in its key; what is not written so excludes everybody.
func TestAsks(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef"
	for _, r := range []*backend.Request{
		{},
		{Mode: backend.Reader},
		{Mode: backend.Permit, Limit: 2},
		{Mode: backend.Permit, Limit: backend.MostPermits},
	} {
		for _, text := range []string{"wait::o", "held:7:o", "held/3:@7:o"} {
			if got := asks(mark(r)+id, text); got.Mode != r.Mode || got.Limit != r.Limit {
				t.Errorf("asks(%q): got %v of %d, want %v of %d", mark(r)+id, got.Mode, got.Limit, r.Mode, r.Limit)
			}
		}
		if got := asks(mark(r)+id, "what a stranger writes"); got.Mode != backend.Exclusive {
			t.Errorf("a stranger's %q: got %v, want exclusive", mark(r)+id, got.Mode)
		}
	}
	for _, strange := range []string{"+", "+p", "+p2", "+px." + id, "+p." + id, "+q2." + id, "694d7c8a2f1e", ""} {
		if got := asks(strange, "held::o"); got.Mode != backend.Exclusive {
			t.Errorf("asks(%q): got %v, want exclusive", strange, got.Mode)
		}
	}
}

// A name that is locked often has one key, however many names were locked once.
func TestKeysOfManyNames(t *testing.T) {
	t.Parallel()
	s := ids{free: map[string]string{}}
	for i := range freeMost + 1 {
		s.give(fmt.Sprint(i), "id")
	}
	for range 3 {
		s.give("often", "kept")
		if id := s.take("often", "nonce"); id != "kept" {
			t.Errorf("got the id %q, want the one that was given back", id)
		}
	}
	if len(s.free) > freeMost {
		t.Errorf("%d keys are kept, want %d at most", len(s.free), freeMost)
	}
}
