package file

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

var hostile = []string{
	"a", "a/b", "A", "..", ".", "/", "//", " ", "  ", "\t", "\n", "a\nb", "a\r\n", `"`, `\`, `\n`, "'", "`", "{}", "{a}b", "%", "%00", "%s",
	"é", "e\u0301", "\u2028", "\ufeff", "\ufffd", "\u202e", "日本", "🔒", "\x7f", "\x01", "sum 0000000000000000", "\nsum 0000000000000000\n",
	"hold", "name x y 0", "00.state", "FORMAT", "-", "a b c", strings.Repeat("x", 512), strings.Repeat("🔒", 128), strings.Repeat("\x01", 512),
}

func TestHostileNames(t *testing.T) {
	d := newQuiet(t, t.TempDir())
	other := newQuiet(t, d.ears.dir)
	hs := map[string]*backend.Hold{}
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
	st := &state{boot: "b-1", counter: 1 << 52}
	for i, name := range hostile {
		e := st.entry(hostile[len(hostile)-1-i], name)
		e.free = int64(-i)
		if i%3 != 1 {
			e.hold = &hold{nonce: nonce(), owner: name, token: int64(i), until: 1 << 62, ear: "wake-1-ff.sock"}
		}
		if i%3 != 0 {
			e.queue = []waiter{{nonce: nonce(), until: 5}, {nonce: "odd one\n", ear: "wake-2-ff.sock", until: -5}}
		}
		st.mark(nonce(), i%2 == 0, int64(i))
		if e.hold != nil && i%2 == 0 {
			e.hold.both = name
		}
		st.gates = append(st.gates, gate{name, backend.Gate{Move: name, Scope: backend.Scope{{Match: "a \n*"}, {Match: "x", Stays: true}}, State: backend.GateBoth, Epoch: 1}})
		st.clients = append(st.clients, client{name, int64(i), backend.Client{ID: name, Move: name, PID: i, Since: time.Unix(7, 8).UTC()}})
	}
	return st
}

func TestCodecRoundTrip(t *testing.T) {
	for name, st := range map[string]*state{
		"new":  {boot: "x"},
		"full": full(),
	} {
		got, err := decode(st.encode(7), 7)
		if err != nil || !reflect.DeepEqual(got, st) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, st)
		}
	}
}

func TestEveryTruncationIsFound(t *testing.T) {
	st := full()
	st.entries, st.marks = st.entries[:3], st.marks[:3]
	raw := st.encode(7)
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
	return fmt.Sprintf("%ssum %016x\n", body, checksum([]byte(body)))
}

const head = "fencelock state 1 bucket %d\nboot b\ncounter 1\n"

// badFiles are texts under the name of a state file; signed ones get the right sum.
var badFiles = map[string]string{
	"empty":         "",
	"foreign":       "hello\n",
	"JSON":          `{"version":1}`,
	"binary":        "\x00\x01\x02",
	"newer":         signed("fencelock state 2 bucket %d\nboot b\n"),
	"other bucket":  signed("fencelock state 1 bucket 99\nboot b\ncounter 1\n"),
	"no sum":        head,
	"wrong sum":     head + "sum 0000000000000000\n",
	"after the sum": signed(head) + "\n",
	"no counter":    signed("fencelock state 1 bucket %d\nboot b\n"),
	"unknown":       signed(head + "lease a 1\n"),
	"bare name":     signed(head + "name p a 0\n"),
	"bare name, 2":  signed(head + "name p a 0\nname p b 0\nwait n 1 \"\"\n"),
	"bare name, 3":  signed(head + "name p a 0\nreleased n 1\n"),
	"no name":       signed(head + "hold n 1 1 \"\" o\n"),
	"twice":         signed(head + "name p a 0\nwait n 1 \"\"\nname p a 0\nwait n 1 \"\"\n"),
	"two holders":   signed(head + "name p a 0\nhold n 1 1 \"\" o\nhold m 1 1 \"\" o\n"),
	"escaping":      signed(head + "name p a 0\nwait n 1 wake-/../../x.sock\n"),
	"token":         signed(head + "name p a 0\nhold n 9007199254740992 1 \"\" o\n"),
	"bad name":      signed(head + "name p \"\\x00\" 0\nwait n 1 \"\"\n"),
	"too much":      signed(head + "released n 1 2\n"),
	"too little":    signed(head + "released n\n"),
	"spaces":        signed(head + "released  n 1\n"),
}

func TestBadFilesAreInvalid(t *testing.T) {
	for name, text := range badFiles {
		t.Run(name, func(t *testing.T) {
			d := newQuiet(t, t.TempDir())
			b := d.bucket("x")
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
			h := &backend.Hold{Request: try("x", time.Minute)}
			_, acquire := d.Acquire(t.Context(), h.Request)
			_, waits := d.Acquire(t.Context(), wait("x", time.Minute))
			_, look := d.Inspect(t.Context(), "x")
			var list error
			for _, err := range d.List(t.Context(), "") {
				list = errors.Join(list, err)
			}
			for what, err := range map[string]error{
				"Acquire": acquire, "Acquire with Wait": waits, "Inspect": look, "List": list,
				"Renew":   d.Renew(t.Context(), []*backend.Hold{h})[0],
				"Check":   d.Check(t.Context(), []*backend.Hold{h})[0],
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
	b := d.bucket("x")
	st := &state{boot: "another", counter: 1 << 52}
	st.entry(d.prefix, "x").hold = &hold{nonce: nonce(), token: 1 << 52, until: 1 << 62}
	if err := os.WriteFile(b.path, st.encode(b.index), 0o600); err != nil {
		t.Fatal(err)
	}
	if i := inspect(t, d, "x"); i.Held {
		t.Errorf("a hold of another boot lives: %+v", i)
	}
	if h := take(t, d, try("x", time.Minute)); h.Token != 1<<52+1 {
		t.Errorf("token: got %d, want %d", h.Token, 1<<52+1)
	}
}

func FuzzState(f *testing.F) {
	st := full()
	st.entries, st.marks = st.entries[:3], st.marks[:3] // small ones are tried faster
	f.Add(string(st.body(7)))
	f.Add(string((&state{boot: "x"}).body(7)))
	f.Add("fencelock state 1 bucket 7\nboot b\ncounter 1\nname p \"a b\" 0\nwait n 1 \"\"\n")
	f.Fuzz(func(t *testing.T, body string) {
		// What is on disk, as it is and with a sum that is right.
		_, _ = decode([]byte(body), 7)
		st, err := decode([]byte(signed(body)), 7)
		if err != nil {
			return
		}
		raw := st.encode(7)
		again, err := decode(raw, 7)
		if err != nil || !reflect.DeepEqual(st, again) {
			t.Fatalf("written again: got %+v, %v, want %+v", again, err, st)
		}
		for _, e := range st.entries {
			if backend.CheckName(e.name) != nil || st.find(e.prefix, e.name) != e {
				t.Fatalf("entry %+v cannot be found", e)
			}
		}
		st.sweep(1)
		if _, err := decode(st.encode(7), 7); err != nil {
			t.Fatalf("swept: %v", err)
		}
	})
}
