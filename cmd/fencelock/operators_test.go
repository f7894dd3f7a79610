package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
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

func TestInspect(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	lease := hold(t, url, "jobs/a")
	got := invoke(t, on(url), "inspect", "--json", "jobs/a")
	info := decode[infoJSON](t, got.out)
	if got.code != 0 || !info.Held || info.Owner != lease.Owner() || info.Token != lease.Token() || info.ExpiresIn < 20_000 || info.ExpiresIn > 31_000 || info.Leaked {
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
	for _, want := range []string{"name:       jobs/a\n", "state:      held\n", "owner:      " + lease.Owner(), fmt.Sprintf("token:      %d\n", lease.Token())} {
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
		wants := []string{`^NAME +OWNER +TOKEN +EXPIRES IN +WAITERS$`, `^"jobs/\\x1b\[2J" +own er +\d+ `, `^jobs/a +own er +\d+ +(29|30)[.\d]*s +(0|-)$`, `^jobs/b `}
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
			names = append(names, decode[infoJSON](t, line).Name)
		}
		if want := []string{"jobs/\x1b[2J", "jobs/a", "jobs/b", "other"}; !slices.Equal(names, want) {
			t.Errorf("names %q, want %q", names, want)
		}
	})
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
	if want := fmt.Sprintf("broke n: it was held by %s, token %d\n", lease.Owner(), lease.Token()); got.code != 0 || got.out != want {
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
	info := decode[infoJSON](t, got.out)
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
	if v.Go != runtime.Version() || v.OS != runtime.GOOS || v.Version == "" || !slices.Contains(v.Backends, "memory") || !slices.Contains(v.Backends, "postgres-lease") || !slices.Contains(v.Schemes, "file") {
		t.Errorf("got %+v", v)
	}
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if got := invoke(t, nil, args...); got.code != 0 || !strings.HasPrefix(got.out, "fencelock ") || !strings.Contains(got.out, "backends: ") {
			t.Errorf("%q: got %+v", args, got)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, cmd := range (&app{}).root().Commands() {
		t.Run(cmd.Name(), func(t *testing.T) {
			got := invoke(t, nil, cmd.Name(), "--help")
			if got.code != 0 || !strings.Contains(got.out, "Examples:") || got.err != "" {
				t.Errorf("got %+v, want a help with an example", got)
			}
		})
	}
}

// A server that hangs after the command has connected does not hang the command.
func TestListOfASilentServer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (string, *servers.Server){
		"etcd": func(t *testing.T) (string, *servers.Server) {
			e := servers.Etcd(t, servers.EtcdOptions{})
			return e.URL(), e.Servers()[0]
		},
		"postgres": func(t *testing.T) (string, *servers.Server) {
			s := servers.Postgres(t, servers.PostgresOptions{})
			return s.URL(), s.Server
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			locks, err := fencelock.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = locks.Close() })
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Resume() })
			ctx, cancel := context.WithTimeout(t.Context(), 6*listPatience)
			defer cancel()
			began := time.Now()
			infos, err := list(ctx, locks, "")
			if took := time.Since(began); !errors.Is(err, fencelock.ErrUnavailable) || len(infos) > 0 || took > 3*listPatience {
				t.Errorf("got %v, %v after %v, want ErrUnavailable after %v", infos, err, took, listPatience)
			}
		})
	}
}
