package zookeeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

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
	nonce := strings.Repeat("0", nonceLen)
	for _, r := range []backend.Request{
		{Nonce: nonce},
		{Nonce: nonce, Mode: backend.Reader},
		{Nonce: nonce, Mode: backend.Permit, Limit: 2},
		{Nonce: nonce, Mode: backend.Permit, Limit: backend.MostPermits},
	} {
		p := &place{r: &r, lock: "/locks/x"}
		hold := p.holder(max(r.Limit-1, 0))
		h, ok := parse(strings.TrimPrefix(hold, p.lock+"/"))
		if !ok || h.waits || h.nonce != nonce || h.ask.Mode != r.Mode || h.ask.Limit != r.Limit ||
			h.slot != max(r.Limit-1, 0) {
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
	stat := &zk.Stat{Czxid: 3<<32 + 5}
	made := stride * stat.Czxid
	for _, r := range []record{
		{Base: 1 - made, Token: 1, Owner: "host:1"},
		{Base: 1<<52 - made, Token: 1 << 52, Owner: "two\nlines"},
		{Base: 9, Token: 7},
		{Base: 7 - made, Token: 7, Both: "moving house/1 both:\n", Owner: "<host:1>"},
	} {
		if got, ok := readRecord(node{encoded(r), stat}); !ok || got != r {
			t.Errorf("got %+v, %v, want %+v", got, ok, r)
		}
		drawn := r
		drawn.Token = 0
		if got, ok := readRecord(node{encoded(drawn), stat}); r.Base < 0 && (!ok || got != r) {
			t.Errorf("a token of its own: got %+v, %v, want %+v", got, ok, r)
		}
	}
	for _, bad := range []string{
		"", "x", "1", "null", "[]", "{}", `{"token":0}`, `{"token":-1}`, `{"base":"1"}`,
		fmt.Sprintf(`{"base":%d}`, -made), fmt.Sprintf(`{"base":%d}`, int64(maxToken)-made+1), "5 3\nowner",
	} {
		if got, ok := readRecord(node{[]byte(bad), stat}); ok {
			t.Errorf("%q: got %+v, want none", bad, got)
		}
	}
}
