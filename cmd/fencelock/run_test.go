//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	store := fileStore(t)
	hold(t, store, "taken")
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		args []string
		code int
		err  string // part of stderr
	}{
		{"success", []string{"n", "--", "true"}, 0, ""},
		{"without dashes", []string{"n", "sh", "-c", "exit 4"}, 4, ""},
		{"dashes first", []string{"--", "n", "sh", "-c", "exit 5"}, 5, ""},
		{"the command's flags", []string{"n", "--", "sh", "-c", `exit "$1"`, "--", "6"}, 6, ""},
		{"died of a signal", []string{"n", "--", "sh", "-c", "kill -KILL $$"}, 137, ""},
		{"a store of its own", []string{"--url", "memory://", "n", "--", "true"}, 0, "excludes nobody"},
		{"no command", []string{"n"}, 64, "fencelock run [flags] NAME -- COMMAND [ARG…]"},
		{"no command after dashes", []string{"n", "--"}, 64, "fencelock run [flags] NAME -- COMMAND [ARG…]"},
		{"nothing", nil, 64, "fencelock run [flags] NAME -- COMMAND [ARG…]"},
		{"empty command", []string{"n", "--", ""}, 64, "fencelock run [flags] NAME -- COMMAND [ARG…]"},
		{"flag after the name", []string{"n", "--ttl=3s", "--", "true"}, 64, "--ttl stands after NAME"},
		{"empty name", []string{"", "--", "true"}, 64, "name is empty"},
		{"unknown flag", []string{"--what", "n", "true"}, 64, "usage: fencelock run"},
		{"negative wait", []string{"--wait", "-1s", "n", "true"}, 64, "want 0 or more"},
		{"wait without unit", []string{"--wait", "10", "n", "true"}, 64, "such as 500ms"},
		{"zero ttl", []string{"--ttl", "0", "n", "true"}, 64, "want more than 0"},
		{"short ttl", []string{"--ttl", "1ms", "n", "true"}, 64, "at least 100ms"},
		{"zero max-hold", []string{"--max-hold", "0s", "n", "true"}, 64, "want more than 0"},
		{"min-hold beyond the ttl", []string{"--ttl", "2s", "--min-hold", "3s", "n", "true"}, 64, "WithMinHold"},
		{"no permits", []string{"--permits", "0", "n", "true"}, 64, "want 1 to 1024"},
		{"shared permits", []string{"--permits", "2", "--shared", "n", "true"}, 64, "exclude each other"},
		{"negative kill-after", []string{"--kill-after", "-1s", "n", "true"}, 64, "want 0 or more"},
		{"bad owner", []string{"--owner", "a\x00b", "n", "true"}, 64, "NUL"},
		{"not found", []string{"n", "--", "no-such-command"}, 127, `"no-such-command"`},
		{"no such file", []string{"n", "--", "/no/such/command"}, 127, "no such file"},
		{"not executable", []string{"n", "--", plain}, 126, "permission denied"},
		{"a folder", []string{"n", "--", "/"}, 126, "directory"},
		{"not a program", []string{"n", "--", garbage}, 126, "exec format error"},
		{"checked before the lock", []string{"taken", "--", "no-such-command"}, 127, ""},
		{"tried once", []string{"--wait", "0", "taken", "--", "true"}, 75, "taken was not obtained: held by "},
		{"waited", []string{"--wait", "300ms", "taken", "--", "true"}, 75, "within 300ms"},
	} {
		t.Run(c.what, func(t *testing.T) {
			began := time.Now()
			got := invoke(t, on(store), append([]string{"run"}, c.args...)...)
			if got.code != c.code || !strings.Contains(got.err, c.err) ||
				(c.err == "" && c.code < 64 && got.err != "") {
				t.Errorf("got code %d, stderr %q; want %d, %q", got.code, got.err, c.code, c.err)
			}
			if n := strings.Count(got.err, "fencelock: "); c.code >= 64 && c.code < 128 && n != 1 {
				t.Errorf("the prefix stands %d times in %q, want once", n, got.err)
			}
			if took := time.Since(began); took > patience {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestRunUnavailable(t *testing.T) {
	t.Parallel()
	got := invoke(t, on("redis://user:s3cret@127.0.0.1:1/0"), "run", "--wait", "1s", "n", "--", "true")
	if got.code != 69 || !strings.Contains(got.err, "store unavailable") || strings.Contains(got.err, "s3cret") {
		t.Errorf("got code %d, stderr %q; want 69, store unavailable, no password", got.code, got.err)
	}
}

// --wait bounds the wait for the lock. A store that is slow to open is not one that is down.
func TestRunOnASlowStore(t *testing.T) {
	t.Parallel()
	p, err := faultproxy.New(servers.Redis(t, servers.RedisOptions{}).Addr())
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	p.Set(faultproxy.Mode{Delay: 250 * time.Millisecond})
	for _, wait := range []string{"0", "2s"} {
		if got := invoke(t, on("redis://"+p.Addr()), "run", "--wait", wait, "n", "--", "true"); got.code != 0 {
			t.Errorf("--wait %s: got %+v, want code 0", wait, got)
		}
	}
}

func TestRunEnvironmentAndEvents(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		out := filepath.Join(t.TempDir(), "out")
		script := fmt.Sprintf(`echo "$FENCELOCK_NAME" "$FENCING_TOKEN" >>%s; exit 3`, out)
		var tokens []int64
		for range 2 {
			p := running(t, url, script, "--owner", "me", "a/ b")
			p.exits(3)
			e := p.await("acquired")
			tokens = append(tokens, e.Token)
			if e.Name != "a/ b" || e.Owner != "me" || e.Backend == "" || e.WaitedMS == nil {
				t.Errorf("acquired event %+v lacks something", e)
			}
			if p.find("released") == nil || *p.await("exit").Code != 3 {
				t.Errorf("want the events released and exit with code 3, got %s", p.text())
			}
		}
		for i, line := range awaitLines(t, out, 2) {
			if want := fmt.Sprintf("a/ b %d", tokens[i]); line != want {
				t.Errorf("the command saw %q, want %q", line, want)
			}
		}
		if tokens[0] >= tokens[1] {
			t.Errorf("tokens %v do not rise", tokens)
		}
	})
}

func TestRunExcludes(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		dir := t.TempDir()
		counter, tokens := filepath.Join(dir, "counter"), filepath.Join(dir, "tokens")
		if err := os.WriteFile(counter, []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf(`echo $FENCING_TOKEN >>%s
			for i in 1 2 3 4 5; do n=$(cat %s); n=$((n+1)); echo $n >%[2]s; done`, tokens, counter)
		var procs []*proc
		for range 4 {
			procs = append(procs, running(t, url, script, "counter"))
		}
		for _, p := range procs {
			p.exits(0)
		}
		if got := lines(counter); len(got) != 1 || got[0] != "20" {
			t.Errorf("the counter is %v, want 20: increments were lost", got)
		}
		got := lines(tokens)
		if len(got) != 4 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != 4 {
			t.Errorf("tokens %v, want four rising ones", got)
		}
	})
}

func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		script string // is told where to write lines when it is ready
		lines  int
		sig    syscall.Signal
		code   int
	}{
		{"TERM", `echo >%s; exec sleep 100`, 1, syscall.SIGTERM, 143},
		{"INT", `echo >%s; exec sleep 100`, 1, syscall.SIGINT, 130},
		{"HUP", `echo >%s; exec sleep 100`, 1, syscall.SIGHUP, 129},
		{
			"TERM while it is stopped",
			`(until ps -o stat= -p $$ | grep -q T; do sleep .02; done; echo >%s) & kill -STOP $$`,
			1, syscall.SIGTERM, 143,
		},
		{"trapped", `trap "exit 7" TERM; echo >%s; while :; do sleep .02; done`, 1, syscall.SIGTERM, 7},
		{"USR1", `trap "exit 8" USR1; echo >%s; while :; do sleep .02; done`, 1, syscall.SIGUSR1, 8},
		{
			"the whole group",
			`(trap "exit 9" TERM; echo >>%s; while :; do sleep .02; done) & trap : TERM; ` +
				`echo >>%[1]s; while :; do wait $!; r=$?; [ $r -ge 128 ] || exit $r; done`,
			2, syscall.SIGTERM, 9,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(c.sig) {
				t.Skipf("this process was started with %v ignored (nohup, a background job), "+
					"and children inherit that", c.sig)
			}
			ready := filepath.Join(t.TempDir(), "ready")
			p := running(t, fileStore(t), fmt.Sprintf(c.script, ready), "n")
			awaitLines(t, ready, c.lines)
			p.signal(c.sig)
			p.exits(c.code)
			if p.find("released") == nil {
				t.Error("the lock was not released")
			}
		})
	}
}

// A reader of the log that has gone ends no job.
func TestRunWithoutALog(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	must(t, err)
	must(t, read.Close())
	cmd := exec.Command(os.Args[0], "run", "--json", "n", "--", "sh", "-c", "exit 7")
	cmd.Env = append(os.Environ(), envCommand+"=1", "FENCELOCK_URL="+fileStore(t))
	cmd.Stderr = write
	_ = cmd.Run()
	must(t, write.Close())
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code %d, want the command's, 7", got)
	}
}

func TestRunInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		lease := hold(t, url, "n")
		locks := client(t, url)
		p := running(t, url, "exit 1", "n")
		await(t, "the waiter", func() bool {
			i, err := locks.Inspect(t.Context(), "n")
			return err == nil && i.Waiters != 0
		})
		p.signal(syscall.SIGTERM)
		p.exits(143)
		if p.find("acquired") != nil {
			t.Error("it acquired the lock that another holds")
		}
		await(t, "the queue is empty", func() bool {
			i, err := locks.Inspect(t.Context(), "n")
			return err == nil && i.Waiters <= 0
		})
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
	})
}

// gone reports whether a process has ended (a zombie that nobody reaps has).
func gone(pid string) bool {
	n, _ := strconv.Atoi(pid)
	if syscall.Kill(n, 0) != nil {
		return true
	}
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	return strings.Contains(string(stat), ") Z ")
}

func TestRunKilled(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		pids := filepath.Join(t.TempDir(), "pids")
		script := fmt.Sprintf(`trap "" TERM; sleep 100 & echo $! >>%s; echo $$ >>%[1]s; wait`, pids)
		first := running(t, url, script, "--ttl", "2s", "n")
		children := awaitLines(t, pids, 2)
		second := running(t, url, "true", "n")
		first.signal(syscall.SIGKILL)
		second.await("acquired")
		for _, pid := range children {
			if !gone(pid) {
				t.Errorf("process %s is alive, and the second has the lock", pid)
			}
		}
		second.exits(0)
	})
}

// A job that is over at once, started on two hosts whose clocks differ, runs once.
func TestRunMinHold(t *testing.T) {
	store := fileStore(t)
	run := func(args ...string) result {
		return invoke(t, on(store), append([]string{"run", "--wait", "0", "--ttl", "2s"}, args...)...)
	}
	if got := run("--min-hold", "1s", "n", "--", "true"); got.code != 0 {
		t.Fatalf("got code %d, %q", got.code, got.err)
	}
	if got := run("n", "--", "true"); got.code != cli.ExitNotObtained {
		t.Errorf("the second got code %d, %q; want that it was not obtained", got.code, got.err)
	}
	got := invoke(t, on(store), "run", "--wait", "10s", "n", "--", "true")
	if got.code != 0 {
		t.Errorf("a third, who waits: got code %d, %q", got.code, got.err)
	}
}

// Two hold at once, and a third is told how many there are.
func TestRunShared(t *testing.T) {
	for _, c := range []struct {
		flags []string
		held  string
	}{
		{[]string{"--permits", "2"}, "2 permits"},
		{[]string{"--shared"}, "2 readers"},
	} {
		t.Run(c.flags[0], func(t *testing.T) {
			store := fileStore(t)
			inner := append(append([]string{"run", "--wait", "0"}, c.flags...), "n", "--", "true")
			outer := running(t, store, "sleep 60", append(slices.Clone(c.flags), "n")...)
			outer.await("acquired")
			if got := invoke(t, on(store), inner...); got.code != 0 {
				t.Errorf("the second got code %d, %q", got.code, got.err)
			}
			second := running(t, store, "sleep 60", append(slices.Clone(c.flags), "n")...)
			second.await("acquired")
			got := invoke(t, on(store), "run", "--wait", "0", "n", "--", "true")
			if got.code != cli.ExitNotObtained || !strings.Contains(got.err, c.held) {
				t.Errorf("an exclusive one got code %d, %q, want %q", got.code, got.err, c.held)
			}
			if got := invoke(t, on(store), "ls"); !strings.Contains(got.out, c.held) {
				t.Errorf("ls: got %q, want %q", got.out, c.held)
			}
			if got := invoke(t, on(store), "inspect", "n"); !strings.Contains(got.out, c.held) {
				t.Errorf("inspect: got %q, want %q", got.out, c.held)
			}
		})
	}
}

// A command finds the slot of its permit, and no other.
func TestRunSlot(t *testing.T) {
	t.Setenv("FENCELOCK_SLOT", "7") // of a run around this one
	store := fileStore(t)
	e := running(t, store, "sleep 60", "--permits", "3", "n").await("acquired")
	if e.Mode != fencelock.Permit || e.Slot == nil || *e.Slot != 0 {
		t.Errorf("got %+v, want a permit with slot 0", e)
	}
	for flags, want := range map[string]string{
		"--permits=3": "slot 1", "--permits=1": "slot 0", "--wait=5s": "", "--shared --permits=1": "",
	} {
		name := "n"
		if want != "slot 1" {
			name = "other"
		}
		args := append([]string{"run"}, strings.Fields(flags)...)
		got := invoke(t, on(store), append(args, name, "--",
			"sh", "-c", `echo "${FENCELOCK_SLOT:+slot $FENCELOCK_SLOT}"`)...)
		if got.code != 0 || strings.TrimSpace(got.out) != want {
			t.Errorf("%s: got code %d and %q, %q; want %q", flags, got.code, got.out, got.err, want)
		}
	}
}
