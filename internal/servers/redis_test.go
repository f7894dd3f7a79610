package servers_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// inline sends one inline command to a Redis server and returns the first line of the reply.
func inline(t *testing.T, conn net.Conn, command string) (string, error) {
	t.Helper()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") && line != "$-1\r\n" {
		t.Fatalf("%s: bulk reply %q; the test expects a short one", command, line)
	}
	return strings.TrimSpace(line), err
}

// ask connects, sends one inline command and returns the first line of the reply.
func ask(t *testing.T, s *servers.Server, command string) string {
	t.Helper()
	conn := dial(t, s)
	got, err := inline(t, conn, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return got
}

func dial(t *testing.T, s *servers.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if config := s.TLSConfig(); config != nil {
		conn = tls.Client(conn, config)
	}
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestRedisSurvivesKillWithItsData(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	addr := s.Addr()
	expect(t, "INCR", ask(t, s, "INCR counter"), ":1")

	must(t, s.Kill())
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("a killed server accepts connections")
	}
	must(t, s.Start())
	expect(t, "INCR after kill", ask(t, s, "INCR counter"), ":2")

	must(t, s.Restart(true))
	expect(t, "INCR after restart with data", ask(t, s, "INCR counter"), ":3")

	must(t, s.Stop())
	must(t, s.Start())
	expect(t, "INCR after stop", ask(t, s, "INCR counter"), ":4")

	must(t, s.Restart(false))
	expect(t, "INCR after restart without data", ask(t, s, "INCR counter"), ":1")
	expect(t, "address", s.Addr(), addr)
}

func TestRedisWithoutPersistenceForgets(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	expect(t, "INCR", ask(t, s, "INCR counter"), ":1")
	must(t, s.Restart(true))
	expect(t, "INCR after restart", ask(t, s, "INCR counter"), ":1")
}

func TestPausedRedisIsSilent(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	conn := dial(t, s)
	must(t, s.Pause())
	must(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if got, err := inline(t, conn, "INCR counter"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server answered %q, %v", got, err)
	}
	must(t, s.Resume())
	must(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	got, err := bufio.NewReader(conn).ReadString('\n')
	must(t, err)
	expect(t, "reply after resume", strings.TrimSpace(got), ":1")
}

func TestRedisStopsWhilePaused(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	must(t, s.Pause())
	must(t, s.Stop())
	must(t, s.Start())
	expect(t, "PING", ask(t, s, "PING"), "+PONG")
}

func TestRedisPasswordUsersAndTLS(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{
		Password: `a "quoted" one`,
		Users:    []string{"worker on >secret ~lock:* +@all"},
		TLS:      true,
	})
	if !strings.HasPrefix(s.URL(), "rediss://:") {
		t.Errorf("URL is %q", s.URL())
	}
	if _, err := os.Stat(s.CAFile()); err != nil {
		t.Error(err)
	}
	conn := dial(t, s)
	for _, c := range []struct{ command, want string }{
		{"PING", "-NOAUTH Authentication required."},
		{"AUTH worker secret", "+OK"},
		{"SET lock:a 1", "+OK"},
		{"SET other 1", "-NOPERM this user has no permissions to access one of the keys used as arguments"},
	} {
		got, err := inline(t, conn, c.command)
		must(t, err)
		if word, _, _ := strings.Cut(c.want, " "); !strings.HasPrefix(got, word) {
			t.Errorf("%s: got %q, want %q", c.command, got, c.want)
		}
	}
}

func TestRedisStartErrorHasTheLog(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	must(t, s.Stop())
	name := s.Dir() + "/redis.conf"
	conf, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, append(conf, "no-such-setting 1\n"...), 0o644))
	must(t, s.Wipe()) // a container gets its files when it is made
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("got %v, want an error with the server's own words", err)
	}
	must(t, os.WriteFile(name, conf, 0o644))
	must(t, s.Restart(false))
}

func TestRedisesAreIndependent(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 5, servers.RedisOptions{})
	for _, s := range g.Servers() {
		expect(t, s.Addr(), ask(t, s, "INCR counter"), ":1")
	}
	must(t, g.Servers()[1].Kill())
	expect(t, "another one", ask(t, g.Servers()[2], "INCR counter"), ":2")
}

func TestRedisSentinelReplacesTheMaster(t *testing.T) {
	t.Parallel()
	s := servers.RedisSentinel(t, servers.SentinelOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	master, err := s.Master(ctx)
	must(t, err)
	conn := dial(t, master)
	for _, c := range []struct{ command, want string }{{"INCR counter", ":1"}, {"WAIT 1 5000", ":1"}} {
		got, err := inline(t, conn, c.command)
		must(t, err)
		expect(t, c.command, got, c.want)
	}
	must(t, master.Kill())
	next, err := s.AwaitMaster(ctx, master)
	must(t, err)
	expect(t, "INCR on the new master", ask(t, next, "INCR counter"), ":2")
}

func TestRedisClusterServesEverySlot(t *testing.T) {
	t.Parallel()
	replicas := 1
	if testing.Short() {
		replicas = 0
	}
	c := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3, Replicas: replicas})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, slot := range []int{0, 8191, 16383} {
		if _, err := c.Master(ctx, slot); err != nil {
			t.Error(err)
		}
	}
	master, err := c.Master(ctx, 12182) // the slot of "foo"
	must(t, err)
	expect(t, "SET", ask(t, master, "SET foo 1"), "+OK")
	must(t, master.Restart(true))
	must(t, c.AwaitOK(ctx))
}
