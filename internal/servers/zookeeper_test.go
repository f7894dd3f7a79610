package servers_test

import (
	"context"
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// zkTransactions returns the number of the last transaction that a server has seen.
func zkTransactions(t *testing.T, s *servers.Server) string {
	t.Helper()
	conn := dial(t, s)
	_, err := io.WriteString(conn, "srvr")
	must(t, err)
	b, err := io.ReadAll(conn)
	must(t, err)
	found := regexp.MustCompile(`Zxid: (\S+)`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("srvr says %q", b)
	}
	return string(found[1])
}

// zkSession opens a session, which is a transaction, and leaves it.
func zkSession(t *testing.T, s *servers.Server) {
	t.Helper()
	conn := dial(t, s)
	// Length 44: protocol 0, last transaction 0, timeout 1000 ms, session 0, a password of 16 bytes.
	request := make([]byte, 48)
	request[3], request[18], request[19], request[31] = 44, 1000>>8, 1000&0xff, 16
	_, err := conn.Write(request)
	must(t, err)
	if _, err := io.ReadFull(conn, make([]byte, 40)); err != nil {
		t.Fatalf("open a session: %v", err)
	}
}

func TestZooKeeperKeepsAndLosesItsData(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{})
	s := z.Servers()[0]
	expect(t, "at first", zkTransactions(t, s), "0x0")
	zkSession(t, s)
	if got := zkTransactions(t, s); got == "0x0" {
		t.Fatal("a session is no transaction")
	}
	must(t, s.Kill())
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		conn.Close()
		t.Error("a killed server accepts connections")
	}
	must(t, s.Start())
	if got := zkTransactions(t, s); got == "0x0" {
		t.Error("the data is lost after a kill")
	}
	must(t, s.Restart(false))
	expect(t, "after restart without data", zkTransactions(t, s), "0x0")
}

func TestZooKeeperEnsembleSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three JVMs and an election")
	}
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 3})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	leader, err := z.Leader(ctx)
	must(t, err)
	zkSession(t, leader)
	must(t, leader.Kill())
	next, err := z.Leader(ctx)
	must(t, err)
	if next == leader {
		t.Fatal("a dead server leads")
	}
	zkSession(t, next)
	must(t, leader.Restart(false)) // the others give it the data
	zkSession(t, leader)

	must(t, next.Pause())
	third, err := z.Leader(ctx)
	must(t, err)
	if third == next {
		t.Fatal("a paused server leads")
	}
	must(t, next.Resume())
	must(t, z.AwaitOK(ctx))
}
