package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// apart starts nodes that have an address of their own each, and returns their URL's hosts. Only Linux has the
// whole of 127/8 as its own.
func apart(t *testing.T, n int) (*servers.Group, []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("this system has no 127.0.0.2")
	}
	g := servers.Redises(t,
		n, servers.RedisOptions{
			Config: []string{
				"bind 127.0.0.1 127.0.0.2 127.0.0.3 127.0.0.4 127.0.0.5",
				"maxmemory-policy noeviction",
			},
		})
	var hosts []string
	for i, s := range g.Servers() {
		_, port, _ := net.SplitHostPort(s.Addr())
		hosts = append(hosts, fmt.Sprintf("127.0.0.%d:%s", i+1, port))
	}
	return g, hosts
}

func redlockURL(hosts ...string) string { return "redlock://" + strings.Join(hosts, ",") }

func TestRedlock(t *testing.T) {
	t.Parallel()
	g, hosts := apart(t, 3)
	all := redlockURL(hosts...)
	finds(t, examine(t, all), "redlock-unsettled")
	for _, h := range hosts {
		if n := client(t, h).DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("the examination left %d keys on %s", n, h)
		}
	}
	use(t, all+"?fresh=1")
	r := examine(t, all)
	finds(t, r)
	sound(t, r)
	if len(r.Servers) != 3 {
		t.Errorf("looked at %v", r.Servers)
	}
	has(t, examine(t, all, behind(time.Minute)), "clock-differs", "ahead")

	finds(t, examine(t, redlockURL(hosts[:2]...)), "redlock-few")
	finds(t, examine(t, redlockURL(hosts[0])), "redlock-few")
	_, port, _ := net.SplitHostPort(hosts[0])
	again := "127.0.0.5:" + port
	finds(t, examine(t, redlockURL(hosts[0], hosts[1], hosts[2], again)), "redlock-even", "redlock-same-server")
	has(t, examine(t, redlockURL(hosts[0], hosts[1], again)), "redlock-same-server", hosts[0])
	has(t, examine(t, redlockURL(g.Addrs()...)), "redlock-same-host", g.Addrs()[0])
	_, err := Examine(t.Context(), redlockURL(hosts[0], hosts[0], hosts[1]))
	if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), hosts[0]+" stands twice") {
		t.Errorf("a node that stands twice: got %v", err)
	}

	set(t, client(t, hosts[1]), "maxmemory", "100mb", "maxmemory-policy", "volatile-lru")
	finds(t, examine(t, all), "redis-eviction")
	set(t, client(t, hosts[1]), "maxmemory", "0", "maxmemory-policy", "noeviction")

	// A node that was restarted goes into quarantine with the next vote.
	must(t, g.Servers()[2].Restart(false))
	finds(t, examine(t, all), "redlock-unsettled")
	use(t, all)
	if f := has(t, examine(t, all), "redlock-quarantine", "left"); f.Where != hosts[2] {
		t.Errorf("in quarantine: %s, want %s", f.Where, hosts[2])
	}
	must(t, g.Servers()[2].Kill())
	finds(t, examine(t, all), "redlock-down")
	must(t, g.Servers()[1].Kill())
	refused(t, all, "", backend.ErrUnavailable)
}

func TestRedlockReplicas(t *testing.T) {
	t.Parallel()
	g, hosts := apart(t, 3)
	use(t, redlockURL(hosts...)+"?fresh=1")
	host, port, _ := net.SplitHostPort(g.Addrs()[0])
	must(t, client(t, hosts[1]).ReplicaOf(t.Context(), host, port).Err())
	await(t, "the replica follows", func() bool {
		return strings.Contains(client(t, hosts[1]).Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	r := examine(t, redlockURL(hosts...))
	finds(t, r, "redlock-replica", "redlock-replicated", "redlock-unsettled")
	if f := has(t, r, "redlock-replica", g.Addrs()[0]); f.Where != hosts[1] {
		t.Errorf("the replica is %s, want %s", f.Where, hosts[1])
	}
}

func TestRedlockUsers(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system has no 127.0.0.2")
	}
	const need = " ~fencelock:* ~fl* resetchannels &fl* -@all +eval +evalsha +info +time +get " +
		"+mget +set +del +exists +pexpire +pttl +hset +hget +hmget +hdel +hgetall +hvals +zadd +zrem +zrange +rpush " +
		"+ltrim +lpos +publish +subscribe +scan"
	g := servers.Redises(t, 3,
		servers.RedisOptions{
			Config: []string{"bind 127.0.0.1 127.0.0.2 127.0.0.3"},
			Users: []string{
				"doctor on >s3cret" + need + " +config|get", "program on >s3cret" + need,
				"calls on >s3cret" + strings.Replace(need, "+eval +evalsha", "+fcall +function|load", 1),
				"neither on >s3cret" + strings.Replace(need, "+eval +evalsha", "+fcall", 1),
				"fewer on >s3cret ~* &* +@all -hmget", "deaf on >s3cret ~* resetchannels +@all",
			},
		})
	var hosts []string
	for i, s := range g.Servers() {
		_, port, _ := net.SplitHostPort(s.Addr())
		hosts = append(hosts, fmt.Sprintf("127.0.0.%d:%s", i+1, port))
	}
	as := func(user string) string { return "redlock://" + user + ":s3cret@" + strings.Join(hosts, ",") }
	use(t, as("program")+"?fresh=1")
	finds(t, examine(t, as("doctor")))
	finds(t, examine(t, as("program")), "redis-config-unseen")
	use(t, as("calls")) // the user of docs/security.md
	finds(t, examine(t, as("calls")), "redis-config-unseen", "redis-rights-unseen")
	has(t, examine(t, as("neither")), "redis-rights", "EVAL")
	finds(t, examine(t, as("fewer")), "redis-rights")
	finds(t, examine(t, as("deaf")), "redis-rights-channel")
}

// A node's clock is really moved.
func TestRedlockClocks(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"redis-server", "cc"} {
		if _, err := exec.LookPath(program); err != nil || runtime.GOOS != "linux" {
			t.Skipf("%s is needed, and Linux, to move a server's clock", program)
		}
	}
	dir := t.TempDir()
	shim := filepath.Join(dir, "clock.so")
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", shim,
		"../../../../redlock/testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	var hosts []string
	for i, ahead := range []time.Duration{0, 0, 20 * time.Second} {
		file := filepath.Join(dir, fmt.Sprint("clock-", i))
		must(t, os.WriteFile(file, binary.NativeEndian.AppendUint64(nil, uint64(ahead)), 0o600))
		_, port, _ := net.SplitHostPort(closedPort(t))
		host := fmt.Sprintf("127.0.0.%d", i+1)
		launch(t, []string{"LD_PRELOAD=" + shim, "CLOCK_FILE=" + file}, "redis-server", "--port",
			port, "--bind", host, "--save", "", "--dir", t.TempDir())
		hosts = append(hosts, host+":"+port)
		await(t, "redis-server answers", func() bool { return client(t, host+":"+port).Ping(t.Context()).Err() == nil })
	}
	r := examine(t, redlockURL(hosts...))
	finds(t, r, "clock-differs", "redlock-clocks", "redlock-unsettled")
	if f := has(t, r, "redlock-clocks", "s ahead of "); f.Where != hosts[2] {
		t.Errorf("ahead is %s, want %s", f.Where, hosts[2])
	}
}
