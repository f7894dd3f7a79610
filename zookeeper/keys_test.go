package zookeeper

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
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
	l := readLine([]string{want[2], want[0], heldMark + nonce, want[3], want[1]})
	got := []string{}
	for _, w := range l.waiters {
		got = append(got, w.node)
	}
	if !slices.Equal(got, want) || l.held() != heldMark+nonce || l.strange != "" {
		t.Errorf("got %+v, want the waiters %q", l, want)
	}
	if l := readLine([]string{"note"}); l.strange != "note" {
		t.Errorf("got %+v, want a strange node", l)
	}
}

// What a claim's nodes are called is read as what they are.
func TestNodesOfAClaim(t *testing.T) {
	const most = 1<<53 - 1
	nonce := strings.Repeat("0", nonceLen)
	for _, r := range []backend.Request{
		{Nonce: nonce},
		{Nonce: nonce, Mode: backend.Reader},
		{Nonce: nonce, Mode: backend.Permit, Limit: 2},
		{Nonce: nonce, Mode: backend.Permit, Limit: backend.MostPermits},
	} {
		p := &place{r: &r, lock: "/locks/x"}
		hold := p.holder(most, max(r.Limit-1, 0))
		h, ok := parse(strings.TrimPrefix(hold, p.lock+"/"))
		if !ok || h.waits || h.nonce != nonce || h.ask.Mode != r.Mode || h.ask.Limit != r.Limit ||
			h.slot != max(r.Limit-1, 0) || h.token != most && r.Mode != backend.Exclusive {
			t.Errorf("%v: the hold %q is read as %+v, %v", r.Mode, hold, h, ok)
		}
		w, ok := parse(p.waiter() + "-2147483648")
		if !ok || !w.waits || w.nonce != nonce || w.ask.Mode != r.Mode || w.ask.Limit != r.Limit ||
			w.number != -1<<31 {
			t.Errorf("%v: the waiter %q is read as %+v, %v", r.Mode, p.waiter(), w, ok)
		}
		for _, path := range []string{hold, p.lock + "/" + p.waiter() + "-2147483648"} {
			if 4+len(path) > p.load() {
				t.Errorf("%v: %q is longer than a session counts", r.Mode, path)
			}
		}
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
