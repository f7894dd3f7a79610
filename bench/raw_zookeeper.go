package bench

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// rawZooKeeper creates and deletes an ephemeral node. It hands over by a watch of another session.
type rawZooKeeper struct {
	p        place
	one, two *zk.Conn
	acl      []zk.ACL
	root     string // the node of the raw keys
	servers  []string
}

func openRawZooKeeper(ctx context.Context, p place) (raw, error) {
	r := &rawZooKeeper{p: p, acl: zk.WorldACL(zk.PermAll), servers: backend.Hosts(p.u, "2181")}
	if p.u.User != nil {
		r.acl = zk.AuthACL(zk.PermAll)
	}
	var err error
	if r.one, err = r.connect(ctx); err == nil {
		r.two, err = r.connect(ctx)
	}
	if err == nil { // the chroot is there: the library has opened it
		r.root = strings.TrimSuffix(p.u.Path, "/") + "/raw-" + p.id
		_, err = r.one.Create(r.root, nil, 0, r.acl)
	}
	if err != nil {
		_ = r.close()
		return nil, backend.Unavailable(err)
	}
	return r, nil
}

// connect returns a connection that has a session.
func (r *rawZooKeeper) connect(ctx context.Context) (*zk.Conn, error) {
	up := make(chan struct{})
	var once sync.Once
	conn, events, err := zk.Connect(r.servers, rawTTL, zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithEventCallback(func(e zk.Event) {
		if e.State == zk.StateHasSession {
			once.Do(func() { close(up) })
		}
	}))
	if err != nil {
		return nil, err
	}
	go func() {
		for range events { // they came to the callback; Close ends it
		}
	}()
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-up:
	case <-timer.C:
		err = errors.New("no server of the ensemble grants a session")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && r.p.u.User != nil {
		password, _ := r.p.u.User.Password()
		err = conn.AddAuth("digest", []byte(r.p.u.User.Username()+":"+password))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// silent is the client's logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// node is the node of a name; the names of a run have no slash.
func (r *rawZooKeeper) node(name string) string { return r.root + "/" + name }

func (r *rawZooKeeper) cycle(name string) (cycle, error) {
	node := r.node(name)
	return func(_ context.Context, held func()) error {
		if _, err := r.one.Create(node, nil, zk.FlagEphemeral, r.acl); err != nil {
			return err
		}
		held()
		return r.one.Delete(node, -1)
	}, nil
}

func (r *rawZooKeeper) relay(_ context.Context, name string) (*relay, error) {
	node := r.node(name)
	var gone <-chan zk.Event
	return &relay{
		hold: func(context.Context) error {
			_, err := r.one.Create(node, nil, zk.FlagEphemeral, r.acl)
			if err == nil {
				_, err = r.two.Sync(node) // its server may not have seen the node yet
			}
			if err == nil {
				_, _, gone, err = r.two.ExistsW(node)
			}
			return err
		},
		free: func(context.Context) error { return r.one.Delete(node, -1) },
		wait: func(ctx context.Context) error {
			select {
			case e := <-gone:
				return e.Err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		shut: func() {},
	}, nil
}

// commands sums the packets that the servers have received, which srvr tells where it is allowed.
func (r *rawZooKeeper) commands(ctx context.Context) (int64, bool) {
	var sum int64
	for _, server := range r.servers {
		n, err := received(ctx, server)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

func received(ctx context.Context, server string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "Received: "); ok {
			return strconv.ParseInt(n, 10, 64)
		}
	}
	return 0, errors.Join(errors.New("srvr does not tell what was received"), lines.Err())
}

// wipe deletes the raw nodes, and the keyspace of the library, whose node has the id in its name.
func (r *rawZooKeeper) wipe(ctx context.Context) error {
	parent := strings.TrimSuffix(r.p.u.Path, "/")
	top := parent
	if top == "" {
		top = "/"
	}
	children, _, err := r.one.Children(top)
	for _, c := range children {
		if strings.Contains(c, r.p.id) {
			err = errors.Join(err, r.remove(ctx, parent+"/"+c))
		}
	}
	return err
}

// remove deletes a node and what is under it.
func (r *rawZooKeeper) remove(ctx context.Context, node string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	children, _, err := r.one.Children(node)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	for _, c := range children {
		if err := r.remove(ctx, node+"/"+c); err != nil {
			return err
		}
	}
	if err == nil {
		err = r.one.Delete(node, -1)
	}
	if errors.Is(err, zk.ErrNoNode) { // a container node goes by itself
		return nil
	}
	return err
}

func (r *rawZooKeeper) close() error {
	for _, c := range []*zk.Conn{r.one, r.two} {
		if c != nil {
			c.Close()
		}
	}
	return nil
}
