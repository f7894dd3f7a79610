package doctor

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// plain is an exam of servers without TLS.
var plain = &exam{}

// lengthy lets sessions be as long as leases are by default.
var lengthy = []string{"maxSessionTimeout=60000"}

func zooClient(t *testing.T, z *servers.ZooKeeperEnsemble) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(z.Addrs()[:1], 4*time.Second, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	must(t, err)
	go func() {
		for range events { // until Close
		}
	}()
	t.Cleanup(c.Close)
	return c
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three JVMs")
	}
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 3, Config: lengthy})
	use(t, z.URL())
	c := zooClient(t, z)
	nodes := func() int32 { // of the whole keyspace's root
		_, st, err := c.Get("/fencelock:")
		must(t, err)
		return st.NumChildren
	}
	before := nodes()
	r := examine(t, z.URL())
	finds(t, r)
	sound(t, r)
	if got := nodes(); got != before {
		t.Errorf("%d nodes, before the examination there were %d", got, before)
	}
	one := "zookeeper://" + z.Addrs()[0]
	has(t, examine(t, one, behind(time.Minute)), "clock-differs", "ahead")
	has(t, examine(t, one, tooOld("zookeeper")), "zookeeper-version", "3.")
	finds(t, examine(t, one+"?ttl=70s"), "zookeeper-session-short")
	has(t, examine(t, one+"?ttl=70s"), "zookeeper-session-short", "1m0s, which covers 57.312s, with a TTL of 1m10s")
	must(t, z.Servers()[2].Kill())
	_, err := z.Leader(t.Context())
	must(t, err)
	finds(t, examine(t, z.URL()), "zookeeper-down")
	must(t, z.Servers()[1].Kill())
	await(t, "the last server misses the others", func() bool {
		text, err := plain.fourLetters(t.Context(), z.Addrs()[0], "srvr")
		return err == nil && strings.Contains(text, notServing)
	})
	finds(t, examine(t, z.URL()), "zookeeper-down", "zookeeper-no-quorum")
	must(t, z.Servers()[0].Kill())
	refused(t, z.URL(), "", backend.ErrUnavailable)
}

func TestZooKeeperAlone(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{
		TLS: true, Config: []string{"maxSessionTimeout=8000", "minSessionTimeout=6000", "maxClientCnxns=5"},
	})
	r := examine(t, z.URL()+"?ttl=3500ms")
	finds(t, r, "zookeeper-single", "zookeeper-connections")
	has(t, r, "zookeeper-connections", "5")
	has(t, examine(t, z.URL()), "zookeeper-session-short", "8s, which covers 4.032s, with a TTL of 30s")
	finds(t, examine(t, z.URL()+"?ttl=1s"), "zookeeper-single", "zookeeper-connections", "zookeeper-session-long")
	secure := z.SecureURL() + "?ttl=1s&tls_ca=" + url.QueryEscape(z.CAFile())
	finds(t, examine(t, secure), "zookeeper-single", "zookeeper-connections", "zookeeper-session-long")
	if there, _, err := zooClient(t, z).Exists("/fencelock:"); there || err != nil {
		t.Errorf("the examination made nodes (%v)", err)
	}
	slow := "zookeeper://" + delayed(t, z.Addrs()[0], 100*time.Millisecond)
	if r := examine(t, slow+"?ttl=1s"); !slices.Contains(r.ids(), "round-trip-slow") {
		t.Errorf("a slow network is not noticed: %v", r.ids())
	}
}

// Every connection says the host's name, which is what a certificate has.
func TestZooKeeperByName(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	names := map[string]int{}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			mu.Lock()
			defer mu.Unlock()
			names[hello.ServerName]++
			return nil, errors.New("goodbye")
		},
	})
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	x := &exam{now: time.Now, secure: &tls.Config{MinVersion: tls.VersionTLS12}}
	if x.u, err = url.Parse("zookeepers://localhost:" + port); err != nil {
		t.Fatal(err)
	}
	if _, err := x.fourLetters(t.Context(), "localhost:"+port, "srvr"); err == nil {
		t.Error("an answer without a handshake")
	}
	if _, err := dialZoo(t.Context(), x, time.Second); err == nil {
		t.Error("a session without a handshake")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(names) != 1 || names["localhost"] < 2 {
		t.Errorf("got connections to %v, want several to localhost", names)
	}
}

// A tick longer than half of the shortest session is told, and a session of any program whose end
// is near what servers can read.
func TestZooKeeperTickAndHeavySession(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: append(slices.Clone(lengthy), "minSessionTimeout=300")})
	r := examine(t, z.URL())
	finds(t, r, "zookeeper-single", "zookeeper-tick")
	has(t, r, "zookeeper-tick", "300 ms, with a tickTime of 200 ms")
	c := zooClient(t, z)
	for i := range 1100 {
		path := fmt.Sprintf("/%04d%s", i, strings.Repeat("x", 1000))
		_, err := c.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		must(t, err)
	}
	has(t, examine(t, z.URL()), "zookeeper-session-heavy", fmt.Sprintf("0x%x", c.SessionID()))
}

func TestZooKeeperSilentWords(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{
		Config: append(slices.Clone(lengthy), "4lw.commands.whitelist=ruok,srvr"),
	})
	finds(t, examine(t, z.URL()), "zookeeper-single", "zookeeper-words-unseen", "zookeeper-clock-unseen")
	has(t, examine(t, z.URL()), "zookeeper-words-unseen", "conf")
}

func TestZooKeeperTwoAndFour(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("six JVMs")
	}
	two := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 2, Config: lengthy})
	finds(t, examine(t, two.URL()), "zookeeper-few")
	must(t, two.Close())
	four := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 4, Config: lengthy})
	finds(t, examine(t, four.URL()), "zookeeper-even")
}

func TestZooKeeperRights(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: lengthy})
	c := zooClient(t, z)
	at := func(user, chroot string) string {
		return "zookeeper://" + user + z.Addrs()[0] + chroot
	}
	make := func(p string, acl []zk.ACL) {
		_, err := c.Create(p, nil, 0, acl)
		must(t, err)
	}
	finds(t, examine(t, at("", "")), "zookeeper-single")
	finds(t, examine(t, at("app:s3cret@", "/not/there/yet")), "zookeeper-single")
	use(t, at("app:s3cret@", "/apps"))
	finds(t, examine(t, at("app:s3cret@", "/apps")), "zookeeper-single")
	has(t, examine(t, at("", "/apps")), "zookeeper-rights", "/apps")
	has(t, examine(t, at("app:wr0ng@", "/apps")), "zookeeper-rights", "/apps")
	has(t, examine(t, at("other:s3cret@", "/apps")), "zookeeper-rights", "/apps")
	make("/read", zk.WorldACL(zk.PermRead))
	has(t, examine(t, at("", "/read")), "zookeeper-rights", "/read")
	make("/app", zk.WorldACL(zk.PermAll))
	make("/app/fencelock:",
		append(zk.DigestACL(zk.PermAll&^zk.PermDelete, "app",
			"s3cret"), zk.WorldACL(zk.PermRead)...))
	has(t, examine(t, at("app:s3cret@", "/app")), "zookeeper-rights", "/app/fencelock:")
	for _, user := range []string{"", "app:s3cret@"} {
		for _, f := range examine(t, at(user, "/app")).Findings {
			if strings.Contains(f.Value+f.Mend, "s3cret") {
				t.Errorf("%+v shows the password", f)
			}
		}
	}
	// Who may not read the list of servers cannot tell how many there are.
	make("/closed", zk.WorldACL(zk.PermAll))
	super := zk.DigestACL(zk.PermAll, "nobody", "nobody")
	if _, err := c.SetACL("/zookeeper/config", super, -1); err == nil {
		has(t, examine(t, at("", "/closed")), "zookeeper-ensemble-unseen", "/zookeeper/config")
	} else {
		t.Logf("the ACL of /zookeeper/config cannot be changed here: %v", err)
	}
}

// A server of the ensemble that does not vote.
func TestZooKeeperObserver(t *testing.T) {
	t.Parallel()
	const classes = "/usr/share/java/zookeeper.jar"
	if _, err := os.Stat(classes); err != nil || testing.Short() {
		t.Skip("three JVMs, and Debian's package of ZooKeeper")
	}
	var list string
	ports := make([]string, 3)
	for i, role := range []string{"participant", "participant", "observer"} {
		_, ports[i], _ = net.SplitHostPort(closedPort(t))
		_, peer, _ := net.SplitHostPort(closedPort(t))
		_, election, _ := net.SplitHostPort(closedPort(t))
		list += fmt.Sprintf("server.%d=127.0.0.1:%s:%s:%s\n", i+1, peer, election, role)
	}
	for i, port := range ports {
		dir := t.TempDir()
		conf := "tickTime=200\ninitLimit=100\nsyncLimit=100\nmaxSessionTimeout=60000\n" +
			"admin.enableServer=false\n4lw.commands.whitelist=*\n" +
			"clientPortAddress=127.0.0.1\nclientPort=" + port + "\ndataDir=" + dir + "\n" + list
		if i == 2 {
			conf += "peerType=observer\n"
		}
		must(t, os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(conf), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "myid"), fmt.Append(nil, i+1), 0o600))
		launch(t, nil, "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
			classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain",
			filepath.Join(dir, "zoo.cfg"))
	}
	host := "127.0.0.1:" + ports[2]
	await(t, "the observer serves", func() bool {
		text, err := plain.fourLetters(t.Context(), host, "srvr")
		return err == nil && strings.Contains(text, "Mode: observer")
	})
	r := examine(t, "zookeeper://"+host)
	finds(t, r, "zookeeper-few", "zookeeper-observer", "zookeeper-observers")
	has(t, r, "zookeeper-observers", "1")
}

// The server is killed as soon as it has granted the session, and the client library connects again.
func TestZooKeeperGreetingOfTheFirstConnection(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if first {
				size := make([]byte, 4)
				_, _ = io.ReadFull(conn, size)
				_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(size)))
				granted := make([]byte, 4+36)
				binary.BigEndian.PutUint32(granted, 36)
				binary.BigEndian.PutUint32(granted[8:], 4000)
				binary.BigEndian.PutUint64(granted[12:], 1)  // the session
				binary.BigEndian.PutUint32(granted[20:], 16) // bytes of its password
				_, _ = conn.Write(granted)
			}
			_ = conn.Close()
		}
	}()
	x := newExam()
	x.u = &url.URL{Scheme: "zookeeper", Host: l.Addr().String() + "," + l.Addr().String()}
	dials, returned := 0, make(chan struct{})
	x.now = func() time.Time {
		if dials++; dials == 2 { // before dialZoo has taken in what the first has said, if it can
			select {
			case <-returned:
			case <-time.After(300 * time.Millisecond):
			}
		}
		return time.Now()
	}
	s, err := dialZoo(t.Context(), x, time.Minute)
	close(returned)
	must(t, err)
	defer s.Close()
	if s.granted != 4*time.Second {
		t.Errorf("granted %v, want 4s", s.granted)
	}
}
