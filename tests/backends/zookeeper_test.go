package backends

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// The rules ask for leases of up to two minutes, and sessions are longer.
var longSessions = []string{"maxSessionTimeout=180000", "maxClientCnxns=0"}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: longSessions})
	h := zooKeeperHarness("zookeeper", z)
	h.Server = rewinding(t, zooKeeperServer{z.Servers()[0]}, z.Servers()[0])
	run(t, h)
}

// TestZooKeeperEnsemble runs the rules on three servers, of which clients use any.
func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	skipShort(t)
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 3, Config: longSessions})
	h := zooKeeperHarness("zookeeper-ensemble", z)
	h.Member = func(ctx context.Context) (conformance.Link, conformance.Server, error) {
		leader, err := z.Leader(ctx)
		if err != nil {
			return nil, nil, err
		}
		s := z.Servers()[0]
		if s == leader {
			s = z.Servers()[1]
		}
		return &memberLink{addr: s.Addr()}, zooKeeperServer{s}, nil
	}
	run(t, h)
}

// zooKeeperHarness reaches an ensemble, each server of it through a proxy of its own.
func zooKeeperHarness(name string, z *servers.ZooKeeperEnsemble) conformance.Harness {
	return conformance.Harness{
		Name: name,
		Driver: func(_ context.Context, c conformance.Client) (backend.Driver, error) {
			addrs, link := z.Addrs(), c.Link
			if m, ok := c.Link.(*memberLink); ok {
				addrs, link = []string{m.addr}, &m.proxies
			}
			return zookeeper.New(addrs, &zookeeper.Options{Prefix: c.Prefix, Dial: dialer(link)})
		},
		Link:  func(context.Context) (conformance.Link, error) { return &proxies{}, nil },
		Store: &zooKeeperStore{servers: z.Addrs()},
		URL: func(c conformance.Client) string {
			return z.URL() + "?prefix=" + url.QueryEscape(c.Prefix)
		},
		Apart: []conformance.Apart{{
			What: "two chroots",
			Driver: func(_ context.Context, side int, prefix string) (backend.Driver, error) {
				return zookeeper.New(z.Addrs(),
					&zookeeper.Options{
						Prefix: prefix, Chroot: [2]string{"/tenant0", "/tenant1"}[side],
					})
			},
		}, {
			What: "a chroot in the other",
			Driver: func(_ context.Context, side int, prefix string) (backend.Driver, error) {
				return zookeeper.New(z.Addrs(),
					&zookeeper.Options{
						Prefix: prefix, Chroot: [2]string{"/tenant", "/tenant/locks"}[side],
					})
			},
		}},
	}
}

// memberLink is the way to one server.
type memberLink struct {
	proxies
	addr string
}

// zooKeeperServer adds what the suite asks.
type zooKeeperServer struct{ *servers.Server }

func (zooKeeperServer) KeepsData() bool { return true }

// zooKeeperStore looks at ZooKeeper directly.
type zooKeeperStore struct {
	servers []string
	mu      sync.Mutex
	conn    *zk.Conn
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// client returns a connection that works. One whose servers have lost their data never works again.
func (s *zooKeeperStore) client() (*zk.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if s.conn == nil {
			conn, events, err := zk.Connect(s.servers, 10*time.Second, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
			if err != nil {
				return nil, err
			}
			go func() {
				for range events {
				}
			}()
			s.conn = conn
		}
		for soon := time.Now().Add(3 * time.Second); time.Now().Before(soon); <-time.After(5 * time.Millisecond) {
			if s.conn.State() == zk.StateHasSession {
				return s.conn, nil
			}
		}
		s.conn.Close()
		s.conn = nil
	}
	return nil, errors.New("the harness's own client finds no server")
}

// locks is where the locks of a prefix are. The suite's prefixes and most of its names need no escapes.
func locks(prefix string) string { return "/" + prefix + "/locks" }

func (s *zooKeeperStore) Look(_ context.Context, prefix, name string) (bool, time.Duration, error) {
	holder, err := s.holder(prefix, name)
	return holder != "", 0, err
}

func (s *zooKeeperStore) holder(prefix, name string) (string, error) {
	conn, err := s.client()
	if err != nil {
		return "", err
	}
	lock := locks(prefix) + "/" + name
	if _, err := conn.Sync("/"); err != nil { // the server may be behind
		return "", err
	}
	children, _, err := conn.Children(lock)
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	for _, c := range children {
		if mark, _, _ := strings.Cut(c, "-"); mark == "held" || mark == "read" || mark == "perm" {
			return lock + "/" + c, nil
		}
	}
	return "", err
}

func (s *zooKeeperStore) Take(_ context.Context, prefix, name string) error {
	holder, err := s.holder(prefix, name)
	if err != nil || holder == "" {
		return err
	}
	conn, err := s.client()
	if err != nil {
		return err
	}
	return conn.Delete(holder, -1)
}

// Left lists the nodes of the names of a prefix. What else is there is the counters, at most 256, and
// nodes that end with their session.
func (s *zooKeeperStore) Left(_ context.Context, prefix string) ([]string, error) {
	conn, err := s.client()
	if err != nil {
		return nil, err
	}
	if _, err := conn.Sync("/"); err != nil {
		return nil, err
	}
	children, _, err := conn.Children(locks(prefix))
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return children, err
}
