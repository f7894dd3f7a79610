package etcd

import (
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
	} {
		if got, ok := parse(v.String()); !ok || got != v {
			t.Errorf("parse(%q): got %+v, %v, want %+v", v, got, ok, v)
		}
	}
	for _, s := range []string{
		"", "held", "held:", "held:x:o", "held:0:o", "held:-3:o", "held:+0:o", "held:+:o",
		"hold:3:o", "::", "both:3:o", "both:3:%zz:o", "both:x:m:o", "both:",
	} {
		if v, ok := parse(s); ok {
			t.Errorf("parse(%q), which is not ours: got %+v", s, v)
		}
	}
}
