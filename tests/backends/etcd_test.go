package backends

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
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
	run(t, conformance.Harness{
		Name: "etcd",
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link:   func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store:  etcdStore{direct},
		Server: rewinding(t, etcdServer{s}, s),
		URL:    address,
		Apart:  []conformance.Apart{etcdRoles(t)},
		Fill:   func(ctx context.Context) (func(context.Context) error, error) { return fillEtcd(ctx, direct) },
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

// etcdRoles are two users of one etcd, each with a role that has the rights on a range of keys of its own.
func etcdRoles(t *testing.T) conformance.Apart {
	t.Helper()
	e := servers.Etcd(t, servers.EtcdOptions{})
	c := etcdClient(t, e)
	_, err := c.UserAdd(t.Context(), "root", "root")
	if err == nil {
		_, err = c.UserGrantRole(t.Context(), "root", "root")
	}
	for _, tenant := range []string{"tenant0", "tenant1"} {
		if err == nil {
			_, err = c.RoleAdd(t.Context(), tenant)
		}
		if err == nil {
			_, err = c.RoleGrantPermission(t.Context(), tenant, tenant+"/",
				clientv3.GetPrefixRangeEnd(tenant+"/"),
				clientv3.PermissionType(clientv3.PermReadWrite))
		}
		if err == nil {
			_, err = c.UserAdd(t.Context(), tenant, "secret")
		}
		if err == nil {
			_, err = c.UserGrantRole(t.Context(), tenant, tenant)
		}
	}
	if err == nil {
		_, err = c.AuthEnable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Apart{
		What: "two users, each with a role for the prefix that it uses",
		Driver: func(ctx context.Context, side int, prefix string) (backend.Driver, error) {
			tenant := fmt.Sprintf("tenant%d", side)
			return backend.Open(ctx,
				"etcd://"+tenant+":secret@"+e.Addrs()[0]+"?prefix="+
					url.QueryEscape(tenant+"/"+prefix), nil)
		},
	}
}

// fillEtcd raises the alarm that a quota raises when it is used up.
func fillEtcd(ctx context.Context, c *clientv3.Client) (func(context.Context) error, error) {
	at, err := c.Get(ctx, "some key") // which is sent again until a client whose server was restarted has come back
	if err != nil {
		return nil, err
	}
	_, err = pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, MemberID: at.Header.MemberId, Alarm: pb.AlarmType_NOSPACE,
	})
	return func(ctx context.Context) error {
		_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return err
	}, err
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
