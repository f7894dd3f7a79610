package zookeeper

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// Whatever a holder's node has, it is a stranger's, or what it says is what it says again.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		"", `{"token":7,"last":9,"version":1,"owner":"o"}`, `{"token":7,"last":7,"both":"m"}`,
		`{"token":7,"last":6}`, `{"token":0,"last":6}`, `{"token":7,"last":7,"version":99999999999}`, "7 1\nowner",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := readRecord(data)
		if !ok {
			return
		}
		if r.Token <= 0 || r.Last < r.Token {
			t.Errorf("%q: read as %+v", data, r)
		}
		if again, ok := readRecord(encoded(r)); !ok || again != r {
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
	f.Fuzz(func(t *testing.T, a, b, c string) {
		in := []string{a, b, c}
		l := readLine(in)
		for _, node := range in {
			if !slices.Contains(l.waiters, node) && !isHeld(node) && isWait(node) {
				t.Errorf("%q: %q is lost", in, node)
			}
		}
		for _, w := range l.waiters {
			sequence(w)
		}
	})
}

// Whatever greets, what is read of it is as long as it says.
func FuzzGreeting(f *testing.F) {
	f.Add(append([]byte{0, 0, 0, 16}, make([]byte, 16)...))
	f.Add([]byte{0, 0, 0, 16, 1})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte("HTTP/1.1 400 Bad Request"))
	f.Fuzz(func(t *testing.T, data []byte) {
		greeting, err := readGreeting(bytes.NewReader(data))
		if err == nil && (len(greeting) < 20 || len(greeting) != 4+int(binary.BigEndian.Uint32(greeting))) {
			t.Errorf("%q: read as %d bytes", data, len(greeting))
		}
	})
}
