package backends

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/servers"
)

func TestEtcd(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	s := e.Servers()[0]
	direct := etcdClient(t, e)
	address := func(c conformance.Client) string {
		host := s.Addr()
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		return "etcd://" + host + "?prefix=" + url.QueryEscape(c.Prefix)
	}
	conformance.Run(t, conformance.Harness{
		Name: "etcd",
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link:   func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store:  etcdStore{direct},
		Server: etcdServer{s},
		URL:    address,
		Guard: func(_ context.Context, prefix string) (fence.Guard, error) {
			return etcd.NewGuard(direct, &etcd.Options{Prefix: prefix})
		},
		Given: func(ctx context.Context) (backend.Driver, func(context.Context) error, error) {
			c := etcdClient(t, e)
			before := slices.Clone(c.Endpoints())
			d, err := etcd.New(c, nil)
			return d, func(ctx context.Context) error {
				if !slices.Equal(before, c.Endpoints()) {
					return errors.New("its endpoints have changed")
				}
				_, err := c.Put(ctx, "still-there", "1")
				return err
			}, err
		},
	})
}

// etcdClient returns a client that knows nothing of locks.
func etcdClient(t *testing.T, e *servers.EtcdCluster) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Addrs(), TLS: e.TLSConfig(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// etcdServer adds what the suite asks.
type etcdServer struct{ *servers.Server }

func (etcdServer) KeepsData() bool { return true }

// etcdStore looks at etcd directly.
type etcdStore struct{ client *clientv3.Client }

// first returns the key of the holder: the one that was created first.
func (s etcdStore) first(ctx context.Context, prefix, name string) (key string, lease clientv3.LeaseID, err error) {
	// The names of the rules that look have nothing that is encoded.
	resp, err := s.client.Get(ctx, prefix+"~lock/"+name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(resp.Kvs) == 0 {
		return "", 0, err
	}
	return string(resp.Kvs[0].Key), clientv3.LeaseID(resp.Kvs[0].Lease), nil
}

func (s etcdStore) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	key, lease, err := s.first(ctx, prefix, name)
	if err != nil || key == "" {
		return false, 0, err
	}
	left, err := s.client.TimeToLive(ctx, lease)
	if err != nil {
		return false, 0, err
	}
	return left.TTL > 0, time.Duration(left.TTL) * time.Second, nil
}

func (s etcdStore) Take(ctx context.Context, prefix, name string) error {
	key, _, err := s.first(ctx, prefix, name)
	if err == nil && key != "" {
		_, err = s.client.Delete(ctx, key)
	}
	return err
}

// Left lists the keys of the prefix's locks and queues. The base of the tokens and the nonce of the last release are
// constant; tombstones end with their lease.
func (s etcdStore) Left(ctx context.Context, prefix string) ([]string, error) {
	resp, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var left []string
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if key != prefix+"~base" && key != prefix+"~last" && !strings.HasPrefix(key, prefix+"~gone/") {
			left = append(left, key)
		}
	}
	return left, nil
}
