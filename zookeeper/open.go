package zookeeper

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

func init() {
	backend.Register("zookeeper", open)
	backend.Register("zookeepers", open)
}

// open opens zookeeper://[user:password@]h1[:2181],h2[:2181]/chroot, or zookeepers:// for TLS.
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	secure, err := tlsurl.Config(u.Scheme == "zookeepers", q, "use zookeepers://")
	if err != nil {
		return nil, err
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	opts := &Options{Prefix: prefix, NoPrefix: prefix == "", Chroot: u.Path}
	if secure != nil {
		opts.Dial = (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialMost}, Config: secure}).DialContext
	}
	if u.User != nil {
		opts.User = u.User.Username()
		opts.Password, _ = u.User.Password()
	}
	d, err := New(backend.Hosts(u, "2181"), opts)
	if err != nil {
		return nil, err
	}
	if err := d.store.probe(ctx); err != nil {
		_ = d.Close() // the first error is the one to report
		return nil, err
	}
	return d, nil
}

// probe opens the first session and makes the nodes that carry everything else, which shows whether
// the user may.
func (st *store) probe(ctx context.Context) error {
	s, err := st.any(ctx)
	if err != nil {
		return err
	}
	if err := s.ensure(ctx); err != nil {
		return err
	}
	// To a server without container nodes the creation of one is no request: it hangs up. What can be
	// asked is whether the node is there that came with them.
	known, err := call(ctx, s, func(c *zk.Conn) (bool, error) {
		there, _, err := c.Exists("/zookeeper/config")
		return there, err
	})
	if known || err != nil {
		return ctx.Err() // a user that may not look is not refused
	}
	return backend.Invalid("the server is older than ZooKeeper 3.5, for it has no node " +
		"/zookeeper/config: 3.5.3 or later is needed, which has container nodes")
}
