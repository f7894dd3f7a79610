package etcd

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

func init() {
	backend.Register("etcd", open)
	backend.Register("etcds", open)
}

const (
	// window is gRPC's own default. Set by hand it does not change with the
	// traffic, for which gRPC would send a ping with every answer.
	window = 1 << 20
	// pingAfter and pingMost bound how long a member that has vanished is waited for.
	pingAfter = 10 * time.Second
	pingMost  = 3 * time.Second
	// openMost bounds opening.
	openMost = 5 * time.Second
)

// open makes a driver from etcd://[user:password@]host[:2379][,host…], or etcds:// for TLS.
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	dial := q.Duration("dial_timeout", 2*time.Second)
	secure, err := tlsurl.Config(u.Scheme == "etcds", q, "use etcds://")
	if err != nil {
		return nil, err
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if u.Path != "" && u.Path != "/" {
		return nil, backend.Invalid("the path %q of the %s URL: want none; the keyspace is prefix=",
			u.Path, u.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, openMost)
	defer cancel()
	conf := config(backend.Hosts(u, "2379"), secure, dial)
	if u.User != nil {
		conf.Username = u.User.Username()
		conf.Password, _ = u.User.Password()
		if conf.Username == "" || conf.Password == "" {
			return nil, backend.Invalid("the %s URL has a user without a password, or a password "+
				"without a user: want user:password@", u.Scheme)
		}
	}
	client, err := connect(ctx, conf)
	if err != nil {
		return nil, err
	}
	d, err := New(client, &Options{Prefix: prefix, NoPrefix: prefix == ""})
	if err == nil {
		d.store.own = true
		err = d.store.probe(ctx)
	}
	if err != nil {
		_ = client.Close() // the first error is the one to report
		return nil, err
	}
	return d, nil
}

// config returns the settings of a client that soon notices an outage and its end.
func config(hosts []string, secure *tls.Config, dial time.Duration) clientv3.Config {
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
	}
	endpoints := make([]string, len(hosts))
	for i, h := range hosts {
		endpoints[i] = scheme + h
	}
	conf := clientv3.Config{
		Endpoints: endpoints, TLS: secure, Logger: zap.NewNop(),
		DialTimeout: dial, DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingMost,
		MaxUnaryRetries: 2, // the driver has its own
		DialOptions: []grpc.DialOption{
			grpc.WithDisableServiceConfig(), // the client's own
			grpc.WithDefaultServiceConfig(`{"loadBalancingPolicy": "` + policy + `"}`),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
					MaxDelay: 500 * time.Millisecond,
				},
				MinConnectTimeout: dial,
			}),
		},
	}
	if secure != nil && secure.ServerName != "" {
		conf.DialOptions = append(conf.DialOptions,
			grpc.WithTransportCredentials(named{credentials.NewTLS(secure), secure.ServerName}))
	}
	return conf
}

// named are credentials that expect one name of every server. The etcd client by
// itself expects the host of each endpoint, whatever the TLS settings say.
type named struct {
	credentials.TransportCredentials
	name string
}

// ClientHandshake replaces the name.
func (n named) ClientHandshake(
	ctx context.Context, _ string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return n.TransportCredentials.ClientHandshake(ctx, n.name, conn)
}

// Clone keeps the name.
func (n named) Clone() credentials.TransportCredentials {
	return named{n.TransportCredentials.Clone(), n.name}
}

// connect makes a client. With a user it asks the server, which is bounded by ctx.
func connect(ctx context.Context, conf clientv3.Config) (*clientv3.Client, error) {
	if end, ok := ctx.Deadline(); ok {
		conf.DialTimeout = max(min(conf.DialTimeout, time.Until(end)), time.Millisecond)
	}
	base, stop := context.WithCancel(context.Background())
	conf.Context = base
	halt := context.AfterFunc(ctx, stop) // while it connects; later ctx means nothing to the client
	client, err := clientv3.New(conf)
	if !halt() && err == nil {
		_ = client.Close()
		err = ctx.Err()
	}
	if err != nil {
		stop()
		return nil, meaning(ctx, err)
	}
	client.Auth = &logins{Auth: client.Auth}
	return client, nil
}

// probe asks the server for an answer, and whether the keys may be read.
func (s *store) probe(ctx context.Context) error {
	p := s.history.now()
	resp, err := s.get(ctx, s.keys.base())
	if err != nil {
		return err
	}
	s.history.see(p, resp.Header)
	if len(resp.Kvs) > 0 {
		_, err = readNumber(resp.Kvs[0])
	}
	if err != nil {
		return err
	}
	status, err := do(ctx, func(ctx context.Context) (*pb.StatusResponse, error) {
		return pb.NewMaintenanceClient(s.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	})
	if err != nil {
		return ctx.Err() // a stand-in for etcd, or a user with few rights, may get no answer
	}
	return tooOld(status.Version)
}

// tooOld returns an error for a version whose leader, once deposed, still ends leases that were
// kept alive (etcd-io/etcd#15247). A stand-in for etcd may have no version.
func tooOld(is string) error {
	fixed := "3.5.13"
	if release.Older(is, "3.5") {
		fixed = "3.4.31"
	}
	if release.Numbers(is) == nil || !release.Older(is, fixed) {
		return nil
	}
	return backend.Invalid("the server is etcd %s: 3.5.13 or later is needed (of 3.4, 3.4.31), "+
		"whose leases outlive a change of the leader", is)
}
