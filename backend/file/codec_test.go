package file

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

var hostile = []string{
	"a", "a/b", "A", "..", ".", "/", "//", " ", "  ", "\t", "\n", "a\nb", "a\r\n",
	`"`, `\`, `\n`, "'", "`", "{}", "{a}b", "%", "%00", "%s",
	"é", "e\u0301", "\u2028", "\ufeff", "\ufffd", "\u202e", "日本", "🔒", "\x7f",
	"\x01", "sum 0000000000000000", "\nsum 0000000000000000\n",
	"holder", "lock x y 0", "00.state", "FORMAT", "-", "a b c",
	strings.Repeat("x", 512), strings.Repeat("🔒", 128), strings.Repeat("\x01", 512),
}

func TestHostileNames(t *testing.T) {
	d := newQuiet(t, t.TempDir())
	other := newQuiet(t, d.store.hub.dir)
	hs := map[string]*core.Hold{}
	for _, name := range hostile {
		r := try(name, time.Minute)
		r.Owner = name
		hs[name] = take(t, d, r)
	}
	for name, h := range hs {
		if i := inspect(t, other, name); i.Token != h.Token || i.Owner != name || i.Name != name {
			t.Errorf("Inspect(%q): got %+v, want token %d", name, i, h.Token)
		}
	}
	n := 0
	for i, err := range other.List(t.Context(), "") {
		if err != nil || hs[i.Name] == nil {
			t.Errorf("List: got %+v, %v", i, err)
		}
		n++
	}
	if n != len(hostile) {
		t.Errorf("List: got %d names, want %d", n, len(hostile))
	}
	for name, h := range hs {
		release(t, d, h)
		if i := inspect(t, other, name); i.Held {
			t.Errorf("%q is held after its release", name)
		}
	}
}

// full is a state with everything in it.
func full() *state {
	st := newState("b-1", 1<<52)
	for i, name := range hostile {
		l := &lock{freed: int64(-i)}
		st.locks[key{hostile[len(hostile)-1-i], name}] = l
		if i%3 != 1 {
			l.holds = []holder{{nonce: nonce(), owner: name, token: int64(i), until: 1 << 62}}
		}
		if i%3 != 0 {
			l.queue = []waiter{{nonce: nonce(), until: 5}, {nonce: "odd one\n", socket: "wake-2-ff.sock", until: -5}}
		}
		st.released = append(st.released, ended{nonce(), int64(i) + 1})
		st.abandoned = append(st.abandoned, ended{nonce(), int64(-i) - 1})
		if l.holds != nil && i%2 == 0 {
			l.holds[0].both = name
		}
		switch reader, permit := (way{mode: backend.Reader}), (way{backend.Permit, 3}); i % 7 {
		case 3:
			l.era = int64(i) + 1
			l.holds = []holder{
				{nonce: nonce(), owner: name, token: 1, until: 1 << 62, way: reader},
				{nonce: nonce(), token: l.era, until: -1, way: reader, both: name},
			}
			l.queue = append(l.queue, waiter{nonce: nonce(), until: 7, way: permit, called: 6})
		case 4:
			l.holds = []holder{
				{nonce: nonce(), owner: name, token: 9, until: 1 << 62, way: permit, slot: 2},
				{nonce: nonce(), token: 8, until: 3, way: way{backend.Permit, 1024}, slot: 0},
			}
			l.queue = append(l.queue, waiter{nonce: nonce(), until: 7, way: reader})
		}
		st.records[key{name, backend.ClientKey + name + "\x00" + name}] = record{`{"a": "b c"}`, int64(i)}
	}
	return st
}

// shrink leaves a few locks and ends: such files are tried faster.
func (st *state) shrink() {
	n := 0
	maps.DeleteFunc(st.locks, func(key, *lock) bool { n++; return n > 3 })
	st.released, st.abandoned = st.released[:3], st.abandoned[:3]
}

func TestCodecRoundTrip(t *testing.T) {
	for name, st := range map[string]*state{
		"new":  newState("x", 0),
		"full": full(),
	} {
		got, err := decode(seal(st.encode(7), 0), 7)
		if err != nil || !reflect.DeepEqual(got, st) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, st)
		}
	}
}

// A file is as large as it is to be, and says the same, whatever its size.
func TestFileOfAnySize(t *testing.T) {
	want := full()
	want.shrink()
	body := want.encode(7)
	for size := range len(body) + 100 {
		raw := seal(bytes.Clone(body), size)
		got, err := decode(raw, 7)
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		fits := size-len(body)-sumSize >= len("abandoned  0\n")
		if fits && len(raw) != size || !fits && len(raw) != len(body)+sumSize {
			t.Fatalf("size %d: got %d bytes, the state needs %d", size, len(raw), len(body)+sumSize)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("size %d: the state is not what it was", size)
		}
	}
}

func TestEveryTruncationIsFound(t *testing.T) {
	st := full()
	st.shrink()
	raw := seal(st.encode(7), 0)
	for n := range raw {
		if _, err := decode(raw[:n], 7); err == nil {
			t.Fatalf("the first %d of %d bytes were taken for a state", n, len(raw))
		}
	}
	for n := range raw {
		bad := bytes.Clone(raw)
		bad[n] ^= 1
		if _, err := decode(bad, 7); err == nil {
			t.Fatalf("byte %d was changed and nobody saw it", n)
		}
	}
}

func signed(body string) string {
	return body + sumLine([]byte(body))
}

const head = "fencelock state 1 bucket %d\nboot b\ncounter 1\n"

// badFiles are texts under the name of a state file; signed ones get the right sum.
var badFiles = map[string]string{
	"empty":         "",
	"hello":         "hello\n",
	"JSON":          `{"version":1}`,
	"binary":        "\x00\x01\x02",
	"newer":         signed("fencelock state 2 bucket %d\nboot b\n"),
	"other bucket":  signed("fencelock state 1 bucket 99\nboot b\ncounter 1\n"),
	"no sum":        head,
	"wrong sum":     head + "sum 0000000000000000\n",
	"after the sum": signed(head) + "\n",
	"no counter":    signed("fencelock state 1 bucket %d\nboot b\n"),
	"no boot":       signed("fencelock state 1 bucket %d\ncounter 1\n"),
	"unknown":       signed(head + "lease a 1\n"),
	"no name":       signed(head + "holder n 1 1  o\n"),
	"nobody's":      signed(head + "waiter n 1 \n"),
	"twice":         signed(head + "lock p a 0\nwaiter n 1 \nlock p a 0\nwaiter n 1 \n"),
	"two holders":   signed(head + "lock p a 0\nholder n 1 1  o\nholder m 1 1  o\n"),
	"escaping":      signed(head + "lock p a 0\nwaiter n 1 wake-%%2F..%%2F..%%2Fx.sock\n"),
	"foreign":       signed(head + "lock p a 0\nwaiter n 1 x.sock\n"),
	"no nonce":      signed(head + "lock p a 0\nwaiter  1 \n"),
	"token":         signed(head + "lock p a 0\nholder n 9007199254740992 1  o\n"),
	"bad name":      signed(head + "lock p %%00 0\nwaiter n 1 \n"),
	"bad escape":    signed(head + "lock p %%zz 0\nwaiter n 1 \n"),
	"no number":     signed(head + "released n x\n"),
	"too much":      signed(head + "released n 1 2\n"),
	"too little":    signed(head + "released n\n"),
	"spaces":        signed(head + "released  n 1\n"),

	"reader and writer":   signed(head + "lock p a 0\nera 1\nholder n 1 1  o\nholder m 1 1  o reader 0 0\n"),
	"reader and permit":   signed(head + "lock p a 0\nera 1\nholder n 1 1  o permit 2 0\nholder m 1 1  o reader 0 0\n"),
	"a permit too many":   signed(head + "lock p a 0\nholder n 1 1  o permit 1 0\nholder m 1 1  o permit 2 1\n"),
	"one slot twice":      signed(head + "lock p a 0\nholder n 1 1  o permit 2 1\nholder m 1 1  o permit 2 1\n"),
	"slot out of range":   signed(head + "lock p a 0\nholder n 1 1  o permit 2 2\n"),
	"slot below 0":        signed(head + "lock p a 0\nholder n 1 1  o permit 2 -1\n"),
	"of nothing":          signed(head + "lock p a 0\nholder n 1 1  o permit 0 0\n"),
	"no such mode":        signed(head + "lock p a 0\nholder n 1 1  o writer 0 0\n"),
	"exclusive in words":  signed(head + "lock p a 0\nholder n 1 1  o exclusive 0 0\n"),
	"a waiter in words":   signed(head + "lock p a 0\nwaiter n 1  exclusive 0 0\n"),
	"a waiter of no mode": signed(head + "lock p a 0\nwaiter n 1  permits 2 0\n"),
	"half a mode":         signed(head + "lock p a 0\nwaiter n 1  reader 0\n"),
	"readers without era": signed(head + "lock p a 0\nholder n 1 1  o reader 0 0\n"),
	"era behind a reader": signed(head + "lock p a 0\nera 1\nholder n 2 1  o reader 0 0\n"),
	"era of a permit":     signed(head + "lock p a 0\nera 1\nholder n 1 1  o permit 2 0\n"),
	"era of a writer":     signed(head + "lock p a 0\nera 1\nholder n 1 1  o\n"),
	"era of nobody":       signed(head + "lock p a 0\nera 1\nwaiter n 1 \n"),
	"two eras":            signed(head + "lock p a 0\nera 1\nera 2\nholder n 1 1  o reader 0 0\n"),
	"era without a lock":  signed(head + "era 1\n"),
}

func TestBadFilesAreInvalid(t *testing.T) {
	for name, text := range badFiles {
		t.Run(name, func(t *testing.T) {
			d := newQuiet(t, t.TempDir())
			b := d.store.bucket("x")
			body, tail := text, ""
			if i := strings.Index(text, "sum "); i >= 0 && strings.Contains(text, "%d") {
				body, tail = text[:i], text[i:]
			}
			raw := strings.ReplaceAll(body, "%d", fmt.Sprint(b.index))
			if tail != "" && !strings.HasPrefix(tail, "sum 0000000000000000") {
				tail = strings.TrimPrefix(signed(raw), raw) + tail[len("sum 0000000000000000\n"):]
			}
			if err := os.WriteFile(b.path, []byte(raw+tail), 0o600); err != nil {
				t.Fatal(err)
			}
			h := &core.Hold{Request: try("x", time.Minute)}
			_, acquire := d.Acquire(t.Context(), h.Request)
			_, waits := d.Acquire(t.Context(), wait("x", time.Minute))
			_, look := d.Inspect(t.Context(), "x")
			var list error
			for _, err := range d.List(t.Context(), "") {
				list = errors.Join(list, err)
			}
			for what, err := range map[string]error{
				"Acquire": acquire, "Acquire with Wait": waits, "Inspect": look, "List": list,
				"Renew":   d.Renew(t.Context(), []*core.Hold{h})[0],
				"Check":   d.Check(t.Context(), []*core.Hold{h})[0],
				"Release": d.Release(t.Context(), h), "Abandon": d.Abandon(t.Context(), h.Request),
				"Break": d.Break(t.Context(), "x"), "Raise": d.Raise(t.Context(), 1),
			} {
				if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), b.path) {
					t.Errorf("%s: got %v, want ErrInvalid that names %s", what, err, b.path)
				}
			}
			if now, err := os.ReadFile(b.path); err != nil || string(now) != raw+tail {
				t.Errorf("the file was changed: %q, %v", now, err)
			}
		})
	}
}

func TestOtherBoot(t *testing.T) {
	d := newQuiet(t, t.TempDir())
	b := d.store.bucket("x")
	st := newState("another", 1<<52)
	st.locks[d.store.key("x")] = &lock{holds: []holder{{nonce: nonce(), token: 1 << 52, until: 1 << 62}}}
	if err := os.WriteFile(b.path, seal(st.encode(b.index), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if i := inspect(t, d, "x"); i.Held {
		t.Errorf("a hold of another boot lives: %+v", i)
	}
	if h := take(t, d, try("x", time.Minute)); h.Token != 1<<52+1 {
		t.Errorf("token: got %d, want %d", h.Token, 1<<52+1)
	}
}

// withoutSum is the file of a state without its last line.
func withoutSum(st *state) string { return string(st.encode(7)) }

func FuzzState(f *testing.F) {
	st := full()
	st.shrink() // small ones are tried faster
	f.Add(withoutSum(st))
	f.Add(withoutSum(newState("x", 0)))
	for _, text := range []string{
		"waiter n 1 \n",
		"waiter n 1  reader 0 0\nwaiter m 2 wake-1.sock permit 3 -1\nwaiter o 3 \n",
		"era 1\nholder n 1 9  o reader 0 0\nholder m 1 0 m  reader 0 0\nwaiter o 3 \nwaiter p 4  reader 0 2\n",
		"holder n 1 9  o permit 2 1\nholder m 1 0 m  permit 3 0\nwaiter p 4  permit 5 2\n",
		"holder n 1 9  o\nwaiter p 4  reader 0 0\n",
	} {
		f.Add("fencelock state 1 bucket 7\nboot b\ncounter 1\nlock p a%20b 0\n" + text)
	}
	f.Fuzz(func(t *testing.T, body string) {
		// What is on disk, as it is and with a sum that is right.
		_, _ = decode([]byte(body), 7)
		st, err := decode([]byte(signed(body)), 7)
		if err != nil {
			return
		}
		raw := seal(st.encode(7), 0)
		again, err := decode(raw, 7)
		if err != nil || !reflect.DeepEqual(st, again) {
			t.Fatalf("written again: got %+v, %v, want %+v", again, err, st)
		}
		for k, l := range st.locks {
			if backend.CheckName(k.name) != nil || l == nil {
				t.Fatalf("lock %+v: %+v", k, l)
			}
		}
		st.now = 1
		st.sweep()
		for _, l := range st.locks {
			l.serve(st.now)
		}
		if _, err := decode(seal(st.encode(7), 0), 7); err != nil {
			t.Fatalf("swept: %v", err)
		}
	})
}
