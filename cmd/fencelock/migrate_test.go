package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/migrate"
)

// guide is docs/migrating.md with a reader who does what it says.
type guide struct {
	*testing.T
	yaml string // of the phase from
	file string // locks.yaml, as deployed last
	left []string
}

// readGuide takes the configuration and the commands out of the document; its URLs become those of real stores.
func readGuide(t *testing.T, old, new string) *guide {
	t.Helper()
	raw, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{T: t, file: filepath.Join(t.TempDir(), "locks.yaml")}
	for _, block := range regexp.MustCompile("(?s) *```(yaml|sh)\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		if block[1] == "yaml" {
			g.yaml = strings.NewReplacer("redis://10.0.0.5:6379/0", old,
				"etcd://10.0.1.1:2379,10.0.1.2:2379,10.0.1.3:2379", new).Replace(block[2])
			continue
		}
		for line := range strings.Lines(block[2]) {
			if line = strings.TrimSpace(line); line != "" {
				g.left = append(g.left, line)
			}
		}
	}
	if !strings.Contains(g.yaml, old) || !strings.Contains(g.yaml, new) || len(g.left) < 5 {
		t.Fatalf("the document has %q and the commands %q", g.yaml, g.left)
	}
	return g
}

// deploy makes the phase that of the configuration.
func (g *guide) deploy(phase backend.Phase) {
	g.Helper()
	text := strings.Replace(g.yaml, "phase: from", "phase: "+string(phase), 1)
	if err := os.WriteFile(g.file, []byte(text), 0o600); err != nil {
		g.Fatal(err)
	}
}

// process is a program of the fleet that starts now.
func (g *guide) process() *fencelock.Locker {
	g.Helper()
	f, err := os.Open(g.file)
	if err != nil {
		g.Fatal(err)
	}
	defer f.Close()
	c, err := config.Load(f)
	if err != nil {
		g.Fatal(err)
	}
	locks, err := c.Open(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() { _ = locks.Close() })
	return locks
}

// invoke runs a command as the document has it.
func (g *guide) invoke(line string) result {
	g.Helper()
	args := strings.Fields(line)
	for i, a := range args {
		if a == "locks.yaml" {
			args[i] = g.file
		}
	}
	return invoke(g.T, nil, args[1:]...)
}

// next runs the next command of the document, which must be the one that is named.
func (g *guide) next(command string, code int) string {
	g.Helper()
	line := g.left[0]
	g.left = g.left[1:]
	if !strings.HasPrefix(line, "fencelock migrate "+command) {
		g.Fatalf("the next command of the document is %q, want %q", line, command)
	}
	got := g.invoke(line)
	if got.code != code {
		g.Fatalf("%s: got %+v, want code %d", line, got, code)
	}
	return got.out + got.err
}

func (g *guide) says(what, text string, want ...string) {
	g.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			g.Errorf("%s: got\n%s\nwant it to say %q", what, text, w)
		}
	}
}

func (g *guide) lock(l *fencelock.Locker) *fencelock.Lease {
	g.Helper()
	lease, err := l.Mutex("inventory/7").TryLock(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	return lease
}

func (g *guide) unlock(lease *fencelock.Lease) {
	g.Helper()
	if err := lease.Unlock(g.Context()); err != nil {
		g.Error(err)
	}
}

// TestMigratingGuide does what docs/migrating.md says, command by command.
func TestMigratingGuide(t *testing.T) {
	t.Parallel()
	eachPair(t, func(t *testing.T, old, new string) {
		g := readGuide(t, old, new)
		g.deploy(backend.PhaseFrom)
		g.says("plan", g.next("plan", 0), "moves inventory/* from old to new", "phase from", "both   ")
		from := g.process()
		lease := g.lock(from)
		last := lease.Token()
		g.deploy(backend.PhaseBoth)
		both := g.process()
		status := g.left[0]
		g.says("status", g.next("status", 0), "is in phase from",
			`held in one store alone: "inventory/7" by`, "closed to all but phase both")
		g.unlock(lease)
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		g.says("status", g.invoke(status).out, "to    nothing that is known")
		g.says("advance", g.next("advance", 0), "new is open to clients in phase to")
		g.deploy(backend.PhaseTo)
		to := g.process()
		lease = g.lock(to)
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		finish := g.left[0]
		g.says("finish", g.next("finish", 1), "is not finished", "reported phase both")
		if err := both.Close(); err != nil {
			t.Error(err)
		}
		g.says("finish", g.invoke(finish).out, "moving is done: the configuration may name new alone")

		// The new store alone, and a straggler.
		alone := client(t, new)
		if _, err := alone.Mutex("inventory/7").TryLock(t.Context()); err == nil {
			t.Error("locked what is held")
		}
		got := invoke(t, on(old), "run", "inventory/7", "--", "true")
		g.says("a straggler", got.err, `migration "moving" has closed this store to clients that know of no migration`)
		if got.code != 64 {
			t.Errorf("a straggler: got code %d, want 64", got.code)
		}
		if got := invoke(t, on(old), "run", "dedup/7", "--", "true"); got.code != 0 {
			t.Errorf("a name that stays: got %+v", got)
		}
		g.unlock(lease)

		// One that somebody forgot, with the configuration of the first day.
		if err := to.Close(); err != nil {
			t.Error(err)
		}
		g.deploy(backend.PhaseFrom)
		if got := g.invoke("fencelock run --config locks.yaml inventory/7 -- true"); got.code != 64 {
			t.Errorf("the old configuration: got %+v, want code 64", got)
		} else {
			g.says("the old configuration", got.err, "is finished", "advance --phase from")
		}
		if _, err := alone.Mutex("inventory/8").TryLock(t.Context()); err != nil {
			t.Errorf("the fleet after that: %v", err)
		}
		g.says("status", g.invoke(status).out, "open, sealed", "closed, sealed", "The migration is finished")

		// And back.
		if err := alone.Close(); err != nil {
			t.Error(err)
		}
		g.says("advance", g.next("advance", 0), "old is open to clients in phase from")
		g.deploy(backend.PhaseFrom)
		if lease = g.lock(g.process()); lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}

		// And given up.
		g.says("cancel", g.next("cancel", 0), "moving is cancelled: the configuration may name old alone")
		g.unlock(lease)
		for _, url := range []string{old, new} {
			if got := invoke(t, on(url), "run", "inventory/7", "--", "true"); got.code != 0 {
				t.Errorf("after the cancel: got %+v", got)
			}
		}
		if got := g.invoke("fencelock migrate advance --config locks.yaml"); got.code != 1 {
			t.Errorf("advance after the cancel: got %+v, want code 1", got)
		}
		if got := invoke(t, on(old), "run", "inventory/7", "--", "true"); got.code != 0 {
			t.Errorf("after the advance: got %+v", got)
		}
		g.deploy(backend.PhaseTo)
		if got := g.invoke("fencelock run --config locks.yaml inventory/7 -- true"); got.code != 64 {
			t.Errorf("phase to after the cancel: got %+v, want code 64", got)
		} else {
			g.says("phase to after the cancel", got.err, "was cancelled")
		}
		if len(g.left) > 0 {
			t.Errorf("the document has commands that were not run: %q", g.left)
		}
	})
}

// eachPair runs a test on two stores, in parallel.
func eachPair(t *testing.T, test func(t *testing.T, old, new string)) {
	t.Run("file-file", func(t *testing.T) {
		t.Parallel()
		test(t, fileStore(t), fileStore(t))
	})
	t.Run("redis-etcd", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("-short: the file backend is enough")
		}
		test(t, servers.Redis(t, servers.RedisOptions{}).URL(), servers.Etcd(t, servers.EtcdOptions{}).URL())
	})
}

// A name that moves has neither readers nor permits. The message says why, and names no backend that has them.
func TestRunSharedOfAMovingName(t *testing.T) {
	t.Parallel()
	for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth} {
		g := readGuide(t, fileStore(t), fileStore(t))
		g.deploy(phase)
		for _, flag := range []string{"--shared", "--permits=2"} {
			got := g.invoke("fencelock run --config locks.yaml " + flag + " inventory/7 -- true")
			if got.code != 64 || !strings.Contains(got.err, "inventory/7 moves from one store to another") ||
				strings.Contains(got.err, "have it") {
				t.Errorf("%s in phase %s: got %+v", flag, phase, got)
			}
		}
	}
}

func TestMigrateStatusJSON(t *testing.T) {
	t.Parallel()
	g := readGuide(t, fileStore(t), fileStore(t))
	g.deploy(backend.PhaseBoth)
	g.process()
	got := decode[migrate.Status](t, g.invoke("fencelock migrate status --json --config locks.yaml moving").out)
	if got.Migration != "moving" || got.Done || got.From.Gate != "open" || got.To.Gate != "both" ||
		got.To.Backend != "new" || got.To.Epoch == 0 ||
		len(got.Clients) != 1 || got.Clients[0].Phase != backend.PhaseBoth ||
		!got.Clients[0].InFrom || !got.Clients[0].InTo || got.Clients[0].MaxTTL != 30000 ||
		len(got.Against) != 3 || len(got.Against[backend.PhaseTo]) != 0 {
		t.Errorf("got %+v", got)
	}
	plan := decode[migrate.Plan](t, g.invoke("fencelock migrate plan --json --config locks.yaml").out)
	if plan.Phase != backend.PhaseBoth || plan.Names != "inventory/*" || len(plan.Promises) != 3 {
		t.Errorf("got %+v", plan)
	}
}

func TestMigrateRefusals(t *testing.T) {
	t.Parallel()
	to := fileStore(t)
	g := readGuide(t, fileStore(t), to)
	g.deploy(backend.PhaseFrom)
	from := g.process()
	held := g.lock(from)
	two := filepath.Join(t.TempDir(), "two.yaml")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	none := filepath.Join(t.TempDir(), "none.yaml")
	for file, text := range map[string]string{
		two: strings.Replace(strings.Replace(g.yaml, "locks:\n",
			"  again: {migrate: {from: new, to: old, phase: from}}\nlocks:\n  - {match: "+
				"\"more/*\", scenario: general, backend: again}\n", 1),
			"# from | both | to", "", 1),
		bad: strings.Replace(g.yaml, to, to+"?nosuch=1", 1),
		none: "backends: {old: {url: \"" + fileStore(t) + "\"}}\nlocks: [{match: \"*\", " +
			"scenario: general, backend: old}]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"fencelock migrate status", 64, "want --config FILE"},
		{"fencelock migrate status --config " + none, 64, "has no migration"},
		{"fencelock migrate status --config " + two, 64, "name one of moving, again"},
		{"fencelock migrate status --config " + bad, 64, "nosuch"},
		{"fencelock migrate plan --config " + two + " elsewhere", 64, "the configuration has moving, again"},
		{"fencelock migrate plan --config " + two + " again", 0, ""},
		{"fencelock migrate advance --phase both --config locks.yaml", 64, "want from or to"},
		{"fencelock migrate advance --config locks.yaml", 1, "is still in phase from"},
		{"fencelock migrate advance --force --wait 2s --config locks.yaml", 69, `"inventory/7" by`},
		{"fencelock migrate finish --config locks.yaml", 1, "the new store is not open"},
		{"fencelock migrate finish --config locks.yaml a b", 64, "at most one MIGRATION"},
	} {
		if got := g.invoke(c.line); got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: got %+v, want code %d and %q", c.line, got, c.code, c.says)
		}
	}
	g.unlock(held)
	if got := g.invoke("fencelock migrate advance --force --config locks.yaml"); got.code != 0 {
		t.Errorf("advance --force: got %+v", got)
	}
}

// TestMigrateStoreDown: a store that does not answer is code 69, named as the file names it.
func TestMigrateStoreDown(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	g := readGuide(t, s.URL(), fileStore(t))
	g.deploy(backend.PhaseFrom)
	g.process()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := g.invoke("fencelock migrate status --config locks.yaml"); got.code != 69 ||
		!strings.Contains(got.err, "backend old") {
		t.Errorf("got %+v, want code 69 and the backend's name", got)
	}
}
