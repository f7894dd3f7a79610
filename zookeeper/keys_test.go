package zookeeper

import (
	"slices"
	"strings"
	"testing"
)

func FuzzEncode(f *testing.F) {
	for _, s := range []string{
		"", "a", "a/b", ".", "..", "/", "%", "%2F", "zookeeper", "é", "\n",
		strings.Repeat("x", 512),
	} {
		f.Add(s, s+"/")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ea, eb := encode(a), encode(b)
		if back, ok := decode(ea); !ok || back != a {
			t.Errorf("decode(encode(%q)): got %q, %v", a, back, ok)
		}
		if a != b && ea == eb {
			t.Errorf("%q and %q meet at %q", a, b, ea)
		}
		if ea == "" || ea[0] == '.' || strings.ContainsAny(ea, "/\x00") {
			t.Errorf("encode(%q) is %q, no element of a path", a, ea)
		}
	})
}

func TestDecodeRefusesWhatEncodeDoesNotMake(t *testing.T) {
	for _, s := range []string{"%4", "%zz", "%61", ".", "a b", "%2f", "é"} {
		if got, ok := decode(s); ok {
			t.Errorf("decode(%q): got %q, want none", s, got)
		}
	}
}

func TestLineOrdersWaitersOverTheEndOfTheNumbers(t *testing.T) {
	nonce := strings.Repeat("0", nonceLen)
	want := []string{}
	for _, n := range []string{"2147483646", "2147483647", "-2147483648", "-2147483647"} {
		want = append(want, waitMark+nonce+"-"+n)
	}
	got := readLine([]string{want[2], want[0], heldMark + nonce, want[3], want[1]})
	if !slices.Equal(got.waiters, want) || got.held != heldMark+nonce || got.strange != "" {
		t.Errorf("got %+v, want the waiters %q", got, want)
	}
	if l := readLine([]string{"note"}); l.strange != "note" {
		t.Errorf("got %+v, want a strange node", l)
	}
}

func TestRecord(t *testing.T) {
	for _, r := range []record{
		{token: 1, version: 2, owner: "host:1"},
		{token: 1 << 52, version: -5, owner: "two\nlines"},
		{token: 7},
		{token: 7, both: true, move: "moving house/1 both:\n", owner: "host:1"},
		{token: 7, both: true},
		{token: 7, version: 3, ahead: 500, owner: "+5"},
		{token: 7, ahead: 1, both: true, move: "+1"},
	} {
		if got, ok := readRecord(r.bytes()); !ok || got != r {
			t.Errorf("got %+v, %v, want %+v", got, ok, r)
		}
	}
	if got, ok := readRecord([]byte("5 3\nbefore gates")); !ok ||
		got != (record{token: 5, version: 3, owner: "before gates"}) {
		t.Errorf("a record without a mark: got %+v, %v", got, ok)
	}
	for _, bad := range []string{
		"", "x", "1\n", "1 x\n", "1 2", "1 2 3\n", "1 2 both:/\n", "1 2 both:a b\n", "1 2 both:a",
		"1 2 +\n", "1 2 +0\n", "1 2 +-3\n", "1 2 both:a +3\n", "1 2 +3 both:a x\n", " 1 2\n",
		"1 2147483648\n",
	} {
		if got, ok := readRecord([]byte(bad)); ok {
			t.Errorf("%q: got %+v, want none", bad, got)
		}
	}
}
