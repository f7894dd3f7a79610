package main

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/run"
)

// envCommand makes the test binary behave as the command itself.
const envCommand = "FENCELOCK_TEST_COMMAND"

func TestMain(m *testing.M) {
	logging.Disable() // as main does
	run.BecomeOther(os.Args)
	if os.Getenv(envCommand) != "" {
		a := cli.New()
		os.Exit(a.Execute(context.Background(), root(a), os.Args[1:]))
	}
	os.Exit(m.Run())
}

// result is what an invocation came to.
type result struct {
	code     int
	out, err string
}

// invoke runs the command in this process, with env as its whole environment.
func invoke(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	a := &cli.App{
		In: strings.NewReader(""), Out: &out, Err: &err,
		Lookup:  func(k string) (string, bool) { v, ok := env[k]; return v, ok },
		TempDir: t.TempDir,
	}
	code := a.Execute(t.Context(), root(a), args)
	return result{code, out.String(), err.String()}
}

// on is the environment that chooses a backend.
func on(url string) map[string]string { return map[string]string{"FENCELOCK_URL": url} }

// fileStore returns the URL of a store of its own.
func fileStore(t *testing.T) string {
	t.Helper()
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(t.TempDir())}).String()
}

// stores are the backends that the end-to-end tests use, each with a fresh store.
var stores = []struct {
	name string
	url  func(t *testing.T) string
}{
	{"file", fileStore},
	{"redis", func(t *testing.T) string { return servers.Redis(t, servers.RedisOptions{}).URL() }},
}

// eachStore runs a test on every store, in parallel; with -short on the first.
func eachStore(t *testing.T, test func(t *testing.T, url string)) {
	some := stores
	if testing.Short() {
		some = stores[:1]
	}
	for _, s := range some {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, s.url(t))
		})
	}
}

// client opens a store for the test itself.
func client(t *testing.T, url string) *fencelock.Locker {
	t.Helper()
	locks, err := fencelock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

// hold takes a lock until the end of the test.
func hold(t *testing.T, url, name string) *fencelock.Lease {
	t.Helper()
	lease, err := client(t, url).Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// patience bounds every wait of the tests.
const patience = 15 * time.Second

// await waits until cond holds.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}
