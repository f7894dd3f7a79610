package history_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// put writes a file, compressed if its name says so.
func put(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	raw := []byte(text)
	if strings.HasSuffix(name, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(raw); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		raw = b.Bytes()
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	h := append(used("a", 1, 10, 20), used("b", 2, 30, 40)...)
	path := filepath.Join(t.TempDir(), "h.jsonl")
	want := history.Options{Plain: true, Brittle: true}
	if err := history.Save(path, h, want); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, put(t, "h.jsonl.gz", string(text))} {
		if got, o, err := history.Load(p); err != nil || !slices.Equal(got, h) || o != want {
			t.Errorf("%s: got %+v, %+v, %v, want what was saved", p, got, o, err)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	const good = `{"kind":"granted","process":"a","name":"x","token":1,"called":1,"at":2,"until":9}` + "\n"
	for _, c := range []struct{ what, name, text, want string }{
		{"nothing", "h", "", "it is empty"},
		{"cut off", "h", good + good[:40], "h:2: the file is cut off in this line"},
		{"another format", "h", "Process,Time\na,1\n", "h:1: it is no event of a history"},
		{"another JSON", "h", good + `{"f":"acquire"}` + "\n", `h:2: it is no event of a history: json: unknown`},
		{"an array", "h", "[" + good + "]\n", "h:1: "},
		{"an empty line", "h", good + "\n" + good, "h:2: the line is empty"},
		{"two in a line", "h", good + strings.Replace(good, "\n", good, 1), "h:2: there is more behind the event"},
		{"no kind", "h", "{}\n", `h:1: kind "" is none of a history`},
		{"another kind", "h", `{"kind":"stolen"}` + "\n", `h:1: kind "stolen"`},
		{"no name", "h", `{"kind":"asked","process":"a"}` + "\n", `h:1: kind "asked": it has no name`},
		{"no token", "h", `{"kind":"ended","name":"x"}` + "\n", `h:1: kind "ended": token 0`},
		{"no result", "h", `{"kind":"freed","name":"x","token":1}` + "\n", `h:1: kind "freed": it has no result`},
		{"another result", "h", `{"kind":"asked","name":"x","result":"no"}` + "\n", `h:1: result "no" is none`},
		{"back in time", "h", strings.Replace(good, `"at":2`, `"at":0`, 1), `h:1: kind "granted": it was called`},
		{"no gzip", "h.gz/", good, "h.gz: it is not compressed with gzip"},
	} {
		name, plain := strings.CutSuffix(c.name, "/")
		path := put(t, strings.TrimSuffix(name, ".gz"), c.text)
		if plain { // as it is, under that name
			if err := os.Rename(path, path+".gz"); err != nil {
				t.Fatal(err)
			}
			path += ".gz"
		}
		if got, _, err := history.Load(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want %q", c.what, got, err, c.want)
		}
	}
	whole := put(t, "h.gz", strings.Repeat(good, 1000))
	raw, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(whole, raw[:len(raw)-12], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := history.Load(whole); err == nil || !strings.Contains(err.Error(), "unexpected EOF") &&
		!strings.Contains(err.Error(), "cut off") || !strings.Contains(err.Error(), whole+":") {
		t.Errorf("a cut off .gz: got %v, want the line on which it ends", err)
	}
}

// The operations of a lease that was unlocked, of one that nobody unlocked, and of one that nobody learnt of. What
// readers hold at once is no history of a mutex.
func TestEDN(t *testing.T) {
	h := slices.Concat(used("w1.0", 7, 100, 120), []history.Event{
		granted(`w2"`, 8, 120, 150), ended(`w2"`, 8, 130, 150), freed(`w2"`, 8, 130, 140, history.Refused),
		{Kind: history.Asked, Process: "w3", Name: "x", Called: 125, At: 145, Result: history.Unclear},
		{Kind: history.Granted, Process: "w4", Name: "read", Mode: backend.Reader, Called: 1, At: 2, Until: 9},
	})
	got := history.EDN(h, history.Options{})
	text := strings.ReplaceAll(string(got["x"]), ":value {:client ", "V ")
	want := `{:index 0, :time 0, :process 0, :type :invoke, :f :acquire, V "w1.0#7", :fence 0, :uid "0"}}
{:index 1, :time 1, :process 0, :type :ok, :f :acquire, V "w1.0#7", :fence 7, :uid "0"}}
{:index 2, :time 20, :process 0, :type :invoke, :f :acquire, V "w2\"#8", :fence 0, :uid "1"}}
{:index 3, :time 21, :process 1, :type :invoke, :f :release, V "w1.0#7", :fence 0, :uid "2"}}
{:index 4, :time 21, :process 0, :type :ok, :f :acquire, V "w2\"#8", :fence 8, :uid "1"}}
{:index 5, :time 22, :process 1, :type :ok, :f :release, V "w1.0#7", :fence 0, :uid "2"}}
{:index 6, :time 26, :process 0, :type :invoke, :f :acquire, V "w3", :fence 0, :uid "3"}}
{:index 7, :time 31, :process 1, :type :invoke, :f :release, V "w2\"#8", :fence 0, :uid "4"}}
{:index 8, :time 41, :process 1, :type :fail, :f :release, V "w2\"#8", :fence 0, :uid "4"}, :error :not-lock-owner}
{:index 9, :time 46, :process 0, :type :info, :f :acquire, V "w3", :fence 0, :uid "3"}, :error :unknown}
{:index 10, :time 51, :process 1, :type :invoke, :f :release, V "w2\"#8", :fence 0, :uid "5"}}
{:index 11, :time 51, :process 1, :type :info, :f :release, V "w2\"#8", :fence 0, :uid "5"}, :error :unknown}
`
	if len(got) != 1 || text != want {
		t.Errorf("got %d histories,\n%s\nwant\n%s", len(got), text, want)
	}
}
