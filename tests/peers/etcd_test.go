package peers

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var onEtcd = []library{{
	name: "etcd-concurrency", module: "go.etcd.io/etcd/client/v3", store: "etcd",
	settings: "a client and a session for each process",
	keeps:    true, fifo: true, token: true, lost: true, open: openEtcd,
	taken: func(err error) bool { return errors.Is(err, concurrency.ErrLocked) },
	breakIt: func(ctx context.Context, addrs []string, name string) error {
		c, err := etcdClient(addrs)
		if err != nil {
			return err
		}
		defer c.Close()
		did, err := c.Delete(ctx, "/"+name+"/", clientv3.WithPrefix())
		if err == nil && did.Deleted != 1 {
			err = errors.New("there is no key of the lock")
		}
		return err
	},
}}

func etcdClient(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

func openEtcd(ctx context.Context, addrs []string, ttl time.Duration) (client, error) {
	c, err := etcdClient(addrs)
	if err != nil {
		return client{}, err
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl.Seconds())))
	if err != nil {
		return client{}, errors.Join(err, c.Close())
	}
	return client{
		mutex: func(name string) mutex {
			m := concurrency.NewMutex(s, "/"+name)
			with := func(take func(context.Context) error) func(ctx context.Context) (hold, error) {
				return func(ctx context.Context) (hold, error) {
					if err := take(ctx); err != nil {
						return hold{}, err
					}
					return hold{
						unlock: m.Unlock, lost: s.Done(),
						token: func() int64 { return m.Header().Revision },
					}, nil
				}
			}
			return mutex{lock: with(m.Lock), try: with(m.TryLock)}
		},
		close: func() {
			_ = c.Close() // the session with it
		},
	}, nil
}
