package peers

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every fault that is made on purpose
	// A cell waits for most of its time.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const results = "results.json"

// tries is how often a question is asked before another answer than the recorded one counts: a
// machine that stalls for a second can give it once. Where it would mean that this library lets two
// hold a lock, it counts at once.
const tries = 3

// asked reports whether a question is put to a library.
func (l library) asked(question string) bool {
	return Racy[question+"/"+l.name] == "" && (l.only == "" || l.only == question)
}

// state judges what was seen. What this library does not keep is broken, whatever it says.
func (s seen) state(cell string, lib library) string {
	_, promised := Promises[cell]
	switch {
	case s.kept:
		return Kept
	case s.offered && (promised || lib.ours):
		return Broken
	}
	return NotOffered
}

// Each question is put to each library, and what is seen is what was recorded. UPDATE=1 records it.
func TestPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("faults on real servers")
	}
	recorded, err := Load(results)
	if err != nil {
		t.Fatal(err)
	}
	update := os.Getenv("UPDATE") != ""
	l := &lab{whole: t, addrs: map[string][]string{}, now: Results{Servers: map[string]string{}}}
	var mu sync.Mutex
	t.Cleanup(func() {
		if !update || t.Failed() {
			return
		}
		if err := Record(results, l.now); err != nil {
			t.Error(err)
		}
	})
	for _, q := range Questions {
		t.Run(q.Name, func(t *testing.T) {
			t.Parallel()
			for _, lib := range libraries() {
				if !lib.asked(q.Name) {
					continue
				}
				t.Run(lib.name, func(t *testing.T) {
					t.Parallel()
					c := &cell{T: t, lib: lib, addrs: l.servers(t, lib.store)}
					want, _ := recorded.Of(q.Name + "/" + lib.name)
					var f Found
					for range tries {
						got, err := c.try(ask[q.Name])
						if err != nil {
							t.Logf("not asked: %v", err)
							continue
						}
						f = Found{q.Name, lib.name, got.state(q.Name+"/"+lib.name, lib), got.what}
						t.Logf("%s: %s: %s", f.Cell(), f.State, f.Seen)
						if update || f.State == want.State || lib.ours && q.Unsafe {
							break
						}
					}
					if f.State == "" || !update && f.State != want.State {
						t.Errorf("got %q, recorded is %q: UPDATE=1 records what is seen", f.State, want.State)
						return
					}
					mu.Lock()
					l.now.Found = append(l.now.Found, f)
					mu.Unlock()
				})
			}
		})
	}
}

func columns() []Column {
	var all []Column
	for _, l := range libraries() {
		all = append(all, Column{l.name, l.module, l.settings})
	}
	return all
}

// Every cell was run, is broken only where a promise is named, and is green here.
func TestTable(t *testing.T) {
	r, err := Load(results)
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]bool{}
	for _, q := range Questions {
		if ask[q.Name] == nil {
			t.Errorf("nobody asks %s", q.Name)
		}
		for _, l := range libraries() {
			name := q.Name + "/" + l.name
			if Racy[name] != "" {
				cells[name] = true
			}
			if !l.asked(q.Name) {
				continue
			}
			cells[name] = true
			f, ok := r.Of(name)
			_, promised := Promises[name]
			switch {
			case !ok:
				t.Errorf("%s was not run", name)
			case promised != (f.State == Broken):
				t.Errorf("%s is %s, and a broken promise is named: %v", name, f.State, promised)
			}
		}
	}
	for _, f := range r.Found {
		if !cells[f.Cell()] {
			t.Errorf("%s: no such cell", f.Cell())
		}
	}
	for name := range Promises {
		if !cells[name] {
			t.Errorf("%s: no such cell", name)
		}
	}
	for name := range Racy {
		if !cells[name] {
			t.Errorf("%s: no such cell", name)
		}
	}
}

// part is what stands between <!-- TABLE name: … --> and <!-- /TABLE name -->.
var part = regexp.MustCompile(`(?s)(<!-- TABLE (\w+): [^\n]*-->\n)(.*?)(<!-- /TABLE (\w+) -->)`)

// README.md says what was recorded. UPDATE=1 writes it.
func TestDocs(t *testing.T) {
	r, err := Load(results)
	if err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{
		"cells":  RenderTable(r, columns()),
		"broken": RenderBroken(r, false),
		"twins":  RenderBroken(r, true),
		"not":    RenderNot(r),
		"racy":   RenderRacy(),
		"ran":    RenderRan(r, columns(), string(gomod)),
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	got := part.ReplaceAllStringFunc(string(text), func(whole string) string {
		m := part.FindStringSubmatch(whole)
		if _, ok := parts[m[2]]; !ok || m[2] != m[5] {
			t.Fatalf("there is no part %s that ends with %s", m[2], m[5])
		}
		names = append(names, m[2])
		return m[1] + parts[m[2]] + m[4]
	})
	for name := range parts {
		if !slices.Contains(names, name) {
			t.Errorf("the document lacks the part %s", name)
		}
	}
	if got == string(text) {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Errorf("README.md is not what %s says: UPDATE=1 go test -run TestDocs ./tests/peers", results)
	} else if err := os.WriteFile("README.md", []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A state is what was seen and what was promised.
func TestState(t *testing.T) {
	for _, tt := range []struct {
		s     seen
		cell  string
		ours  bool
		want  string
		shown string
	}{
		{kept("x"), "relock/redsync", false, Kept, "| kept |"},
		{not("x"), "relock/go-zookeeper", false, Broken, "| **broken** |"},
		{not("x"), "relock/redsync", false, NotOffered, "| – |"},
		{not("x"), "relock/fencelock-etcd", true, Broken, "| **broken** |"},
		{none("x"), "relock/fencelock-etcd", true, NotOffered, "| – |"},
	} {
		got := tt.s.state(tt.cell, library{ours: tt.ours})
		if got != tt.want {
			t.Errorf("%+v of %s: got %q, want %q", tt.s, tt.cell, got, tt.want)
		}
		_, lib, _ := strings.Cut(tt.cell, "/")
		r := Results{Found: []Found{{"relock", lib, got, "x"}}}
		if table := RenderTable(r, []Column{{Name: lib}}); !strings.Contains(table, tt.shown) {
			t.Errorf("got no %q in\n%s", tt.shown, table)
		}
	}
}
