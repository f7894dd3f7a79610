package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// decode reads one JSON line.
func decode[T any](t *testing.T, line string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return v
}

// A store that takes connections and says nothing is unavailable, also to commands that open a driver by themselves.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the system takes the connections
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for _, command := range []string{"bench", "conform", "leaks"} {
		for _, scheme := range []string{"etcd", "zookeeper", "postgres"} {
			all.Go(func() {
				var said bytes.Buffer
				at := scheme + "://" + l.Addr().String()
				a := &cli.App{Out: &said, Err: &said, Lookup: func(string) (string, bool) { return at, true }}
				code := a.Execute(ctx, root(a), []string{command})
				if code != 69 || !strings.Contains(said.String(), l.Addr().String()) {
					t.Errorf("%s of %s: got code %d, %q, want 69 and the address", command, scheme, code, said.String())
				}
			})
		}
	}
	all.Wait()
}

func TestInspect(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	lease := hold(t, url, "jobs/a")
	got := invoke(t, on(url), "inspect", "--json", "jobs/a")
	info := decode[cli.Info](t, got.out)
	if got.code != 0 || !info.Held || info.Owner != lease.Owner() || info.Token != lease.Token() ||
		info.ExpiresIn < 20_000 || info.ExpiresIn > 31_000 || info.Leaked {
		t.Errorf("held: got %+v, %+v", got, info)
	}
	want := []string{"expires_in_ms", "held", "leaked", "name", "owner", "token", "waiters"}
	keys := []string{}
	for k := range decode[map[string]any](t, got.out) {
		keys = append(keys, k)
	}
	if slices.Sort(keys); !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}
	got = invoke(t, on(url), "inspect", "jobs/a")
	for _, want := range []string{
		"name:       jobs/a\n", "state:      held\n", "owner:      " + lease.Owner(),
		fmt.Sprintf("token:      %d\n", lease.Token()),
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q lacks %q", got.out, want)
		}
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"free"}, 0},
		{[]string{"--exit-code", "free"}, 1},
		{[]string{"--exit-code", "jobs/a"}, 0},
		{[]string{}, 64},
		{[]string{"a", "b"}, 64},
		{[]string{""}, 64},
	} {
		if got := invoke(t, on(url), append([]string{"inspect"}, c.args...)...); got.code != c.code {
			t.Errorf("inspect %q: code %d (%s), want %d", c.args, got.code, got.err, c.code)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		locks := client(t, url)
		for _, name := range []string{"jobs/b", "jobs/a", "other", "jobs/\x1b[2J"} {
			if _, err := locks.Mutex(name, fencelock.WithOwner("own er")).TryLock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got := invoke(t, on(url), "ls", "jobs/")
		rows := strings.Split(strings.TrimSpace(got.out), "\n")
		wants := []string{
			`^NAME +OWNER +TOKEN +EXPIRES IN +WAITERS$`, `^"jobs/\\x1b\[2J" +own er +\d+ `,
			`^jobs/a +own er +\d+ +(29|30)[.\d]*s +(0|-)$`, `^jobs/b `,
		}
		if len(rows) != len(wants) {
			t.Fatalf("got %q, want %d rows", got.out, len(wants))
		}
		for i, want := range wants {
			if !regexp.MustCompile(want).MatchString(rows[i]) {
				t.Errorf("row %q, want %s", rows[i], want)
			}
		}
		got = invoke(t, on(url), "ls", "--json")
		var names []string
		for line := range strings.Lines(got.out) {
			names = append(names, decode[cli.Info](t, line).Name)
		}
		if want := []string{"jobs/\x1b[2J", "jobs/a", "jobs/b", "other"}; !slices.Equal(names, want) {
			t.Errorf("names %q, want %q", names, want)
		}
	})
}

// Of several holds each is shown, and one is broken by its id.
func TestBreakOneHold(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	locks := client(t, url)
	s := locks.Semaphore("n", 3, fencelock.WithOwner("a"))
	keeps, err := s.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	loses, err := locks.Semaphore("n", 3, fencelock.WithOwner("b")).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := invoke(t, on(url), "inspect", "n")
	of := regexp.MustCompile(fmt.Sprintf(`(?m)^([0-9a-f]{12}) +b +%d +1 +[0-9.]+s$`, loses.Token()))
	row := of.FindStringSubmatch(got.out)
	if got.code != 0 || !strings.Contains(got.out, "held by 2 (permit)") || row == nil {
		t.Fatalf("inspect: got %+v, want both permits", got)
	}
	if got := invoke(t, on(url), "ls"); !strings.Contains(got.out, "2 permits") {
		t.Errorf("ls: got %+v", got)
	}
	var info struct {
		Holders int `json:"holders"`
		Holds   []struct{ ID, Owner string }
	}
	if err := json.Unmarshal([]byte(invoke(t, on(url), "inspect", "--json", "n").out), &info); err != nil ||
		info.Holders != 2 || len(info.Holds) != 2 || info.Holds[1].ID != row[1] && info.Holds[0].ID != row[1] {
		t.Errorf("inspect --json: got %+v, %v, want hold %s among two", info, err, row[1])
	}
	got = invoke(t, on(url), "break", "--yes", "--hold", strings.ToUpper(row[1]), "n")
	want := fmt.Sprintf("broke n: it was held by b (permit), token %d\n", loses.Token())
	if got.code != 0 || got.out != want {
		t.Errorf("break: got %+v, want %q", got, want)
	}
	await(t, "its holder is told", func() bool { return loses.Err() != nil })
	if keeps.Err() != nil {
		t.Errorf("the other: got %v, want it held", keeps.Err())
	}
	if got := invoke(t, on(url), "ls"); !strings.Contains(got.out, "a (permit)") {
		t.Errorf("ls: got %+v, want how the one that is left holds it", got)
	}
	got = invoke(t, on(url), "break", "--yes", "--hold", row[1], "n")
	if want = fmt.Sprintf("n is held by no %s any more\n", row[1]); got.code != 0 || got.out != want {
		t.Errorf("again: got %+v, want %q", got, want)
	}
	if got := invoke(t, on(url), "break", "--yes", "--hold", "b", "n"); got.code != 64 {
		t.Errorf("what is no id: got %+v, want code 64", got)
	}
	got = invoke(t, on(url), "break", "--yes", "--hold", "", "n")
	if info, err := locks.Inspect(t.Context(), "n"); got.code != 64 || err != nil || info.Holders != 1 {
		t.Errorf("an unset variable: got %+v, and %+v, %v is left, want code 64 and the other hold", got, info, err)
	}
}

func TestBreak(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	lease := hold(t, url, "n")
	got := invoke(t, on(url), "break", "n")
	if got.code != 64 || !strings.Contains(got.err, "--yes") || !strings.Contains(got.err, "two may work at once") {
		t.Errorf("without --yes: got %+v, want code 64 and what breaking means", got)
	}
	if lease.Err() != nil {
		t.Fatal("it was broken without --yes")
	}
	got = invoke(t, on(url), "break", "--yes", "n")
	if want := fmt.Sprintf("broke n: it was held by %s, token %d\n",
		lease.Owner(), lease.Token()); got.code != 0 || got.out != want {
		t.Errorf("got %+v, want %q", got, want)
	}
	await(t, "the holder is told", func() bool { return lease.Err() != nil })
	got = invoke(t, on(url), "break", "--yes", "n")
	if got.code != 0 || got.out != "n was free already\n" {
		t.Errorf("free: got %+v", got)
	}
	got = invoke(t, on(url), "break", "--yes", "--json", "n")
	if want := `{"name":"n","broken":false,"owner":"","token":0}` + "\n"; got.out != want {
		t.Errorf("free, JSON: got %q, want %q", got.out, want)
	}
}

// A lock of a transaction has neither owner nor token, and is no other program's.
func TestBreakOfATransaction(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, mode := range []string{"row", "advisory"} {
		url := withMode(t, s.URL(), mode)
		web := serveOn(t, url, "--allow-break")
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&postgres.Options{Mode: postgres.Mode(mode)}).LockTx(t.Context(), tx, "n"); err != nil {
			t.Fatal(err)
		}
		got := invoke(t, on(url), "break", "--yes", "n")
		if got.code != cli.ExitUsage || !strings.Contains(got.err, "postgres.LockTx") ||
			!strings.Contains(got.err, "ends its session") || !strings.Contains(got.err, "--foreign") {
			t.Errorf("%s: got %+v, want code 64 and what holds it", mode, got)
		}
		if got, body := web.breaks(meaning(t, "n", 0)); got != 409 || !strings.Contains(body, "postgres.LockTx") {
			t.Errorf("%s: serve: got %d %q, want 409 and what holds it", mode, got, body)
		}
		if got := invoke(t, on(url), "break", "--yes", "--foreign", "n"); got.code != 0 {
			t.Errorf("%s: --foreign: got %+v", mode, got)
		}
		if err := tx.Commit(t.Context()); err == nil {
			t.Errorf("%s: the transaction was committed", mode)
		}
	}
}

func TestLeaks(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	hold(t, s.URL(), "ours")
	if got := invoke(t, on(s.URL()), "leaks"); got.code != 0 || got.out != "no leaks\n" {
		t.Errorf("none: got %+v", got)
	}
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reply := make([]byte, 5)
	fmt.Fprint(conn, "SET fencelock:theirs value\r\n")
	if _, err := conn.Read(reply); err != nil || string(reply) != "+OK\r\n" {
		t.Fatalf("%q, %v", reply, err)
	}
	got := invoke(t, on(s.URL()), "leaks", "--json")
	info := decode[cli.Info](t, got.out)
	if got.code != 1 || info.Name != "theirs" || !info.Leaked || !info.Held {
		t.Errorf("one: got %+v", got)
	}
	if got := invoke(t, on(s.URL()), "leaks"); !strings.Contains(got.out, "never") {
		t.Errorf("table: got %+v", got)
	}
	if got := invoke(t, on(s.URL()), "leaks", "ou"); got.code != 0 {
		t.Errorf("another prefix: got %+v", got)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	v := decode[version](t, invoke(t, nil, "version", "--json").out)
	if v.Go != runtime.Version() || v.OS != runtime.GOOS || v.Version == "" ||
		!slices.Contains(v.Backends, "memory") || !slices.Contains(v.Backends, "postgres-lease") ||
		!slices.Contains(v.Schemes, "file") {
		t.Errorf("got %+v", v)
	}
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if got := invoke(t, nil, args...); got.code != 0 ||
			!strings.HasPrefix(got.out, "fencelock ") || !strings.Contains(got.out, "backends: ") {
			t.Errorf("%q: got %+v", args, got)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, cmd := range root(cli.New()).Commands() {
		t.Run(cmd.Name(), func(t *testing.T) {
			got := invoke(t, nil, cmd.Name(), "--help")
			if got.code != 0 || !strings.Contains(got.out, "Examples:") || got.err != "" {
				t.Errorf("got %+v, want a help with an example", got)
			}
		})
	}
}

// An application's data under an empty prefix is no leak, and no break deletes it.
func TestApplicationKeysAreLeftAlone(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t, servers.RedisOptions{})
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	const foreign = "yNW3ZKvTAyKGxcZ0AHLXbA" // a token of redislock
	for key, value := range map[string]string{"account:7": "1250.00", "legacy": foreign} {
		if err := c.Set(t.Context(), key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	url := on("redis://" + server.Addr() + "?prefix=")
	if got := invoke(t, url, "leaks"); strings.Contains(got.out, "account:7") || !strings.Contains(got.out, "legacy") {
		t.Errorf("leaks: got %+v, want the lock alone", got)
	}
	for _, name := range []string{"account:7", "legacy"} {
		if got := invoke(t, url, "break", "--yes", name); got.code != cli.ExitUsage ||
			!strings.Contains(got.err, "--foreign") {
			t.Errorf("break --yes %s: got %+v, want code 64 and what to add", name, got)
		}
	}
	if got := invoke(t, url, "break", "--yes", "--foreign", "account:7"); got.code == 0 ||
		!strings.Contains(got.err, "a string of 7 bytes") {
		t.Errorf("break of an account: got %+v, want it refused", got)
	}
	if got := c.Get(t.Context(), "account:7").Val(); got != "1250.00" {
		t.Errorf("the account holds %q", got)
	}
	if got := invoke(t, url, "break", "--yes", "--foreign", "legacy"); got.code != 0 ||
		c.Exists(t.Context(), "legacy").Val() != 0 {
		t.Errorf("break of a foreign lock: got %+v, want it gone", got)
	}
}
