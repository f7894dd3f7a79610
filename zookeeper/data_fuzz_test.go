package zookeeper

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Whatever a holder's node has, it is a stranger's, or what it says is what it says again.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		"", `{"base":7,"owner":"o"}`, `{"base":-7,"both":"m"}`, `{"base":-7000,"token":8}`, `{"base":-7000}`,
		`{"token":-1}`, `{"base":9007199254740991}`, `{"base":9223372036854775807}`, "7 1\nowner",
	} {
		f.Add([]byte(s))
	}
	stat := &zk.Stat{Czxid: 100}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := readRecord(node{data, stat})
		if !ok {
			return
		}
		if r.Token <= 0 || r.Token > maxToken {
			t.Errorf("%q: read as %+v", data, r)
		}
		if again, ok := readRecord(node{encoded(r), stat}); !ok || again != r {
			t.Errorf("%q: %+v becomes %+v", data, r, again)
		}
	})
}

// Whatever nodes stand at a lock, each is a holder, a waiter or strange, and none is lost.
func FuzzLine(f *testing.F) {
	nonce := strings.Repeat("a", nonceLen)
	f.Add(heldMark+nonce, waitMark+nonce+"-0000000001", "x")
	f.Add(waitMark+nonce+"--2147483648", waitMark+nonce+"-2147483647", waitMark+nonce+"-")
	f.Add("", heldMark, waitMark)
	f.Add(readMark+nonce, waitReadMark+nonce+"-0000000001", waitPermMark+nonce+"-3--2147483648")
	f.Add(permMark+nonce+"-3-0", permMark+nonce+"-3-3", waitPermMark+nonce+"-1025-1")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		in := []string{a, b, c}
		l := readLine(in)
		n, strange := len(l.holds)+len(l.waiters), 0
		for _, node := range in {
			if _, ok := parse(node); !ok {
				strange++
			}
		}
		if n+strange != len(in) || (l.strange != "") != (strange > 0) && !slices.Contains(in, "") {
			t.Errorf("%q: got %+v, with %d that are strange", in, l, strange)
		}
		for _, e := range slices.Concat(l.holds, l.waiters) {
			if e.ask.Mode == backend.Permit && (e.ask.Limit < 1 || e.slot >= e.ask.Limit) {
				t.Errorf("%q: got %+v", in, e)
			}
		}
		for i, w := range l.waiters {
			if l.at(w.node) > i {
				t.Errorf("%q: %q is not where it stands", in, w.node)
			}
		}
	})
}

// Whatever greets, what is read of it is as long as it says, and has its password.
func FuzzGreeting(f *testing.F) {
	f.Add(append([]byte{0, 0, 0, 20}, make([]byte, 20)...))
	f.Add(append(append([]byte{0, 0, 0, 20}, make([]byte, 16)...), 127, 0, 0, 0))
	f.Add([]byte{0, 0, 0, 16, 1})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte("HTTP/1.1 400 Bad Request"))
	f.Fuzz(func(t *testing.T, data []byte) {
		greeting, err := readGreeting(bytes.NewReader(data))
		if err == nil && (len(greeting) < 24 || len(greeting) != 4+int(binary.BigEndian.Uint32(greeting)) ||
			int(int32(binary.BigEndian.Uint32(greeting[20:]))) > len(greeting)-24) {
			t.Errorf("%q: read as %q", data, greeting)
		}
	})
}
