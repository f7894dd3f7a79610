package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const source = `package p

func f(a, b int, ok bool) (n int) {
	mu.Lock()
	defer mu.Unlock()
	if a < b && !ok {
		n = g(a,
			b)
	}
	n++
	defer done()
	go done()
	return n
}
`

func TestMutantsOf(t *testing.T) {
	t.Parallel()
	ms, err := mutantsOf("p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range ms {
		got = append(got, m.Do+": "+m.Was)
	}
	want := []string{
		"no call: mu.Lock()",
		"|| for &&: if a < b && !ok {",
		">= for <: if a < b && !ok {",
		"<= for <: if a < b && !ok {",
		"no !: if a < b && !ok {",
		"no assignment: n = g(a,",
		"-- for ++: n++",
		"no defer: defer done()",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A test that gets to a switch gets to the conditions of its cases, of which a profile says nothing.
func TestWhereATestComesBy(t *testing.T) {
	t.Parallel()
	ms, err := mutantsOf("p.go", []byte(`package p

func f(a, b int) {
	switch {
	case a < 1,
		b == 2:
		a--
	}
}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, m := range ms {
		got = append(got, m.begins)
	}
	if want := []int{4, 4, 4, 7}; !slices.Equal(got, want) {
		t.Errorf("got lines %v, want %v", got, want)
	}
}

// The changed file has the other's lines.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("p.go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	ms, err := mutantsOf("p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		to := t.TempDir()
		overlay, err := m.overlay(to)
		if err != nil {
			t.Fatal(err)
		}
		var of struct{ Replace map[string]string }
		text, err := os.ReadFile(overlay)
		if err == nil {
			err = json.Unmarshal(text, &of)
		}
		if err != nil || len(of.Replace) != 1 {
			t.Fatalf("got %v, %v", of, err)
		}
		for _, file := range of.Replace {
			changed, err := os.ReadFile(file)
			if err != nil || string(changed) == source {
				t.Errorf("%s: the file is the same (%v)", m, err)
			}
			if got, want := strings.Count(string(changed), "\n"), strings.Count(source, "\n"); got != want {
				t.Errorf("%s: got %d lines, want %d", m, got, want)
			}
		}
	}
}

// What is argued is there, and has a reason.
func TestArgued(t *testing.T) {
	t.Chdir("../..")
	why, err := readArgued("tests/mutants/ARGUED.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rooms {
		ms, err := r.mutants("")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			if reason, ok := why[m.key()]; ok {
				if reason == "" {
					t.Errorf("%s: no reason", m.key())
				}
				delete(why, m.key())
			}
		}
	}
	for key := range why {
		t.Errorf("%s: there is no such change", key)
	}
}

// One change of so many is tried, and a file of which none is tried counts all the same.
func TestSample(t *testing.T) {
	t.Parallel()
	ms := []*mutant{{File: "a"}, {File: "a"}, {File: "b", State: found}, {File: "c"}, {File: "c"}}
	for every, want := range map[int][]*mutant{1: ms, 2: {ms[1], ms[3]}, 5: {ms[2]}, 11: nil} {
		if got := sample(ms, every); !slices.Equal(got, want) {
			t.Errorf("one of %d: got %d of them, want %d", every, len(got), len(want))
		}
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := put(path, "core", sample(ms, 5), count(ms), false); err != nil {
		t.Fatal(err)
	}
	all, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := render(all); !strings.Contains(got, "| 5 | 1 | 1 | 1 | 0 | 0 |") {
		t.Errorf("got %s, want one of 5 tried, and found", got)
	}
}

// Those that lived are tried again alone: what became of the others stays, and who is there no more counts no more.
func TestAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	ms := []*mutant{
		{File: "a", Was: "1", State: found},
		{File: "a", Was: "2", State: lived},
		{File: "a", Was: "3", State: lived},
		{File: "a", Was: "4", State: lived},
	}
	if err := put(path, "core", ms, count(ms), false); err != nil {
		t.Fatal(err)
	}
	all, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	left := all["core"].lived(ms[:3]) // the last one's line has gone
	if !slices.Equal(left, ms[1:3]) {
		t.Fatalf("got %v to be tried again, want %v", left, ms[1:3])
	}
	left[0].State = found
	if err := put(path, "core", left, count(ms[:3]), true); err != nil {
		t.Fatal(err)
	}
	if all, err = read(path); err != nil {
		t.Fatal(err)
	}
	if got := render(all); !strings.Contains(got, "| 3 | 3 | 3 | 2 | 0 | 1 |") {
		t.Errorf("got %s, want three, of which two are found and one lives", got)
	}
}

// README.md has what results.json has: UPDATE=1 writes it.
func TestReadme(t *testing.T) {
	t.Parallel()
	all, err := read("results.json")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(page), "<!-- TABLE -->\n")
	want := head + "<!-- TABLE -->\n" + render(all)
	switch {
	case !ok:
		t.Error("README.md: no <!-- TABLE -->")
	case os.Getenv("UPDATE") != "":
		err = os.WriteFile("README.md", []byte(want), 0o644)
	case string(page) != want:
		t.Error("README.md is not what results.json has: UPDATE=1 go test ./tests/mutants")
	}
	if err != nil {
		t.Error(err)
	}
}
