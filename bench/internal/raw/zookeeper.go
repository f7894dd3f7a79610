package raw

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/internal/servers/stores"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// zooKeeper creates and deletes an ephemeral node. A waiter sees the delete by a watch.
type zooKeeper struct {
	at      Place
	conn    *zk.Conn
	acl     []zk.ACL
	root    string // the node of the raw keys
	servers []string
}

func openZooKeeper(ctx context.Context, p Place) (Store, error) {
	r := &zooKeeper{at: p, acl: zk.WorldACL(zk.PermAll), servers: backend.Hosts(p.URL, "2181")}
	secure, err := tlsurl.Config(p.URL.Scheme == "zookeepers", p.Query, "use zookeepers://")
	if err != nil {
		return nil, err
	}
	if r.conn, err = ZooKeeperSession(ctx, r.servers, secure); err != nil {
		return nil, backend.Unavailable(err)
	}
	if user := p.URL.User; user != nil {
		r.acl = zk.AuthACL(zk.PermAll)
		password, _ := user.Password()
		err = r.conn.AddAuth("digest", []byte(user.Username()+":"+password))
	}
	if err == nil { // the chroot is there: the library has opened it
		r.root = strings.TrimSuffix(p.URL.Path, "/") + "/raw-" + p.ID
		_, err = r.conn.Create(r.root, nil, 0, r.acl)
	}
	if err != nil {
		r.conn.Close()
		return nil, backend.Unavailable(err)
	}
	return r, nil
}

// ZooKeeperSession returns a connection that has a session, of 30 s; over TLS if secure is not nil.
func ZooKeeperSession(ctx context.Context, servers []string, secure *tls.Config) (*zk.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dial := net.DialTimeout
	if secure != nil {
		dial = func(network, addr string, most time.Duration) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: most}, network, addr, secure)
		}
	}
	conn, events, err := zk.Connect(servers, ttl, zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithDialer(dial),
		zk.WithHostProvider(&tlsurl.ByName{}))
	if err != nil {
		return nil, err
	}
	up := make(chan struct{})
	go func() {
		var once sync.Once
		for e := range events { // Close ends it
			if e.State == zk.StateHasSession {
				once.Do(func() { close(up) })
			}
		}
	}()
	select {
	case <-up:
		return conn, nil
	case <-ctx.Done():
		conn.Close()
		return nil, fmt.Errorf("no server of the ensemble grants a session: %w", ctx.Err())
	}
}

// silent is the client's logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (r *zooKeeper) Mutex(_ context.Context, name string, waits bool) (measure.Mutex, error) {
	node := r.root + "/" + name // the names of a run have no slash
	return measure.Mutex{
		Lock: func(ctx context.Context) error {
			for {
				_, err := r.conn.Create(node, nil, zk.FlagEphemeral, r.acl)
				if !waits || !errors.Is(err, zk.ErrNodeExists) {
					return err
				}
				there, _, gone, err := r.conn.ExistsW(node)
				if err != nil {
					return err
				}
				if !there {
					continue
				}
				select {
				case <-gone:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
		Unlock: func(context.Context) error { return r.conn.Delete(node, -1) },
	}, nil
}

// Commands sums the packets that the servers have received, by srvr.
func (r *zooKeeper) Commands(ctx context.Context) (int64, bool) {
	if r.at.URL.Scheme == "zookeepers" { // a port for TLS does not know srvr
		return 0, false
	}
	return Total(ctx, r.servers, ZooKeeperPackets)
}

var zooKeeperReceived = regexp.MustCompile(`(?m)^Received: (\d+)$`)

// ZooKeeperPackets returns how many packets a server has received.
func ZooKeeperPackets(ctx context.Context, server string) (int64, error) {
	text, err := stores.FourLetters(ctx, new(net.Dialer).DialContext, server, "srvr")
	if err == nil && !zooKeeperReceived.MatchString(text) {
		err = errors.New("srvr does not tell what was received")
	}
	return SumOf(text, zooKeeperReceived), err
}

// Wipe deletes the raw nodes and the keyspace of the library. Both have the id in the name of their node.
func (r *zooKeeper) Wipe(ctx context.Context) error {
	parent := strings.TrimSuffix(r.at.URL.Path, "/")
	top := parent
	if top == "" {
		top = "/"
	}
	children, _, err := r.conn.Children(top)
	for _, c := range children {
		if strings.Contains(c, r.at.ID) {
			err = errors.Join(err, r.remove(ctx, parent+"/"+c))
		}
	}
	return err
}

// remove deletes a node and its descendants.
func (r *zooKeeper) remove(ctx context.Context, node string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	children, _, err := r.conn.Children(node)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	for _, c := range children {
		if err := r.remove(ctx, node+"/"+c); err != nil {
			return err
		}
	}
	if err == nil {
		err = r.conn.Delete(node, -1)
	}
	if errors.Is(err, zk.ErrNoNode) { // a container node goes by itself
		return nil
	}
	return err
}

func (r *zooKeeper) Close() error {
	r.conn.Close()
	return nil
}
