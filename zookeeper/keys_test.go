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
		{Token: 1, Version: 2, Last: 1, Owner: "host:1"},
		{Token: 1 << 52, Version: -5, Last: 1<<52 + 500, Owner: "two\nlines"},
		{Token: 7, Last: 7},
		{Token: 7, Last: 8, Both: "moving house/1 both:\n", Owner: "<host:1>"},
	} {
		if got, ok := readRecord(encoded(r)); !ok || got != r {
			t.Errorf("got %+v, %v, want %+v", got, ok, r)
		}
	}
	for _, bad := range []string{
		"", "x", "1", "null", "[]", "{}", `{"token":0,"last":1}`, `{"token":-1,"last":1}`, `{"token":2,"last":1}`,
		`{"token":"1","last":1}`, `{"token":1,"last":1,"version":2147483648}`, `{"token":1,"last":1} 2`, "5 3\nowner",
	} {
		if got, ok := readRecord([]byte(bad)); ok {
			t.Errorf("%q: got %+v, want none", bad, got)
		}
	}
}
