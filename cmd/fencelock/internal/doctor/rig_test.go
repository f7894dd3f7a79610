package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// examine examines a store. change may set what the examination compares with.
func examine(t *testing.T, rawURL string, change ...func(*exam)) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x := newExam()
	for _, c := range change {
		c(x)
	}
	r, err := x.run(ctx, rawURL)
	if err != nil {
		t.Fatalf("Examine: %v", err)
	}
	return r
}

// ids are the findings of a report, each id once, sorted.
func (r *Report) ids() []string {
	var ids []string
	for _, f := range r.Findings {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// finds checks that a report has exactly these findings, in any number.
func finds(t *testing.T, r *Report, want ...string) {
	t.Helper()
	slices.Sort(want)
	got := r.ids()
	if !slices.Contains(want, "round-trip-slow") { // a busy machine is slow in earnest
		got = slices.DeleteFunc(got, func(id string) bool { return id == "round-trip-slow" })
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
		for _, f := range r.Findings {
			t.Logf("%s %s %s: %s = %s", f.Severity, f.ID, f.Where, f.Setting, f.Value)
		}
	}
}

// has checks that a report has a finding with this value and place.
func has(t *testing.T, r *Report, id, value string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID == id && strings.Contains(f.Value, value) {
			if strings.ContainsAny(f.Mend, "{}") {
				t.Errorf("%s: the remedy %q is not filled in", id, f.Mend)
			}
			return f
		}
	}
	t.Errorf("no %s with %q: found %+v", id, value, r.Findings)
	return Finding{}
}

// sound checks that nothing worse than a note was found.
func sound(t *testing.T, r *Report) {
	t.Helper()
	rest := &Report{
		Findings: slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool {
			return f.ID == "round-trip-slow"
		}),
	}
	if !rest.Sound(Unseen) { // a busy machine is slow in earnest
		t.Errorf("a sound store is not found sound: %+v", r.Findings)
	}
	if len(r.Servers) == 0 && r.Backend != "memory" {
		t.Error("no server was looked at")
	}
}

// behind makes the examiner's clock differ from the servers'.
func behind(d time.Duration) func(*exam) {
	return func(x *exam) { x.now = func() time.Time { return time.Now().Add(-d) } }
}

// tooOld makes the examiner want a version that no server has yet.
func tooOld(server string) func(*exam) {
	return func(x *exam) { x.least[server] = "99" }
}

// delayed returns a proxy before a server that takes d each way.
func delayed(t *testing.T, addr string, d time.Duration) string {
	t.Helper()
	p, err := faultproxy.New(addr)
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	p.Set(faultproxy.Mode{Delay: d})
	return p.Addr()
}

// with adds keys to a URL.
func with(t *testing.T, raw string, keys ...string) string {
	t.Helper()
	base, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	must(t, err)
	for i := 0; i < len(keys); i += 2 {
		q.Set(keys[i], keys[i+1])
	}
	return base + "?" + q.Encode()
}

// use locks and unlocks once, as a program does.
func use(t *testing.T, rawURL string) {
	t.Helper()
	l, err := fencelock.Open(t.Context(), rawURL)
	must(t, err)
	defer l.Close()
	le, err := l.Mutex("used").Lock(t.Context())
	must(t, err)
	must(t, le.Unlock(t.Context()))
}

// refused checks that an examination fails with an error that shows no secret.
func refused(t *testing.T, rawURL, secret string, target error) {
	t.Helper()
	_, err := Examine(t.Context(), rawURL)
	if !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
	if err != nil && secret != "" && strings.Contains(err.Error(), secret) {
		t.Errorf("the error shows the password: %v", err)
	}
}

// closedPort returns an address at which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// launch starts a program that ends with the test.
func launch(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed
}

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

func TestURLs(t *testing.T) {
	for _, raw := range []string{
		"nonsense", "nosuch://h", "redis://h?nope=1", "redis://a,b", "redis://user:s3cr%t@h",
		"redis://h?prefix=%zz", "file:///tmp/x?prefix=%zz",
		"redis+cluster://h/1", "redlock://a,b,c?nope=1",
		"etcd://h/path", "etcd://user@h", "zookeeper://h?nope=1", "postgres://h?mode=none",
		"postgres://u:s3cret@h?nope=1",
		"file:///tmp/x?nope=1", "file://", "file://host/x", "memory://?nope=1",
		"etcd://h?tls_ca=/nonexistent", "redis://h?ttl=nope", "redis://h?ttl=99ms", "etcd://h?ttl=999ms",
		"memory://?ttl=1ms", "file:///tmp/x?ttl=99ms", "file:///tmp/x?ttl=nope", "file:///tmp/x?ttl=1s&ttl=2s",
		"file:///tmp/x?sockets=maybe", "file:///tmp/x?prefix=%ff", "file://u:s3cret@/tmp/x",
	} {
		refused(t, raw, "s3cr", backend.ErrInvalid)
	}
	// An unusable store is not touched by the check of its URL.
	dir := t.TempDir() + "/locks"
	finds(t, examine(t, "file://"+dir), "file-missing")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for _, format := range []string{
		"redis://u:s3cret@%s", "redis+sentinel://%s/main", "redis+cluster://%s", "etcd://%s",
		"zookeeper://%s", "postgres://u:s3cret@%s/db", "postgres://u:s3cret@%s/db?mode=lease",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			refused(t, fmt.Sprintf(format, closedPort(t)), "s3cret", backend.ErrUnavailable)
		})
	}
	refused(t, "redlock://"+closedPort(t)+","+closedPort(t)+","+closedPort(t), "", backend.ErrUnavailable)
}

// A server that takes connections and says nothing is named.
func TestSilent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the system takes the connections
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	at := l.Addr().String()
	for _, format := range []string{
		"redis://u:s3cret@%s", "redis+sentinel://%s/main", "redis+cluster://%s", "redlock://%s,127.0.0.1:1,127.0.0.2:1",
		"etcd://%s", "etcd://u:s3cret@%s", "zookeeper://%s", "postgres://u:s3cret@%s/db",
		"postgres://u:s3cret@%s/db?connect_timeout=0", // for ever
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			_, err := Examine(t.Context(), fmt.Sprintf(format, at))
			if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), at) ||
				strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %v, want ErrUnavailable with %s and no password", err, at)
			}
		})
	}
}
