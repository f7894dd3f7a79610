package stores

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ZooKeeperOptions describes a ZooKeeper ensemble.
type ZooKeeperOptions struct {
	Servers int      // 1 (default), 3, 5
	Config  []string // lines of zoo.cfg, such as "maxSessionTimeout=60000"; they come last and so win
	// TLS makes each server speak TLS too, on a port of its own (SecureURL), with a certificate of an authority of its
	// own (CAFile).
	TLS bool
}

// ZooKeeperEnsemble is a ZooKeeper ensemble. A server that lost its data gets it back from the others.
type ZooKeeperEnsemble struct {
	*Group
	secure []string // addresses for TLS
}

// SecureURL is the first server's address for TLS, as this project's driver takes it.
func (z *ZooKeeperEnsemble) SecureURL() string { return "zookeepers://" + z.secure[0] }

// StartZooKeeper starts the servers and returns when each serves clients.
func StartZooKeeper(ctx context.Context, l Launcher, o ZooKeeperOptions) (*ZooKeeperEnsemble, error) {
	classes := ""
	if l.Kind() == "local" {
		var err error
		if classes, err = zooKeeperClasses(); err != nil {
			return nil, err
		}
	}
	z := &ZooKeeperEnsemble{Group: &Group{}}
	return z, z.run(ctx, max(o.Servers, 1), 4, false, func(i int, all [][]int) (*Server, error) {
		return newServer("zookeeper", l, all[i][0], func(s *Server) error {
			return z.server(ctx, l, s, o, classes, i, all)
		})
	})
}

// zooKeeperClasses finds the jars: of ZOOKEEPER_HOME, as the project's own archive has them, or of Debian.
func zooKeeperClasses() (string, error) {
	if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
		jars, err := filepath.Glob(filepath.Join(home, "lib", "*.jar"))
		if err == nil && len(jars) == 0 {
			err = fmt.Errorf("zookeeper is %w: ZOOKEEPER_HOME=%s has no jars in lib", ErrMissing, home)
		}
		// In order, and so ZooKeeper's own last: the jars that its manifest names may be another version's.
		return strings.Join(jars, string(os.PathListSeparator)), err
	}
	const debian = "/usr/share/java/zookeeper.jar" // names the others it needs
	if _, err := os.Stat(debian); err != nil {
		return "", fmt.Errorf("zookeeper is %w: neither ZOOKEEPER_HOME nor %s is there", ErrMissing, debian)
	}
	return debian + string(os.PathListSeparator) + debianCodec, nil
}

// debianCodec is what the manifest of Debian's jar (3.8.0) does not name, and TLS needs.
const debianCodec = "/usr/share/java/netty-codec.jar"

// The logging configuration for both libraries that versions of ZooKeeper use.
const (
	log4jConfig = `log4j.rootLogger=WARN, C
log4j.appender.C=org.apache.log4j.ConsoleAppender
log4j.appender.C.layout=org.apache.log4j.PatternLayout
log4j.appender.C.layout.ConversionPattern=%d %p %c %m%n
`
	logbackConfig = `<configuration>
  <appender name="C" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="C"/></root>
</configuration>
`
)

// server prepares server i. Its ports are for clients, for the leader, for elections, and for clients with TLS.
func (z *ZooKeeperEnsemble) server(
	ctx context.Context, l Launcher, s *Server, o ZooKeeperOptions, classes string, i int, all [][]int,
) (err error) {
	s.url = "zookeeper://" + s.addr
	s.ready = func(ctx context.Context) error { return z.ready(ctx, s, i) }
	s.probe = zooKeeperVersion(s)
	data := filepath.Join(s.dir, "data")
	config := zooConfig(o, data, i, all)
	if o.TLS {
		lines, err := z.tls(s, all[i][3])
		if err != nil {
			return err
		}
		config += lines
	}
	files := map[string]string{
		"zoo.cfg":          config,
		"log4j.properties": log4jConfig,
		"logback.xml":      logbackConfig,
	}
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644))
	}
	id := strconv.Itoa(i + 1)
	if err == nil {
		s.process, err = l.Prepare(ctx, zooKeeperSpec(s.dir, data, classes, id, all[i]))
	}
	return err
}

// zooConfig is zoo.cfg.
func zooConfig(o ZooKeeperOptions, data string, i int, all [][]int) string {
	lines := []string{
		// Sessions of 400 ms to 4 s are allowed, and leaders are missed soon.
		"tickTime=200", "initLimit=50", "syncLimit=10", "dataDir=" + data,
		"clientPort=" + strconv.Itoa(all[i][0]), "clientPortAddress=127.0.0.1",
		"admin.enableServer=false", "4lw.commands.whitelist=*", "extendedTypesEnabled=true",
	}
	if len(all) > 1 {
		for j, set := range all {
			lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", j+1, set[1], set[2]))
		}
	}
	return strings.Join(append(lines, o.Config...), "\n") + "\n"
}

// tls makes a certificate for a server, and returns the lines of its configuration.
func (z *ZooKeeperEnsemble) tls(s *Server, port int) (string, error) {
	own, err := newAuthority(s.dir)
	if err != nil {
		return "", err
	}
	key, err := os.ReadFile(own.keyFile)
	if err != nil {
		return "", err
	}
	cert, err := os.ReadFile(own.certFile)
	if err != nil {
		return "", err
	}
	both := filepath.Join(s.dir, "store.pem") // by this end it knows the type
	if err := os.WriteFile(both, append(key, cert...), 0o644); err != nil {
		return "", err
	}
	s.caFile, s.tls = own.caFile, own.client
	z.secure = append(z.secure, loopback(port))
	return strings.Join([]string{
		"secureClientPort=" + strconv.Itoa(port), "secureClientPortAddress=127.0.0.1",
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "ssl.clientAuth=none",
		"ssl.keyStore.location=" + both, "ssl.trustStore.location=" + own.caFile,
	}, "\n") + "\n", nil
}

// zooKeeperSpec says how to run one server whose configuration is in dir.
func zooKeeperSpec(dir, data, classes, id string, ports []int) Spec {
	// Little memory, and a compiler that is quick rather than good: a start takes half the time.
	jvm := []string{
		"-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem",
		// An election that misses a message is tried again after a second, not after up to a minute.
		"-Dzookeeper.fastleader.maxNotificationInterval=1000", "-Dzookeeper.cnxTimeout=1000",
	}
	config := filepath.Join(dir, "zoo.cfg")
	writeID := `mkdir -p "$1" && printf %s "$2" >"$1/myid"`
	args := append([]string{"java"}, jvm...)
	args = append(args, "-cp", dir+string(os.PathListSeparator)+classes,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	return Spec{
		Store: "zookeeper", Name: "zookeeper-" + id, Dir: dir, Data: data, Ports: ports,
		Args:  args,
		Image: []string{"sh", "-c", writeID + ` && exec zkServer.sh start-foreground`, "zookeeper", data, id},
		Env:   []string{"ZOOCFGDIR=" + dir, "SERVER_JVMFLAGS=" + strings.Join(jvm, " "), "JMXDISABLE=true"},
		Setup: func(context.Context) error {
			return os.WriteFile(filepath.Join(data, "myid"), []byte(id), 0o644)
		},
	}
}

// ready returns nil if a server serves clients, or, while there is no majority that could, if it answers.
func (z *ZooKeeperEnsemble) ready(ctx context.Context, s *Server, i int) error {
	answer, err := fourLetters(ctx, s, "srvr")
	if err == nil && field(answer, "Mode") == "" {
		err = fmt.Errorf("it says %q", strings.TrimSpace(answer))
	}
	if err != nil && !z.majority() {
		answer, err = fourLetters(ctx, s, "ruok")
		if err == nil && answer != "imok" {
			err = fmt.Errorf("it says %q", answer)
		}
	}
	if err != nil || s.tls == nil {
		return err
	}
	// A JVM's first handshake takes seconds where the machine is slow.
	conn, err := (&tls.Dialer{Config: s.tls}).DialContext(ctx, "tcp", z.secure[i])
	if err == nil {
		err = conn.Close()
	}
	return err
}

func zooKeeperVersion(s *Server) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		answer, err := fourLetters(ctx, s, "srvr")
		// "3.8.0-${mvngit.commit.id}, built on …"
		version, _, _ := strings.Cut(field(answer, "Zookeeper version"), "-")
		return version, err
	}
}

func fourLetters(ctx context.Context, s *Server, word string) (string, error) {
	return FourLetters(ctx, new(net.Dialer).DialContext, s.addr, word)
}

const (
	wordMost   = 3 * time.Second // bounds an answer to a four-letter word
	answerMost = 64 << 20        // bytes of it that are read
)

// FourLetters sends one of ZooKeeper's four-letter words over a connection of its own, and returns the answer.
func FourLetters(
	ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), addr, word string,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wordMost)
	defer cancel()
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // of an open connection: cannot fail
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, answerMost))
	switch {
	case len(answer) > 0: // it may cut the connection when it has said all
		return string(answer), nil
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return "", err
}

// Leader waits for a running server that says it is the leader; of one alone, that one.
func (z *ZooKeeperEnsemble) Leader(ctx context.Context) (*Server, error) {
	return z.find(ctx, "leader", func(ctx context.Context, s *Server) (bool, error) {
		answer, err := fourLetters(ctx, s, "srvr")
		mode := field(answer, "Mode")
		return mode == "leader" || mode == "standalone", err
	})
}

// URL is the address as this project's driver takes it.
func (z *ZooKeeperEnsemble) URL() string { return "zookeeper://" + strings.Join(z.Addrs(), ",") }
