package redis

import (
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// Whatever value a lock's key has, it is read as a holder of ours or as a stranger's.
func FuzzParse(f *testing.F) {
	id := "0123456789abcdef0123456789abcdef"
	for _, s := range []string{
		"", id, id + ":1:", id + ":7:owner", id + ":7:owner\x00", id + ":7:owner\x00move", id + ":7:owner\x00move\x00",
		id + ":-7:owner", id + ":99999999999999999999:owner", "1:2:3", id + "::",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var i backend.Info
		parse(s, &i)
		if i.Token < 0 || i.Token == 0 && i.Owner != "" {
			t.Errorf("%q: read as token %d of %q", s, i.Token, i.Owner)
		}
	})
}

// Whatever a look is answered, it is an error or what a lock can be.
func FuzzInfo(f *testing.F) {
	f.Add("", int64(1), int64(-1), int64(0), int64(1), 5)
	f.Add("x", int64(1), int64(-2), int64(3), int64(0), 5)
	f.Add("x", int64(1), int64(9223372036854), int64(3), int64(0), 5)
	f.Add("x", int64(1), int64(9223372036855), int64(3), int64(0), 5)
	f.Add("x", int64(0), int64(1<<40), int64(-3), int64(0), 4)
	f.Fuzz(func(t *testing.T, text string, there, left, waiters, shaped int64, n int) {
		reply := []any{text, there, left, waiters, shaped}
		i, _, err := info("n", reply[:min(max(n, 0), len(reply))])
		if err == nil && (i.ExpiresIn < 0 || i.Token < 0) {
			t.Errorf("%v: read as %+v", reply, i)
		}
	})
}

// Whatever a look is answered about a group, it is an error or what a group can be.
func FuzzMembers(f *testing.F) {
	f.Add("shared:r:7", int64(2), int64(7), "", int64(0), 5, "7", "0")
	f.Add("shared:p:3", int64(1), int64(7), "owner\x00move", int64(1), 5, "7", "2")
	f.Add("shared:p:3", int64(0), int64(0), "", int64(1), 5, "x", "-1")
	f.Add("x", int64(-1), int64(-7), "o", int64(2), 3, "", "")
	f.Fuzz(func(t *testing.T, text string, n, token int64, owner string, pending int64, length int, of, slot string) {
		group := []any{n, token, owner, pending, []any{[]any{"0123", of, slot, owner, pending}}}
		reply := []any{text, int64(1), int64(1000), int64(0), int64(1), group[:min(max(length, 0), len(group))]}
		i, _, err := info("n", reply)
		if err == nil && (i.Token < 0 || i.Holders < 0 || i.Holders > 0 && i.Mode == backend.Exclusive) {
			t.Errorf("%v: read as %+v", reply, i)
		}
		for _, h := range i.Holds {
			if err == nil && (h.Token < 0 || h.Slot < 0) {
				t.Errorf("%v: read as %+v", reply, h)
			}
		}
	})
}

// A look whose answer about a group has a part of another type says so.
func TestInfoOfAnotherShape(t *testing.T) {
	t.Parallel()
	for i := range 10 {
		hold := []any{"0123", "7", "0", "owner", int64(1000)}
		group := []any{int64(1), int64(7), "owner", int64(0), []any{hold}}
		reply := []any{"shared:r:7", int64(1), int64(1000), int64(0), int64(1), group}
		if _, _, err := info("n", reply); err != nil {
			t.Fatal(err)
		}
		if i < 5 {
			group[i] = 1.5
		} else {
			hold[i-5] = 1.5
		}
		if got, _, err := info("n", reply); err == nil {
			t.Errorf("%v: read as %+v", reply, got)
		}
	}
}

// What a push gives is whole, or nothing.
func TestReadGiven(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*given{
		"1:2": {ask: 1, token: 2}, "1:2:0": {ask: 1, token: 2}, "1:2:3": {ask: 1, token: 2, slot: 3},
		"": nil, "1": nil, "x:2": nil, "1:x": nil, "1:2:x": nil, "1:2:": nil, "0:2": nil, "-1:2": nil, "1:0": nil,
		"1:-2": nil, "1:2:-1": nil,
	} {
		if got := readGiven(text); (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
