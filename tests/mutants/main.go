// Command mutants changes the code in one small way at a time, as a tired programmer would, and lists the changes that
// no test sees:
//
//	go run ./tests/mutants [-only core/send.go] [-every 10] [-workers 2] [-record RESULTS [-again]] [-list] [room...]
//
// Nothing in the repository is written to: the compiler is given the changed file in the place of the other
// (-overlay). A change is made where a test comes by, is tried with the tests of its room, the quickest first, and is
// found if one fails or does not end. ARGUED.txt has the changes that need not be found, each with the reason. With
// -every n one change of n is tried, with -again those that lived by the record.
//
// Mutation analysis is DeMillo, Lipton and Sayward's (Hints on test data selection, IEEE Computer 11(4), 1978), to try
// a sample Acree's (On Mutation, 1980).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A room is code that is tried with the same tests.
type room struct {
	name  string
	files []string // patterns
	tests []string // packages, the quickest first
}

var rooms = []room{
	{
		"core",
		[]string{"internal/core/*.go"},
		[]string{"./internal/core", "./backend/memory", "./backend/migrate", "."},
	},
	{
		"engine", []string{
			"acquire.go", "handover.go", "hold.go", "janitor.go", "lease.go", "lock.go", "lockall.go", "queue.go",
			"renew.go", "unlock.go",
		}, []string{".", "./conformance/simulation"},
	},
	{"contract", []string{"backend/*.go"}, []string{"./backend", "./internal/core", "./backend/memory", "."}},
	{"fence", []string{"fence/*.go"}, []string{"./fence"}},
	{"leader", []string{"leader/*.go"}, []string{"./leader"}},
	{
		"memory",
		[]string{"backend/memory/*.go"},
		[]string{"./backend/memory", "./tests/backends -run=^TestMemoryInVirtualTime$"},
	},
	{"file", []string{"backend/file/*.go"}, []string{"./backend/file", "./tests/backends -run=^TestFile$"}},
	{
		"migrate",
		[]string{"backend/migrate/*.go"},
		[]string{"./backend/migrate", "./tests/backends -run=^TestMigration"},
	},
	{"redis", []string{"redis/*.go"}, []string{"./redis", "./tests/backends -run=^TestRedis$"}},
	{"redlock", []string{"redlock/*.go"}, []string{"./redlock", "./tests/backends -run=^TestRedlock$"}},
	{"etcd", []string{"etcd/*.go"}, []string{"./etcd", "./tests/backends -run=^TestEtcd$"}},
	{"zookeeper", []string{"zookeeper/*.go"}, []string{"./zookeeper", "./tests/backends -run=^TestZooKeeper$"}},
	{"postgres", []string{"postgres/*.go"}, []string{"./postgres", "./tests/backends -run=^TestPostgres"}},
}

// The states of a mutant.
const (
	found   = "found"
	lived   = "lived"
	unbuilt = "not built" // the compiler finds it
	argued  = "argued"    // it need not be found: ARGUED.txt
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "a part of the paths of the files")
	every := flag.Int("every", 1, "one change of so many is tried")
	workers := flag.Int("workers", 2, "how many are tried at once")
	record := flag.String("record", "", "the file that the results are kept in, file by file")
	again := flag.Bool("again", false, "try those that lived, by the record")
	list := flag.Bool("list", false, "list the mutants, and try none")
	flag.Parse()
	if *every < 1 {
		return fmt.Errorf("-every %d: want 1 or more", *every)
	}
	if *again && *record == "" {
		return errors.New("-again: want -record too, which says what lived")
	}
	why, err := readArgued(filepath.Join("tests", "mutants", "ARGUED.txt"))
	if err != nil {
		return fmt.Errorf("in the root of the repository: %w", err)
	}
	all := flag.Args()
	for _, name := range all {
		if !slices.ContainsFunc(rooms, func(r room) bool { return r.name == name }) {
			return fmt.Errorf("no room %q", name)
		}
	}
	living := 0
	for _, r := range rooms {
		if len(all) > 0 && !slices.Contains(all, r.name) {
			continue
		}
		ms, err := r.mutants(*only)
		if err != nil {
			return err
		}
		of := count(ms)
		ms = sample(ms, *every)
		if *again {
			kept, err := read(*record)
			if err != nil {
				return err
			}
			ms = kept[r.name].lived(ms)
		}
		if *list {
			for _, m := range ms {
				fmt.Println(m)
			}
			continue
		}
		var reached coverage
		if slices.ContainsFunc(ms, func(m *mutant) bool { return why[m.key()] == "" }) {
			if reached, err = r.covered(ctx); err != nil {
				return err
			}
		}
		if err := r.try(ctx, ms, reached, why, *workers); err != nil {
			return err
		}
		for _, m := range ms {
			if m.State == lived {
				living++
			}
		}
		if *record != "" {
			if err := put(*record, r.name, ms, of, *again); err != nil {
				return err
			}
		}
	}
	if living > 0 {
		return fmt.Errorf("%d changes are found by no test", living)
	}
	return nil
}

// try tries all mutants of a room.
func (r room) try(
	ctx context.Context, ms []*mutant, reached coverage, why map[string]string, workers int,
) error {
	next := make(chan *mutant)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for m := range next {
				if errs[i] == nil {
					errs[i] = r.one(ctx, m, reached, why)
				}
			}
		})
	}
	for i, m := range ms {
		next <- m
		if i%50 == 49 {
			fmt.Fprintf(os.Stderr, "%s: %d of %d\n", r.name, i+1, len(ms))
		}
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// one tries a mutant.
func (r room) one(ctx context.Context, m *mutant, reached coverage, why map[string]string) error {
	if _, ok := why[m.key()]; ok {
		m.State = argued
		return nil
	}
	m.State = lived
	if !reached.lines[m.File][m.begins] {
		m.By = "no test comes by"
		fmt.Println(m)
		return nil
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return err
	}
	for _, test := range r.tests {
		pkg, flags, _ := strings.Cut(test, " -run=")
		program := filepath.Join(dir, "test")
		build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", overlay,
			"-o", program, pkg)
		if out, err := build.CombinedOutput(); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !bytes.Contains(out, []byte(filepath.Base(m.File))) {
				return fmt.Errorf("%s: %w\n%s", m, err, out)
			}
			m.State = unbuilt
			return nil
		}
		ok, err := passes(ctx, program, pkg, flags, most+3*reached.took[test])
		if err != nil {
			return err
		}
		if !ok {
			m.State, m.By = found, test
			return nil
		}
	}
	fmt.Println(m)
	return nil
}

// passes runs the tests of a package.
func passes(
	ctx context.Context, program, pkg, only string, most time.Duration, more ...string,
) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	args := append([]string{"-test.short", "-test.failfast"}, more...)
	if only != "" {
		args = append(args, "-test.run="+only)
	}
	cmd := exec.CommandContext(limited, program, args...)
	cmd.Dir = pkg
	ownGroup(cmd)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) && !errors.Is(err, exec.ErrWaitDelay) && limited.Err() == nil {
		return false, err
	}
	return err == nil, nil
}

// most is how much longer than three times its time without a change a test may take. Else the change is found.
const most = 5 * time.Second

// coverage is where a room's tests come by, and how long each takes.
type coverage struct {
	lines lines
	took  map[string]time.Duration
}

// covered runs the room's tests without a change.
func (r room) covered(ctx context.Context) (coverage, error) {
	reached := coverage{make(lines), make(map[string]time.Duration)}
	for _, test := range r.tests {
		pkg, only, _ := strings.Cut(test, " -run=")
		profile, err := os.CreateTemp("", "cover")
		if err != nil {
			return reached, err
		}
		_ = profile.Close()
		defer os.Remove(profile.Name())
		program := profile.Name() + ".test"
		defer os.Remove(program)
		build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-cover", "-coverpkg", r.packages(),
			"-o", program, pkg)
		if out, err := build.CombinedOutput(); err != nil {
			return reached, fmt.Errorf("%s, without a change: %w\n%s", pkg, err, out)
		}
		began := time.Now()
		ok, err := passes(ctx, program, pkg, only, 10*time.Minute, "-test.coverprofile="+profile.Name())
		reached.took[test] = time.Since(began)
		if err != nil {
			return reached, err
		}
		if !ok {
			return reached, fmt.Errorf("%s: the tests fail without a change", pkg)
		}
		text, err := os.ReadFile(profile.Name())
		if err != nil {
			return reached, err
		}
		reached.lines.read(string(text))
	}
	return reached, nil
}

// packages are the packages of the room's files.
func (r room) packages() string {
	var all []string
	for _, f := range r.files {
		if p := "./" + filepath.Dir(f); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return strings.Join(all, ",")
}

// sample is one mutant of so many.
func sample(ms []*mutant, every int) []*mutant {
	var some []*mutant
	for i := every / 2; i < len(ms); i += every {
		some = append(some, ms[i])
	}
	return some
}

// count is how many mutants each file has.
func count(ms []*mutant) map[string]int {
	all := make(map[string]int)
	for _, m := range ms {
		all[m.File]++
	}
	return all
}

// Result is the outcome of the mutants of a file that were tried.
type Result struct {
	Date    string
	All     int // mutants that the file has
	Found   int
	Unbuilt int
	Argued  int
	Lived   []*mutant
}

// Results are by room and file.
type Results map[string]Files

// read returns what is in a file; nothing, if it is not there.
func read(path string) (Results, error) {
	all := make(Results)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// Files are the results of a room.
type Files map[string]Result

// lived returns the mutants among ms that no test has found.
func (fs Files) lived(ms []*mutant) []*mutant {
	return slices.DeleteFunc(slices.Clone(ms), func(m *mutant) bool {
		return !slices.ContainsFunc(fs[m.File].Lived, func(o *mutant) bool { return o.key() == m.key() })
	})
}

// put keeps the results of a room in a file. all is how many mutants each of its files has. With again, ms are those
// that had lived, and what became of the others stays.
func put(path, room string, ms []*mutant, all map[string]int, again bool) error {
	kept, err := read(path)
	if err != nil {
		return err
	}
	if kept[room] == nil {
		kept[room] = make(Files)
	}
	now := make(Files)
	for file, n := range all {
		was := kept[room][file]
		now[file] = Result{Date: time.Now().UTC().Format(time.DateOnly), All: n}
		if again {
			now[file] = Result{was.Date, was.All - len(was.Lived), was.Found, was.Unbuilt, was.Argued, nil}
		}
	}
	for _, m := range ms {
		r := now[m.File]
		if again { // a line that is there no more has no mutant any more
			r.All++
		}
		switch m.State {
		case found:
			r.Found++
		case unbuilt:
			r.Unbuilt++
		case argued:
			r.Argued++
		default:
			r.Lived = append(r.Lived, m)
		}
		now[m.File] = r
	}
	maps.Copy(kept[room], now)
	text, err := json.MarshalIndent(kept, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
